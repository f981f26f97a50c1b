/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves over a pair of driver calls. */
#include "resource/leaf/leaf.h"

#include "base/request.h"
#include "base/undisturbed.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "driver/idle.h"
#include "driver/own_stream.h"
#include "ledger/account.h"
#include "resource/report.h"
#include "resource/segment.h"
#include "shared/published.h"

#include <errno.h>
#include <stdlib.h>

static struct rs_leaf *leaf_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_leaf, base);
}

/* ---- the way back ---- */

enum {
    /* The longest that it waits for the own stream before it takes more memory. */
    SETTLE_NS = 500 * 1000,
    SETTLE_SHORT_NS = 50 * 1000000, /* the same wait after the driver refused */
};

static CUresult give(struct rs_leaf *leaf, CUdeviceptr address)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result = leaf->give(address);

    rs_capture_restore(mode);
    return result;
}

static CUstream own_stream(const struct rs_leaf *leaf)
{
    return leaf->environment->own_stream
               ? rs_own_stream(leaf->environment->own_stream, leaf->environment->context)
               : NULL;
}

static bool has_order(const struct rs_leaf *leaf)
{
    return leaf->give_in_order && rs_driver.cuMemFreeAsync && leaf->environment->own_stream;
}

static CUresult give_in_order(struct rs_leaf *leaf, CUdeviceptr address, CUstream stream)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    bool entered = rs_driver_context_enter(leaf->environment->context, &result);

    if (result == CUDA_SUCCESS)
        result = leaf->give_in_order(address, stream);
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return result;
}

/* Gives an allocation back.  stream: in the order of this stream of the program; NULL: in no order.
 * *settled: its bytes are no longer counted.  CUDA_ERROR_NOT_READY where the free would wait inside
 * a request. */
static CUresult give_back(struct rs_leaf *leaf, CUdeviceptr address, CUstream stream, bool *settled)
{
    bool in_request = rs_request_is_under_way(), ready = leaf->environment->frees_are_ready;
    bool in_order = has_order(leaf) && (ready || in_request);

    /* Under a limit, the bytes must be free for the next request, and no thread here may wait for
     * the program's stream later. */
    *settled = !in_order;
    if (stream && !in_order && has_order(leaf) && !rs_account_has_limit(leaf->environment->account))
        return give_in_order(leaf, address, stream);
    if (in_request && !(ready && in_order) && !rs_request_sees_idle(leaf->environment->context))
        return CUDA_ERROR_NOT_READY;
    return in_order ? give_in_order(leaf, address, own_stream(leaf)) : give(leaf, address);
}

static void count_given(struct rs_leaf *leaf, size_t size_bytes, size_t charge_bytes)
{
    rs_account_give(leaf->environment->account, size_bytes, charge_bytes, leaf->memory);
    atomic_fetch_sub_explicit(&leaf->held_bytes, size_bytes, memory_order_relaxed);
}

static void leave_unsettled(struct rs_leaf *leaf, size_t size_bytes, size_t charge_bytes,
                            uint64_t count)
{
    rs_spinlock_lock(&leaf->lock);
    leaf->unsettled_bytes += size_bytes;
    leaf->unsettled_charge_bytes += charge_bytes;
    leaf->unsettled_count += count;
    rs_spinlock_unlock(&leaf->lock);
}

static size_t unsettled_bytes(struct rs_leaf *leaf)
{
    size_t bytes;

    rs_spinlock_lock(&leaf->lock);
    bytes = leaf->unsettled_bytes;
    rs_spinlock_unlock(&leaf->lock);
    return bytes;
}

/* Settles the blocks given back in order once the own stream has executed their frees, waiting up
 * to bound_ns: the stream may share a channel with work that waits for this thread.  Returns the
 * bytes settled. */
