/* SPDX-License-Identifier: Apache-2.0 */
/* logging: RMM's CSV to the byte, and files that cannot be written. */
#include "unit.h"

#include "fake_leaf.h"
#include "folder.h"
#include "resource/adaptor/logging.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static time_t begun; /* no row is older */

static int begin(void **state)
{
    begun = time(NULL);
    return enter_test_folder(state);
}

GROUP_FIXTURE(begin, leave_test_folder);

#define PLENTY ((size_t)1 << 50)

struct log {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
    char path[400];
};

static struct log open_log(const char *name, const char *flush, CUdevice device)
{
    struct log log = {.leaf = fake_leaf_create(PLENTY)};
    struct rs_environment environment = fake_environment;
    char option[450];
    int error;

    environment.device = device;
    snprintf(log.path, sizeof(log.path), "%s/%s", test_folder, name);
    snprintf(option, sizeof(option), "path=%s", log.path);
    log.mr = make_resource_at(&environment, &rs_mr_descriptor_logging, &log.leaf->base,
                              OPTIONS(option, flush), &error);
    assert_non_null(log.mr);
    return log;
}

static struct rs_allocation take(struct log *log, size_t size_bytes, CUstream stream)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(log->mr, size_bytes, stream, &allocation), CUDA_SUCCESS);
    return allocation;
}

static void give(struct log *log, const struct rs_allocation *allocation, CUstream stream)
{
    assert_int_equal(rs_mr_deallocate(log->mr, allocation, stream), CUDA_SUCCESS);
}

/* The file's whole text, empty when there is none. */
static const char *text_of(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

    if (file)
        fclose(file);
    text[length] = '\0';
    return text;
}

#define HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

/* Checks thread and time of a row, and that the rest is as expected; returns the next row. */
static const char *assert_row(const char *row, const char *expected_rest)
{
    const char *end = strchr(row, '\n');
    int thread, hours, minutes, seconds, micros, age, length = 0;
    char rest[200], again[64];
    struct tm now;
    time_t seconds_now = time(NULL);

    assert_non_null(end);
    assert_int_equal(
        sscanf(row, "%d,%2d:%2d:%2d.%6d,%n", &thread, &hours, &minutes, &seconds, &micros, &length),
        5);
    snprintf(again, sizeof(again), "%d,%02d:%02d:%02d.%06d,", thread, hours, minutes, seconds,
             micros);
    assert_memory_equal(row, again, strlen(again));
    assert_int_equal(length, strlen(again));
    assert_int_equal(thread, gettid());
    localtime_r(&seconds_now, &now);
    /* time() reads a coarser clock, which may be a tick behind, in the second before: even in the
     * day before. */
    age = (now.tm_hour - hours) * 3600 + (now.tm_min - minutes) * 60 + now.tm_sec - seconds;
    assert_in_range((age + 1 + 86400) % 86400, 0, seconds_now - begun + 1);
    snprintf(rest, sizeof(rest), "%.*s", (int)(end - row) - length, row + length);
    assert_string_equal(rest, expected_rest);
    return end + 1;
}

TEST(rows_are_rmms_to_the_byte)
{
    struct log log = open_log("rows.csv", NULL, 0);
    struct rs_allocation first = take(&log, 1048577, NULL);
    struct rs_allocation second = take(&log, 1, (CUstream)(uintptr_t)1);
    struct rs_allocation failed;
    char row[200];
    const char *at;

    give(&log, &first, NULL);
    give(&log, &second, (CUstream)(uintptr_t)0x55d0deadbeef);
    assert_int_equal(rs_mr_allocate(log.mr, (size_t)1 << 60, (CUstream)(uintptr_t)2, &failed),
                     CUDA_ERROR_OUT_OF_MEMORY);
    rs_mr_destroy(log.mr, false);

    at = text_of(log.path);
    assert_memory_equal(at, HEADER, strlen(HEADER));
    at += strlen(HEADER);
    snprintf(row, sizeof(row), "allocate,0x%llx,1048577,0", first.address);
    at = assert_row(at, row);
    snprintf(row, sizeof(row), "allocate,0x%llx,1,0x1", second.address);
    at = assert_row(at, row);
    snprintf(row, sizeof(row), "free,0x%llx,1048577,0", first.address);
    at = assert_row(at, row);
    snprintf(row, sizeof(row), "free,0x%llx,1,0x55d0deadbeef", second.address);
    at = assert_row(at, row);
    at = assert_row(at, "allocate failure,(nil),1152921504606846976,0x2");
    assert_string_equal(at, "");
}

