/* SPDX-License-Identifier: Apache-2.0 */
/* An output file that one process has for itself.  Processes that are given one path, as all of a
 * job are by one environment variable, do not write into each other's file: the first has the path,
 * held by a lock as long as it lives, and the next has PATH.PID. */
#pragma once

#include "base/descriptor.h"

#include <limits.h>
#include <stdbool.h>

struct rs_output {
    struct rs_kept_descriptor file;
    bool is_regular; /* not a device or stream, which many may write to */
    bool is_new;     /* was not there before */
    char path[PATH_MAX];
};

enum { RS_OUTPUT_NAMES = 16 }; /* that a process tries: PATH, PATH.PID, PATH.PID.2 and so on */

/* Opens the output under the path's name number `name` (from 0), as rs_path_open_output does, but
 * leaves what it holds.  0; -EBUSY when another process has it, or -errno. */
int rs_output_try(struct rs_output *output, const char *path, unsigned name);

/* The same under the first name that no other process has. */
int rs_output_claim(struct rs_output *output, const char *path);

/* Empties the file, which is then written from its beginning.  0 or -errno. */
int rs_output_empty(struct rs_output *output);

/* Lets other processes have the path, also when forked children hold the file open, and closes the
 * file. */
void rs_output_release(struct rs_output *output);

/* The same; a file that was not there before and is empty is removed. */
void rs_output_drop(struct rs_output *output);
