/* SPDX-License-Identifier: Apache-2.0 */
/* File names with placeholders, and which files may be opened as outputs. */
#include "unit.h"

#include "base/check.h"
#include "base/output.h"
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

static const char *const rank_names[] = {"SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK",
                                         "RANK"};

/* ---- placeholders ---- */

TEST(expands_every_placeholder)
{
    char pid[32], host[256], expected[1024];
    struct {
        const char *pattern, *expected;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"/a/b.csv", "/a/b.csv"},
        {"%%", "%"},
        {"100%%.%%", "100%.%"},
        {"%p", pid},
        {"%h", host},
        {"%e", program_invocation_short_name},
        {"%q{RS_TEST}", "a/b"},
        {"%q{RS_EMPTY}", ""},
        {"x%q{RS_TEST}y", "xa/by"},
        {"%r", "0"},
        {"%q{RS_TEST}/%%%h.%p.log", expected},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(rank_names); i++)
        unsetenv(rank_names[i]);
    setenv("RS_TEST", "a/b", 1);
    setenv("RS_EMPTY", "", 1);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    assert_int_equal(gethostname(host, sizeof(host)), 0);
    snprintf(expected, sizeof(expected), "a/b/%%%s.%s.log", host, pid);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char path[4096];
        const char *at, *reason;
        assert_true(rs_path_expand(cases[i].pattern, path, sizeof(path), &at, &reason));
        assert_string_equal(path, cases[i].expected);
    }
}

TEST(rank_comes_from_the_first_launcher_that_says)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rank_names); i++)
        unsetenv(rank_names[i]);
    setenv("RANK", "", 1);                                     /* set but empty does not say */
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rank_names); i++) { /* each outranks those before it */
        char value[16], path[64];
        const char *at, *reason;
        snprintf(value, sizeof(value), "%zu", i + 10);
        setenv(rank_names[i], value, 1);
        assert_true(rs_path_expand("%r", path, sizeof(path), &at, &reason));
        assert_string_equal(path, value);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rank_names); i++)
        unsetenv(rank_names[i]);
}

/* The linker leads the library's clock here: it is set while the process runs. */
static time_t set_forward_s;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);

    if (clock == CLOCK_REALTIME)
        now->tv_sec += set_forward_s;
    return result;
}

TEST(start_time_is_that_of_this_process_and_stays)
{
    char first[64], second[64];
    const char *at, *reason;
    long long seconds;

    assert_true(rs_path_expand("%t", first, sizeof(first), &at, &reason));
    seconds = strtoll(first, NULL, 10);
    assert_in_range(seconds, time(NULL) - 3600, time(NULL) + 1); /* this test may have waited */
    set_forward_s = 100;
    assert_true(rs_path_expand("%t", second, sizeof(second), &at, &reason));
    assert_string_equal(first, second);
    set_forward_s = 0;
}

TEST(says_which_placeholder_is_wrong)
{
    static const struct {
        const char *pattern;
        size_t at;
        const char *reason; /* a part of it */
    } cases[] = {
        {"%", 0, "unknown placeholder"},      {"abc%", 3, "unknown placeholder"},
        {"%x", 0, "unknown placeholder"},     {"%P", 0, "unknown placeholder"},
        {"%p%%%y", 4, "unknown placeholder"}, {"%q", 0, "%q{VARIABLE}"},
        {"%qHOME", 0, "%q{VARIABLE}"},        {"%q{", 0, "%q{VARIABLE}"},
        {"%q{HOME", 0, "%q{VARIABLE}"},       {"a%q{}", 1, "%q{VARIABLE}"},
        {"a%q{RS_UNSET}", 1, "not set"},
    };
    char long_name[400] = "%q{", path[4096] = "before";
    const char *at, *reason;

    unsetenv("RS_UNSET");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        if (rs_path_expand(cases[i].pattern, path, sizeof(path), &at, &reason))
            fail_msg("'%s' was taken", cases[i].pattern);
        if (at != cases[i].pattern + cases[i].at || !strstr(reason, cases[i].reason))
            fail_msg("'%s' at %zd: %s", cases[i].pattern, at - cases[i].pattern, reason);
    }
    memset(long_name + 3, 'A', 300);
    strcpy(long_name + 303, "}");
    assert_false(rs_path_expand(long_name, path, sizeof(path), &at, &reason));
}