static const char *assert_number_row(const char *row, size_t size_bytes, uintptr_t stream)
{
    char expected[100];

    snprintf(expected, sizeof(expected), "allocate failure,(nil),%zu,%p", size_bytes,
             (void *)stream);
    return assert_row(row, expected);
}

/* Sizes and streams of every length. */
TEST(numbers_are_written_as_printf_does)
{
    struct log log = open_log("numbers.csv", NULL, 0);
    struct rs_allocation none;
    const char *at;

    log.leaf->capacity_bytes = 0;
    for (size_t size = 1; size <= 1100; size++)
        (void)rs_mr_allocate(log.mr, size, (CUstream)(uintptr_t)size, &none);
    for (size_t size = 1; size < SIZE_MAX / 10; size *= 10) {
        (void)rs_mr_allocate(log.mr, size, (CUstream)(uintptr_t)(size * 9), &none);
        (void)rs_mr_allocate(log.mr, size * 10 - 1, (CUstream)(uintptr_t)(SIZE_MAX / size), &none);
    }
    rs_mr_destroy(log.mr, false);

    at = text_of(log.path) + strlen(HEADER);
    for (size_t size = 1; size <= 1100; size++)
        at = assert_number_row(at, size, size);
    for (size_t size = 1; size < SIZE_MAX / 10; size *= 10) {
        at = assert_number_row(at, size, size * 9);
        at = assert_number_row(at, size * 10 - 1, SIZE_MAX / size);
    }
    assert_string_equal(at, "");
}

/* The linker leads the library's clock here. */
static bool is_early_in_its_second;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);

    if (is_early_in_its_second)
        now->tv_nsec = 1020999;
    return result;
}

TEST(microseconds_keep_their_zeros)
{
    struct log log = open_log("zeros.csv", NULL, 0);
    const char *at;

    is_early_in_its_second = true;
    (void)take(&log, 100, NULL);
    is_early_in_its_second = false;
    rs_mr_destroy(log.mr, false);
    at = strchr(text_of(log.path) + strlen(HEADER), ',') + 1;
    assert_memory_equal(at + 8, ".001020,", 8);
}

static size_t size_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? (size_t)status.st_size : SIZE_MAX;
}

static const char *part_of(const struct log *log)
{
    static char path[450];

    snprintf(path, sizeof(path), "%s.part", log->path);
    return path;
}

static size_t lines_of(const char *path)
{
    size_t lines = 0;

    for (const char *at = text_of(path); *at; at++)
        lines += *at == '\n';
    return lines;
}

TEST(rows_are_buffered_until_flushed)
{
    struct log log = open_log("buffered.csv", NULL, 0);
    struct log other = open_log("buffered.csv", NULL, 0);
    struct rs_allocation allocation = take(&log, 100, NULL);

    assert_int_equal(lines_of(log.path), 1); /* the header, so that the file can be read */
    assert_non_null(strstr(text_of(part_of(&log)), ",allocate,"));
    rs_mr_destroy(other.mr, false);
    assert_non_null(strstr(text_of(log.path), ",allocate,"));
    give(&log, &allocation, NULL);
    for (unsigned i = 0; i < 2000; i++) {
        allocation = take(&log, 100, NULL);
        give(&log, &allocation, NULL);
    }
    assert_in_range(size_of(log.path), 64 << 10, 4 << 20);
    rs_mr_destroy(log.mr, false);
}

TEST(without_a_part_each_row_is_written_at_once)
{
    char name[252];
    struct log log;

    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0'; /* with ".part" it would be too long for a file's name */
    log = open_log(name, NULL, 0);
    (void)take(&log, 100, NULL);
    assert_int_equal(lines_of(log.path), 2);
    (void)take(&log, 100, NULL);
    assert_int_equal(lines_of(log.path), 3);
    rs_mr_destroy(log.mr, false);
}

TEST(auto_flush_writes_each_row)
{
    struct log log = open_log("flush.csv", "auto_flush=1", 0);

    (void)take(&log, 100, NULL);
    assert_non_null(strstr(text_of(log.path), ",allocate,"));
    rs_mr_destroy(log.mr, false);
}

