/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks freed in the order of a stream, which an allocation in the order of the same stream may
 * have at once.  They wait in lists like all others, open or of an epoch; the lock here protects
 * those lists everywhere, as an allocation takes blocks out of the middle.  It is taken after the
 * lock of the resource that owns them. */
#pragma once

#include "base/lock.h"
#include "resource/reuse/freed_block.h"

#include <stdatomic.h>

enum {
    RS_ORDERED_SET_BITS = 6,
    RS_ORDERED_SETS = 1 << RS_ORDERED_SET_BITS, /* by stream and size class */
    RS_ORDERED_WAYS = 16, /* what does not fit can not be found, and waits for its fence */
};

struct rs_ordered_slot {
    unsigned long long stream; /* as in rs_stream_key */
    struct rs_freed *block;    /* NULL: empty */
};

struct rs_ordered_blocks {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    struct rs_freed_list open;
    ptrdiff_t live_bytes;                /* taken back minus freed; as a shard's */
    uint64_t reuses;                     /* taken back */
    _Atomic bool is_used;                /* by any free, ever; without the lock */
    unsigned char turn[RS_ORDERED_SETS]; /* which way is emptied next */
    struct rs_ordered_slot slots[RS_ORDERED_SETS][RS_ORDERED_WAYS];
};

/* A block that was freed in the order of this stream (a number as in rs_stream_key) and is at most
 * an eighth larger than what is asked for, counted as live again; NULL when there is none. */
struct rs_freed *rs_ordered_take(struct rs_ordered_blocks *ordered, size_t size_bytes,
                                 unsigned long long stream);

/* Enters a block that was freed in the order of a stream.  Returns how many are open, and their
 * bytes. */
size_t rs_ordered_push(struct rs_ordered_blocks *ordered, struct rs_freed *freed,
                       unsigned long long stream, size_t *open_bytes);

/* Moves a list of ordered blocks, which stay ordered.  False when it was empty. */
bool rs_ordered_move(struct rs_ordered_blocks *ordered, struct rs_freed_list *from,
                     struct rs_freed_list *to);

/* Moves a list of ordered blocks to others, which wait or go upstream: nobody can take them back.
 */
void rs_ordered_drain(struct rs_ordered_blocks *ordered, struct rs_freed_list *from,
                      struct rs_freed_list *to);

bool rs_ordered_has_open(struct rs_ordered_blocks *ordered);

/* Taken back minus freed: may be negative. */
ptrdiff_t rs_ordered_live_bytes(struct rs_ordered_blocks *ordered);

/* How many were taken back; 0 where none was ever freed so. */
uint64_t rs_ordered_reuses(struct rs_ordered_blocks *ordered);

/* Adds what is in a list of ordered blocks.  False when it contradicts itself.  Under the lock. */
bool rs_ordered_check(const struct rs_ordered_blocks *ordered, const struct rs_freed_list *list,
                      size_t *bytes, size_t *blocks);
