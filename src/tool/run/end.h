/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim run` says when its program has ended: lines on stderr, a JSON file, and whether a
 * check of the user's failed. */
#pragma once

#include "tool/run/options.h"
#include "tool/run/parent.h"
#include "tool/run/summary.h"

/* What happened. */
struct run_outcome {
    struct parent_result result;
    struct summary summary;
    size_t smallest_limit_bytes; /* that --find-min found */
    unsigned runs;               /* of --find-min; 0: it was not given */
};

/* Takes the file of --json, so that a path that cannot be written is an error before the program
 * starts.  False after saying so. */
bool run_end_begin(const struct run_options *options);

/* Why no process may have used CUDA, where the settings tell; before the program starts. */
void run_end_note_settings(bool anything_set);

/* Says and writes what happened to the program `words[0]`.  The exit code: the program's, or
 * TOOL_FINDING when that is 0 and a check failed. */
int run_end(const struct run_options *options, char *const *words,
            const struct run_outcome *outcome);
