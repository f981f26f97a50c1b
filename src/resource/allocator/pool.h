/* SPDX-License-Identifier: Apache-2.0 */
/* How a pool is made under another name, and its state that tests and benchmarks read beside its
 * report. */
#pragma once

#include "resource/resource.h"

/* The values of the options of `pool`. */
struct rs_pool_config {
    size_t initial_size, maximum_size; /* multiples of 256 */
    size_t alignment;
    int growth; /* enum rs_pool_growth */
};

/* Makes a pool that is a resource of this descriptor, whose name its report and its messages have.
 * The rest is as in rs_mr_descriptor.create. */
int rs_pool_create(const struct rs_mr_descriptor *descriptor,
                   const struct rs_environment *environment, const struct rs_pool_config *config,
                   struct rs_mr *const *upstream, struct rs_mr **out);

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
