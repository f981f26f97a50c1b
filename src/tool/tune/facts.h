/* SPDX-License-Identifier: Apache-2.0 */
/* What a search takes its ranges from: how much a recording had live on a device, in which sizes.
 */
#pragma once

#include "tool/recording/recording.h"

struct tune_size {
    uint64_t bytes;
    size_t count; /* of allocations */
};

struct tune_facts {
    size_t allocations;
    uint64_t peak_live_bytes;
    size_t peak_live_blocks;
    uint64_t *sorted;        /* the size of each allocation, smallest first */
    struct tune_size *sizes; /* each size once, rounded up to the alignment of bins, most frequent
                              * first */
    size_t size_count;
    bool has_times; /* false: a log that gives all events one time */
};

/* False when out of host memory; tune_facts_release is due in any case. */
bool tune_facts_gather(struct tune_facts *facts, const struct recording *recording, int device);
void tune_facts_release(struct tune_facts *facts);

/* The size that `percent` of the allocations have at most; there is one allocation or more. */
uint64_t tune_facts_quantile(const struct tune_facts *facts, unsigned percent);
