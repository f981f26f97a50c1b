/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack's counters amount to, in a few numbers. */
#pragma once

#include "report/document.h"
#include "resource/report.h"

#include <stdint.h>

/* Bytes, unless it says otherwise. */
struct rs_usage {
    uint64_t used; /* what the program has allocated and not freed, as it asked for it, served or
                      not */
    uint64_t used_peak; /* an upper bound where not all was served */
    uint64_t held;      /* taken from the driver: what an account has charged, else the leaves' */
    uint64_t held_peak;
    uint64_t waiting;           /* freed, and the GPU may still use it */
    uint64_t cached;            /* the rest of what is held */
    uint64_t limit, job_limit;  /* 0: none */
    uint64_t refused;           /* out-of-memory errors that the program received */
    uint64_t internal_refusals; /* by the limit and by leaves, also where the program was served
                                   another way; one request may be refused several times */
    uint64_t allocations, live_allocations; /* of the program, numbers */
    uint64_t allocated;                     /* since the process began */
    uint64_t spilled, spilled_peak;         /* used, in the second upstream of a `fallback` */
};

/* `program` has the program's own counters (RS_PROGRAM), and may be the same report. */
struct rs_usage rs_usage_of(const struct rs_report *report, const struct rs_report *program);

/* Adds up two; a limit only where both have one, and a job's is not added.  The sum of peaks is the
 * most that the highest can have been. */
void rs_usage_add(struct rs_usage *to, const struct rs_usage *from);

/* The limit that holds: the lower one; 0: none. */
uint64_t rs_usage_least_limit(const struct rs_usage *usage);

/* Adds the numbers to an object, as fields and as metrics. */
void rs_usage_put(struct rs_node *object, const struct rs_usage *usage);

/* The metric of a field; without a name where the field is none.  NULL behind the last field. */
const struct rs_metric *rs_usage_metric(size_t index);
