/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that ask for memory, and objects that come in their place. */
#include "unit.h"

#include "base/check.h"
#include "folder.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 2000, PATH_BYTES = 4096 };

static const void *here(void)
{
    return (const void *)here;
}

static const void *in_libc(void)
{
    return dlsym(RTLD_DEFAULT, "getpid");
}

TEST(the_program_and_a_library)
{
    unsigned program = rs_object_of(here()), libc = rs_object_of(in_libc());

    assert_int_not_equal(program, libc);
    assert_string_equal(rs_object_name(program), program_invocation_short_name);
    assert_memory_equal(rs_object_name(libc), "lib", 3);
    assert_int_equal(rs_object_of((const char *)here() + 1), program);
    assert_int_equal(rs_object_of(in_libc()), libc);
}

TEST(memory_that_no_object_holds)
{
    char on_stack = 0;

    assert_int_equal(rs_object_of(&on_stack), 0);
    assert_null(rs_object_name(0));
    assert_int_equal(rs_object_identity(&on_stack), 0);
}

static void *ask(void *data)
{
    unsigned *numbers = data;

    for (int i = 0; i < ROUNDS; i++) {
        numbers[0] = rs_object_of((const char *)here() + i % 16);
        numbers[1] = rs_object_of(in_libc());
        rs_object_review();
    }
    return NULL;
}

TEST(threads_get_the_same_numbers)
{
    pthread_t threads[THREADS];
    unsigned numbers[THREADS][2];

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, numbers[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(numbers[i][0], rs_object_of(here()));
        assert_int_equal(numbers[i][1], rs_object_of(in_libc()));
    }
    assert_non_null(rs_object_name(rs_object_of(here())));
}

/* More callers than are remembered. */
TEST(a_caller_has_the_number_of_its_object)
{
    unsigned libc = rs_object_of(in_libc());

    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4096; i++)
            assert_int_equal(rs_object_of_caller((const char *)in_libc() + i), libc);
    assert_int_equal(rs_object_of_caller(here()), rs_object_of(here()));
    assert_int_equal(rs_object_of_caller(&libc), 0);
}

/* As memory of a program's own may lie, where it asks the kernel for it. */
TEST(a_caller_beyond_all_objects_is_none_of_theirs)
{
    const char *near = in_libc();

    assert_int_not_equal(rs_object_of_caller(near), 0);
    for (uintptr_t i = 1; i < 1024; i++) /* some of them in the same place of the table */
        assert_int_equal(rs_object_of_caller(near + (i << 48)), 0);
}

/* ---- objects that go ---- */

/* A library that nothing else has loaded, under a name of the test's. */
static void copy_library(const char *to)
{
    static char bytes[1 << 16];
    struct link_map *map;
    void *handle = dlopen("libutil.so.1", RTLD_NOW); /* of glibc 2.34 and newer: nearly nothing */
    FILE *from, *into = fopen(to, "w");
    size_t count;

    assert_non_null(handle);
    assert_int_equal(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
    from = fopen(map->l_name, "r");
    assert_true(from && into);
    while ((count = fread(bytes, 1, sizeof(bytes), from)) > 0)
        assert_int_equal(fwrite(bytes, 1, count, into), count);
    fclose(from);
    fclose(into);
    dlclose(handle);
}

static char first_path[PATH_BYTES], second_path[PATH_BYTES];

static int make_libraries(void **state)
{
    assert_int_equal(enter_test_folder(state), 0);
    snprintf(first_path, sizeof(first_path), "%s/libfirst.so", test_folder);
    snprintf(second_path, sizeof(second_path), "%s/libsecond.so", test_folder);
    copy_library(first_path);
    copy_library(second_path);
    return 0;
}

/* Its dynamic section, as it has no function. */
static const void *load(const char *path, void **handle)
{
    struct link_map *map;

    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(*handle);
    assert_int_equal(dlinfo(*handle, RTLD_DI_LINKMAP, &map), 0);
    return map->l_ld;
}

TEST_WITH(make_libraries, leave_test_folder, a_name_outlives_its_object)
{
    void *handle;
    const void *address = load(first_path, &handle);
    unsigned number = rs_object_of(address);

    assert_string_equal(rs_object_name(number), "libfirst.so");
    dlclose(handle);
    assert_int_equal(rs_object_of(address), 0);
    rs_object_review();
    assert_string_equal(rs_object_name(number), "libfirst.so");
}

/* A library that stayed would be the one that the next test copies: both have libutil's name. */
static bool is_elsewhere(const void *address, const void *before, void *handle)
{
    if (address == before)
        return false;
    dlclose(handle);
    print_message("left out: the second library lies elsewhere\n");
    return true;
}

/* In the same place: its callers may have the addresses of the first one's. */
TEST_WITH(make_libraries, leave_test_folder, a_replaced_object_has_no_name)
{
    void *handle;
    const void *address = load(first_path, &handle), *again;
    unsigned first = rs_object_of(address), second;

    dlclose(handle);
    again = load(second_path, &handle);
    if (is_elsewhere(again, address, handle))
        return;
    second = rs_object_of(again);
    assert_int_not_equal(first, second);
    assert_string_equal(rs_object_name(second), "libsecond.so");
    assert_null(rs_object_name(first));
    dlclose(handle);

    /* Nor gets it that number back. */
    address = load(first_path, &handle);
    assert_int_not_equal(rs_object_of(address), first);
    assert_string_equal(rs_object_name(rs_object_of(address)), "libfirst.so");
    assert_null(rs_object_name(second));
    dlclose(handle);
}

TEST_WITH(make_libraries, leave_test_folder, a_review_alone_finds_what_was_replaced)
{
    void *handle;
    const void *address = load(second_path, &handle), *again;
    unsigned number = rs_object_of(address);

    dlclose(handle);
    again = load(first_path, &handle);
    if (is_elsewhere(again, address, handle))
        return;
    assert_string_equal(rs_object_name(number), "libsecond.so");
    rs_object_review();
    assert_null(rs_object_name(number));
    dlclose(handle);
}

TEST_WITH(make_libraries, leave_test_folder, a_caller_keeps_its_number_until_its_object_is_replaced)
{
    void *handle;
    const void *address = load(first_path, &handle), *again;
    unsigned number = rs_object_of_caller(address);

    assert_string_equal(rs_object_name(number), "libfirst.so");
    dlclose(handle);
    assert_int_equal(rs_object_of(address), 0);
    assert_int_equal(rs_object_of_caller(address), number); /* the loader is not asked again */
    again = load(second_path, &handle);
    if (is_elsewhere(again, address, handle))
        return;
    assert_int_equal(rs_object_of_caller(address), number);
    rs_object_review();
    assert_string_equal(rs_object_name(rs_object_of_caller(address)), "libsecond.so");
    assert_string_equal(rs_object_name(rs_object_of_caller(address)), "libsecond.so");
    dlclose(handle);
}
