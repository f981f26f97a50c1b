/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

const char *rs_file_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static int open_with(const char *path, int flags)
{
    RS_UNCANCELLED_GUARD();

    return open(path, flags | O_CLOEXEC);
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
    RS_UNCANCELLED_GUARD();

    return pread(fd, bytes, length_bytes, offset_bytes);
}

enum { LONGEST_MS = 1000 };

/* Waits until fd, which another process may have made non-blocking, takes more bytes.  Returns
 * false when fd takes nothing for LONGEST_MS, or has an error. */
static bool takes_more(int fd)
{
    struct pollfd one = {fd, POLLOUT, 0};
    int ready;

    while ((ready = poll(&one, 1, LONGEST_MS)) < 0 && errno == EINTR)
        continue;
    return ready > 0 && !(one.revents & (POLLERR | POLLHUP));
}

static int write_all(int fd, const char *bytes, size_t length_bytes, off_t offset_bytes)
{
    while (length_bytes > 0) {
        ssize_t written = offset_bytes < 0 ? write(fd, bytes, length_bytes)
                                           : pwrite(fd, bytes, length_bytes, offset_bytes);
        if (written < 0) {
            int failed = errno;
            if (failed == EINTR || (failed == EAGAIN && takes_more(fd)))
                continue;
            return -failed;
        }
        bytes += written;
        length_bytes -= (size_t)written;
        offset_bytes += offset_bytes < 0 ? 0 : written;
    }
    return 0;
}

int rs_file_write(int fd, const void *bytes, size_t length_bytes, off_t offset_bytes)
{
    struct rs_unsignalled unsignalled;
    int kept_errno = errno, result;

    rs_unsignalled_begin(&unsignalled);
    result = write_all(fd, bytes, length_bytes, offset_bytes);
    rs_unsignalled_end(&unsignalled, -result);
    errno = kept_errno;
    return result;
}

ssize_t rs_file_text(const char *path, char *text, size_t room)
{
    int fd = rs_file_open(path);
    ssize_t length = fd < 0 ? -1 : rs_file_read(fd, text, room - 1, 0);

    if (fd >= 0)
        rs_file_close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length;
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

int rs_file_allocate_range(int fd, size_t offset_bytes, size_t size_bytes)
{
    struct rs_unsignalled unsignalled;
    int failed;

    rs_unsignalled_begin(&unsignalled);
    do
        failed = posix_fallocate(fd, (off_t)offset_bytes, (off_t)size_bytes);
    while (failed == EINTR);
    rs_unsignalled_end(&unsignalled, failed);
    return -failed;
}

int rs_file_allocate(int fd, size_t size_bytes)
{
    return rs_file_allocate_range(fd, 0, size_bytes);
}

bool rs_file_is_copied_on_write(int fd)
{
    static const unsigned long kinds[] = {0x9123683eUL, 0x2fc12fc1UL, 0xca451a4eUL}; /* btrfs, zfs,
                                                                                      * bcachefs */
    struct statfs status;

    if (fstatfs(fd, &status) != 0)
        return true;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(kinds); i++)
        if (((unsigned long)status.f_type & 0xffffffffUL) == kinds[i])
            return true;
    return false;
}

bool rs_file_cannot_shrink(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS); /* -1 for a file that can have none */

    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

void rs_file_close(int fd)
{
    RS_UNCANCELLED_GUARD();
    int kept_errno = errno;

    (void)close(fd);
    errno = kept_errno;
}

/* ---- folders ---- */

bool rs_listing_open(struct rs_listing *listing, const char *path)
{
    listing->bytes = listing->at = 0;
    listing->fd = rs_file_open(path);
    return listing->fd >= 0;
}

