/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack's counters amount to, in a few numbers. */
#pragma once

#include "resource/report.h"

#include <stdint.h>

struct usage {
    uint64_t live; /* used: bytes that the program has allocated and not freed, as it asked for
                      them, served or not */
    uint64_t peak; /* the most that was used; an upper bound where not all was served */
    uint64_t held; /* bytes taken from the driver: what an account has charged, else the leaves' */
    uint64_t held_peak;
    uint64_t waiting;           /* bytes freed that the GPU may still use */
    uint64_t cached;            /* the rest of what is held */
    uint64_t limit;             /* 0: none */
    uint64_t refusals;          /* out-of-memory errors that the program received */
    uint64_t internal_refusals; /* by the limit and by leaves, also where the program was served
                                   another way; one request may be refused several times */
    uint64_t allocations, live_allocations; /* of the program */
    uint64_t allocated;                     /* bytes since the process began */
    uint64_t spilled, spilled_peak;         /* used bytes in the second upstream of a `fallback` */
};

struct usage usage_of(const struct rs_report *report);

/* Adds up two; a limit only where both have one.  The sum of peaks is the most that the highest can
 * have been. */
void usage_add(struct usage *to, const struct usage *from);
