/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a job's limit (RMM_JOB) in a folder that others may write to: what takes its place
 * while it is opened is left alone. */
#include "unit.h"

#include "folder.h"
#include "shared/job_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FIXTURE(enter_test_folder, leave_test_folder);

static const char path[] = "job";
static const char *comes; /* in the file's place, just before it is opened to be changed */

int __real_open(const char *name, int flags, ...);
int __wrap_open(const char *name, int flags, ...);
int __wrap_open64(const char *name, int flags, ...);

static int open_after_the_swap(const char *name, int flags, mode_t mode)
{
    if (comes && strcmp(name, path) == 0 && (flags & O_ACCMODE) == O_RDWR) {
        assert_int_equal(rename(comes, path), 0);
        comes = NULL;
    }
    return __real_open(name, flags, mode);
}

static mode_t mode_of(int flags, va_list more)
{
    return flags & O_CREAT ? va_arg(more, mode_t) : 0;
}

int __wrap_open(const char *name, int flags, ...)
{
    va_list more;
    int fd;

    va_start(more, flags);
    fd = open_after_the_swap(name, flags, mode_of(flags, more));
    va_end(more);
    return fd;
}

int __wrap_open64(const char *name, int flags, ...)
{
    va_list more;
    int fd;

    va_start(more, flags);
    fd = open_after_the_swap(name, flags, mode_of(flags, more));
    va_end(more);
    return fd;
}

/* The file that comes is this user's own, and empty, as a job's file is at first. */
static void swapped_for(const char *name, const char *own)
{
    struct rs_size limit = {1 << 20, RS_SIZE_BYTES};
    struct rs_job_limit *job;
    struct stat status;

    comes = name;
    assert_int_equal(rs_job_limit_open(-1, path, &limit, &job, NULL), -EACCES);
    assert_null(comes);
    assert_int_equal(stat(own, &status), 0);
    assert_int_equal(status.st_size, 0);
}

static void make_empty(const char *name)
{
    int fd = __real_open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);

    assert_true(fd >= 0);
    close(fd);
}

TEST(a_link_is_not_followed)
{
    make_empty("own");
    assert_int_equal(symlink("own", "link"), 0);
    swapped_for("link", "own");
}

TEST(another_file_is_not_changed)
{
    make_empty("other");
    swapped_for("other", path);
}
