/* SPDX-License-Identifier: Apache-2.0 */
/* What the program holds, counted at each allocation and free.
 *
 * Each thread counts in a line of its own.  A peak is exact while one or two threads allocate on a
 * device; with more, each of them may have RS_PEAK_SLACK_BYTES and RS_PEAK_SLACK_BLOCKS that no
 * peak has seen yet: looking at all the others each time would cost more than the allocation. */
#pragma once

#include "shim/config.h"

#include <stddef.h>
#include <stdint.h>

enum { RS_PEAK_SLACK_BYTES = 1 << 20, RS_PEAK_SLACK_BLOCKS = 64 };

/* Of one kind of memory on one device; exact, but for the peaks, unless threads allocate or free at
 * that moment. */
struct rs_block_counts {
    size_t live_bytes, peak_live_bytes; /* as requested */
    size_t live_blocks, peak_live_blocks;
    uint64_t entered, left; /* blocks ever; one whose free fails leaves and enters again */
};

/* Thread safe, as all here; kind and device must be in range. */
struct rs_block_counts rs_block_counts(enum rs_kind kind, int device);

struct rs_block_counter *rs_block_counter(enum rs_kind kind, int device);
void rs_block_count_entered(struct rs_block_counter *counter, size_t size_bytes);
void rs_block_count_left(struct rs_block_counter *counter, size_t size_bytes);
