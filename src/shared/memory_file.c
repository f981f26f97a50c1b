/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/memory_file.h"

#include "base/file.h"
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* The seals protect processes that map the file from SIGBUS, which a change of its length could
 * cause. */
int rs_memory_file_make(const char *name, size_t bytes, void **memory)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), failed;

    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 the flag is not known */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    failed = rs_file_lengthen(fd, bytes);
    if (failed == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        failed = -errno;
    *memory = failed ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*memory != MAP_FAILED)
        return fd;
    failed = failed ? failed : -errno;
    rs_file_close(fd);
    return failed;
}

/* Calls stat() before it opens the file: by now the descriptor may stand for a device, and opening
 * a device may have effects. */
void *rs_memory_file_map(int process, int fd, uint64_t inode, size_t bytes)
{
    void *memory = MAP_FAILED;
    struct stat status;
    char path[64];
    int opened;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", process, fd);
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != (ino_t)inode)
        return NULL;
    opened = rs_file_open_to_change(path);
    if (opened < 0)
        return NULL;
    if (fstat(opened, &status) == 0 && status.st_ino == (ino_t)inode &&
        status.st_size >= (off_t)bytes && rs_file_cannot_shrink(opened))
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    rs_file_close(opened);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool is_link_to(const char *path, const char *wanted)
{
    char target[64];
    ssize_t length = readlink(path, target, sizeof(target));

    return length == (ssize_t)strlen(wanted) && memcmp(target, wanted, (size_t)length) == 0;
}

int rs_memory_file_find(const struct rs_memory_file_search *search)
{
    static struct rs_listing files;
    char path[64], wanted[64];
    int fd = -1, failed = -ENODATA;
    const char *name;

    snprintf(path, sizeof(path), "%s/fd", search->process);
    if (!rs_listing_open(&files, path))
        return -errno;
    snprintf(wanted, sizeof(wanted), "/memfd:%s (deleted)", search->name);
    if (search->first > 0) /* in a folder of descriptors "." and ".." are the first two entries */
        (void)lseek(files.fd, search->first + 2, SEEK_SET);
    while (fd < 0 && !(search->deadline_ns && rs_clock_ns() >= search->deadline_ns) &&
           (name = rs_listing_next(&files))) {
        snprintf(path, sizeof(path), "%s/fd/%.20s", search->process, name);
        if (!is_link_to(path, wanted))
            continue;
        fd = search->to_change ? rs_file_open_to_change(path) : rs_file_open(path);
        if (fd < 0 && errno != ENOENT) /* ENOENT: the process has just closed it */
            failed = -errno;
        if (fd >= 0 && !search->accepts(fd, search->data)) {
            rs_file_close(fd);
            fd = -1;
        }
    }
    rs_file_close(files.fd);
    return fd < 0 ? failed : fd;
}

void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns)
{
    struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};

    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &wait, NULL, 0) != 0 && errno == ETIMEDOUT)
        rs_clock_note_slept(wait_ns);
}

void rs_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