static size_t settle(struct rs_leaf *leaf, uint64_t bound_ns)
{
    struct rs_account *account = leaf->environment->account;
    size_t bytes, charge_bytes;
    uint64_t count;
    bool settled;

    if (unsettled_bytes(leaf) == 0)
        return 0;
    rs_spinlock_lock(&leaf->lock);
    bytes = leaf->unsettled_bytes;
    charge_bytes = leaf->unsettled_charge_bytes;
    rs_account_begin_return(account, charge_bytes);
    count = leaf->unsettled_count;
    leaf->unsettled_bytes = leaf->unsettled_charge_bytes = 0;
    leaf->unsettled_count = 0;
    rs_spinlock_unlock(&leaf->lock);
    settled = count == 0 || rs_own_stream_settle(own_stream(leaf), bound_ns);
    if (!settled)
        leave_unsettled(leaf, bytes, charge_bytes, count);
    else if (count > 0)
        count_given(leaf, bytes, charge_bytes);
    rs_account_end_return(account, charge_bytes);
    return settled ? bytes : 0;
}

/* ---- allocation ---- */

/* Gives back a block that the program has not seen and cannot have. */
static CUresult give_unseen(struct rs_leaf *leaf, CUdeviceptr address)
{
    return has_order(leaf) ? give_in_order(leaf, address, own_stream(leaf)) : give(leaf, address);
}

/* Charges the account, takes the memory, and enters its segment; undoes the steps when one fails.
 */
static CUresult take_once(struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    struct rs_account *account = leaf->environment->account;
    enum rs_memory memory = leaf->memory;
    CUstreamCaptureMode mode;
    size_t charged_bytes;
    CUresult result;

    if (!rs_account_take(account, size_bytes, rs_footprint_most(size_bytes), memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mode = rs_capture_relax();
    result = rs_effort_result_of_driver(leaf->take(leaf->environment, size_bytes, address));
    rs_capture_restore(mode);
    if (result == CUDA_SUCCESS && *address % RS_BLOCK_ALIGNMENT != 0) {
        (void)give_unseen(leaf, *address);
        result = CUDA_ERROR_NOT_SUPPORTED; /* no driver is known that does so */
    }
    if (result == CUDA_SUCCESS && !rs_segment_add(leaf->environment, *address, size_bytes)) {
        (void)give_unseen(leaf, *address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS &&
        !rs_footprint_settle(account, *address, size_bytes, memory, &charged_bytes)) {
        rs_segment_remove(leaf->environment, *address);
        (void)give_unseen(leaf, *address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        rs_account_untake(account, size_bytes, rs_footprint_most(size_bytes), memory);
    return result;
}

static bool may_reclaim(const struct rs_leaf *leaf, enum rs_effort effort)
{
    return !rs_effort_is_ahead(effort) && leaf->environment->reclaim;
}

/* Takes memory.  Before a request is out of memory, the device's other stacks and contexts give
 * idle memory back; for host memory, those of all devices.  Where `reuse` is above, it waits for
 * blocks in quarantine itself: those of its own stack may serve without going back to the driver.
 */
static CUresult take(struct rs_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                     CUdeviceptr *address)
{
    const struct rs_environment *environment = leaf->environment;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = leaf->memory};
    CUresult result;

    (void)settle(leaf, SETTLE_NS);
    do {
        refusal.releases = rs_account_releases(environment->account);
        result = take_once(leaf, size_bytes, address);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
    } while (settle(leaf, SETTLE_SHORT_NS) > 0 ||
             (may_reclaim(leaf, effort) &&
              environment->reclaim(environment, &refusal, !environment->frees_are_ready)));
    rs_request_note_short();
    return result;
}

static void count_taken(struct rs_leaf *leaf, size_t size_bytes)
{
    size_t held =
        size_bytes + atomic_fetch_add_explicit(&leaf->held_bytes, size_bytes, memory_order_relaxed);
    size_t peak = atomic_load_explicit(&leaf->peak_held_bytes, memory_order_relaxed);

    while (held > peak &&
           !atomic_compare_exchange_weak_explicit(&leaf->peak_held_bytes, &peak, held,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    atomic_fetch_add_explicit(&leaf->allocations, 1, memory_order_relaxed);
}

/* Each allocation is a driver allocation: a leaf holds no memory for an RS_EFFORT_HELD request. */
static CUresult leaf_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_leaf *leaf = leaf_of(mr);
    CUdeviceptr address = 0;
    CUresult result;

    (void)stream; /* these driver calls are synchronous, so the memory is usable on every stream at
                     once */
    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY;
    rs_request_begin();
    result = take(leaf, size_bytes, effort, &address);
    rs_request_end();
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&leaf->failures, 1, memory_order_relaxed);
        return result;
    }
    count_taken(leaf, size_bytes);
    *out = (struct rs_allocation){address, size_bytes, NULL, NULL};
    return CUDA_SUCCESS;
}

static CUresult deallocate(struct rs_leaf *leaf, const struct rs_allocation *allocation,
                           CUstream stream)
{
    size_t size_bytes = allocation->size_bytes, charge_bytes;
    CUresult result;
    bool settled;

    /* Removed before the free: from then on the driver may give the address to another thread,
     * whose entry must not be removed. */
    rs_segment_remove(leaf->environment, allocation->address);
    result = give_back(leaf, allocation->address, stream, &settled);
    if (result != CUDA_SUCCESS) {
        /* The allocation is still the driver's (after a sticky error, say).  The insert has room,
         * as the entry was there before. */
        (void)rs_segment_add(leaf->environment, allocation->address, size_bytes);
        return result;
    }
    charge_bytes = rs_footprint_leave(leaf->environment->account, allocation->address, size_bytes,
                                      leaf->memory);
    atomic_fetch_add_explicit(&leaf->deallocations, 1, memory_order_relaxed);
    if (settled)
        count_given(leaf, size_bytes, charge_bytes);
    else
        leave_unsettled(leaf, size_bytes, charge_bytes, 1);
    return CUDA_SUCCESS;
}

static CUresult leaf_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct rs_uncancelled uncancelled;
    CUresult result;

    /* While in the driver, as the caller has the memory in hand. */
    rs_uncancelled_begin(&uncancelled);
    result = deallocate(leaf_of(mr), allocation, stream);
    rs_uncancelled_end(&uncancelled);
    return result;
}

static void leaf_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_leaf *leaf = leaf_of(mr);

    /* When the context is gone, the account lost its bytes too (rs_account_lose). */
    if (!memory_is_gone && unsettled_bytes(leaf) > 0) {
        (void)rs_own_stream_wait(own_stream(leaf));
        (void)settle(leaf, UINT64_MAX);
    }
    rs_published_free(leaf);
}

static bool leaf_deallocates_in_order(struct rs_mr *mr)
{
    return has_order(leaf_of(mr));
}

/* Returns 0 bytes, as each free was counted by its caller. */
static size_t leaf_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    (void)trim;
    (void)settle(leaf_of(mr), rs_request_is_under_way() ? SETTLE_SHORT_NS : UINT64_MAX);
    return 0;
}

