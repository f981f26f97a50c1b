/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pool beneath `async`, for async.c alone: the driver calls, and the pool's bytes in
 * the account. */
#pragma once

#include "driver/driver.h"
#include "resource/leaf/detached_leaf.h"

/* The longest wait for the own stream where there is another way.  Where streams share a channel,
 * the own stream may be behind the program's work, and that work may wait for this thread, so no
 * wait is unbounded.  A free of 4 GiB takes 1 to 2 ms on the stream. */
static const uint64_t rs_async_idle_wait_ns = 20ull * 1000 * 1000;

struct rs_async {
    struct rs_detached_leaf leaf; /* its lock also protects the sizes below; the only driver calls
                                     under it read the pool's attributes, and wait for no work */
    CUmemoryPool pool;
    size_t initial_bytes;   /* bytes that stay when the pool is trimmed */
    size_t threshold_bytes; /* bytes that stay when the program synchronises; SIZE_MAX: all */
    size_t charged_bytes; /* our bytes in the account: those that the pool has reserved, and pending
                             ones */
    size_t pending_bytes; /* the most by which calls under way may make the pool grow */
    size_t peak_reserved_bytes;

    /* A request of vain_bytes was not served from idle memory ... */
    size_t vain_bytes; /* SIZE_MAX: no such request is known */
    /* ... and given_bytes were given back since then. */
    size_t given_bytes;
};

static inline enum rs_memory rs_async_memory_of(const struct rs_async *async)
{
    return async->leaf.base.descriptor->memory;
}

/* Reads an attribute of the driver's pool into *bytes.  False when the driver refuses. */
bool rs_async_pool_attribute(const struct rs_async *async, CUmemPool_attribute attribute,
                             size_t *bytes);

/* ---- the account ---- */

/* Returns the bytes that the driver has reserved in the pool.  The caller holds the lock. */
size_t rs_async_reserved_bytes(const struct rs_async *async);

/* rs_async_note_in_vain: idle memory did not serve a request of size_bytes, so it is not tried for
 * such a size until enough was given back.  rs_async_note_given: size_bytes were given back. */
void rs_async_note_in_vain(struct rs_async *async, size_t size_bytes);
void rs_async_note_given(struct rs_async *async, size_t size_bytes);

/* True when size_bytes are idle in the pool, and not known to be in smaller pieces. */
bool rs_async_has_idle(struct rs_async *async, size_t size_bytes, enum rs_effort effort);

/* Charges the most bytes by which a call may make the pool grow.  False at the limit. */
bool rs_async_charge(struct rs_async *async, size_t growth_bytes);

/* Ends a call that was charged growth_bytes, or follows a change of the pool: charges the bytes
 * that the pool has reserved, and returns them in *charged.  False when these are more than before
 * without may_grow, or more than the limit allows; the old charge stays then. */
bool rs_async_settle(struct rs_async *async, size_t growth_bytes, bool may_grow, size_t *charged);

/* ---- the driver's calls ---- */

/* Frees a block in the order of the own stream, without a wait. */
CUresult rs_async_free_on_own_stream(struct rs_async *async, CUdeviceptr address);

/* Allocates a block that is usable on every stream on return, after a wait of at most bound_ns.
 * CUDA_ERROR_NOT_READY when this takes longer; the block goes back then. */
CUresult rs_async_allocate_on_own_stream(struct rs_async *async, size_t size_bytes,
                                         uint64_t bound_ns, CUdeviceptr *address);

/* Waits up to bound_ns until the driver has executed the frees, whose bytes count as used before.
 */
void rs_async_settle_own_stream(const struct rs_async *async, uint64_t bound_ns);

/* Has the driver release the pool's idle memory, down to keep_bytes reserved. */
void rs_async_trim_pool(struct rs_async *async, size_t keep_bytes);

/* Gives idle memory above keep_bytes back to the driver, down to at_least_bytes reserved.  Returns
 * the bytes by which the charge fell. */
size_t rs_async_give_back(struct rs_async *async, size_t keep_bytes, size_t at_least_bytes);
