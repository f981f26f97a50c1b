/* SPDX-License-Identifier: Apache-2.0 */
/* Counts from a moment on: levels, which are nested counters (each kind of memory on each device
 * has its own), and phases, which are named ranges of the program.  Allocations do no work for
 * either: both note the block counts when they begin, and take the difference later.
 *
 * A phase is begun and ended by a thread, and has its own peak and totals, summed up by name.  It
 * counts twice: what its thread allocates, and what the whole process allocates while it is open.
 * There is room for RS_PHASE_NAMES names; those that come later share the last one.  A thread has
 * at most RS_PHASE_DEPTH phases open; one inside these is only counted as an entry.
 *
 * All functions except rs_scopes_forked are thread safe; kind and device must be in range. */
#pragma once

#include "config/config.h"
#include "rmmshim/rmmshim.h"

#include <stdbool.h>

/* ---- levels ---- */

/* Sets *counters, with 0 in its field `size`, to the counts of the innermost level; without a
 * level, to the counts since the process began. Its live counts are negative if the level freed
 * blocks that were allocated before it. */
void rs_count_levels_get(enum rs_kind kind, int device, struct rmmshim_counters *counters);

/* Begins a level inside the current one.  Returns 0 or -ENOMEM. */
int rs_count_levels_push(enum rs_kind kind, int device);

/* Ends the innermost level and sets *counters to its counts, as rs_count_levels_get does. Returns
 * 0, or -ERANGE when there is no level. */
int rs_count_levels_pop(enum rs_kind kind, int device, struct rmmshim_counters *counters);

/* Restarts the peaks of rs_block_counts at the live bytes and blocks; levels keep their peaks. */
void rs_count_levels_reset_peaks(enum rs_kind kind, int device);

/* ---- phases ---- */

enum { RS_PHASE_NAMES = 256, RS_PHASE_NAME_BYTES = 128, RS_PHASE_DEPTH = 64 };

/* The shared name of the phases that came when all other names were taken. */
#define RS_PHASE_OTHERS "(others)"

/* Begins a phase of the calling thread. `owner` identifies who begins the phase (the C API or NVTX,
 * say): a pop ends the latest phase of the same owner. The name is cut to RS_PHASE_NAME_BYTES - 1
 * bytes, and control characters in it become blanks. *entered is the name as it is kept, or NULL if
 * the thread has too many phases open for this one to be measured. Returns 0, or -ENOMEM when out
 * of host memory, and when a ninth owner has phases that are not measured in one thread. */
int rs_phase_push(const char *name, const void *owner, const char **entered);

/* Ends the calling thread's latest phase of the owner, and sets *name to its name (NULL if it was
 * too deep to be measured). Returns 0, or -ERANGE when there is none. */
int rs_phase_pop(const void *owner, const char **name);

/* Sets *phase, with 0 in its field `size`, for one name: the one with number `index` in the order
 * in which names were first used, and its memory of one kind on one device, entries that are open
 * now included. Returns false when there are fewer names, or when a report at exit cannot have the
 * lock. */
bool rs_phase_get(unsigned index, enum rs_kind kind, int device, struct rmmshim_phase *phase);

/* Restarts all peaks of phases for one kind of memory on one device: the peaks of open phases at
 * what is live now, those of ended ones at 0. */
void rs_phase_reset_peaks(enum rs_kind kind, int device);

/* Must be called in a child after fork(), whose counters begin at zero: forgets all levels, and
 * keeps only the phases that the calling thread has open, and their names, each entered as often as
 * it is open. */
void rs_scopes_forked(void);
