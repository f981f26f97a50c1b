/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses cut into spans: first fit, that is the lowest address that fits, or last fit,
 * with immediate coalescing.
 *
 * Spans are linked to their neighbours, and free ones never lie side by side.  Free ones are in a
 * tree by address, in which each knows the largest of its subtree, so that first fit takes
 * O(log n) steps, with and without the alignment of large requests.  Needs a lock of its owner's.
 * Giving a span back needs no host memory. */
#pragma once

#include "driver/cuda.h"
#include "heap/record_slab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_SPAN_UNIT = 512 }; /* bytes; all addresses and sizes are multiples of it */

/* Of a range, 1 TiB: RMM's largest superblock. */
#define RS_SPAN_UNITS_MAX ((uint32_t)1 << 31)

/* Whether a span must begin where large requests may (heap/alignment.h). */
enum rs_span_fit { RS_SPAN_ANYWHERE, RS_SPAN_ALIGNED, RS_SPAN_FITS };

/* Out-of-band, as device memory cannot be read.  One record of a slab. */
struct rs_span {
    CUdeviceptr address;
    struct rs_span *before, *after; /* neighbours in the range; NULL at its ends */
    struct rs_span *left, *right;   /* of a free span: its tree */
    void *owner;                    /* of the range, and of all spans cut from it */
    uint32_t units;
    uint32_t largest[RS_SPAN_FITS]; /* of a free span: most units that a span of its subtree has
                                       room for; 0 of one that is handed out */
    uint32_t rank;                  /* of a free span: its height in the tree, random */
};

/* All zero is empty. */
struct rs_span_set {
    struct rs_span *root;
    size_t free_count; /* in the tree */
    struct rs_record_slab records;
};

/* Makes sure that one call of rs_span_add or rs_span_take has the records it needs.  False when out
 * of host memory. */
bool rs_span_reserve(struct rs_span_set *set);

/* Adds a range, all of it free.  Its record stays the range's first span until it is removed. */
struct rs_span *rs_span_add(struct rs_span_set *set, CUdeviceptr address, uint32_t units,
                            void *owner);

/* Removes a range that is wholly free. */
void rs_span_remove(struct rs_span_set *set, struct rs_span *range);

/* Cuts `units` (> 0) out of the free span at the lowest address that has room for them; NULL when
 * there is none. */
struct rs_span *rs_span_take(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit);

/* The same at the highest address, from the upper end of what has room there. */
struct rs_span *rs_span_take_last(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit);

/* Gives a taken span back.  Its record may be gone after that. */
void rs_span_give(struct rs_span_set *set, struct rs_span *span);

static inline bool rs_span_is_free(const struct rs_span *span)
{
    return span->largest[RS_SPAN_ANYWHERE] > 0;
}

/* True of a range's first span when nothing of the range is taken. */
static inline bool rs_span_is_whole(const struct rs_span *range)
{
    return rs_span_is_free(range) && !range->before && !range->after;
}

static inline size_t rs_span_bytes(uint32_t units)
{
    return (size_t)units * RS_SPAN_UNIT;
}

/* Most units that one take could have now. */
static inline uint32_t rs_span_largest(const struct rs_span_set *set, enum rs_span_fit fit)
{
    return set->root ? set->root->largest[fit] : 0;
}

/* Of the whole tree or of one range; what a check adds up. */
struct rs_span_sums {
    uint32_t free_spans, taken_spans;
    uint64_t free_units, taken_units;
};

/* True when the tree is sound; *sums gets what is in it. */
bool rs_span_tree_check(const struct rs_span_set *set, struct rs_span_sums *sums);

/* True when the range has no gap, no overlap and no two free spans side by side, and all its spans
 * have its owner; adds to *sums. */
bool rs_span_range_check(const struct rs_span *range, struct rs_span_sums *sums);

/* Gives all records back, also those of spans in use. */
void rs_span_set_destroy(struct rs_span_set *set);
