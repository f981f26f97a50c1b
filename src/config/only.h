/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: which programs of a tree are served.  A process's names are the base names of its
 * executable and of the words of its command line: the name by which it was started, and its
 * arguments but the options, among which an interpreter's script or module is. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { RS_ONLY_WORDS_BYTES = 4096 }; /* of the command line, that are looked at */

/* What a process is named by. */
struct rs_only_process {
    char executable[PATH_MAX];       /* a path, or empty */
    char words[RS_ONLY_WORDS_BYTES]; /* as /proc/PID/cmdline has them: each ends in a zero byte */
    size_t bytes;                    /* of these */
};

/* True where one of the patterns (glob(7), separated by commas) matches a name of this process, or
 * where `patterns` is NULL or empty. */
bool rs_only_serves_this_process(const char *patterns);

/* The same for any process. */
bool rs_only_serves(const char *patterns, const struct rs_only_process *process);

/* Reads the process whose directory in /proc that is ("/proc/self"). */
void rs_only_read(struct rs_only_process *process, const char *directory);

/* Returns the name at *at and moves *at, which is 0 at first, behind it: that of the executable
 * first, empty where it is not known.  NULL behind the last. */
const char *rs_only_next_name(const struct rs_only_process *process, size_t *at);
