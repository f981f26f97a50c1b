/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the library reads, without a cancellation point (base/undisturbed.h). */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* Opens a file to read it, close-on-exec, without waiting for a FIFO's writer.  A descriptor, or -1
 * with errno. */
int rs_file_open(const char *path);

/* The same to read and write it. */
int rs_file_open_to_change(const char *path);

/* Takes hold of what a path leads to without opening it (O_PATH), to look at it.  The same. */
int rs_file_hold(const char *path);

/* Reads at an offset: the number of bytes, or -1 with errno. */
ssize_t rs_file_read(int fd, void *bytes, size_t length_bytes, off_t offset_bytes);

/* Keeps errno. */
void rs_file_close(int fd);
