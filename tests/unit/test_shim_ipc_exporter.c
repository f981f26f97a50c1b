/* SPDX-License-Identifier: Apache-2.0 */
/* The path to another process's table: no other file is opened, whatever its number stands for. */
#include "unit.h"

#include "base/process.h"
#include "ipc/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the system ---- */

static int number = -1;         /* of the table */
static int other = -1;          /* what the number stands for ... */
static unsigned swap_at;        /* ... from just before this call on, from 1; 0: never */
static unsigned calls;          /* that look at a path */
static unsigned opened_others;  /* for reading, and no regular files */
static const char *hidden_path; /* cannot be opened ... */
static int hidden_error;        /* ... for this reason */

int __real_open(const char *path, int flags, ...);
int __real_open64(const char *path, int flags, ...);
ssize_t __real_readlink(const char *path, char *target, size_t bytes);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
ssize_t __wrap_readlink(const char *path, char *target, size_t bytes);

static void look_at(const char *path)
{
    if (!strstr(path, "/fd/") || ++calls != swap_at)
        return;
    assert_int_equal(dup2(other, number), number);
}

int __wrap_open(const char *path, int flags, ...)
{
    struct stat status;
    int fd;

    look_at(path);
    if (hidden_path && strcmp(path, hidden_path) == 0) {
        errno = hidden_error;
        return -1;
    }
    fd = __real_open(path, flags);
    opened_others +=
        fd >= 0 && !(flags & O_PATH) && fstat(fd, &status) == 0 && !S_ISREG(status.st_mode);
    return fd;
}

int __wrap_open64(const char *path, int flags, ...)
{
    return __wrap_open(path, flags);
}

ssize_t __wrap_readlink(const char *path, char *target, size_t bytes)
{
    look_at(path);
    return __real_readlink(path, target, bytes);
}

/* ---- an exporter: this process ---- */

static void make_table(struct rs_ipc_handle *handle)
{
    struct rs_ipc_header header = {.nonce = {1, 2, 3}};

    memcpy(header.magic, rs_ipc_magic, sizeof(header.magic));
    number = memfd_create(RS_IPC_FILE_NAME, MFD_CLOEXEC);
    assert_true(number >= 0);
    assert_int_equal(ftruncate(number, RS_IPC_FILE_BYTES), 0);
    assert_int_equal(pwrite(number, &header, sizeof(header), 0), sizeof(header));
    *handle = (struct rs_ipc_handle){.process_namespace = rs_process_namespace(),
                                     .start_ticks = rs_process_start_ticks(0),
                                     .process = getpid(),
                                     .fd = number,
                                     .generation = 1};
    memcpy(handle->magic, rs_ipc_magic, sizeof(handle->magic));
    memcpy(handle->nonce, header.nonce, sizeof(handle->nonce));
    calls = 0;
}

static bool use(const struct rs_ipc_handle *handle, CUresult *result)
{
    struct rs_exporter *exporter = rs_exporter_use(handle, result);

    if (exporter)
        rs_exporter_leave(exporter);
    return exporter;
}

/* ---- tests ---- */

TEST(the_exporters_table_is_opened)
{
    CUresult result = CUDA_SUCCESS;
    struct rs_ipc_handle handle;

    make_table(&handle);
    assert_true(use(&handle, &result));
    assert_true(calls > 0);
    close(number);
    assert_false(use(&handle, &result));
    assert_int_equal(result, CUDA_ERROR_MAP_FAILED);
}

/* The exporter's number becomes a fifo's between any two looks. */
TEST(nothing_but_the_exporters_table_is_opened)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    other = ends[0];
    for (swap_at = 1; swap_at <= 6; swap_at++) {
        CUresult result = CUDA_SUCCESS;
        struct rs_ipc_handle handle;

        make_table(&handle);
        if (!use(&handle, &result))
            assert_int_equal(result, CUDA_ERROR_MAP_FAILED);
        assert_int_equal(opened_others, 0);
        close(number);
    }
    swap_at = 0;
    close(ends[0]);
    close(ends[1]);
}

/* A number that nobody has is that of a process that has ended. */
TEST(a_process_that_has_ended_is_known)
{
    CUresult result = CUDA_SUCCESS;
    struct rs_ipc_handle handle;
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    make_table(&handle);
    handle.process = child;
    assert_false(use(&handle, &result));
    assert_int_equal(result, CUDA_ERROR_MAP_FAILED);
    handle.process = getpid();
    handle.start_ticks--; /* another process's number by now */
    assert_false(use(&handle, &result));
    assert_int_equal(result, CUDA_ERROR_MAP_FAILED);
    close(number);
}

/* As where /proc is mounted with hidepid. */
TEST(of_a_hidden_process_no_more_is_said_than_is_known)
{
    CUresult result = CUDA_SUCCESS;
    struct rs_ipc_handle handle;
    char path[64];

    make_table(&handle);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)getpid());
    hidden_path = path;
    hidden_error = ENOENT;
    assert_false(use(&handle, &result));
    assert_int_equal(result, CUDA_ERROR_NOT_PERMITTED);
    hidden_path = NULL;
    assert_true(use(&handle, &result));
    close(number);
}

TEST(a_process_for_which_there_is_no_memory_is_neither_hidden_nor_closed)
{
    CUresult result = CUDA_SUCCESS;
    struct rs_ipc_handle handle;
    char paths[2][64];

    make_table(&handle);
    snprintf(paths[0], sizeof(paths[0]), "/proc/%d/stat", (int)getpid());
    snprintf(paths[1], sizeof(paths[1]), "/proc/%d/fd/%d", (int)getpid(), number);
    hidden_error = ENOMEM;
    for (int i = 0; i < 2; i++) {
        hidden_path = paths[i];
        assert_false(use(&handle, &result));
        assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
    }
    hidden_path = NULL;
    close(number);
}
