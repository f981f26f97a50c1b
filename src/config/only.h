/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: which programs of a tree are served.  A process has up to three names: that of its
 * executable, the name by which it was started, and, where the executable is an interpreter, that
 * of the script or module which it runs. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    RS_ONLY_WORDS_BYTES = 4096, /* that are looked at; a script's name is among the first words */
    RS_ONLY_NAMES = 3,
};

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

/* Fills in the process's names, each one once, that of the executable first: empty where it is not
 * known.  Returns their number. */
size_t rs_only_names(const struct rs_only_process *process, const char *names[RS_ONLY_NAMES]);

/* True where the process is an interpreter that was given no script: it has one name more when it
 * is given one. */
bool rs_only_lacks_script(const struct rs_only_process *process);
