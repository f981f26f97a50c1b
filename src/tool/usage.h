/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack's counters amount to, in a few numbers. */
#pragma once

#include "resource/report.h"

#include <stdint.h>

struct usage {
    uint64_t live; /* bytes that the program has allocated and not freed, as it asked for them */
    uint64_t held; /* bytes taken from the driver: what an account has charged, else the leaves' */
    uint64_t waiting;                       /* bytes freed that the GPU may still use */
    uint64_t cached;                        /* the rest of what is held */
    uint64_t peak;                          /* the most that was live */
    uint64_t limit;                         /* 0: none */
    uint64_t refusals;                      /* by the limit or the driver */
    uint64_t allocations, live_allocations; /* of the program */
    uint64_t allocated;                     /* bytes since the process began */
    uint64_t spilled;                       /* live bytes in the second upstream of a `fallback` */
};

struct usage usage_of(const struct rs_report *report);

/* Adds up two; a limit only where both have one. */
void usage_add(struct usage *to, const struct usage *from);