static size_t leaf_idle_bytes(struct rs_mr *mr)
{
    return unsettled_bytes(leaf_of(mr));
}

static void leaf_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_leaf *leaf = leaf_of(mr);
    const char *name = mr->descriptor->name;

    rs_report_add_field(report, name, "held", RS_COUNTER_LIVE, RS_UNIT_BYTES, leaf->held_bytes);
    rs_report_add_field(report, name, "held_peak", RS_COUNTER_PEAK, RS_UNIT_BYTES,
                        leaf->peak_held_bytes);
    rs_report_add_field(report, name, "driver_allocations", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->allocations);
    rs_report_add_field(report, name, "driver_frees", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->deallocations);
    rs_report_add_field(report, name, "internal_refusals", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->failures);
}

static const struct rs_mr_ops leaf_ops = {
    .allocate = leaf_allocate,
    .deallocate = leaf_deallocate,
    .destroy = leaf_destroy,
    .deallocates_in_order = leaf_deallocates_in_order,
    .trim = leaf_trim,
    .idle_bytes = leaf_idle_bytes,
    .report = leaf_report,
};

int rs_leaf_create(const struct rs_mr_descriptor *descriptor,
                   const struct rs_environment *environment,
                   CUresult (*take_memory)(const struct rs_environment *, size_t, CUdeviceptr *),
                   CUresult (*give_memory)(CUdeviceptr), struct rs_mr **out)
{
    struct rs_leaf *leaf = RS_PUBLISHED_NEW(struct rs_leaf);

    if (!leaf)
        return -ENOMEM;
    rs_mr_init(&leaf->base, &leaf_ops, descriptor, NULL);
    leaf->environment = environment;
    leaf->memory = descriptor->memory;
    leaf->take = take_memory;
    leaf->give = give_memory;
    rs_spinlock_init(&leaf->lock, RS_RANK_RESOURCE);
    *out = &leaf->base;
    return 0;
}
