/* SPDX-License-Identifier: Apache-2.0 */
/* Need: an allocation that upstream has nothing fitting for.  It grows up to what the program ever
 * used at once rather than cut what is better left to others; past that it cuts any block.  It
 * waits only when it would otherwise grow past that, and then for a bounded time: the work it waits
 * for may itself wait for this thread. */
#include "base/clock.h"
#include "base/log.h"
#include "resource/reuse.h"

enum {
    WAIT_NS = 20 * 1000 * 1000, /* for one epoch, once */
    ASK_BYTES = 1 << 20,        /* a request of so much asks for fences before it cuts */
};

static const uint64_t last_wait_ns = 30ull * 1000 * 1000 * 1000; /* before out-of-memory */

/* Growth is free up to what the program used at once, as that was noted last, and the initial size:
 * it would have needed that much of the driver too. */
static bool is_within_allowance(const struct rs_reuse *reuse, size_t size_bytes)
{
    return rs_reuse_held_bytes(reuse) + size_bytes <=
           atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed) +
               reuse->initial_bytes;
}

/* The same as of now, with this request, which is counted as live already. */
static bool may_grow(struct rs_reuse *reuse, size_t size_bytes)
{
    rs_mutex_lock(&reuse->lock);
    rs_reuse_gather(reuse, NULL);
    rs_mutex_unlock(&reuse->lock);
    return is_within_allowance(reuse, size_bytes);
}

/* Freed blocks that wait for the GPU leave their gaps late: what is cut meanwhile in their stead
 * pins a larger block, and the next large request finds none.  So within the allowance growth is
 * better than a block that does not fit.  Past it a cut is better than a wait; what is clean by now
 * may spare it.  That is asked for requests that are not small alone: the answer that a fence is
 * done costs 1.3 us (reuse_epochs.c). */
static CUresult allocate_past_allowance(struct rs_reuse *reuse, size_t size_bytes,
                                        struct rs_allocation *out)
{
    if (is_within_allowance(reuse, size_bytes))
        return CUDA_ERROR_NOT_READY;
    if (size_bytes >= ASK_BYTES)
        (void)rs_reuse_retire(reuse);
    return rs_mr_allocate_any_held(reuse->base.upstream[0], size_bytes, out);
}

/* Upstream has no more: waits until something more of the quarantine is there.  False when that
 * failed. */
static bool clean_some(struct rs_reuse *reuse)
{
    (void)rs_reuse_seal(reuse);
    if (rs_reuse_retire(reuse))
        return true;
    if (rs_reuse_has_sealed(reuse, false))
        return rs_reuse_wait_for_first(reuse, last_wait_ns);
    /* Nothing could be fenced: an old driver, or a capture is under way. */
    if (rs_reuse_has_open(reuse))
        return rs_reuse_wait_for_all(reuse) == CUDA_SUCCESS;
    rs_reuse_nap(); /* another thread is about to give it upstream */
    return true;
}

/* Upstream had no more, when there was something in quarantine.  That may do: bounded, with one
 * line, as the program would have waited in cudaFree for the same work. */
static CUresult allocate_at_last(struct rs_reuse *reuse, size_t size_bytes,
                                 struct rs_allocation *out)
{
    static bool said;
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool more = true;

    while (result == CUDA_ERROR_OUT_OF_MEMORY && more && rs_clock_ns() - begin_ns < last_wait_ns &&
           clean_some(reuse)) {
        if (rs_clock_ns() - begin_ns > 1000000000 && rs_log_once(&said))
            rs_log("device %d is full: waited for work that uses freed memory",
                   (int)reuse->place->device);
        more = rs_reuse_has_quarantine(reuse);
        result = rs_mr_allocate(reuse->base.upstream[0], size_bytes, NULL, out);
    }
    return result;
}

/* The best upstream is full and another would stand in, whose memory is slow.  That is worse than a
 * short wait and better than a long one, so epochs that end within the bound are waited for, as
 * long as what is freed can be enough.  An old driver has no epochs: there the next frees clean it.
 */
static CUresult allocate_or_fall_back(struct rs_reuse *reuse, size_t size_bytes,
                                      struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_mr_allocate_best(upstream, size_bytes, NULL, out);

    while (result == CUDA_ERROR_NOT_READY && rs_clock_ns() - begin_ns < WAIT_NS &&
           rs_mr_idle_bytes_best(&reuse->base) >= size_bytes && rs_reuse_wait_once(reuse, WAIT_NS))
        result = rs_mr_allocate_best(upstream, size_bytes, NULL, out);
    if (result == CUDA_ERROR_NOT_READY)
        result = rs_mr_allocate(upstream, size_bytes, NULL, out);
    return result;
}

static CUresult allocate_in_need(struct rs_reuse *reuse, size_t size_bytes,
                                 struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    bool more = rs_reuse_begin_need(reuse), allowed;
    CUresult result;

    if (rs_reuse_retire(reuse) || (rs_reuse_seal(reuse) && rs_reuse_retire(reuse)) || more) {
        result = reuse->mode != RS_REUSE_WAIT && may_grow(reuse, size_bytes)
                     ? rs_mr_allocate_held(upstream, size_bytes, NULL, out)
                     : rs_mr_allocate_any_held(upstream, size_bytes, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    while (!(allowed = may_grow(reuse, size_bytes))) {
        if (!rs_reuse_wait_once(reuse, WAIT_NS))
            break;
        result = rs_mr_allocate_any_held(upstream, size_bytes, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    more = rs_reuse_has_quarantine(reuse); /* before, so that a block cannot slip past in between */
    result = allowed ? allocate_or_fall_back(reuse, size_bytes, out)
                     : rs_mr_allocate_little(upstream, size_bytes, NULL, out);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !more)
        return result;
    return allocate_at_last(reuse, size_bytes, out);
}

CUresult rs_reuse_allocate_slowly(struct rs_reuse *reuse, size_t size_bytes,
                                  struct rs_allocation *out)
{
    CUresult result = allocate_past_allowance(reuse, size_bytes, out);

    if (result != CUDA_ERROR_NOT_READY)
        return result;
    result = allocate_in_need(reuse, size_bytes, out);
    rs_reuse_end_need(reuse);
    return result;
}

CUresult rs_reuse_allocate_held_in_need(struct rs_reuse *reuse, size_t size_bytes,
                                        struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_NOT_READY;

    if (rs_reuse_begin_need(reuse))
        result = rs_mr_allocate_any_held(reuse->base.upstream[0], size_bytes, out);
    if (result == CUDA_ERROR_NOT_READY && rs_reuse_retire(reuse))
        result = rs_mr_allocate_any_held(reuse->base.upstream[0], size_bytes, out);
    rs_reuse_end_need(reuse);
    return result;
}
