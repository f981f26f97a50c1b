/* SPDX-License-Identifier: Apache-2.0 */
/* Published memory, which other processes may read. */
#include "unit.h"

#include "base/check.h"
#include "shared/published.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct thing {
    _Alignas(128) uint64_t count;
    char more[1000];
};

enum { HEAD_BYTES = 5000 };

static int begin(void **state)
{
    (void)state;
    return rs_published_begin(HEAD_BYTES);
}

static int end(void **state)
{
    (void)state;
    rs_published_forget();
    return 0;
}

TEST(without_a_file_it_is_the_heap)
{
    struct thing *thing = RS_PUBLISHED_NEW(struct thing);

    assert_null(rs_published_head());
    assert_non_null(thing);
    assert_int_equal((uintptr_t)thing % _Alignof(struct thing), 0);
    assert_int_equal(rs_published_offset(thing), 0);
    assert_int_equal(thing->count, 0);
    rs_published_free(thing);
    rs_published_free(NULL);
}

/* As who holds the file reads it. */
TEST_WITH(begin, end, others_read_it_in_the_file)
{
    struct thing *thing = RS_PUBLISHED_NEW(struct thing), read = {0};

    assert_int_equal((uintptr_t)thing % _Alignof(struct thing), 0);
    assert_true(rs_published_offset(thing) >= HEAD_BYTES);
    thing->count = 17;
    assert_int_equal(
        pread(rs_published_file()->fd, &read, sizeof(read), (off_t)rs_published_offset(thing)),
        sizeof(read));
    assert_int_equal(read.count, 17);
    rs_published_free(thing);
}

TEST_WITH(begin, end, what_is_freed_comes_back_zeroed)
{
    struct thing *first = RS_PUBLISHED_NEW(struct thing), *second;

    memset(first, 0xff, sizeof(*first));
    rs_published_free(first);
    second = RS_PUBLISHED_NEW(struct thing);
    assert_ptr_equal(first, second);
    for (size_t i = 0; i < sizeof(second->more); i++)
        assert_int_equal(second->more[i], 0);
    rs_published_free(second);
}

#if !defined(NDEBUG) || defined(RS_KEEP_ASSERTS)
TEST(what_is_freed_twice_aborts)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct thing *thing;
        signal(SIGABRT, SIG_DFL); /* cmocka's handler goes on with the next test */
        close(STDERR_FILENO);
        if (rs_published_begin(HEAD_BYTES) != 0)
            _exit(1);
        thing = RS_PUBLISHED_NEW(struct thing);
        rs_published_free(thing);
        rs_published_free(thing);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
#endif

TEST_WITH(begin, end, things_do_not_overlap)
{
    unsigned char *things[200];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(things); i++) {
        things[i] = rs_published_allocate(1 + i * 7, 1);
        assert_true(rs_published_offset(things[i]) > 0);
        memset(things[i], (int)i, 1 + i * 7);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(things); i++) {
        for (size_t at = 0; at < 1 + i * 7; at++)
            assert_int_equal(things[i][at], i);
        rs_published_free(things[i]);
    }
}

TEST_WITH(begin, end, a_full_file_leaves_the_heap)
{
    void *most = rs_published_allocate(RS_PUBLISHED_BYTES - (1 << 20), 16);
    void *more = rs_published_allocate(2 << 20, 16);

    assert_true(rs_published_offset(most) > 0);
    assert_non_null(more);
    assert_int_equal(rs_published_offset(more), 0);
    rs_published_free(more);
    rs_published_free(most);
}

TEST_WITH(begin, end, nobody_else_writes_to_it)
{
    int fd = rs_published_file()->fd;

    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(errno, EPERM);
#ifdef __x86_64__ /* qemu's madvise and kernels before 5.1 do not know the rest */
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EPERM);
#endif
}

TEST(a_file_that_may_not_grow_is_no_signal)
{
    struct rlimit before, none = {1 << 20, 1 << 20};
    pid_t child = fork();
    int status;

    if (child == 0) {
        rs_published_forget();
        if (getrlimit(RLIMIT_FSIZE, &before) != 0 || setrlimit(RLIMIT_FSIZE, &none) != 0)
            _exit(1);
        _exit(rs_published_begin(HEAD_BYTES) == -EFBIG && !rs_published_head() ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
