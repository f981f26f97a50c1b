/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there was over time, in a bounded number of buckets, each with its least and its
 * greatest value: a peak is kept however short it was. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TIMELINE_BUCKETS = 8192 };

/* Amounts in bytes. */
struct timeline_bucket {
    uint64_t index; /* the bucket begins at index * width_ns */
    uint64_t least_used, most_used, last_used;
    uint64_t most_held, last_held;
    uint64_t limit; /* the last one; 0: none */
};

/* Only buckets in which something happened are here; until the next one the last values hold.  A
 * zeroed struct is empty. */
struct timeline {
    uint64_t width_ns;               /* 0: empty */
    struct timeline_bucket *buckets; /* TIMELINE_BUCKETS of them */
    size_t count;
};

/* Adds what the amounts are since `ns`, which is not before the last call's. */
void timeline_add(struct timeline *timeline, uint64_t ns, uint64_t used, uint64_t held,
                  uint64_t limit);

/* Merges neighbours until at most so many buckets are left. */
void timeline_shrink(struct timeline *timeline, size_t buckets_max);
