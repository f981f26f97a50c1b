/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a recording through all candidates, on all cores, and then through those between the best
 * ones. */
#pragma once

#include "tool/tune/candidate.h"
#include "tool/tune/front.h"

enum { TUNE_CANDIDATES_MAX = 4096 };

struct tune_search {
    const struct recording *recording;
    struct replay_settings settings;
    struct tune_facts facts;
    struct tune_candidate *candidates; /* TUNE_CANDIDATES_MAX, in memory that processes share; the
                                        * first one is "no stack" */
    struct tune_point *points;         /* of the same number */
    size_t count, failed_count;        /* all; those that no replay came back from */
};

/* Fills in candidates and points by recording and settings, which are given but the device's
 * memory.  False after a line; tune_search_end is due in any case. */
bool tune_search_run(struct tune_search *search);
void tune_search_end(struct tune_search *search);