const char *rs_listing_next(struct rs_listing *listing)
{
    const struct dirent64 *entry;

    if (listing->at == listing->bytes) {
        listing->at = 0;
        /* A system call: glibc has a function getdents64 only since 2.30. */
        listing->bytes =
            syscall(SYS_getdents64, listing->fd, listing->entries, sizeof(listing->entries));
        if (listing->bytes <= 0)
            return NULL;
    }
    entry = (const void *)(listing->entries + listing->at);
    listing->at += entry->d_reclen;
    return entry->d_name;
}

/* ---- descriptors ---- */

/* The copy never gets the number of stdin, stdout or stderr: a program that has closed its stderr
 * would write its messages into our file. */
int rs_descriptor_duplicate(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, RS_DESCRIPTOR_HIGH);

    if (copy < 0)
        /* The call above fails if RLIMIT_NOFILE is no more than RS_DESCRIPTOR_HIGH. */
        copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    RS_ASSERT(copy < 0 || copy > STDERR_FILENO);
    return copy < 0 ? -errno : copy;
}

bool rs_descriptor_keep(struct rs_kept_descriptor *kept, int fd)
{
    struct stat status;
    int copy = rs_descriptor_duplicate(fd);

    rs_file_close(fd);
    if (copy < 0)
        return false;
    if (fstat(copy, &status) != 0) {
        rs_file_close(copy);
        return false;
    }
    *kept = (struct rs_kept_descriptor){copy, status.st_dev, status.st_ino};
    return true;
}

bool rs_descriptor_is_kept(const struct rs_kept_descriptor *kept)
{
    struct stat status;

    return fstat(kept->fd, &status) == 0 && status.st_dev == kept->device &&
           status.st_ino == kept->inode;
}

void rs_descriptor_close(const struct rs_kept_descriptor *kept)
{
    if (rs_descriptor_is_kept(kept))
        rs_file_close(kept->fd);
}

/* ---- guards ---- */

void rs_uncancelled_begin(struct rs_uncancelled *uncancelled)
{
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &uncancelled->state_before);
}

void rs_uncancelled_end(const struct rs_uncancelled *uncancelled)
{
    (void)pthread_setcancelstate(uncancelled->state_before, NULL);
}

static void fill_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGPIPE);
    sigaddset(signals, SIGXFSZ);
    /* While SIGTTOU is blocked, a process in the background may write to its terminal. */
    sigaddset(signals, SIGTTOU);
}

void rs_unsignalled_begin(struct rs_unsignalled *unsignalled)
{
    int kept_errno = errno;
    sigset_t signals;

    rs_uncancelled_begin(&unsignalled->uncancelled);
    fill_signals(&signals);
    sigemptyset(&unsignalled->pending_before);
    (void)pthread_sigmask(SIG_BLOCK, &signals, &unsignalled->blocked_before);
    /* A signal that was not blocked cannot be pending: it was delivered at once. */
    if (sigismember(&unsignalled->blocked_before, SIGPIPE) == 1 ||
        sigismember(&unsignalled->blocked_before, SIGXFSZ) == 1)
        (void)sigpending(&unsignalled->pending_before);
    errno = kept_errno;
}

/* Consumes the signal that a failed write sent to this thread.  If a signal of that number was
 * pending before, it is meant for the program and stays. */
static void take_back(const struct rs_unsignalled *unsignalled, int signal_number)
{
    sigset_t one;

    if (sigismember(&unsignalled->pending_before, signal_number) == 1)
        return;
    sigemptyset(&one);
    sigaddset(&one, signal_number);
    while (sigtimedwait(&one, NULL, &(struct timespec){0, 0}) < 0 && errno == EINTR)
        continue;
}

void rs_unsignalled_end(const struct rs_unsignalled *unsignalled, int error)
{
    int kept_errno = errno;

    if (error == EPIPE)
        take_back(unsignalled, SIGPIPE);
    else if (error == EFBIG)
        take_back(unsignalled, SIGXFSZ);
    (void)pthread_sigmask(SIG_SETMASK, &unsignalled->blocked_before, NULL);
    rs_uncancelled_end(&unsignalled->uncancelled);
    errno = kept_errno;
}
