/* SPDX-License-Identifier: Apache-2.0 */
/* Phases: named ranges of the program, begun and ended by its threads, each with its own peak and
 * totals, summed up by name.  A phase counts twice: what its thread allocates, and what the whole
 * process allocates while it is open.  Allocations do no work for it: a phase notes the block
 * counts when it begins, and takes the difference when it ends.
 *
 * There is room for RS_PHASE_NAMES names; those that come later share the last one.  A thread has
 * at most RS_PHASE_DEPTH phases open; one inside these is only counted as an entry. */
#pragma once

#include "config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_PHASE_NAMES = 256, RS_PHASE_NAME_BYTES = 128, RS_PHASE_DEPTH = 64 };

/* The name that phases share for which there was no other room. */
#define RS_PHASE_OTHERS "(others)"

/* What the entries of one name took of one kind of memory on one device. */
struct rs_phase_memory {
    size_t peak_bytes; /* of any entry: the most live bytes of the process above those at its begin
                        */
    size_t peak_live_bytes;                 /* of any entry: the most live bytes of the process */
    uint64_t entered_bytes, entered_blocks; /* by all threads, summed over the entries */
    size_t thread_peak_bytes;               /* as peak_bytes, of what the entry's thread has
                                               allocated and not freed */
    uint64_t thread_entered_bytes, thread_entered_blocks; /* by the entry's thread */
    size_t peak_charged_bytes; /* of any entry: the most that was charged to the device; for
                                  RS_KIND_DEVICE only */
};

/* One name.  Sums and peaks have the entries that are open now too. */
struct rs_phase {
    const char *name; /* lives as long as the process */
    uint64_t entries; /* phases begun */
    uint64_t open;    /* not ended yet */
    uint64_t unended; /* ended by the end of their thread */
};

/* Begins a phase of the calling thread.  `owner` tells apart who begins phases: a pop ends the
 * latest phase of its own.  The name is cut to RS_PHASE_NAME_BYTES - 1 bytes, and control
 * characters in it become blanks.  *entered is the name as it is kept, or NULL where the phase is
 * too deep to be measured.  Returns 0 or -ENOMEM (also: a thread has
 * too deep phases of 8 owners).  This and all functions below are thread safe. */
int rs_phase_push(const char *name, const void *owner, const char **entered);

/* Ends the calling thread's latest phase of the owner, and fills in its name (NULL: it was too
 * deep).  Returns 0, or -ERANGE when there is none. */
int rs_phase_pop(const void *owner, const char **name);

/* Fills in the name number `index` in the order of the first entries, and its memory of one kind on
 * one device (memory may be NULL).  False when there are fewer names, or when a report at exit
 * cannot have the lock. */
bool rs_phase_get(unsigned index, enum rs_kind kind, int device, struct rs_phase *phase,
                  struct rs_phase_memory *memory);

/* Restarts all peaks of phases for one kind of memory on one device: those of open phases at what
 * is live now, those of ended ones at 0. */
void rs_phase_reset_peaks(enum rs_kind kind, int device);

/* Must be called in a child after fork(): keeps only the phases that the calling thread has open,
 * and their names, each entered as often as it is open. */
void rs_phase_forked(void);
