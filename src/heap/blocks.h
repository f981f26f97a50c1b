/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of memory cut into blocks without gaps: best fit, immediate coalescing.
 *
 * Blocks are linked to their neighbours and free ones never lie side by side, so a free looks at
 * two records only.  The record is the allocation's token: nothing is searched for, and since frees
 * only ever release records they need no memory.
 *
 * Handed-out blocks are rounded up to 512 bytes except at the end of a range whose own size is not
 * a multiple of that: its last block keeps its true size, is indexed by it and compared with the
 * true request, so the odd end is used and no byte past it.  An owner whose blocks shall share no
 * larger unit than 512 bytes asks for all of them with that unit, and begins its ranges so aligned.
 *
 * Needs a lock of its owner's, who also owns each range's first record: merging keeps the lower
 * record, so that one lives as long as its range. */
#pragma once

#include "heap/allocation.h"
#include "heap/block_index.h"
#include "heap/record_slab.h"

/* Ranges are of a group, as their first record says and all blocks cut from them.  A request is for
 * blocks of its own group and of the common one, unless it is for any: a range that only large
 * blocks are cut from is not pinned by small ones, and is whole again sooner.
 *
 * From a common range small requests are cut at the upper end and others at the lower: what lives
 * long among the small ones gathers there, and leaves one piece to the large ones.  Their free
 * blocks are a group of their own, until they have apart_bytes or lie beside one that is for all.
 */
enum rs_block_group {
    RS_BLOCKS_COMMON,
    RS_BLOCKS_SMALL,
    RS_BLOCKS_MEDIUM,
    RS_BLOCKS_LARGE,
    RS_BLOCKS_END, /* no range's, nor request's: what was cut from the upper end of a common one */
};

enum { RS_BLOCK_GROUPS = 5 };

struct rs_blocks {
    struct rs_block_index free_blocks[RS_BLOCK_GROUPS];
    struct rs_record_slab records;
    size_t free_block_count;
    size_t free_range_count;   /* ranges that are one free block: nothing of them is handed out */
    _Atomic size_t live_bytes; /* base/counter.h */
    size_t peak_live_bytes;
    /* A free block of the upper end that has so much is for all again.  Written under the lock,
     * read without it too. */
    _Atomic size_t apart_bytes;
};

/* All zero is empty. */

struct rs_block_request {
    size_t bytes, rounded_bytes;
    size_t unit;        /* of which address and rounded size are always multiples */
    size_t alignment;   /* wanted */
    bool any_alignment; /* where the wanted one cannot be had */
    /* Of a free block that rs_blocks_take cuts for it: no more than most, or at least ample. */
    size_t most_bytes, ample_bytes;
    enum rs_block_group group;
    bool is_small;   /* beside others: it lies at the upper end of a range that is for all */
    bool stays_away; /* small, and is cut from no block that a large request could have */
};

/* Large requests are aligned for GPUDirect and dma-buf pages, unless `packed`.  unit_bytes is a
 * power of two, RS_BLOCK_ALIGNMENT or more.  The group is the common one, and the block to cut may
 * have any size.  False for sizes that no memory has. */
bool rs_block_request_init(struct rs_block_request *request, size_t size_bytes, size_t unit_bytes,
                           bool packed);

/* True for a block that is all of its range. */
static inline bool rs_block_is_whole(const struct rs_block *block)
{
    return !block->before && !block->after;
}

/* Enters a block that nobody uses, or takes one out, as it is. */
void rs_blocks_insert_free(struct rs_blocks *blocks, struct rs_block *block);
void rs_blocks_remove_free(struct rs_blocks *blocks, struct rs_block *block);

/* Cuts a block that is in no index in two; returns the upper one.  A record must be in reserve
 * (rs_record_slab_reserve). */
struct rs_block *rs_blocks_cut(struct rs_blocks *blocks, struct rs_block *block, size_t keep_bytes);

/* Merges `upper` into `lower`, its neighbour; neither is in an index. */
void rs_blocks_merge(struct rs_blocks *blocks, struct rs_block *lower, struct rs_block *upper);

/* Hands out the best fit of those that may be cut for the request.  Two records must be in reserve.
 * False when there is none. */
bool rs_blocks_take(struct rs_blocks *blocks, const struct rs_block_request *request,
                    struct rs_allocation *out);

/* The same, of any group and size. */
bool rs_blocks_take_any(struct rs_blocks *blocks, const struct rs_block_request *request,
                        struct rs_allocation *out);

/* Makes a block that is in no index free, merged with free neighbours. */
void rs_blocks_put(struct rs_blocks *blocks, struct rs_block *block);

/* The same for one that was handed out. */
void rs_blocks_give(struct rs_blocks *blocks, struct rs_block *block);

/* Size of the largest free block. */
size_t rs_blocks_largest_free_bytes(const struct rs_blocks *blocks);

/* Of all groups' indexes: their height, and whether they are sound and how many blocks are in them.
 */
unsigned rs_blocks_index_height(const struct rs_blocks *blocks);
bool rs_blocks_index_check(const struct rs_blocks *blocks, size_t *count);
