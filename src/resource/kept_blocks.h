/* SPDX-License-Identifier: Apache-2.0 */
/* Clean blocks that are kept for the next request of just their size.  Needs a lock of its owner's,
 * and no memory beyond the blocks' records. */
#pragma once

#include "resource/freed_block.h"

enum {
    RS_KEPT_BIN_BITS = 7,
    RS_KEPT_BINS = 1 << RS_KEPT_BIN_BITS, /* by size */
};

/* The latest first.  All zero is empty. */
struct rs_kept_blocks {
    struct rs_freed *bins[RS_KEPT_BINS];
    size_t bytes, count;
};

/* A block of exactly that size, or NULL: only the latest few of a bin are looked at. */
struct rs_freed *rs_kept_take(struct rs_kept_blocks *kept, size_t size_bytes);

void rs_kept_put(struct rs_kept_blocks *kept, struct rs_freed *freed);

/* Moves all of them to a list. */
void rs_kept_empty(struct rs_kept_blocks *kept, struct rs_freed_list *list);

/* True when the structure is sound. */
bool rs_kept_check(const struct rs_kept_blocks *kept);
