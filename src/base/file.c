/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/undisturbed.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int open_with(const char *path, int flags)
{
    struct rs_uncancelled uncancelled;
    int fd;

    rs_uncancelled_begin(&uncancelled);
    fd = open(path, flags | O_CLOEXEC);
    rs_uncancelled_end(&uncancelled);
    return fd;
}

int rs_file_open(const char *path)
{
    return open_with(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
}

int rs_file_open_to_change(const char *path)
{
    return open_with(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
}

int rs_file_hold(const char *path)
{
    return open_with(path, O_PATH);
}

ssize_t rs_file_read(int fd, void *bytes, size_t length_bytes, off_t offset_bytes)
{
    struct rs_uncancelled uncancelled;
    ssize_t got;

    rs_uncancelled_begin(&uncancelled);
    got = pread(fd, bytes, length_bytes, offset_bytes);
    rs_uncancelled_end(&uncancelled);
    return got;
}

static int write_all_at(int fd, const char *bytes, size_t length_bytes, off_t offset_bytes)
{
    while (length_bytes > 0) {
        ssize_t written = pwrite(fd, bytes, length_bytes, offset_bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        bytes += written;
        length_bytes -= (size_t)written;
        offset_bytes += written;
    }
    return 0;
}

int rs_file_write(int fd, const void *bytes, size_t length_bytes, off_t offset_bytes)
{
    struct rs_unsignalled unsignalled;
    int kept_errno = errno, result;

    rs_unsignalled_begin(&unsignalled);
    result = write_all_at(fd, bytes, length_bytes, offset_bytes);
    rs_unsignalled_end(&unsignalled, -result);
    errno = kept_errno;
    return result;
}

int rs_file_lengthen(int fd, size_t size_bytes)
{
    struct rs_unsignalled unsignalled;
    int failed;

    rs_unsignalled_begin(&unsignalled);
    failed = ftruncate(fd, (off_t)size_bytes) == 0 ? 0 : errno;
    rs_unsignalled_end(&unsignalled, failed);
    return -failed;
}

int rs_file_allocate(int fd, size_t size_bytes)
{
    struct rs_unsignalled unsignalled;
    int failed;

    rs_unsignalled_begin(&unsignalled);
    do
        failed = posix_fallocate(fd, 0, (off_t)size_bytes);
    while (failed == EINTR);
    rs_unsignalled_end(&unsignalled, failed);
    return -failed;
}

bool rs_file_cannot_shrink(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS); /* -1 for a file that can have none */

    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

void rs_file_close(int fd)
{
    struct rs_uncancelled uncancelled;
    int kept_errno = errno;

    rs_uncancelled_begin(&uncancelled);
    (void)close(fd);
    rs_uncancelled_end(&uncancelled);
    errno = kept_errno;
}
