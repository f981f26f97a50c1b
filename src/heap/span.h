/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses cut into spans.  First fit takes the lowest address that has room, last
 * fit the highest; coalescing is immediate.
 *
 * A span is linked to its neighbours, and two free spans are never adjacent.  Free spans are in
 * a tree by address; each node knows the largest room in its subtree, so first fit takes O(log
 * n) steps, with and without the alignment of large requests.  The owner's lock protects the
 * set.  Giving a span back needs no host memory. */
#pragma once

#include "driver/cuda.h"
#include "heap/record_slab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_SPAN_UNIT = 512 }; /* in bytes; all addresses and sizes are multiples of it */

/* The most units of one range: 1 TiB, RMM's largest superblock. */
#define RS_SPAN_UNITS_MAX ((uint32_t)1 << 31)

/* Where a span may begin. */
enum rs_span_fit {
    RS_SPAN_ANYWHERE, /* at any multiple of RS_SPAN_UNIT */
    RS_SPAN_ALIGNED,  /* where a large block may (heap/alignment.h) */
    RS_SPAN_FITS
};

/* A span, free or taken: one record of a slab, in host memory, since the host cannot access
 * device memory. */
struct rs_span {
    CUdeviceptr address;
    struct rs_span *before, *after; /* neighbours in the range; NULL at its ends */
    struct rs_span *left, *right;   /* of a free span: its children in the tree */
    void *owner; /* of the range and of all spans cut from it; for the caller's use */
    uint32_t units;
    uint32_t largest[RS_SPAN_FITS]; /* of a free span: the most units that a span of its subtree has
                                       room for; of a taken span: 0 */
    uint32_t rank; /* of a free span: its heap priority in the tree, a hash of the address of the
                      span that was entered here first */
};

/* All zero is an empty set. */
struct rs_span_set {
    struct rs_span *root;
    size_t free_count; /* in the tree */
    struct rs_record_slab records;
};

/* Makes sure that one call of rs_span_add or rs_span_take has the records that it needs.
 * Returns false when out of host memory. */
bool rs_span_reserve(struct rs_span_set *set);

/* Adds a range, which is free.  Returns its record, which stays the range's first span until
 * rs_span_remove.  A record must be in reserve. */
struct rs_span *rs_span_add(struct rs_span_set *set, CUdeviceptr address, uint32_t units,
                            void *owner);

/* Removes a range that is wholly free, given by its first span. */
void rs_span_remove(struct rs_span_set *set, struct rs_span *range);

/* Takes `units` (> 0) out of the free span at the lowest address that has room for them.
 * Returns the taken span, or NULL when no span has room.  Records must be in reserve
 * (rs_span_reserve). */
struct rs_span *rs_span_take(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit);

/* Takes as rs_span_take does, but at the highest address, from the upper end of the span there. */
struct rs_span *rs_span_take_last(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit);

/* Gives a taken span back; merging may release its record. */
void rs_span_give(struct rs_span_set *set, struct rs_span *span);

static inline bool rs_span_is_free(const struct rs_span *span)
{
    return span->largest[RS_SPAN_ANYWHERE] > 0;
}

/* True when `range`, a range's first span, is free and all of the range. */
static inline bool rs_span_is_whole(const struct rs_span *range)
{
    return rs_span_is_free(range) && !range->before && !range->after;
}

static inline size_t rs_span_bytes(uint32_t units)
{
    return (size_t)units * RS_SPAN_UNIT;
}

/* Returns the most units that one rs_span_take could have now. */
static inline uint32_t rs_span_largest(const struct rs_span_set *set, enum rs_span_fit fit)
{
    return set->root ? set->root->largest[fit] : 0;
}

/* What a check adds up, of the whole tree or of one range. */
struct rs_span_sums {
    uint32_t free_spans, taken_spans;
    uint64_t free_units, taken_units;
};

/* Checks the tree of free spans.  Returns true when it is sound; *sums gets its free spans and
 * units. */
bool rs_span_tree_check(const struct rs_span_set *set, struct rs_span_sums *sums);

/* Checks that the range has no gap, no overlap and no two adjacent free spans.  Returns true
 * when it is sound; adds the range's spans and units to *sums. */
bool rs_span_range_check(const struct rs_span *range, struct rs_span_sums *sums);

/* Releases all records, also those of spans in use. */
void rs_span_set_destroy(struct rs_span_set *set);
