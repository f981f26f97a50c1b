/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `rmmshim tune` share: candidates with what a replay says of them, the choice
 * among them, and what runs of the program say. */
#pragma once

#include "tool/replay/replay.h"
#include "tool/tune/interval.h"

#include <stdbool.h>
#include <stddef.h>

enum { TUNE_CANDIDATES_MAX = 16, TUNE_RESOURCE_BYTES = 128, TUNE_FINALISTS_MAX = 4 };

struct tune_candidate {
    char resource[TUNE_RESOURCE_BYTES];
    struct replay_result result;
    bool serves;   /* it refuses no more than the recording did */
    bool on_front; /* no other one that serves holds as little with as few calls and waits */

    /* of a finalist, of which there are runs */
    double *seconds;          /* of each round */
    struct interval interval; /* of them */
    bool is_told_apart;       /* it takes longer than the fastest one, for all that can be told */
};

struct tune_candidates {
    struct tune_candidate all[TUNE_CANDIDATES_MAX];
    size_t count;
};

enum tune_wish { TUNE_FOOTPRINT, TUNE_SPEED, TUNE_LIMIT };

/* Replays the fixed set of candidates, but for those that cannot be made on the device; the one
 * that holds least comes first. */
void tune_replay(struct tune_candidates *candidates, const struct sequence *sequence,
                 const struct replay_settings *settings);

/* Returns the best one for the wish: of TUNE_FOOTPRINT the one that holds least, else the one with
 * the fewest stops.  NULL where none serves. */
struct tune_candidate *tune_best(struct tune_candidates *candidates, enum tune_wish wish);

/* ---- runs ---- */

struct tune_runs {
    struct tune_candidate *finalists[TUNE_FINALISTS_MAX];
    size_t count, rounds;
    const struct tune_candidate *fastest; /* by the median */
};

/* Runs the program, before whose words there are two more, once in each round with each finalist,
 * which are given, under the limit (NULL: none).  Returns an exit code, after a line where it is
 * not TOOL_OK. */
int tune_run(struct tune_runs *runs, char **program, const char *limit);
