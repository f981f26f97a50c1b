/* SPDX-License-Identifier: Apache-2.0 */
/* Clean blocks that are kept for the next request of just their size.  Needs a lock of its owner's,
 * and no memory beyond the blocks' records. */
#pragma once

#include "resource/reuse/freed_block.h"

enum {
    RS_KEPT_BIN_BITS = 7,
    RS_KEPT_BINS = 1 << RS_KEPT_BIN_BITS, /* by size */
    RS_KEPT_LOOK = 4,
};

/* The latest first.  All zero is empty. */
struct rs_kept_blocks {
    size_t bytes, count;
    uint64_t
        filled[RS_KEPT_BINS / 64]; /* a bit for each bin that was filled since all were emptied */
    struct rs_freed *bins[RS_KEPT_BINS];
};

RS_HOT_INLINE unsigned rs_kept_bin(size_t size_bytes)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - RS_KEPT_BIN_BITS));
}

/* A block of exactly that size, or NULL: only the latest few of a bin are looked at. */
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

/* Has the processor fetch what the next two requests of the size write, after one that was served:
 * a program's own code and data between them may have pushed it out. */
RS_HOT_INLINE void rs_kept_prefetch(const struct rs_freed *taken)
{
    if (RS_LIKELY(taken->next)) {
        __builtin_prefetch(taken->next->holder, 1);
        __builtin_prefetch(taken->next->next, 1);
    }
}

RS_HOT_INLINE void rs_kept_put(struct rs_kept_blocks *kept, struct rs_freed *freed)
{
    unsigned bin = rs_kept_bin(freed->upstream.size_bytes);

    RS_ASSERT_SLOW(!freed->slot); /* what is found by its stream is kept nowhere else */
    freed->next = kept->bins[bin];
    kept->bins[bin] = freed;
    kept->filled[bin / 64] |= (uint64_t)1 << bin % 64;
    kept->bytes += freed->upstream.size_bytes;
    kept->count++;
}

/* Moves all of them to a list. */
void rs_kept_empty(struct rs_kept_blocks *kept, struct rs_freed_list *list);

/* True when the structure is sound. */
bool rs_kept_check(const struct rs_kept_blocks *kept);
