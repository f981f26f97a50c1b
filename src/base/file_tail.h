/* SPDX-License-Identifier: Apache-2.0 */
/* The tail of a file that is being written: text that is not in the file yet.  It lies in a
 * mapped second file, FILE.part, so that it survives the process however the process ends, and
 * appending costs no system call until the tail is full.
 *
 * FILE.part holds the text, then zero bytes, and in its last RS_FILE_TAIL_MARK_BYTES bytes a
 * line with the number of bytes of FILE that precede the text.  A process that ends while it
 * writes the text to FILE may leave a part of the text there too.  A reader therefore takes the
 * given number of bytes of FILE and then the text up to the first zero byte; if there is no
 * text, it takes all of FILE.  The result is complete and has no row twice at every instruction
 * of the writer. */
#pragma once

#include "base/output.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RS_FILE_TAIL_BYTES = 64 << 10, RS_FILE_TAIL_MARK_BYTES = 24 };

/* FILE.part by itself: zeroed memory that survives the process.  Its user gives it a form. */
struct rs_file_part {
    char *bytes; /* mapped; NULL: there is none */
    size_t size_bytes;
    dev_t device;
    ino_t inode;
};

/* Makes PATH.part with this size, and returns as rs_file_tail_make does. */
int rs_file_part_make(struct rs_file_part *part, const char *path, size_t size_bytes);

/* Opens an output that survives the process: under the first name that neither another process
 * holds nor one has left a PATH.part of, empty, and with its own PATH.part where one can be made
 * (else part->bytes is NULL; also for a file that is not regular).  Says in one line, which `who`
 * begins, when the name is not `path` itself.  Returns 0 or -errno. */
int rs_file_part_claim(struct rs_file_part *part, struct rs_output *output, const char *path,
                       size_t size_bytes, const char *who);

/* As rs_file_tail_leave and rs_file_tail_remove. */
void rs_file_part_leave(struct rs_file_part *part);
void rs_file_part_remove(struct rs_file_part *part, const char *path);

/* A zeroed struct has no tail.  Not thread safe. */
struct rs_file_tail {
    char *text;             /* the bytes of `part`; NULL: there is no tail */
    size_t used_bytes;      /* of text */
    uint64_t written_bytes; /* bytes of FILE that precede the text */
    struct rs_file_part part;
};

/* Makes PATH.part for the empty file PATH.  Returns 0; -EEXIST when PATH.part exists, since it
 * may be another process's; or another -errno when a tail is impossible (no space, no mapping,
 * or a file system that allocates new blocks on overwrite).  On failure nothing is left behind. */
int rs_file_tail_make(struct rs_file_tail *tail, const char *path);

/* Begins a tail in tail->part, which has RS_FILE_TAIL_BYTES bytes; without them there is no tail.
 */
void rs_file_tail_begin(struct rs_file_tail *tail);

/* Appends text.  Returns false, with nothing appended, when it does not fit. */
bool rs_file_tail_append(struct rs_file_tail *tail, const char *text, size_t length_bytes);

/* Writes the text to fd and empties the tail.  Returns 0, or -errno; the text then stays in the
 * tail. */
int rs_file_tail_write(struct rs_file_tail *tail, int fd);

/* Both unmap the tail.  rs_file_tail_leave keeps PATH.part; rs_file_tail_remove deletes it if it
 * is still the file that was made. */
void rs_file_tail_leave(struct rs_file_tail *tail);
void rs_file_tail_remove(struct rs_file_tail *tail, const char *path);
