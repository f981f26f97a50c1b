/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files of a process, found by its directory in /proc.  The process is this one. */
#include "unit.h"

#include "base/lock.h"
#include "base/process.h"
#include "shared/memory_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 4096 };

static bool accept_all(int fd, const void *data)
{
    (void)data;
    return fd >= 0;
}

static bool is_inode(int fd, const void *inode)
{
    struct stat status;

    return fstat(fd, &status) == 0 && status.st_ino == *(const ino_t *)inode;
}

static int find(const char *process, const char *name, int first)
{
    return rs_memory_file_find(&(struct rs_memory_file_search){
        .process = process, .name = name, .first = first, .accepts = accept_all});
}

static ino_t inode_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return status.st_ino;
}

TEST(a_file_is_found_by_its_whole_name)
{
    void *memory;
    int fd = rs_memory_file_make("unit-file", FILE_BYTES, &memory), found;

    assert_true(fd >= 0);
    found = find("/proc/self", "unit-file", 0);
    assert_true(found >= 0);
    assert_int_equal(inode_of(found), inode_of(fd));
    close(found);
    assert_int_equal(find("/proc/self", "unit", 0), -ENODATA);
    assert_int_equal(find("/proc/self", "unit-file-2", 0), -ENODATA);
    close(fd);
    assert_int_equal(find("/proc/self", "unit-file", 0), -ENODATA);
}

TEST(a_file_that_is_not_accepted_is_passed_over)
{
    void *memory;
    int one = rs_memory_file_make("unit-file", FILE_BYTES, &memory);
    int other = rs_memory_file_make("unit-file", FILE_BYTES, &memory), found;
    ino_t wanted = inode_of(other);

    found = rs_memory_file_find(&(struct rs_memory_file_search){
        .process = "/proc/self", .name = "unit-file", .accepts = is_inode, .data = &wanted});
    assert_true(found >= 0);
    assert_int_equal(inode_of(found), wanted);
    close(found);
    close(one);
    close(other);
}

TEST(the_search_begins_at_a_descriptor_and_ends_in_time)
{
    void *memory;
    int fd = rs_memory_file_make("unit-file", FILE_BYTES, &memory), found;

    found = find("/proc/self", "unit-file", fd);
    assert_true(found >= 0);
    close(found);
    assert_int_equal(find("/proc/self", "unit-file", fd + 1), -ENODATA);
    assert_int_equal(
        rs_memory_file_find(&(struct rs_memory_file_search){.process = "/proc/self",
                                                            .name = "unit-file",
                                                            .deadline_ns = rs_clock_ns(),
                                                            .accepts = accept_all}),
        -ENODATA);
    close(fd);
}

TEST(a_process_that_is_not_there_has_none)
{
    assert_int_equal(find("/proc/0", "unit-file", 0), -ENOENT);
}

TEST(numbers_of_processes)
{
    assert_int_equal(rs_process_parse("4711"), 4711);
    assert_int_equal(rs_process_parse("0"), 0);
    assert_int_equal(rs_process_parse("-1"), 0);
    assert_int_equal(rs_process_parse(" 1"), 0);
    assert_int_equal(rs_process_parse("12a"), 0);
    assert_int_equal(rs_process_parse("99999999999999999999"), 0);
    assert_int_equal(rs_process_parse("self"), 0);
    assert_int_equal(rs_process_own_number("/proc/self"), getpid());
}
