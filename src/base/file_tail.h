/* SPDX-License-Identifier: Apache-2.0 */
/* The tail of a file that is being written: the text that has not been written to it yet, in a
 * second file beside it (FILE.part) that is mapped, so that it outlives the process however that
 * ends, and costs no system call until it is full.
 *
 * FILE.part holds the text, then zero bytes, and in its last RS_FILE_TAIL_MARK_BYTES bytes a line
 * with the number of bytes of FILE that come before the text.  FILE may have some of the text
 * already, when the process ended while it was written there: the whole is that many bytes of FILE,
 * and the text up to the first zero byte; where there is no text it is FILE.  At each instruction
 * of the writer that is true. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RS_FILE_TAIL_BYTES = 64 << 10, RS_FILE_TAIL_MARK_BYTES = 24 };

/* All zero: there is none.  Not thread safe. */
struct rs_file_tail {
    char *text; /* NULL: there is none */
    size_t used_bytes;
    uint64_t written_bytes; /* of the file, before the text */
    dev_t device;
    ino_t inode;
};

/* Makes PATH.part for a file that is empty.  0; -EEXIST when there is one, which is somebody's; or
 * -errno when there can be none (no room, no mapping, a file system that takes new blocks for what
 * is overwritten): then nothing is left behind. */
int rs_file_tail_make(struct rs_file_tail *tail, const char *path);

/* False when it does not fit. */
bool rs_file_tail_append(struct rs_file_tail *tail, const char *text, size_t length_bytes);

/* Writes the text to the file.  0 or -errno, and then the text stays. */
int rs_file_tail_write(struct rs_file_tail *tail, int fd);

/* There is no tail from now on; its file stays, or is removed. */
void rs_file_tail_leave(struct rs_file_tail *tail);
void rs_file_tail_remove(struct rs_file_tail *tail, const char *path);
