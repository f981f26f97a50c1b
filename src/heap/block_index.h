/* SPDX-License-Identifier: Apache-2.0 */
/* An index of free blocks by size.  It finds the smallest block that fits, at the lowest address
 * among equals.
 *
 * Blocks are divided into classes of sizes; each class has a small tree, and a bitmap tells
 * which classes have blocks.  A class is 512 bytes wide up to 128 KiB, and 1/128 to 1/256 of the
 * size above, so a tree stays a few nodes deep with thousands of free blocks.  The owner's lock
 * protects the index; it needs no memory beyond the blocks' records. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A part of an upstream chunk, free or handed out.  The record lies in host memory, since the
 * host cannot access device memory. */
struct rs_block {
    CUdeviceptr address;
    size_t size_bytes;               /* a multiple of 512 unless the block ends its chunk */
    struct rs_block *before, *after; /* neighbours in the chunk; NULL at the chunk's ends */
    struct rs_block *left, *right;   /* of a free block: its children in the index's tree */
    uint32_t rank; /* of a free block: its heap priority in the tree, a hash of the address */
    uint8_t group; /* of the chunk: an enum rs_block_group (blocks.h) */
    bool is_free;
    bool is_void; /* `virtual` only: addresses without memory, in a separate index */
    bool is_busy; /* `virtual` only: driver calls on the block are under way */
};

enum {
    RS_BLOCK_UNIT_BITS = 9,  /* sizes are counted in units of 512 bytes, rounded up */
    RS_BLOCK_CLASS_BITS = 7, /* classes per doubling: 2^7 */
    RS_BLOCK_UNITS_BITS = 64 - RS_BLOCK_UNIT_BITS + 1, /* bits of SIZE_MAX in units */
    RS_BLOCK_CLASSES = (RS_BLOCK_UNITS_BITS - RS_BLOCK_CLASS_BITS + 1) << RS_BLOCK_CLASS_BITS,
    RS_BLOCK_CLASS_WORDS = (RS_BLOCK_CLASSES + 63) / 64,
    RS_BLOCK_CLASS_GROUPS = (RS_BLOCK_CLASS_WORDS + 63) / 64,
};

/* All zero is an empty index. */
struct rs_block_index {
    uint64_t groups[RS_BLOCK_CLASS_GROUPS]; /* which words have a bit set */
    uint64_t words[RS_BLOCK_CLASS_WORDS];   /* which classes have a block */
    struct rs_block *roots[RS_BLOCK_CLASSES];
};

/* Insert and remove a block whose size and address do not change meanwhile.  Both take O(log n)
 * steps for n blocks of the size's class. */
void rs_block_index_insert(struct rs_block_index *index, struct rs_block *block);
void rs_block_index_remove(struct rs_block_index *index, struct rs_block *block);

/* Returns the smallest block of at least size_bytes (> 0), at the lowest address among equals,
 * or NULL when there is none.  O(log n).  Ignores alignment. */
struct rs_block *rs_block_index_best_fit(const struct rs_block_index *index, size_t size_bytes);

/* Returns the next block after `block`, which is in the index, by size and then by address, or
 * NULL when it is the last. */
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

/* Returns the length of the longest path in any tree; for tests. */
unsigned rs_block_index_height(const struct rs_block_index *index);