TEST(stacks_share_a_file_and_a_later_one_goes_on)
{
    struct log first = open_log("shared.csv", NULL, 0), second = open_log("shared.csv", NULL, 0);

    (void)take(&first, 1, NULL);
    (void)take(&second, 2, NULL);
    rs_mr_destroy(first.mr, false);
    rs_mr_destroy(second.mr, false);
    first = open_log("shared.csv", NULL, 0);
    (void)take(&first, 3, NULL);
    rs_mr_destroy(first.mr, false);
    assert_int_equal(lines_of(first.path), 4);
}

TEST(further_devices_have_files_of_their_own)
{
    struct log log = open_log("device.csv", NULL, 3), bare;
    char path[160];

    snprintf(path, sizeof(path), "%s/x.y", test_folder); /* not an extension */
    assert_int_equal(mkdir(path, 0700), 0);
    bare = open_log("x.y/../bare", NULL, 1);
    rs_mr_destroy(log.mr, false);
    rs_mr_destroy(bare.mr, false);
    snprintf(path, sizeof(path), "%s/device.dev3.csv", test_folder);
    assert_string_equal(text_of(path), HEADER);
    assert_int_equal(size_of(log.path), SIZE_MAX);
    snprintf(path, sizeof(path), "%s/bare.dev1", test_folder);
    assert_string_equal(text_of(path), HEADER);
}

TEST(placeholders_are_expanded)
{
    struct log log = open_log("log.%p.csv", NULL, 0);
    char path[160];

    rs_mr_destroy(log.mr, false);
    snprintf(path, sizeof(path), "%s/log.%d.csv", test_folder, (int)getpid());
    assert_string_equal(text_of(path), HEADER);
}

/* ---- what is written to stderr meanwhile ---- */

static int saved_stderr;

static void catch_stderr(void)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/stderr", test_folder);
    file = fopen(path, "w");
    assert_non_null(file);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    fclose(file);
}

static const char *caught_stderr(void)
{
    char path[128];

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    snprintf(path, sizeof(path), "%s/stderr", test_folder);
    return text_of(path);
}

