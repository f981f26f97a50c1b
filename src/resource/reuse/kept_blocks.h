/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks, kept for the next request of exactly their size.  The owner's lock protects them.
 * The structure needs no memory beyond the blocks' records. */
#pragma once

#include "resource/reuse/freed_block.h"

enum {
    RS_KEPT_BIN_BITS = 7,
    RS_KEPT_BINS = 1 << RS_KEPT_BIN_BITS, /* bins are chosen by a hash of the size */
    RS_KEPT_LOOK = 4,
};

/* Each bin has its latest block first.  All zero is empty. */
struct rs_kept_blocks {
    size_t bytes, count;
    uint64_t filled[RS_KEPT_BINS / 64]; /* one bit per bin that got a block since rs_kept_empty */
    struct rs_freed *bins[RS_KEPT_BINS];
};

RS_HOT_INLINE unsigned rs_kept_bin(size_t size_bytes)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - RS_KEPT_BIN_BITS));
}

/* Takes a block of exactly size_bytes, or returns NULL.  It looks at the latest RS_KEPT_LOOK blocks
 * of the bin only. */
RS_HOT_INLINE struct rs_freed *rs_kept_take(struct rs_kept_blocks *kept, size_t size_bytes)
{
    struct rs_freed **at = &kept->bins[rs_kept_bin(size_bytes)], *found;

    for (unsigned i = 0; (found = *at) && i < RS_KEPT_LOOK; i++, at = &found->next) {
        if (RS_UNLIKELY(found->upstream.size_bytes != size_bytes))
            continue;
        RS_ASSERT_SLOW(kept->count > 0 && kept->bytes >= size_bytes);
        *at = found->next;
        kept->bytes -= size_bytes;
        kept->count--;
        return found;
    }
    return NULL;
}

/* Prefetches the lines that the next two requests of this size write, after `taken` was handed out:
 * the program's own code and data in between may have pushed them out of the caches. */
RS_HOT_INLINE void rs_kept_prefetch(const struct rs_freed *taken)
{
    if (RS_LIKELY(taken->next)) {
        __builtin_prefetch(taken->next->holder, 1);
        __builtin_prefetch(taken->next->next, 1);
    }
}

/* Adds a block; it will be the first of its bin. */
RS_HOT_INLINE void rs_kept_put(struct rs_kept_blocks *kept, struct rs_freed *freed)
{
    unsigned bin = rs_kept_bin(freed->upstream.size_bytes);

    RS_ASSERT_SLOW(!freed->slot); /* a block in a slot of ordered blocks must not be kept too */
    freed->next = kept->bins[bin];
    kept->bins[bin] = freed;
    kept->filled[bin / 64] |= (uint64_t)1 << bin % 64;
    kept->bytes += freed->upstream.size_bytes;
    kept->count++;
}

/* Moves all kept blocks to a list. */
void rs_kept_empty(struct rs_kept_blocks *kept, struct rs_freed_list *list);

/* True when all invariants hold. */
bool rs_kept_check(const struct rs_kept_blocks *kept);
