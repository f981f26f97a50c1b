/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that begin at a given moment. A level is a nested counter; each kind of memory on each
 * device has its own levels. A phase is a named range of the program. Allocations do no work for
 * either: both note the block counts (context/block_counts.h) when they begin, and take the
 * difference later.
 *
 * A phase is begun and ended by a thread. Its peak and totals are gathered under its name, once for
 * what its thread allocates and once for what the whole process allocates while the phase is open.
 * There is room for RS_PHASE_NAMES names; all later ones share the last. A thread has at most
 * RS_PHASE_DEPTH phases open. A phase inside these is only counted as an entry of its name.
 *
 * All functions except rs_scopes_forked are thread safe; kind and device must be in range. */
#pragma once

#include "config/config.h"
#include "rmmshim/rmmshim.h"

#include <stdbool.h>

/* ---- levels ---- */

/* Sets *counters to the counts of the innermost level, or, without a level, to those since the
 * process began. The field `size` is set to 0. The live counts are negative if the level freed more
 * than it allocated. */
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

/* The name of all phases that were begun under a new name when the other names were taken. */
#define RS_PHASE_OTHERS "(others)"

/* Begins a phase of the calling thread. `owner` identifies the interface that begins the phase (the
 * C API or NVTX, say): a pop ends the latest phase of the same owner. The name is cut to
 * RS_PHASE_NAME_BYTES - 1 bytes, and control characters in it become blanks. *entered is the name
 * as it is kept, or NULL if the thread has too many phases open for this one to be measured.
 * Returns 0. Returns -ENOMEM when out of host memory, and when eight other owners have phases that
 * are not measured in this thread. */
int rs_phase_push(const char *name, const void *owner, const char **entered);

/* Ends the calling thread's latest phase of the owner, and sets *name to its name (NULL if it was
 * too deep to be measured). Returns 0, or -ERANGE when there is none. */
int rs_phase_pop(const void *owner, const char **name);

/* Sets *phase to what the phases of one name counted of one kind of memory on one device, open ones
 * included. `index` numbers the names in the order of their first use. The field `size` is set to
 * 0. Returns false when there are fewer names, and when a report at exit cannot have the lock. */
bool rs_phase_get(unsigned index, enum rs_kind kind, int device, struct rmmshim_phase *phase);

/* Restarts all peaks of phases for one kind of memory on one device: the peaks of open phases at
 * what is live now, those of ended ones at 0. */
void rs_phase_reset_peaks(enum rs_kind kind, int device);

/* Must be called in a child after fork(), whose counters begin at zero. Forgets all levels. Of the
 * phases it keeps those that the calling thread has open, with their names; each name is entered as
 * often as it is open. */
void rs_scopes_forked(void);
