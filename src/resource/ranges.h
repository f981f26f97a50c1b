/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of memory that are cut into blocks without gaps, with best fit and immediate coalescing.
 *
 * A block is linked to its neighbours, and two free blocks are never adjacent, so a free looks at
 * two other records only.  The block's record is the allocation's token, so a free needs no search.
 * A free only gives records back, so it needs no memory.
 *
 * Requests are rounded up to multiples of 512 bytes.  A range may have another size: its last block
 * then keeps its true size, which is compared with the unrounded request.  So the end of the range
 * is used, and no byte beyond it.  For managed memory no two blocks may share a page of 64 KiB: the
 * owner makes all requests with that unit, and begins its ranges at multiples of it.
 *
 * The owner is the resource that has the ranges.  Its lock protects the structure.  It also owns
 * the record of each range's first block, which lives as long as the range, since a merge keeps the
 * lower record. */
#pragma once

#include "resource/block.h"
#include "resource/record_slab.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- alignment: blocks that are cut from larger ones must be aligned as the driver aligns its
 * own, so that a program cannot tell the difference ---- */

enum {
    RS_LARGE_BYTES = 1 << 20, /* a request is large from 1 MiB on */
    /* Alignment of a large block: the page size of GPUDirect and dma-buf. */
    RS_LARGE_ALIGNMENT = 64 << 10,
};

/* Returns the number of bytes from `address` up to the next multiple of `alignment`, a power of
 * two; 0 if `address` itself is a multiple. */
static inline size_t rs_lead_bytes(CUdeviceptr address, size_t alignment)
{
    return (size_t)(-address & (alignment - 1));
}

/* ---- the index ---- */

/* An index of free blocks by size.  It finds the smallest block that fits, at the lowest address
 * among equals.
 *
 * Blocks are divided into classes of sizes.  Each class has a small tree, and a bitmap tells which
 * classes have blocks.  Up to 128 KiB a class is 512 bytes wide, above that 1/256 to 1/128 of the
 * size.  So a tree stays a few nodes deep even with thousands of free blocks.  The index needs no
 * memory beyond the blocks' records.  The owner's lock protects it. */

/* A part of a range: free, handed out, or, in `virtual`, void or busy.  The record lies in host
 * memory, since the host cannot access device memory. */
struct rs_block {
    CUdeviceptr address;
    size_t size_bytes;               /* a multiple of 512 unless the block ends its range */
    struct rs_block *before, *after; /* neighbours in the range; NULL at the range's ends */
    /* In an index: the block's children in the tree.  `virtual` also links busy blocks by left. */
    struct rs_block *left, *right;
    uint32_t rank; /* in an index: the block's heap priority in the tree, a hash of the address */
    uint8_t group; /* enum rs_block_group of its range, or RS_BLOCKS_END */
    bool is_free;
    bool is_void; /* `virtual` only: addresses without memory, in a separate index */
    bool is_busy; /* `virtual` only: driver calls on the block are under way */
};

enum {
    RS_BLOCK_UNIT_BITS = 9,  /* sizes are counted in units of 512 bytes, rounded up */
    RS_BLOCK_CLASS_BITS = 7, /* there are 2^7 classes per doubling of the size */
    /* How many bits the largest size has when it is counted in units. */
    RS_BLOCK_UNITS_BITS = 64 - RS_BLOCK_UNIT_BITS + 1,
    RS_BLOCK_CLASSES = (RS_BLOCK_UNITS_BITS - RS_BLOCK_CLASS_BITS + 1) << RS_BLOCK_CLASS_BITS,
    RS_BLOCK_CLASS_WORDS = (RS_BLOCK_CLASSES + 63) / 64,
    RS_BLOCK_CLASS_GROUPS = (RS_BLOCK_CLASS_WORDS + 63) / 64,
};

/* An index of blocks by size; all zero is empty. */
struct rs_block_index {
    uint64_t groups[RS_BLOCK_CLASS_GROUPS];   /* a bit for each of `words` that is not 0 */
    uint64_t words[RS_BLOCK_CLASS_WORDS];     /* a bit for each class that has a block */
    struct rs_block *roots[RS_BLOCK_CLASSES]; /* the tree of each class */
};

