/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `rmmshim tune` share: the candidates with the results of their replays, the
 * choice among them, and the results of running the program. */
#pragma once

#include "tool/replay/replay.h"
#include "tool/tune/interval.h"

#include <stdbool.h>
#include <stddef.h>

enum { TUNE_CANDIDATES_MAX = 16, TUNE_RESOURCE_BYTES = 128, TUNE_FINALISTS_MAX = 4 };

struct tune_candidate {
    char resource[TUNE_RESOURCE_BYTES];
    struct replay_result result;
    bool serves;   /* it refuses no more requests than were refused in the recorded run */
    bool on_front; /* no other candidate that serves is as good both in memory held and in driver
                      calls and waits */

    /* The fields below are set only for a finalist: the program was run with it. */
    double *seconds;          /* of each run, one in each round */
    struct interval interval; /* of `seconds` */
    bool is_told_apart; /* the interval of its extra time over the fastest finalist lies above 0 */
};

struct tune_candidates {
    struct tune_candidate all[TUNE_CANDIDATES_MAX];
    size_t count;
};

enum tune_wish { TUNE_FOOTPRINT, TUNE_SPEED, TUNE_LIMIT };

/* Replays the fixed set of candidates, and leaves out those that cannot be made on the device or
 * under the limit. *candidates is all zero before. The candidates are sorted by the peak of held
 * memory, the least first. */
void tune_replay(struct tune_candidates *candidates, const struct sequence *sequence,
                 const struct replay_settings *settings);

/* Returns the best candidate that serves: for TUNE_FOOTPRINT the one that holds the least, else the
 * one with the fewest driver calls and waits.  NULL if none serves. */
struct tune_candidate *tune_best(struct tune_candidates *candidates, enum tune_wish wish);

/* ---- runs ---- */

struct tune_runs {
    struct tune_candidate *finalists[TUNE_FINALISTS_MAX];
    size_t count, rounds;
    const struct tune_candidate *fastest; /* by the median; NULL before tune_run has succeeded */
};

/* Runs the program once with each finalist in each round, under RMM_LIMIT=limit (NULL: none).
 * `finalists`, `count` and `rounds` are given.  The two words before program[0] are overwritten.
 * Returns TOOL_OK, or another exit code after saying what failed. */
int tune_run(struct tune_runs *runs, char **program, const char *limit);
