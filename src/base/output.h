/* SPDX-License-Identifier: Apache-2.0 */
/* An output file that one process has for itself.  All processes of a job may be given the same
 * path by one environment variable; they must not write into each other's file.  The first
 * process gets PATH and holds a lock on it while it lives; the next gets PATH.PID. */
#pragma once

#include "base/descriptor.h"

#include <limits.h>
#include <stdbool.h>

struct rs_output {
    struct rs_kept_descriptor file;
    bool is_regular; /* false: a device or stream, which several processes may write to */
    bool is_new;     /* this process created it */
    char path[PATH_MAX];
};

enum {
    RS_OUTPUT_NAMES = 16
}; /* names that a process tries: PATH, PATH.PID, PATH.PID.2 and so on */

/* Opens the file with name number `name` (0: PATH, 1: PATH.PID, 2: PATH.PID.2 ...) under the
 * rules of rs_path_open_output, but keeps its contents.  Returns 0; -EBUSY when another process
 * holds the name; or another -errno. */
int rs_output_try(struct rs_output *output, const char *path, unsigned name);

/* Opens the file as rs_output_try does, under the first name that no other process holds.
 * Returns 0; -EBUSY when all RS_OUTPUT_NAMES names are held; or another -errno. */
int rs_output_claim(struct rs_output *output, const char *path);

/* Truncates a regular file to 0 bytes.  Returns 0 or -errno. */
int rs_output_empty(struct rs_output *output);

/* Unlocks and closes the file.  Other processes can have the path from now on, even if forked
 * children still hold the file open. */
void rs_output_release(struct rs_output *output);

/* Releases the file as rs_output_release does; deletes it first if this process created it and
 * it is empty. */
void rs_output_drop(struct rs_output *output);