/* Insert and remove a block, in O(log n) steps for n blocks of its class.  The block's size and
 * address must not change while it is in the index. */
void rs_block_index_insert(struct rs_block_index *index, struct rs_block *block);
void rs_block_index_remove(struct rs_block_index *index, struct rs_block *block);

/* Returns the smallest block of at least size_bytes (> 0), at the lowest address among equals,
 * or NULL when there is none.  O(log n).  Ignores alignment. */
struct rs_block *rs_block_index_best_fit(const struct rs_block_index *index, size_t size_bytes);

/* Returns the block that follows `block` in the index, in the order of size and then of address;
 * NULL if `block` is the last. */
struct rs_block *rs_block_index_after(const struct rs_block_index *index,
                                      const struct rs_block *block);

static inline bool rs_block_index_is_empty(const struct rs_block_index *index)
{
    uint64_t any = 0;

    for (size_t group = 0; group < RS_BLOCK_CLASS_GROUPS; group++)
        any |= index->groups[group];
    return !any;
}

/* Returns the largest block, or NULL when the index is empty. */
struct rs_block *rs_block_index_largest(const struct rs_block_index *index);

/* Checks the structure.  Returns true when it is sound; *count is the number of blocks. */
bool rs_block_index_check(const struct rs_block_index *index, size_t *count);

/* ---- ranges ---- */

/* The group of a range, and of the blocks that are cut from it.  A request takes blocks of its own
 * group and of the common group (rs_blocks_take_any: of all groups).  Groups keep small blocks out
 * of the ranges for large ones, so that these ranges are wholly free again sooner.
 *
 * A common range serves small requests at its upper end and others at its lower end.  So long-lived
 * small blocks gather at the upper end, and the rest stays one piece.  Blocks that were cut at the
 * upper end are a group of their own, RS_BLOCKS_END, from which only small requests take.  A free
 * block of that group becomes common when it merges with a common one or has apart_bytes. */
enum rs_block_group {
    RS_BLOCKS_COMMON, /* ranges that serve requests of every group */
    RS_BLOCKS_SMALL,  /* ranges for small requests */
    RS_BLOCKS_MEDIUM, /* ranges for medium requests */
    RS_BLOCKS_LARGE,  /* ranges for large requests */
    RS_BLOCKS_END,    /* the upper end of a common range; no range and no request has this group */
};

enum { RS_BLOCK_GROUPS = 5 };

/* Ranges that are cut into blocks, and the index of their free blocks. */
struct rs_blocks {
    /* One index for each group.  They take 250 KiB, most of it never touched, so they lie apart
     * from the counters below, which are in published memory (shared/published.h). */
    struct rs_block_index *free_blocks;
    struct rs_record_slab records;
    size_t free_block_count;
    size_t free_range_count;   /* ranges that are one free block: nothing of them is handed out */
    _Atomic size_t live_bytes; /* the rounded bytes of handed-out blocks; written under the lock,
                                  also read without it (base/lock.h) */
    size_t peak_live_bytes;
    /* A request below this size is small.  A free block of the group RS_BLOCKS_END that reaches
     * this size becomes common.  Written under the lock, also read without it. */
    _Atomic size_t apart_bytes;
};

/* Makes the indexes of blocks that are all zero.  Returns false when out of host memory. */
bool rs_blocks_begin(struct rs_blocks *blocks);

/* Frees the indexes and the records.  May also be called after rs_blocks_begin failed. */
void rs_blocks_end(struct rs_blocks *blocks);

/* What rs_blocks_take looks for.  rs_block_request_init fills in the request, and the owner may
 * then change its fields. */
