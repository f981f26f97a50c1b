/* SPDX-License-Identifier: Apache-2.0 */
/* Levels of counters of what the program holds, one inside the other, as RMM's statistics resource
 * has them: a level begins at zero, and when it ends it is part of the one around it.  Of one kind
 * of memory on one device, for all threads together. */
#pragma once

#include "config/config.h"

#include <stdint.h>

/* Signed: within a level, memory allocated before it may be freed. */
struct rs_count_level {
    int64_t live_bytes, peak_live_bytes, entered_bytes; /* as requested */
    int64_t live_blocks, peak_live_blocks, entered_blocks;
};

/* All here are thread safe; kind and device must be in range. */

/* The innermost level; without one, what the process has counted since it began. */
void rs_count_levels_get(enum rs_kind kind, int device, struct rs_count_level *level);

/* Begins a level.  0 or -ENOMEM. */
int rs_count_levels_push(enum rs_kind kind, int device);

/* Ends the innermost level and returns what it counted.  0, or -ERANGE without one. */
int rs_count_levels_pop(enum rs_kind kind, int device, struct rs_count_level *level);

/* The peaks of rs_block_counts begin anew at what is live; levels keep theirs. */
void rs_count_levels_reset_peaks(enum rs_kind kind, int device);
