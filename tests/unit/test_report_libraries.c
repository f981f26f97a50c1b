/* SPDX-License-Identifier: Apache-2.0 */
/* Holders by library and by size. */
#include "unit.h"

#include "base/check.h"
#include "report/libraries.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static struct rs_libraries libraries;

static int clear(void **state)
{
    (void)state;
    memset(&libraries, 0, sizeof(libraries));
    return 0;
}

FIXTURE(clear, NULL);

static void add(unsigned object, enum rs_kind kind, size_t size_bytes)
{
    rs_libraries_add(&libraries, &(struct rs_block_view){
                                     .size_bytes = size_bytes, .kind = kind, .object = object});
}

static unsigned program(void)
{
    return rs_object_of((const void *)add);
}

static unsigned libc(void)
{
    return rs_object_of(dlsym(RTLD_DEFAULT, "getpid"));
}

TEST(the_most_bytes_first)
{
    const struct rs_library *all = libraries.libraries;

    for (int i = 0; i < 3; i++)
        add(libc(), RS_KIND_DEVICE, 1000);
    add(libc(), RS_KIND_DEVICE, 600);
    add(libc(), RS_KIND_DEVICE, 5000);
    add(program(), RS_KIND_DEVICE, 9000);
    add(0, RS_KIND_DEVICE, 100);
    add(libc(), RS_KIND_MANAGED, 50);
    rs_libraries_sort(&libraries);

    assert_int_equal(libraries.count, 4);
    assert_string_equal(all[0].name, program_invocation_short_name);
    assert_int_equal(all[0].bytes, 9000);
    assert_string_equal(all[1].name, rs_object_name(libc()));
    assert_int_equal(all[1].bytes, 8600);
    assert_int_equal(all[1].blocks, 5);
    assert_null(all[2].name);
    assert_int_equal(all[3].kind, RS_KIND_MANAGED);
    assert_int_equal(all[3].bytes, 50);

    assert_int_equal(all[1].class_count, 2);
    assert_int_equal(all[1].classes[0].bytes, 5000);
    assert_int_equal(all[1].classes[1].bytes, 3600);
    assert_int_equal(all[1].classes[1].smallest_bytes, 600);
    assert_int_equal(all[1].classes[1].largest_bytes, 1000);
}

TEST(nothing_is_an_empty_list)
{
    rs_libraries_sort(&libraries);
    assert_int_equal(libraries.count, 0);
    assert_int_equal(libraries.others_blocks, 0);
}

/* Every size class of every kind in several objects: what finds no place is counted. */
TEST(more_classes_than_places)
{
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    const void *functions[] = {dlsym(RTLD_DEFAULT, "getpid"),
                               dlsym(RTLD_DEFAULT, "cmocka_set_test_filter"),
                               dlsym(RTLD_DEFAULT, "__tls_get_addr"), dlsym(libm, "cos")};
    unsigned objects[RS_ARRAY_LENGTH(functions) + 2] = {0, program()};
    size_t blocks = 0, listed = 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(functions); i++)
        objects[i + 2] = rs_object_of(functions[i]);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(objects); i++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            for (int bit = 0; bit < 63; bit++, blocks++)
                add(objects[i], (enum rs_kind)kind, (size_t)1 << bit);
    rs_libraries_sort(&libraries);
    for (size_t i = 0; i < libraries.count; i++)
        listed += libraries.libraries[i].blocks;
    assert_int_equal(listed + libraries.others_blocks, blocks);
    assert_int_equal(libraries.used, RS_SIZE_CLASSES_USED_MAX);
    assert_true(libraries.others_blocks > 0);
    dlclose(libm);
}

TEST(no_place_is_left)
{
    libraries.used = RS_SIZE_CLASSES_USED_MAX; /* as if by other objects */
    add(program(), RS_KIND_DEVICE, 1000);
    add(program(), RS_KIND_DEVICE, 10);
    assert_int_equal(libraries.others_bytes, 1010);
    assert_int_equal(libraries.others_blocks, 2);
}
