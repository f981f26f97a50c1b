/* SPDX-License-Identifier: Apache-2.0 */
/* Output files, each claimed by one process. */
#include "unit.h"

#include "base/check.h"
#include "base/output.h"
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

static void claim(struct rs_output *output, const char *path, const char *expected)
{
    assert_int_equal(rs_output_claim(output, path), 0);
    assert_string_equal(output->path, expected);
}

static off_t size_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? status.st_size : -1;
}

static void put(struct rs_output *output, const char *text)
{
    assert_int_equal(write(output->file.fd, text, strlen(text)), strlen(text));
}

TEST(each_has_a_file_of_its_own)
{
    struct rs_output first, second, third;
    char names[2][64];

    snprintf(names[0], sizeof(names[0]), "out.%d", (int)getpid());
    snprintf(names[1], sizeof(names[1]), "out.%d.2", (int)getpid());
    claim(&first, "out", "out");
    claim(&second, "out", names[0]);
    claim(&third, "out", names[1]);
    put(&first, "x");
    rs_output_release(&first);
    claim(&first, "out", "out");
    assert_int_equal(size_of("out"), 1); /* until it is emptied */
    assert_int_equal(rs_output_empty(&first), 0);
    assert_int_equal(size_of("out"), 0);
    rs_output_release(&first);
    rs_output_release(&second);
    rs_output_release(&third);
}

TEST(names_have_an_end)
{
    struct rs_output taken[RS_OUTPUT_NAMES], one_more;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(taken); i++)
        assert_int_equal(rs_output_claim(&taken[i], "many"), 0);
    assert_int_equal(rs_output_claim(&one_more, "many"), -EBUSY);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(taken); i++)
        rs_output_release(&taken[i]);
}

TEST(release_counts_though_a_child_has_the_file_open)
{
    struct rs_output output;
    int ends[2];
    char byte;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    claim(&output, "forked", "forked");
    child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit((int)read(ends[0], &byte, 1));
    }
    close(ends[0]);
    rs_output_release(&output);
    claim(&output, "forked", "forked");
    rs_output_release(&output);
    close(ends[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* ---- a file that goes between being opened and being locked ---- */

static const char *removed_at_lock;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (removed_at_lock && operation != LOCK_UN)
        assert_int_equal(unlink(removed_at_lock), 0);
    removed_at_lock = NULL;
    return __real_flock(fd, operation);
}

TEST(a_file_that_was_removed_meanwhile_is_made_anew)
{
    struct rs_output output;

    removed_at_lock = "removed";
    claim(&output, "removed", "removed");
    put(&output, "x");
    rs_output_release(&output);
    assert_int_equal(size_of("removed"), 1);
}

TEST(only_a_new_and_empty_file_is_dropped)
{
    struct rs_output output;

    claim(&output, "dropped", "dropped");
    rs_output_drop(&output);
    assert_int_equal(size_of("dropped"), -1);
    claim(&output, "kept", "kept");
    put(&output, "x");
    rs_output_drop(&output);
    assert_int_equal(size_of("kept"), 1);
    claim(&output, "kept", "kept");
    assert_int_equal(rs_output_empty(&output), 0);
    rs_output_drop(&output);
    assert_int_equal(size_of("kept"), 0);
}

TEST(a_device_file_may_have_many_writers)
{
    struct rs_output first, second;

    claim(&first, "/dev/null", "/dev/null");
    claim(&second, "/dev/null", "/dev/null");
    assert_int_equal(rs_output_empty(&first), 0);
    rs_output_drop(&first);
    rs_output_release(&second);
    assert_int_equal(access("/dev/null", F_OK), 0);
}

TEST(a_standard_stream_may_have_many_writers_though_it_is_a_file)
{
    struct rs_output first, second;
    int saved = dup(STDERR_FILENO), fd = open("stderr", O_WRONLY | O_CREAT, 0600);

    assert_int_equal(write(fd, "x", 1), 1);
    dup2(fd, STDERR_FILENO);
    claim(&first, "/dev/stderr", "/dev/stderr");
    claim(&second, "/dev/stderr", "/dev/stderr");
    assert_int_equal(rs_output_empty(&first), 0);
    dup2(saved, STDERR_FILENO);
    assert_int_equal(size_of("stderr"), 1);
    rs_output_drop(&first);
    rs_output_release(&second);
    close(saved);
    close(fd);
}

TEST(a_number_that_is_another_files_is_left_alone)
{
    struct rs_output output;
    int fd;

    claim(&output, "closed", "closed");
    fd = output.file.fd;
    assert_int_equal(dup2(STDERR_FILENO, fd), fd);
    rs_output_release(&output);
    assert_int_equal(close(fd), 0); /* it was open still */
}

TEST(what_cannot_be_opened_says_why)
{
    struct rs_output output;
    char long_path[PATH_MAX + 10];

    memset(long_path, 'x', sizeof(long_path));
    long_path[sizeof(long_path) - 1] = '\0';
    assert_int_equal(rs_output_claim(&output, "no/such/parent"), -ENOENT);
    assert_int_equal(rs_output_claim(&output, long_path), -ENAMETOOLONG);
}
