/* SPDX-License-Identifier: Apache-2.0 */
/* System calls on files, from the program's threads.  No function here is a cancellation point, so
 * a thread that the program cancels does not end inside the library. */
#pragma once

#include "base/check.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Returns what follows the last slash of a path. */
const char *rs_file_base_name(const char *path);

/* Opens a file for reading, close-on-exec and non-blocking, so that a FIFO without a writer does
 * not block.  Returns a descriptor, or -1 with errno. */
int rs_file_open(const char *path);

/* Opens a file as rs_file_open does, but for reading and writing. */
int rs_file_open_to_change(const char *path);

/* Opens a path with O_PATH: fstat() works on the descriptor, but the file itself is not opened.
 * Returns a descriptor, or -1 with errno. */
int rs_file_hold(const char *path);

/* Reads up to length_bytes at offset_bytes (pread).  Returns the number of bytes read, or -1
 * with errno. */
ssize_t rs_file_read(int fd, void *bytes, size_t length_bytes, off_t offset_bytes);

/* Writes as rs_write_all (base/log.h) does, at offset_bytes; -1: at the file's own position. */
int rs_file_write(int fd, const void *bytes, size_t length_bytes, off_t offset_bytes);

/* Reads at most room - 1 bytes from the beginning of a file into `text`, and adds a zero byte.
 * Returns the number of bytes read; -1, with `text` empty, when the file cannot be read. */
ssize_t rs_file_text(const char *path, char *text, size_t room);

/* rs_file_lengthen sets a file's length. rs_file_allocate reserves memory, or space on the disk,
 * for the first size_bytes of a file, and lengthens a shorter file to that; otherwise a store into
 * a mapping of the file may raise SIGBUS.  Both return 0 or -errno.  Beyond the process's limit on
 * file sizes, which holds for memory files too, they return -EFBIG and do not raise the limit's
 * signal, SIGXFSZ. */
int rs_file_lengthen(int fd, size_t size_bytes);
int rs_file_allocate(int fd, size_t size_bytes);

/* Does what rs_file_allocate does, but only for the size_bytes from offset_bytes on. */
int rs_file_allocate_range(int fd, size_t offset_bytes, size_t size_bytes);

/* True if the file is on a file system that allocates new blocks at every write (btrfs, ZFS,
 * bcachefs), or if the kernel does not tell: there a store into a mapping may raise SIGBUS when the
 * disk is full, even after rs_file_allocate. */
bool rs_file_is_copied_on_write(int fd);

/* True for a memory file that is sealed against shrinking.  A mapping of any other file is not safe
 * to read: if the file is shortened, reading past its new end raises SIGBUS. */
bool rs_file_cannot_shrink(int fd);

/* Closes fd and leaves errno unchanged. */
void rs_file_close(int fd);

/* ---- folders ---- */

/* A folder that is read without malloc: folders of /proc are also read when memory is short. */
struct rs_listing {
    int fd;
    ssize_t bytes, at;
    _Alignas(uint64_t) char entries[8 << 10];
};

/* Opens a folder.  The caller closes it with rs_file_close(listing->fd).  Returns false, with
 * errno, when the folder cannot be opened; then there is nothing to close. */
bool rs_listing_open(struct rs_listing *listing, const char *path);

/* Returns the name of the next entry, valid until the next call; NULL after the last one, or when
 * the kernel reports an error. */
const char *rs_listing_next(struct rs_listing *listing);

/* ---- descriptors ---- */

/* Descriptors that the library keeps open in the program's process.  They get high numbers, away
 * from the program's.  The program may close a descriptor that it did not open, and get the same
 * number for a file of its own.  So the library checks before each use that the number still stands
 * for its file. */

enum { RS_DESCRIPTOR_HIGH = 500 };

/* Duplicates fd, close-on-exec, to a number of RS_DESCRIPTOR_HIGH or more; if RLIMIT_NOFILE does
 * not allow that, to any number above stderr's.  Returns the copy, or -errno. */
int rs_descriptor_duplicate(int fd);

/* A descriptor and the file that it stood for when it was kept. */
struct rs_kept_descriptor {
    int fd;
    dev_t device;
    ino_t inode;
};

/* Takes fd over: closes it and keeps a high-numbered copy.  Returns false when the copy cannot
 * be made; fd is closed then too. */
bool rs_descriptor_keep(struct rs_kept_descriptor *kept, int fd);

/* Returns true while the number still stands for the file that was kept. */
bool rs_descriptor_is_kept(const struct rs_kept_descriptor *kept);

/* Closes the descriptor, unless its number stands for another file by now. */
void rs_descriptor_close(const struct rs_kept_descriptor *kept);

/* ---- guards around the library's other calls into the kernel ---- */

/* Between rs_uncancelled_begin and _end the thread is not cancelled, since it would leave a lock
 * locked.  Between rs_unsignalled_begin and _end, moreover, a write raises no signal.
 *
 * Both pairs keep errno, may be nested, and may be used in a signal handler.  The first pair costs
 * some ten nanoseconds; the second makes two to four system calls. */

/* The calling thread is not cancelled between begin and end. A cancellation that is requested
 * meanwhile takes effect at the program's next cancellation point. */
struct rs_uncancelled {
    int state_before;
};

void rs_uncancelled_begin(struct rs_uncancelled *uncancelled);
void rs_uncancelled_end(const struct rs_uncancelled *uncancelled);

static inline struct rs_uncancelled rs_uncancelled_guard(void)
{
    struct rs_uncancelled uncancelled;

    rs_uncancelled_begin(&uncancelled);
    return uncancelled;
}

/* The thread is not cancelled from here to the end of the block. */
#define RS_UNCANCELLED_GUARD()                                                                     \
    RS_GUARD(struct rs_uncancelled, rs_uncancelled_end) = rs_uncancelled_guard()

/* For calls that write to a descriptor: between begin and end the thread is not cancelled, and
 * SIGPIPE, SIGXFSZ and SIGTTOU are blocked in it.  A write to a pipe without a reader raises
 * SIGPIPE, and one beyond the limit on file sizes raises SIGXFSZ; rs_unsignalled_end consumes it.
 * SIGTTOU would stop a process in the background that writes to its terminal. */
struct rs_unsignalled {
    struct rs_uncancelled uncancelled;
    sigset_t blocked_before, pending_before;
};

void rs_unsignalled_begin(struct rs_unsignalled *unsignalled);

/* `error` is the errno of the write that failed in between, or 0. */
void rs_unsignalled_end(const struct rs_unsignalled *unsignalled, int error);
