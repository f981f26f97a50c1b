/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pool beneath `async`, for async.c alone: its calls, and its bytes in the account. */
#pragma once

#include "driver/driver.h"
#include "resource/leaf/detached_leaf.h"

/* The own stream may be behind the program's work where streams share a channel, and that work may
 * wait for this thread, so no wait for it is without an end.  This long for what may also be had
 * otherwise: a free of 4 GiB takes 1 to 2 ms there. */
static const uint64_t rs_async_idle_wait_ns = 20ull * 1000 * 1000;

struct rs_async {
    struct rs_detached_leaf leaf; /* its lock protects the sizes; only reads of the pool's
                                    attributes under it, which wait for no work */
    CUmemoryPool pool;
    size_t initial_bytes;   /* stay when the pool is trimmed */
    size_t threshold_bytes; /* stay when the program synchronises; SIZE_MAX: all */
    size_t charged_bytes;   /* of ours in the account: what the pool has reserved, and pending */
    size_t pending_bytes;   /* calls under way may make the pool grow by this */
    size_t peak_reserved_bytes;

    /* What is idle did not serve a request of this size ... */
    size_t vain_bytes; /* SIZE_MAX: none is known */
    /* ... and so much was given back since then. */
    size_t given_bytes;
};

static inline enum rs_memory rs_async_memory_of(const struct rs_async *async)
{
    return async->leaf.base.descriptor->memory;
}

bool rs_async_pool_attribute(const struct rs_async *async, CUmemPool_attribute attribute,
                             size_t *bytes);

/* ---- the account ---- */

/* What the driver has reserved in the pool.  Under the lock. */
size_t rs_async_reserved_bytes(const struct rs_async *async);

/* Idle memory did not serve a request of that size: it is not tried for such again until enough
 * was given back. */
void rs_async_note_in_vain(struct rs_async *async, size_t size_bytes);
void rs_async_note_given(struct rs_async *async, size_t size_bytes);

/* True when so much is reserved and not handed out, and not known to be in smaller pieces. */
bool rs_async_has_idle(struct rs_async *async, size_t size_bytes, enum rs_effort effort);

/* Charges for the most that a call may make the pool grow by.  False at the limit. */
bool rs_async_charge(struct rs_async *async, size_t growth_bytes);

/* A call that was charged growth_bytes is over, or the pool may have changed: charges what is
 * reserved, which *charged is then.  False when that is more than before and may not be, or more
 * than the limit allows; then what was charged stays. */
bool rs_async_settle(struct rs_async *async, size_t growth_bytes, bool may_grow, size_t *charged);

/* ---- the driver's calls ---- */

CUresult rs_async_free_on_own_stream(struct rs_async *async, CUdeviceptr address);

/* Usable on every stream when it returns, after a wait of at most that long; CUDA_ERROR_NOT_READY
 * when that takes longer, and then the block is given back. */
CUresult rs_async_allocate_on_own_stream(struct rs_async *async, size_t size_bytes,
                                         uint64_t bound_ns, CUdeviceptr *address);

/* Lets the driver come to what was given back: until then it counts as used. */
void rs_async_settle_own_stream(const struct rs_async *async, uint64_t bound_ns);

/* Gives back what is reserved above keep_bytes, as far as nobody uses it. */
void rs_async_trim_pool(struct rs_async *async, size_t keep_bytes);

/* Gives back what is idle above keep_bytes, down to at_least_bytes reserved.  Returns how much less
 * is charged now. */
size_t rs_async_give_back(struct rs_async *async, size_t keep_bytes, size_t at_least_bytes);
