/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks, kept for the next request of exactly their size.  The owner's lock protects them.
 * The structure needs no memory beyond the blocks' records. */
#pragma once

#include "resource/block.h"

enum {
    RS_KEPT_BIN_BITS = 6,
    RS_KEPT_BINS = 1 << RS_KEPT_BIN_BITS, /* bins are chosen by a hash of the size */
    RS_KEPT_LOOK = 4,
    RS_KEPT_SMALL_BYTES = 1 << 20,
};

/* The classes of kept blocks by size.  Each has its own limit, and is given up by itself: when a
 * few blocks of some MiB filled the one limit there was, all small ones had to go with them. */
enum rs_kept_class { RS_KEPT_SMALL, RS_KEPT_LARGE, RS_KEPT_CLASSES };

RS_HOT_INLINE enum rs_kept_class rs_kept_class(size_t size_bytes)
{
    return RS_UNLIKELY(size_bytes > RS_KEPT_SMALL_BYTES) ? RS_KEPT_LARGE : RS_KEPT_SMALL;
}

/* Each class has bins of its own, and each bin has its latest block first.  All zero is empty. */
struct rs_kept_blocks {
    size_t bytes[RS_KEPT_CLASSES], count[RS_KEPT_CLASSES];
    /* one bit per bin that got a block since rs_kept_empty */
    uint64_t filled[RS_KEPT_CLASSES];
    struct rs_block_record *bins[RS_KEPT_CLASSES * RS_KEPT_BINS];
};

RS_HOT_INLINE unsigned rs_kept_bin(size_t size_bytes, enum rs_kept_class class)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - RS_KEPT_BIN_BITS)) +
           class * RS_KEPT_BINS;
}

/* Takes a block of exactly size_bytes, or returns NULL.  It looks at the latest RS_KEPT_LOOK blocks
 * of the bin only. */
RS_HOT_INLINE struct rs_block_record *rs_kept_take_of(struct rs_kept_blocks *kept,
                                                      size_t size_bytes, enum rs_kept_class class)
{
    struct rs_block_record **at = &kept->bins[rs_kept_bin(size_bytes, class)], *found;

    for (unsigned i = 0; (found = *at) && i < RS_KEPT_LOOK; i++, at = &found->next) {
        if (RS_UNLIKELY(found->upstream_bytes != size_bytes))
            continue;
        RS_ASSERT_SLOW(kept->count[class] > 0 && kept->bytes[class] >= size_bytes);
        *at = found->next;
        kept->bytes[class] -= size_bytes;
        kept->count[class]--;
        return found;
    }
    return NULL;
}

RS_HOT_INLINE struct rs_block_record *rs_kept_take(struct rs_kept_blocks *kept, size_t size_bytes)
{
    if (RS_UNLIKELY(size_bytes > RS_KEPT_SMALL_BYTES))
        return rs_kept_take_of(kept, size_bytes, RS_KEPT_LARGE);
    return rs_kept_take_of(kept, size_bytes, RS_KEPT_SMALL);
}

/* Prefetches the lines that the next two requests of this size write, after `taken` was handed out:
 * the program's own code and data in between may have pushed them out of the caches. */
RS_HOT_INLINE void rs_kept_prefetch(const struct rs_block_record *taken)
{
    if (RS_LIKELY(taken->next)) {
        rs_block_record_prefetch(taken->next);
        __builtin_prefetch(taken->next->next, 1);
    }
}

/* Adds a block; it will be the first of its bin. */
RS_HOT_INLINE void rs_kept_put(struct rs_kept_blocks *kept, struct rs_block_record *freed)
{
    size_t size_bytes = freed->upstream_bytes;
    enum rs_kept_class class = rs_kept_class(size_bytes);
    unsigned bin = rs_kept_bin(size_bytes, class);

    RS_ASSERT_SLOW(!freed->slot); /* a block in a slot of ordered blocks must not be kept too */
    freed->next = kept->bins[bin];
    kept->bins[bin] = freed;
    kept->filled[class] |= (uint64_t)1 << bin % RS_KEPT_BINS;
    kept->bytes[class] += size_bytes;
    kept->count[class]++;
}

/* Moves all kept blocks of a class to a list. */
void rs_kept_empty(struct rs_kept_blocks *kept, enum rs_kept_class class,
                   struct rs_block_list *list);

/* True when all invariants hold. */
bool rs_kept_check(const struct rs_kept_blocks *kept);
