/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing of files, and their length.  No function here is a cancellation point
 * (base/undisturbed.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

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

/* Writes all bytes at offset_bytes (pwrite); repeats after EINTR and short writes.  Returns 0 or
 * -errno.  Keeps errno, and raises no SIGXFSZ. */
int rs_file_write(int fd, const void *bytes, size_t length_bytes, off_t offset_bytes);

/* Gives a file its length; rs_file_allocate also memory, or space on the disk, for all of it,
 * without which a store into a mapping may raise SIGBUS.  0 or -errno: -EFBIG beyond the process's
 * limit on file sizes, which holds for memory files too, and without its signal (SIGXFSZ). */
int rs_file_lengthen(int fd, size_t size_bytes);
int rs_file_allocate(int fd, size_t size_bytes);

/* True for a memory file that is sealed against shrinking: reading a mapping past the end of its
 * file raises SIGBUS. */
bool rs_file_cannot_shrink(int fd);

/* Closes fd and leaves errno unchanged. */
void rs_file_close(int fd);