struct rs_block_request {
    size_t bytes, rounded_bytes; /* as requested; rounded up to `unit` */
    size_t unit;        /* the block's address and rounded size are always multiples of this */
    size_t alignment;   /* the wanted alignment, in bytes */
    bool any_alignment; /* a block that is aligned only to `unit` will do if there is no better */
    /* The request only cuts a free block of at most most_bytes, or of at least ample_bytes.  This
     * does not bind a small request at the upper end of a common range. */
    size_t most_bytes, ample_bytes;
    enum rs_block_group group;
    bool is_small;   /* a small request: a large block of a common range is cut at its upper end */
    bool stays_away; /* with is_small: never cuts a block that large requests could use */
};

/* Fills in a request of the common group, which may cut a free block of any size.  Requests of
 * RS_LARGE_BYTES or more get RS_LARGE_ALIGNMENT, unless `packed`.  unit_bytes: a power of two, at
 * least RS_BLOCK_ALIGNMENT.  Returns false when the rounded size exceeds SIZE_MAX. */
bool rs_block_request_init(struct rs_block_request *request, size_t size_bytes, size_t unit_bytes,
                           bool packed);

/* True when the block is all of its range. */
static inline bool rs_block_is_whole(const struct rs_block *block)
{
    return !block->before && !block->after;
}

/* rs_blocks_insert_free makes a block that is in no index free; rs_blocks_remove_free takes a free
 * block out of its index.  Neither merges blocks. */
void rs_blocks_insert_free(struct rs_blocks *blocks, struct rs_block *block);
void rs_blocks_remove_free(struct rs_blocks *blocks, struct rs_block *block);

/* Cuts a block that is in no index in two.  `block` keeps its first keep_bytes; the rest becomes a
 * block that is in no index either, and is returned.  A record must be in reserve
 * (rs_record_slab_reserve). */
struct rs_block *rs_blocks_cut(struct rs_blocks *blocks, struct rs_block *block, size_t keep_bytes);

/* Merges `upper` into its neighbour `lower`, and gives the record of `upper` back.  Both must be in
 * no index. */
RS_HOT_INLINE void rs_blocks_merge(struct rs_blocks *blocks, struct rs_block *lower,
                                   struct rs_block *upper)
{
    RS_ASSERT(lower->address + lower->size_bytes == upper->address);
    RS_ASSERT_SLOW(lower->after == upper && upper->before == lower);
    lower->size_bytes += upper->size_bytes;
    lower->after = upper->after;
    if (lower->after)
        lower->after->before = lower;
    if (lower->group != upper->group)
        lower->group = RS_BLOCKS_COMMON;
    rs_record_slab_give(&blocks->records, upper);
}

/* Hands out the best fit among the free blocks that the request may cut.  Two records must be in
 * reserve (rs_record_slab_reserve).  Returns false, with *out unchanged, when no block fits. */
bool rs_blocks_take(struct rs_blocks *blocks, const struct rs_block_request *request,
                    struct rs_allocation *out);

/* Does as rs_blocks_take, but among free blocks of every group and size. */
bool rs_blocks_take_any(struct rs_blocks *blocks, const struct rs_block_request *request,
                        struct rs_allocation *out);

/* Hands out a part of a free block: the part after the first lead_bytes, or the block's beginning
 * if the request does not fit behind lead_bytes.  Two records must be in reserve. */
void rs_blocks_hand_out(struct rs_blocks *blocks, struct rs_block *block, size_t lead_bytes,
                        const struct rs_block_request *request, struct rs_allocation *out);

/* Makes a block free that is in no index, and merges it with free neighbours. */
void rs_blocks_put(struct rs_blocks *blocks, struct rs_block *block);

/* Makes a handed-out block free, as rs_blocks_put does, and subtracts its size from live_bytes. */
void rs_blocks_give(struct rs_blocks *blocks, struct rs_block *block);

/* Returns the size in bytes of the largest free block; 0 when there is none. */
size_t rs_blocks_largest_free_bytes(const struct rs_blocks *blocks);

/* Checks all indexes.  Returns true when they are sound; *count is the number of their blocks. */
bool rs_blocks_index_check(const struct rs_blocks *blocks, size_t *count);