TEST(an_unwritable_path_is_said_once_and_allocations_go_on)
{
    struct log first, second;
    struct rs_allocation allocation;
    const char *said;

    catch_stderr();
    first = open_log("missing/log.csv", NULL, 0);
    second = open_log("missing/log.csv", NULL, 0);
    allocation = take(&first, 100, NULL);
    give(&first, &allocation, NULL);
    (void)take(&second, 100, NULL);
    rs_mr_destroy(first.mr, false);
    rs_mr_destroy(second.mr, false);
    said = caught_stderr();
    assert_non_null(strstr(said, "missing/log.csv: the file cannot be opened: No such file"));
    assert_non_null(strstr(said, "; no log is written"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

TEST(a_full_disk_turns_the_log_off)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    struct log log = {.leaf = leaf};
    const char *said;

    catch_stderr();
    log.mr = make_resource(&rs_mr_descriptor_logging, &leaf->base,
                           OPTIONS("path=/dev/full", "auto_flush=1"));
    for (unsigned i = 0; i < 10; i++)
        (void)take(&log, 100, NULL);
    said = caught_stderr();
    assert_non_null(strstr(said, "/dev/full: the file cannot be written: No space left"));
    assert_non_null(strstr(said, "; nothing more is written to this log"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    rs_mr_destroy(log.mr, false);
}

/* Linux does since 4.14.  qemu 7.2 says so and does not, and there the library has the handler of
 * config/mode.c only, which this child does not run. */
static bool is_wiped_on_fork(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child;
    int status;

    assert_ptr_not_equal(page, MAP_FAILED);
    page[0] = 1;
    (void)madvise(page, 4096, MADV_WIPEONFORK);
    child = fork();
    if (child == 0)
        _exit(page[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    munmap(page, 4096);
    return status == 0;
}

TEST(a_child_never_writes_its_parents_rows)
{
    struct log log = open_log("fork.csv", NULL, 0);
    pid_t child;
    int status;

    if (!is_wiped_on_fork()) {
        print_message("# the kernel wipes nothing on fork (an emulator): no child is tried\n");
        rs_mr_destroy(log.mr, false);
        return;
    }
    (void)take(&log, 100, NULL);
    child = fork();
    if (child == 0) {
        for (unsigned i = 0; i < 2000; i++) /* more than the part holds */
            (void)take(&log, 100, NULL);
        rs_logging_end();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(lines_of(log.path), 1);
    assert_int_equal(lines_of(part_of(&log)), 1);
    rs_mr_destroy(log.mr, false);
    assert_int_equal(lines_of(log.path), 2);
}

TEST(at_the_end_all_is_written)
{
    struct log log = open_log("end.csv", NULL, 0);
    struct rs_allocation allocation = take(&log, 100, NULL);

    rs_logging_end();
    assert_int_equal(lines_of(log.path), 2);
    assert_int_equal(size_of(part_of(&log)), SIZE_MAX);
    give(&log, &allocation, NULL); /* by then somebody else may have the path */
    rs_mr_destroy(log.mr, false);
    assert_int_equal(lines_of(log.path), 2);
}

static void *write_rows(void *data)
{
    struct log *log = data;

    for (unsigned i = 0; i < 1000; i++) {
        struct rs_allocation allocation = {0};
        if (rs_mr_allocate(log->mr, 64, NULL, &allocation) == CUDA_SUCCESS)
            (void)rs_mr_deallocate(log->mr, &allocation, NULL);
    }
    return NULL;
}

TEST(rows_of_many_threads_stay_whole)
{
    struct log log = open_log("threads.csv", NULL, 0);
    pthread_t threads[8];
    const char *line;

    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_rows, &log), 0);
    for (unsigned i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    rs_mr_destroy(log.mr, false);
    assert_int_equal(lines_of(log.path), 1 + 8 * 2000);
    line = strchr(text_of(log.path), '\n') + 1;
    for (; *line; line = strchr(line, '\n') + 1) {
        int commas = 0;
        for (const char *at = line; *at != '\n'; at++)
            commas += *at == ',';
        assert_int_equal(commas, 5);
    }
}

TEST(a_path_must_be_given_and_make_sense)
{
    char line[400], too_long[5000] = "path=";

    assert_false(options_are_valid(&rs_mr_descriptor_logging, NULL, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "'logging' needs a path"));
    assert_false(options_are_valid(&rs_mr_descriptor_logging, NULL, OPTIONS("path=log.%z.csv"),
                                   line, sizeof(line)));
    memset(too_long + 5, 'a', sizeof(too_long) - 6);
    assert_false(
        options_are_valid(&rs_mr_descriptor_logging, NULL, OPTIONS(too_long), line, sizeof(line)));
}

static const char *rest_after_time(const char *row)
{
    return strchr(strchr(row, ',') + 1, ',') + 1;
}

TEST(marks_tell_where_in_the_log_they_stand)
{
    struct log log = open_log("marked.csv", "auto_flush=0", 0);
    char path[450], long_text[400];
    struct rs_allocation allocation;
    const char *row;

    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    snprintf(path, sizeof(path), "%s.marks", log.path);
    assert_int_equal(access(path, F_OK), -1); /* none without a mark */
    assert_int_equal(rs_logging_mark("first"), 0);
    allocation = take(&log, 1000, NULL);
    give(&log, &allocation, NULL);
    assert_int_equal(rs_logging_mark("two\nlines"), 0);
    assert_int_equal(rs_logging_mark(long_text), 0);
    row = text_of(path);
    assert_memory_equal(row, "Thread,Time,Row,Phase\n", 22);
    row = strchr(row, '\n') + 1;
    assert_memory_equal(rest_after_time(row), "0,first\n", 8);
    row = strchr(row, '\n') + 1;
    assert_memory_equal(rest_after_time(row), "2,two lines\n", 12);
    row = strchr(row, '\n') + 1;
    assert_int_equal(strlen(rest_after_time(row)), strlen("2,") + 200 + 1);
    rs_mr_destroy(log.mr, false);
}

TEST(a_log_without_marks_is_told_and_others_have_them)
{
    struct log log = open_log("first.csv", "auto_flush=0", 0);
    struct log second = open_log("second.csv", "auto_flush=0", 0);
    char path[450];

    snprintf(path, sizeof(path), "%s.marks", second.path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(rs_logging_mark("one"), -EISDIR);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rs_logging_mark("two"), 0);
    snprintf(path, sizeof(path), "%s.marks", log.path);
    assert_non_null(strstr(text_of(path), ",0,one\n"));
    rs_mr_destroy(second.mr, false);
    rs_mr_destroy(log.mr, false);
}
