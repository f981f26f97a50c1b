/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks freed in the order of a stream (cudaFreeAsync), which an allocation in the order of the
 * same stream may reuse at once.  They wait in lists like all freed blocks, open or of an epoch.
 * As an allocation takes blocks out of the middle of such a list, the lock here protects these
 * lists wherever they are.  It is taken after the lock of the resource that owns them. */
#pragma once

#include "base/lock.h"
#include "resource/block.h"

#include <stdatomic.h>

enum {
    RS_ORDERED_SET_BITS = 6,
    /* Sets are chosen by a hash of stream and size class. */
    RS_ORDERED_SETS = 1 << RS_ORDERED_SET_BITS,
    /* Slots per set; a block without a slot waits for its fence like any other. */
    RS_ORDERED_WAYS = 16,
};

/* A place where an allocation finds an ordered block. */
struct rs_ordered_slot {
    unsigned long long stream;     /* as from rs_stream_key */
    struct rs_block_record *block; /* NULL: empty */
};

struct rs_ordered_blocks {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    struct rs_block_list open;
    ptrdiff_t live_bytes; /* taken back minus freed, as in a shard; may be negative */
    uint64_t reuses;      /* blocks taken back */
    _Atomic bool is_used; /* any block was ever freed in order; read without the lock */
    unsigned char turn[RS_ORDERED_SETS]; /* the slot of a full set that the next block replaces */
    struct rs_ordered_slot slots[RS_ORDERED_SETS][RS_ORDERED_WAYS];
};

/* Takes a block that was freed in the order of `stream` (as from rs_stream_key) and is at most an
 * eighth larger than size_bytes, and counts it as live again.  NULL when there is none. */
struct rs_block_record *rs_ordered_take(struct rs_ordered_blocks *ordered, size_t size_bytes,
                                        unsigned long long stream);

/* Enters a block that was freed in the order of `stream`.  Returns the number of open ordered
 * blocks; *open_bytes: their bytes. */
size_t rs_ordered_push(struct rs_ordered_blocks *ordered, struct rs_block_record *freed,
                       unsigned long long stream, size_t *open_bytes);

/* Moves a list of ordered blocks to another; allocations may still take them.  False when the list
 * was empty. */
bool rs_ordered_move(struct rs_ordered_blocks *ordered, struct rs_block_list *from,
                     struct rs_block_list *to);

/* Moves a list of ordered blocks to a list of other freed blocks: no allocation can take them any
 * more. */
void rs_ordered_drain(struct rs_ordered_blocks *ordered, struct rs_block_list *from,
                      struct rs_block_list *to);

/* The number of open ordered blocks. */
size_t rs_ordered_open_count(struct rs_ordered_blocks *ordered);

/* Bytes taken back minus bytes freed; may be negative. */
ptrdiff_t rs_ordered_live_bytes(struct rs_ordered_blocks *ordered);

/* The number of blocks taken back so far. */
uint64_t rs_ordered_reuses(struct rs_ordered_blocks *ordered);

/* Adds the bytes and blocks of a list of ordered blocks.  False when an invariant is broken.  The
 * caller holds the lock. */
bool rs_ordered_check(const struct rs_ordered_blocks *ordered, const struct rs_block_list *list,
                      size_t *bytes, size_t *blocks);
