/* SPDX-License-Identifier: Apache-2.0 */
/* Free blocks by size: finds the smallest that fits, at the lowest address among equals.
 *
 * Classes of sizes, each with a small tree, under a bitmap that tells which have any.  Classes are
 * 512 bytes wide up to 128 KiB and 1/128 to 1/256 of the size above, so trees stay a few nodes deep
 * with thousands of free blocks.  Needs a lock of its owner's; no memory beyond the blocks'
 * records. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A part of an upstream chunk, free or handed out: out-of-band, as device memory cannot be read. */
struct rs_block {
    CUdeviceptr address;
    size_t size_bytes;               /* a multiple of 512 unless it ends its chunk */
    struct rs_block *before, *after; /* neighbours in the chunk; NULL at its ends */
    struct rs_block *left, *right;   /* of a free block: its tree in the index */
    uint32_t rank;                   /* of a free block: its height in the tree, random */
    uint8_t group;                   /* of its chunk: who may have it (blocks.h) */
    bool is_free;
    bool is_void; /* of `virtual`: addresses without memory, in an index of their own */
    bool is_busy; /* of `virtual`: in the middle of driver calls */
};

enum {
    RS_BLOCK_UNIT_BITS = 9,  /* sizes count in units of 512 bytes, rounded up */
    RS_BLOCK_CLASS_BITS = 7, /* classes per doubling: 2^7 */
    RS_BLOCK_UNITS_BITS = 64 - RS_BLOCK_UNIT_BITS + 1, /* of SIZE_MAX in units, rounded up */
    RS_BLOCK_CLASSES = (RS_BLOCK_UNITS_BITS - RS_BLOCK_CLASS_BITS + 1) << RS_BLOCK_CLASS_BITS,
    RS_BLOCK_CLASS_WORDS = (RS_BLOCK_CLASSES + 63) / 64,
    RS_BLOCK_CLASS_GROUPS = (RS_BLOCK_CLASS_WORDS + 63) / 64,
};

struct rs_block_index {
    uint64_t groups[RS_BLOCK_CLASS_GROUPS]; /* which words have a bit set */
    uint64_t words[RS_BLOCK_CLASS_WORDS];   /* which classes have a block */
    struct rs_block *roots[RS_BLOCK_CLASSES];
};

/* All zero is an empty index. */

/* Both O(log n) in the blocks of the size's class. */
void rs_block_index_insert(struct rs_block_index *index, struct rs_block *block);
void rs_block_index_remove(struct rs_block_index *index, struct rs_block *block);

/* The smallest block of at least size_bytes (> 0), the lowest address among equals; NULL when there
 * is none.  O(log n). */
struct rs_block *rs_block_index_best_fit(const struct rs_block_index *index, size_t size_bytes);

/* The block that comes after that one of the index in the order of size, then of address; NULL when
 * it is the last. */
struct rs_block *rs_block_index_after(const struct rs_block_index *index,
                                      const struct rs_block *block);

static inline bool rs_block_index_is_empty(const struct rs_block_index *index)
{
    uint64_t any = 0;

    for (size_t group = 0; group < RS_BLOCK_CLASS_GROUPS; group++)
        any |= index->groups[group];
    return !any;
}

/* The largest block, or NULL. */
struct rs_block *rs_block_index_largest(const struct rs_block_index *index);

/* True when the structure is sound; *count is the number of blocks in it. */
bool rs_block_index_check(const struct rs_block_index *index, size_t *count);

/* Length of the longest path in any tree, for tests. */
unsigned rs_block_index_height(const struct rs_block_index *index);