TEST(a_device_s_number_stands_before_the_ending)
{
    static const char *const cases[][2] = {{"a.csv", "a.dev1.csv"}, {"a", "a.dev1"},
                                           {"b.d/a", "b.d/a.dev1"}, {".a", ".a.dev1"},
                                           {"b/.a", "b/.a.dev1"},   {".a.csv", ".a.dev1.csv"}};
    char path[64];
    const char *at, *reason;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        assert_true(rs_path_expand_for_device(cases[i][0], 1, path, sizeof(path), &at, &reason));
        assert_string_equal(path, cases[i][1]);
    }
}

TEST(only_variables_are_expanded)
{
    static const char text[] = "%p 5%q";
    char path[64];
    const char *at, *reason;

    assert_true(rs_path_expand_variables(text, text + 5, path, sizeof(path), &at, &reason));
    assert_string_equal(path, "%p 5%");
}

TEST(what_does_not_fit_is_refused_not_cut)
{
    char path[8];
    const char *at, *reason;

    setenv("RS_TEST", "1234", 1);
    assert_true(rs_path_expand("1234567", path, sizeof(path), &at, &reason));
    assert_string_equal(path, "1234567");
    assert_false(rs_path_expand("12345678", path, sizeof(path), &at, &reason));
    assert_non_null(strstr(reason, "too long"));
    assert_true(rs_path_expand("%q{RS_TEST}567", path, sizeof(path), &at, &reason));
    assert_false(rs_path_expand("%q{RS_TEST}5678", path, sizeof(path), &at, &reason));
    assert_false(rs_path_expand("%%%%%%%%%%%%%%%%", path, sizeof(path), &at, &reason));
    assert_true(rs_path_expand("", path, 1, &at, &reason));
    assert_false(rs_path_expand("x", path, 1, &at, &reason));
}

TEST(relative_paths_start_where_the_program_was)
{
    char directory[4096], path[4096], expected[8192], small[8];
    const char *at, *reason;

    setenv("RS_TEST", "/a", 1);
    assert_non_null(getcwd(directory, sizeof(directory)));
    rs_path_keep_directory();
    assert_int_equal(chdir("/"), 0);
    assert_true(rs_path_expand("%%/b.csv", path, sizeof(path), &at, &reason));
    snprintf(expected, sizeof(expected), "%s/%%/b.csv", directory);
    assert_string_equal(path, expected);
    assert_true(rs_path_expand("%q{RS_TEST}/b", path, sizeof(path), &at, &reason));
    assert_string_equal(path, "/a/b");
    assert_true(rs_path_expand("", path, sizeof(path), &at, &reason));
    assert_string_equal(path, "");
    assert_false(rs_path_expand("b.csv", small, sizeof(small), &at, &reason));
    assert_non_null(strstr(reason, "too long"));

    /* What the other tests expand is as it was given: as where the directory cannot be named. */
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(mkdir("removed", 0700), 0);
    assert_int_equal(chdir("removed"), 0);
    snprintf(expected, sizeof(expected), "%s/removed", directory);
    assert_int_equal(rmdir(expected), 0);
    rs_path_keep_directory();
    assert_true(rs_path_expand("b.csv", path, sizeof(path), &at, &reason));
    assert_string_equal(path, "b.csv");
    assert_int_equal(chdir(directory), 0);
}

/* ---- outputs ---- */

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static off_t size_of(const char *name)
{
    struct stat status;

    assert_int_equal(stat(name, &status), 0);
    return status.st_size;
}

