/* SPDX-License-Identifier: Apache-2.0 */
/* The tail of a file: file and tail together are the whole text whenever the process ends. */
#include "unit.h"

#include "base/output.h"
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

enum { TEXT_BYTES = RS_FILE_TAIL_BYTES - RS_FILE_TAIL_MARK_BYTES };

/* ---- system calls that do less ---- */

static size_t write_bytes_max = SIZE_MAX; /* that a call writes */
static int fallocate_error;
static unsigned long file_system;
static bool no_mapping;

ssize_t __real_write(int fd, const void *bytes, size_t length);
ssize_t __wrap_write(int fd, const void *bytes, size_t length);

ssize_t __wrap_write(int fd, const void *bytes, size_t length)
{
    return __real_write(fd, bytes, length < write_bytes_max ? length : write_bytes_max);
}

/* Either name, as the program's offsets are. */
int __real_posix_fallocate(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate(int fd, off_t offset, off_t length);
int __real_posix_fallocate64(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t length);

int __wrap_posix_fallocate(int fd, off_t offset, off_t length)
{
    return fallocate_error ? fallocate_error : __real_posix_fallocate(fd, offset, length);
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t length)
{
    return fallocate_error ? fallocate_error : __real_posix_fallocate64(fd, offset, length);
}

int __real_fstatfs(int fd, struct statfs *status);
int __wrap_fstatfs(int fd, struct statfs *status);
int __real_fstatfs64(int fd, struct statfs *status);
int __wrap_fstatfs64(int fd, struct statfs *status);

static int set_file_system(int result, struct statfs *status)
{
    if (result == 0 && file_system)
        status->f_type = (__typeof__(status->f_type))file_system;
    return result;
}

int __wrap_fstatfs(int fd, struct statfs *status)
{
    return set_file_system(__real_fstatfs(fd, status), status);
}

int __wrap_fstatfs64(int fd, struct statfs *status)
{
    return set_file_system(__real_fstatfs64(fd, status), status);
}

void *__real_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset);
void *__real_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    errno = ENODEV;
    return no_mapping && fd >= 0 ? MAP_FAILED
                                 : __real_mmap(at, length, protection, flags, fd, offset);
}

void *__wrap_mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    errno = ENODEV;
    return no_mapping && fd >= 0 ? MAP_FAILED
                                 : __real_mmap64(at, length, protection, flags, fd, offset);
}

/* ---- files ---- */

struct file {
    const char *path;
    int fd;
    struct rs_file_tail tail;
};

static struct file make(const char *path)
{
    struct file file = {.path = path, .fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)};

    assert_true(file.fd >= 0);
    assert_int_equal(rs_file_tail_make(&file.tail, path), 0);
    return file;
}

static void end(struct file *file)
{
    rs_file_tail_remove(&file->tail, file->path);
    close(file->fd);
}

/* What rmmshim-reports(7) says is the whole. */
static const char *whole_of(int log_fd, int part_fd)
{
    static char whole[3 * RS_FILE_TAIL_BYTES];
    char part[RS_FILE_TAIL_BYTES];
    ssize_t length = pread(log_fd, whole, 2 * RS_FILE_TAIL_BYTES, 0);

    assert_true(length >= 0);
    whole[length] = '\0';
    if (pread(part_fd, part, sizeof(part), 0) == sizeof(part) && part[0]) {
        size_t at = strtoul(part + TEXT_BYTES, NULL, 10);
        size_t rows = strnlen(part, TEXT_BYTES);
        assert_true(at <= (size_t)length);
        memcpy(whole + at, part, rows);
        whole[at + rows] = '\0';
    }
    return whole;
}

static int open_part(const char *path)
{
    char part[64];

    snprintf(part, sizeof(part), "%s.part", path);
    return open(part, O_RDWR);
}

static bool put(struct file *file, const char *text)
{
    return rs_file_tail_append(&file->tail, text, strlen(text));
}

/* ---- tests ---- */

