/* SPDX-License-Identifier: Apache-2.0 */
/* Holders by library and by size. */
#include "unit.h"

#include "base/check.h"
#include "report/holders.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static struct rs_holders holders;
static struct rs_library libraries[RS_HOLDERS_USED_MAX];

static int clear(void **state)
{
    (void)state;
    memset(&holders, 0, sizeof(holders));
    return 0;
}

FIXTURE(clear, NULL);

static void add(unsigned object, enum rs_kind kind, size_t size_bytes)
{
    rs_holders_add_block(&holders, &(struct rs_block_view){
                                       .size_bytes = size_bytes, .kind = kind, .object = object});
}

/* Returns the number of `libraries`. */
static size_t sort(void)
{
    const struct rs_holder *at = holders.places, *end = at + rs_holders_sort(&holders, true);
    size_t count = 0;

    for (; at < end; at += libraries[count++].size_count)
        libraries[count] = rs_holders_library(at, end);
    return count;
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
    for (int i = 0; i < 3; i++)
        add(libc(), RS_KIND_DEVICE, 1000);
    add(libc(), RS_KIND_DEVICE, 600);
    add(libc(), RS_KIND_DEVICE, 5000);
    add(program(), RS_KIND_DEVICE, 9000);
    add(0, RS_KIND_DEVICE, 100);
    add(libc(), RS_KIND_MANAGED, 50);

    assert_int_equal(sort(), 4);
    assert_string_equal(libraries[0].name, program_invocation_short_name);
    assert_int_equal(libraries[0].amount.bytes, 9000);
    assert_string_equal(libraries[1].name, rs_object_name(libc()));
    assert_int_equal(libraries[1].amount.bytes, 8600);
    assert_int_equal(libraries[1].amount.blocks, 5);
    assert_null(libraries[2].name);
    assert_int_equal(libraries[3].kind, RS_KIND_MANAGED);
    assert_int_equal(libraries[3].amount.bytes, 50);

    assert_int_equal(libraries[1].size_count, 2);
    assert_int_equal(libraries[1].sizes[0].amount.bytes, 5000);
    assert_int_equal(libraries[1].sizes[1].amount.bytes, 3600);
    assert_int_equal(libraries[1].sizes[1].smallest_bytes, 600);
    assert_int_equal(libraries[1].sizes[1].largest_bytes, 1000);
}

TEST(nothing_is_an_empty_list)
{
    assert_int_equal(sort(), 0);
    assert_int_equal(holders.others.blocks, 0);
}

/* Every size class of every kind on several devices: what finds no place is counted. */
TEST(more_sizes_than_places)
{
    unsigned objects[] = {0, program(), libc()};
    size_t blocks = 0, listed = 0, count;

    for (int device = 0; device < 4; device++)
        for (size_t i = 0; i < RS_ARRAY_LENGTH(objects); i++)
            for (int kind = 0; kind < RS_KINDS; kind++)
                for (int bit = 0; bit < 63; bit++, blocks++)
                    rs_holders_add_block(&holders,
                                         &(struct rs_block_view){.size_bytes = (size_t)1 << bit,
                                                                 .device = device,
                                                                 .kind = (enum rs_kind)kind,
                                                                 .object = objects[i]});
    count = sort();
    for (size_t i = 0; i < count; i++)
        listed += libraries[i].amount.blocks;
    assert_int_equal(listed + holders.others.blocks, blocks);
    assert_int_equal(holders.used, RS_HOLDERS_USED_MAX);
    assert_true(holders.others.blocks > 0);
}

TEST(no_place_is_left)
{
    holders.used = RS_HOLDERS_USED_MAX; /* as if by other objects */
    add(program(), RS_KIND_DEVICE, 1000);
    add(program(), RS_KIND_DEVICE, 10);
    assert_int_equal(holders.others.bytes, 1010);
    assert_int_equal(holders.others.blocks, 2);
}