TEST(a_new_file_is_private_and_high_and_closed_on_exec)
{
    mode_t mask = umask(0);
    int fd = rs_path_open_output("new");
    struct stat status;

    umask(mask);
    assert_true(fd >= 500);
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

TEST(an_old_file_is_emptied)
{
    int fd;

    write_file("old", "something");
    fd = rs_path_open_output("old");
    assert_true(fd >= 0);
    assert_int_equal(size_of("old"), 0);
    close(fd);
}

TEST(an_untouched_file_keeps_its_text)
{
    bool created;
    int fd;

    write_file("old", "something");
    fd = rs_path_open_untouched("old", &created);
    assert_true(fd >= 0);
    assert_false(created);
    assert_int_equal(size_of("old"), 9);
    close(fd);
    unlink("old");
    fd = rs_path_open_untouched("old", &created);
    assert_true(fd >= 0);
    assert_true(created);
    close(fd);
}

TEST(what_is_not_a_file_of_ours_is_refused_untouched)
{
    write_file("target", "precious");
    assert_int_equal(symlink("target", "link"), 0);
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    assert_int_equal(link("target", "second"), 0);
    assert_int_equal(mkdir("subdirectory", 0700), 0);

    assert_int_equal(rs_path_open_output("link"), -ELOOP);
    assert_true(rs_path_open_output("dangling") < 0);
    assert_int_equal(access("nowhere", F_OK), -1);
    assert_int_equal(rs_path_open_output("second"), -EMLINK);
    assert_int_equal(size_of("target"), 8);
    assert_int_equal(rs_path_open_output("subdirectory"), -EISDIR);
    assert_int_equal(rs_path_open_output("subdirectory/"), -EISDIR);
    assert_int_equal(rs_path_open_output("no/such/parent"), -ENOENT);
    assert_int_equal(rs_path_open_output(""), -ENOENT);
    if (geteuid() != 0)
        assert_int_equal(rs_path_open_output("/etc/rs-test"), -EACCES);
}

TEST(somebody_elses_file_is_refused)
{
    write_file("old", "theirs");
    if (geteuid() != 0)
        return; /* only root can make such a file */
    assert_int_equal(chown("old", 12345, 12345), 0);
    assert_int_equal(rs_path_open_output("old"), -EPERM);
    assert_int_equal(size_of("old"), 6);
}

/* Opening one must not wait either: the test's timeout would tell. */
TEST(a_fifo_is_refused_with_and_without_a_reader)
{
    int reader;

    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(rs_path_open_output("fifo"), -EINVAL);
    reader = open("fifo", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(rs_path_open_output("fifo"), -EINVAL);
    close(reader);
}

TEST(devices_are_allowed)
{
    int fd = rs_path_open_output("/dev/null");

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

/* Also when it leads to a pipe, or to a file, which then is not truncated. */
TEST(standard_streams_are_duplicated)
{
    int ends[2], saved = dup(STDOUT_FILENO), fd;
    char byte = 0;

    fflush(stdout);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDOUT_FILENO);
    fd = rs_path_open_output("/dev/stdout");
    dup2(saved, STDOUT_FILENO);
    assert_true(fd >= 500);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');
    close(fd);
    close(ends[0]);
    close(ends[1]);

    write_file("old", "something");
    unlink("old");
    write_file("old", "something");
    ends[1] = open("old", O_WRONLY | O_APPEND);
    dup2(ends[1], STDOUT_FILENO);
    fd = rs_path_open_output("/dev/stdout");
    dup2(saved, STDOUT_FILENO);
    assert_true(fd >= 0);
    assert_int_equal(size_of("old"), 9);
    close(fd);
    close(ends[1]);
    close(saved);
}

TEST(few_descriptors_are_enough)
{
    struct rlimit before, few;
    int fd;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){64, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    fd = rs_path_open_output("new");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_in_range(fd, 3, 63);
    close(fd);
}
