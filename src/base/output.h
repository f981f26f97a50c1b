/* SPDX-License-Identifier: Apache-2.0 */
/* Output files.  A struct rs_output is a file that one process writes alone.  One environment
 * variable may give the same path to all processes of a job, and they must not write into each
 * other's file.  So the first process gets PATH and holds a lock on it until it ends or releases
 * the file; the next process gets PATH.PID. */
#pragma once

#include "base/file.h"

#include <limits.h>
#include <stdint.h>

struct rs_output {
    struct rs_kept_descriptor file;
    bool is_regular; /* false: a device or stream, which several processes may write to */
    bool is_new;     /* this process created it */
    char path[PATH_MAX];
};

/* How many names a process tries: PATH, PATH.PID, PATH.PID.2 and so on. */
enum { RS_OUTPUT_NAMES = 16 };

/* Opens and locks the file with name number `name` (0: PATH, 1: PATH.PID, 2: PATH.PID.2 ...) under
 * the rules of rs_path_open_output, but keeps its contents.  Returns 0; -EBUSY when another
 * process, or another output of this one, holds the name; or another -errno. */
int rs_output_try(struct rs_output *output, const char *path, unsigned name);

/* Opens the file as rs_output_try does, under the first name that is not held.
 * Returns 0; -EBUSY when all RS_OUTPUT_NAMES names are held; or another -errno. */
int rs_output_claim(struct rs_output *output, const char *path);

/* Truncates a regular file to 0 bytes.  Returns 0 or -errno. */
int rs_output_empty(struct rs_output *output);

/* Unlocks and closes the file, unless its descriptor's number stands for another file by now.
 * Other processes can have the path from now on, even if forked children still hold the file
 * open. */
void rs_output_release(struct rs_output *output);

/* Releases the file as rs_output_release does; deletes it first if this process created it and
 * it is empty. */
void rs_output_drop(struct rs_output *output);

/* ---- names ---- */

/* File names with placeholders: %p process id, %h host, %e program ('/' in its name becomes
 * '_'), %t start time of the process (seconds since 1970), %r rank (RANK, OMPI_COMM_WORLD_RANK,
 * PMI_RANK or SLURM_PROCID, else 0), %q{VAR} an environment variable, %% a percent sign. */

/* Declares `name`, a pointer to PATH_MAX bytes that are freed at the end of the block; NULL when
 * out of memory.  The bytes are not on the stack: a thread or a coroutine may have a stack of only
 * 16 KiB, of which the functions that use such a path need some 4 KiB themselves. */
#define RS_PATH_BUFFER(name)                                                                       \
    char *const name __attribute__((cleanup(rs_path_buffer_give))) = rs_path_buffer_take()

char *rs_path_buffer_take(void);
void rs_path_buffer_give(char *const *buffer);

/* Stores the working directory.  From this call on rs_path_expand makes relative paths absolute by
 * it, even if the program changes its directory later; before this call they stay relative.  Not
 * thread safe. */
void rs_path_keep_directory(void);

/* Expands `pattern` into `path`.  Returns false, with *at pointing to the place in `pattern` and
 * *reason to a static text, when a placeholder is unknown, its variable is not set, or the
 * result does not fit path_bytes. */
bool rs_path_expand(const char *pattern, char *path, size_t path_bytes, const char **at,
                    const char **reason);

/* Expands each %q{VAR} of [begin, end), and no other placeholder, into `text`.  Fails as
 * rs_path_expand does. */
bool rs_path_expand_variables(const char *begin, const char *end, char *text, size_t text_bytes,
                              const char **at, const char **reason);

/* Expands a pattern as rs_path_expand does, so that each device has a file of its own: device 1
 * gets "log.dev1.csv" for "log.csv", the name that RMM's Python layer gives it.  Device 0 and paths
 * below /dev/ keep their name. */
bool rs_path_expand_for_device(const char *pattern, int device, char *path, size_t path_bytes,
                               const char **at, const char **reason);

/* Opens an output file for writing: creates it with mode 0600 or truncates it; close-on-exec.
 * Refuses symbolic links (-ELOOP), directories (-EISDIR), FIFOs and sockets (-EINVAL), a file of
 * another user (-EPERM) and one with several hard links (-EMLINK), since another user may have
 * planted them.  Character devices such as /dev/null are allowed; /dev/stdout and /dev/stderr are
 * duplicated.  Returns a descriptor or -errno. */
int rs_path_open_output(const char *path);

/* Opens an output file as rs_path_open_output does, but keeps its contents.  *created tells whether
 * this call created it.  Returns a descriptor or -errno. */
int rs_path_open_untouched(const char *path, bool *created);

/* True for /dev/stdout and /dev/stderr, which may lead to a file that the program writes to. */
bool rs_path_is_stream(const char *path);

/* ---- tails ---- */

/* The tail of a file that is being written: text that is not in the file yet.  It lies in a mapped
 * second file, FILE.part.  So the tail survives the process however that ends, and appending costs
 * no system call until the tail is full.
 *
 * FILE.part holds the text, then zero bytes, and in its last RS_FILE_TAIL_MARK_BYTES bytes a line
 * with the number of bytes of FILE that precede the text.  A reader takes that number of bytes of
 * FILE, and then the text up to the first zero byte; if there is no text, it takes all of FILE.  So
 * the result is complete and has no row twice, at whatever instruction the writer ended: a process
 * that ends while it writes the text to FILE may leave a part of the text there too, which the
 * reader leaves out. */

enum { RS_FILE_TAIL_BYTES = 64 << 10, RS_FILE_TAIL_MARK_BYTES = 24 };

/* A zeroed struct has no tail.  Not thread safe. */
struct rs_file_tail {
    char *text;             /* mapped FILE.part; NULL: there is no tail */
    size_t used_bytes;      /* bytes of the text */
    uint64_t written_bytes; /* bytes of FILE that precede the text */
    dev_t device;
    ino_t inode;
};

/* Makes PATH.part for the empty file PATH.  Returns 0; -EEXIST when PATH.part exists, since it
 * may be another process's; or another -errno when a tail is impossible (no space, no mapping,
 * or a file system that allocates new blocks on overwrite).  On failure nothing is left behind. */
int rs_file_tail_make(struct rs_file_tail *tail, const char *path);

/* Appends text that has no zero byte; there must be a tail.  Returns false, with nothing appended,
 * when it does not fit. */
bool rs_file_tail_append(struct rs_file_tail *tail, const char *text, size_t length_bytes);

/* Writes the text to fd and empties the tail.  Returns 0, or -errno; the text then stays in the
 * tail. */
int rs_file_tail_write(struct rs_file_tail *tail, int fd);

/* Both unmap the tail. rs_file_tail_leave keeps PATH.part; rs_file_tail_remove deletes PATH.part if
 * it is still the file that rs_file_tail_make made. */
void rs_file_tail_leave(struct rs_file_tail *tail);
void rs_file_tail_remove(struct rs_file_tail *tail, const char *path);
