/* SPDX-License-Identifier: Apache-2.0 */
/* Nested levels of counters of the program's live blocks, as RMM's statistics resource has them: a
 * level begins at zero, and when it ends its counts are part of the level around it.  Each kind of
 * memory on each device has its own levels, shared by all threads. */
#pragma once

#include "config/config.h"

#include <stdint.h>

/* Counts since the level began.  They are signed, because a block that was allocated before the
 * level may be freed in it. */
struct rs_count_level {
    int64_t live_bytes, peak_live_bytes, entered_bytes; /* as requested */
    int64_t live_blocks, peak_live_blocks, entered_blocks;
};

/* All functions are thread safe; kind and device must be in range. */

/* Fills in the counts of the innermost level; without a level, the counts since the process began.
 */
void rs_count_levels_get(enum rs_kind kind, int device, struct rs_count_level *level);

/* Begins a level inside the current one.  Returns 0 or -ENOMEM. */
int rs_count_levels_push(enum rs_kind kind, int device);

/* Ends the innermost level and fills in its counts.  Returns 0, or -ERANGE when there is no level.
 */
int rs_count_levels_pop(enum rs_kind kind, int device, struct rs_count_level *level);

/* Restarts the peaks of rs_block_counts at the live bytes and blocks; levels keep their peaks. */
void rs_count_levels_reset_peaks(enum rs_kind kind, int device);

/* Must be called in a child after fork(), whose counters begin anew. */
void rs_count_levels_forget(void);
