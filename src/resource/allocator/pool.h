/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a pool that tests and benchmarks read beside its report. */
#pragma once

#include "resource/resource.h"

/* A snapshot, taken under the pool's lock. */
struct rs_pool_state {
    size_t held_bytes; /* in upstream chunks */
    size_t peak_held_bytes;
    size_t live_bytes; /* in blocks handed out, as rounded */
    size_t peak_live_bytes;
    size_t largest_free_bytes;
    size_t chunk_count;
    unsigned index_height; /* longest path in the index of free blocks */
};

/* Returns the state of a pool in *state.  Thread safe. */
void rs_pool_state(struct rs_mr *mr, struct rs_pool_state *state);
