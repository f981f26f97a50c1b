/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: which programs of a tree of processes are served. A process has several names: the base
 * names of its executable, of the word by which it was started, and of its arguments that are no
 * options. The script or module that an interpreter runs is one of these arguments. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { RS_PROGRAM_WORDS_BYTES = 4096 }; /* the rest of a longer command line is not looked at */

/* The texts from which the names of a process are taken. */
struct rs_program_names {
    char executable[PATH_MAX]; /* a path, or empty */
    /* As /proc/PID/cmdline has them: each word ends in a zero byte. */
    char words[RS_PROGRAM_WORDS_BYTES];
    size_t bytes; /* the length of `words` */
};

/* True when one of the patterns (glob(7), separated by commas) matches a name of this process. Also
 * true if `patterns` is NULL or empty. */
bool rs_program_filter_serves_this_process(const char *patterns);

/* Does what rs_program_filter_serves_this_process does, for the process whose names are given. */
bool rs_program_filter_serves(const char *patterns, const struct rs_program_names *process);

/* Reads the names of a process, given its directory in /proc ("/proc/self"). */
void rs_program_names_read(struct rs_program_names *process, const char *directory);

/* Returns the next name; *at, which is 0 at first, is the position in the list.  The executable's
 * name comes first, and is empty if it is not known.  NULL after the last name. */
const char *rs_program_names_next(const struct rs_program_names *process, size_t *at);
