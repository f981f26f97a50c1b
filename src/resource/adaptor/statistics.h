/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of a statistics resource, in RMM's nested levels.  All functions are thread safe. */
#pragma once

#include "resource/resource.h"

/* Signed, as memory allocated before a level may be freed within it. */
struct rs_statistics_counter {
    int64_t live, peak, total; /* total only grows */
};

/* The counters of one level. */
struct rs_statistics_level {
    struct rs_statistics_counter bytes; /* as requested */
    struct rs_statistics_counter allocations;
};

/* Returns the current level's counters in *level. */
void rs_statistics_get(struct rs_mr *mr, struct rs_statistics_level *level);

/* Returns the current level's counters in *level and begins a new level at zero.  Returns 0 or
 * -ENOMEM. */
int rs_statistics_push(struct rs_mr *mr, struct rs_statistics_level *level);

/* Ends the current level: returns its counters in *level and folds them into the level before.
 * Returns 0, or -ERANGE at the last level, which stays. */
int rs_statistics_pop(struct rs_mr *mr, struct rs_statistics_level *level);