TEST(text_is_in_the_part_until_it_is_written)
{
    struct file file = make("plain");
    int part = open_part("plain");
    struct stat status;
    char bytes[RS_FILE_TAIL_BYTES], zero[TEXT_BYTES] = {0};

    assert_int_equal(fstat(part, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(status.st_size, RS_FILE_TAIL_BYTES);
    assert_true(status.st_blocks * 512 >= RS_FILE_TAIL_BYTES);
    assert_true(put(&file, "one\n") && put(&file, "") && put(&file, "2\n"));
    assert_int_equal(lseek(file.fd, 0, SEEK_END), 0);
    assert_string_equal(whole_of(file.fd, part), "one\n2\n");
    assert_int_equal(rs_file_tail_write(&file.tail, file.fd), 0);
    assert_int_equal(rs_file_tail_write(&file.tail, file.fd), 0); /* nothing more */
    assert_int_equal(lseek(file.fd, 0, SEEK_END), 6);
    assert_int_equal(pread(part, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_memory_equal(bytes, zero, TEXT_BYTES);
    assert_memory_equal(bytes + TEXT_BYTES, "00000000000000000000006\n", RS_FILE_TAIL_MARK_BYTES);
    assert_true(put(&file, "three\n"));
    assert_string_equal(whole_of(file.fd, part), "one\n2\nthree\n");
    close(part);
    end(&file);
    assert_int_equal(access("plain.part", F_OK), -1);
}

TEST(what_does_not_fit_is_not_taken)
{
    struct file file = make("full");
    char text[TEXT_BYTES + 1];
    int part = open_part("full");

    memset(text, 'x', sizeof(text));
    assert_false(rs_file_tail_append(&file.tail, text, TEXT_BYTES + 1));
    assert_true(rs_file_tail_append(&file.tail, text, TEXT_BYTES));
    assert_false(rs_file_tail_append(&file.tail, text, 1));
    assert_int_equal(strlen(whole_of(file.fd, part)), TEXT_BYTES);
    assert_int_equal(rs_file_tail_write(&file.tail, file.fd), 0);
    assert_true(rs_file_tail_append(&file.tail, text, 1));
    assert_int_equal(strlen(whole_of(file.fd, part)), TEXT_BYTES + 1);
    close(part);
    end(&file);
}

TEST(a_part_that_others_write_into_ends_nobody)
{
    struct file file = make("shared");
    int part = open_part("shared");

    assert_true(put(&file, "one\n"));
    assert_int_equal(pwrite(part, "x", 1, 4), 1); /* behind the rows */
    assert_true(put(&file, "two\n"));
    assert_string_equal(whole_of(file.fd, part), "one\ntwo\n");
    assert_int_equal(pwrite(part, "", 1, 0), 1); /* the first row's first byte */
    assert_int_equal(rs_file_tail_write(&file.tail, file.fd), 0);
    assert_int_equal(lseek(file.fd, 0, SEEK_END), 8);
    assert_int_equal(pwrite(file.fd, "o", 1, 0), 1);
    assert_true(put(&file, "three\n"));
    assert_string_equal(whole_of(file.fd, part), "one\ntwo\nthree\n");
    close(part);
    end(&file);
}

TEST(a_part_that_is_there_is_left_alone)
{
    struct file file = make("taken");
    struct rs_file_tail other;

    assert_true(put(&file, "x"));
    assert_int_equal(rs_file_tail_make(&other, "taken"), -EEXIST);
    assert_null(other.text);
    rs_file_tail_leave(&file.tail);
    assert_int_equal(access("taken.part", F_OK), 0);
    /* Nor is one removed that has taken its place. */
    assert_int_equal(rename("taken.part", "saved"), 0);
    assert_int_equal(rs_file_tail_make(&other, "taken"), 0);
    assert_int_equal(rename("saved", "taken.part"), 0);
    rs_file_tail_remove(&other, "taken");
    assert_int_equal(access("taken.part", F_OK), 0);
    close(file.fd);
}

static void assert_none(int error)
{
    struct rs_file_tail tail;

    assert_int_equal(rs_file_tail_make(&tail, "none"), error);
    assert_null(tail.text);
    assert_int_equal(access("none.part", F_OK), -1);
}

TEST(where_there_can_be_none_nothing_is_left)
{
    static const unsigned long copying[] = {0x9123683eUL, 0x2fc12fc1UL, 0xca451a4eUL};
    struct rlimit before, small;
    struct rs_file_tail tail;
    char long_path[PATH_MAX];

    fallocate_error = ENOSPC;
    assert_none(-ENOSPC);
    fallocate_error = 0;
    for (size_t i = 0; i < 3; i++) {
        file_system = copying[i];
        assert_none(-EOPNOTSUPP);
    }
    file_system = 0;
    no_mapping = true;
    assert_none(-ENODEV);
    no_mapping = false;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){RS_FILE_TAIL_BYTES - 1, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_none(-EFBIG); /* and no SIGXFSZ */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    memset(long_path, 'x', sizeof(long_path));
    long_path[sizeof(long_path) - 1] = '\0';
    assert_int_equal(rs_file_tail_make(&tail, long_path), -ENAMETOOLONG);
    assert_int_equal(rs_file_tail_make(&tail, "no/such/parent"), -ENOENT);
}

TEST(what_cannot_be_written_stays)
{
    struct file file = make("stays");
    int part = open_part("stays"), full = open("/dev/full", O_WRONLY);

    assert_true(put(&file, "one\n"));
    assert_int_equal(rs_file_tail_write(&file.tail, full), -ENOSPC);
    assert_string_equal(whole_of(file.fd, part), "one\n");
    assert_int_equal(rs_file_tail_write(&file.tail, file.fd), 0);
    assert_string_equal(whole_of(file.fd, part), "one\n");
    close(full);
    close(part);
    end(&file);
}

enum { ROWS = 12, ROWS_AT_ONCE = 4 };

static void write_traced(struct file *file)
{
    write_bytes_max = 3;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(2);
    raise(SIGSTOP);
    for (int i = 0; i < ROWS; i++) {
        const char row[] = {(char)('a' + i), '.', '.', (char)('a' + i), '\n'};
        (void)rs_file_tail_append(&file->tail, row, sizeof(row));
        if (i % ROWS_AT_ONCE == ROWS_AT_ONCE - 1)
            (void)rs_file_tail_write(&file->tail, file->fd);
    }
    _exit(0);
}

/* The rows are whole, in order and none is missing; at least as many as before. */
static int rows_of(const char *whole, int before)
{
    int rows = 0;

    for (; *whole; whole += 5, rows++) {
        const char row[] = {(char)('a' + rows), '.', '.', (char)('a' + rows), '\n', '\0'};
        if (strncmp(whole, row, 5) != 0)
            fail_msg("after %d rows: %s", rows, whole);
    }
    assert_in_range(rows, before, before + 1);
    return rows;
}

/* Stops the writer after each of its instructions, as a signal would end it there. */
TEST(the_file_is_whole_wherever_the_writer_is_killed)
{
    struct file file = make("traced");
    int part = open_part("traced"), status, rows = 0, steps = 0;
    pid_t child = fork();

    if (child == 0)
        write_traced(&file);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) { /* not by skip(): Meson takes cmocka's "not ok # SKIP" for a failure */
        print_message("# ptrace is not there (an emulator): not stopped at any instruction\n");
        end(&file);
        return;
    }
    while (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        rows = rows_of(whole_of(file.fd, part), rows);
        steps++;
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(rows, ROWS);
    assert_true(steps > 1000);
    close(part);
    end(&file);
}
