/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pool beneath `async`: its calls, and its bytes in the account.
 *
 * The account counts the bytes that the driver's pool has reserved, live or not, and these change
 * inside the driver: the pool grows in an allocation, and shrinks in any synchronisation when the
 * release threshold is low, or when the device is full.  So the most that a call may add is charged
 * before it, and after it the charge is replaced by the bytes that the pool reports.  The limit is
 * exceeded for a moment in one case only: a request at the limit should have fitted into the pool,
 * but no single piece was large enough; then the request is undone. */
#include "resource/leaf/async_pool.h"

#include "base/clock.h"
#include "driver/context.h"
#include "driver/own_stream.h"

#include <sched.h>

bool rs_async_pool_attribute(const struct rs_async *async, CUmemPool_attribute attribute,
                             size_t *bytes)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    cuuint64_t value = 0;
    bool good = rs_driver.cuMemPoolGetAttribute(async->pool, attribute, &value) == CUDA_SUCCESS;

    rs_capture_restore(mode);
    *bytes = value;
    return good;
}

size_t rs_async_reserved_bytes(const struct rs_async *async)
{
    size_t bytes;

    return rs_async_pool_attribute(async, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes)
               ? bytes
               : async->leaf.live_bytes;
}

/* True when idle memory is known to be in pieces smaller than the request.  A piece grows when the
 * memory beside it is given back.  So a caller that has no other way tries again after any free;
 * for others the attempt, which costs a growth and its undoing, waits until enough was given back.
 * The caller holds the lock. */
static bool is_known_scattered(const struct rs_async *async, size_t size_bytes,
                               enum rs_effort effort)
{
    return size_bytes >= async->vain_bytes &&
           async->given_bytes < (rs_effort_takes_any(effort) ? 1 : size_bytes);
}

void rs_async_note_in_vain(struct rs_async *async, size_t size_bytes)
{
    rs_mutex_lock(&async->leaf.lock);
    if (async->given_bytes > 0 || size_bytes < async->vain_bytes)
        async->vain_bytes = size_bytes;
    async->given_bytes = 0;
    rs_mutex_unlock(&async->leaf.lock);
}

void rs_async_note_given(struct rs_async *async, size_t size_bytes)
{
    rs_mutex_lock(&async->leaf.lock);
    if (__builtin_add_overflow(async->given_bytes, size_bytes, &async->given_bytes))
        async->given_bytes = SIZE_MAX;
    rs_mutex_unlock(&async->leaf.lock);
}

bool rs_async_has_idle(struct rs_async *async, size_t size_bytes, enum rs_effort effort)
{
    size_t taken_bytes, reserved;
    bool scattered;

    rs_mutex_lock(&async->leaf.lock);
    taken_bytes = async->leaf.live_bytes;
    reserved = async->charged_bytes - async->pending_bytes;
    scattered = is_known_scattered(async, size_bytes, effort);
    rs_mutex_unlock(&async->leaf.lock);
    return reserved > taken_bytes && reserved - taken_bytes >= size_bytes && !scattered;
}

static bool try_to_charge(struct rs_async *async, size_t growth_bytes, struct rs_account_wait *wait)
{
    bool charged;

    rs_mutex_lock(&async->leaf.lock);
    charged = rs_account_try_as(async->leaf.environment->account, growth_bytes, growth_bytes,
                                rs_async_memory_of(async), wait);
    if (charged) {
        async->charged_bytes += growth_bytes;
        async->pending_bytes += growth_bytes;
    }
    rs_mutex_unlock(&async->leaf.lock);
    return charged;
}

bool rs_async_charge(struct rs_async *async, size_t growth_bytes)
{
    struct rs_account_wait wait = {.is_contested = false};

    do
        if (try_to_charge(async, growth_bytes, &wait))
            return true;
    while (rs_account_wait(async->leaf.environment->account, &wait));
    return false;
}

/* Replaces the charge by what the pool reports; growth_bytes of it are pending no longer.  Bytes
 * that other calls may still add are charged already, and a part of them may be reserved by now.
 * The caller holds the lock. */
static bool try_to_settle(struct rs_async *async, size_t growth_bytes, bool may_grow,
                          size_t *charged, struct rs_account_wait *wait)
{
    struct rs_account *account = async->leaf.environment->account;
    size_t reserved = rs_async_reserved_bytes(async), wanted;
    bool good = true;

    RS_ASSERT_HELD(&async->leaf.lock);
    async->peak_reserved_bytes = rs_max(async->peak_reserved_bytes, reserved);
    *charged = async->charged_bytes;
    wanted = rs_max(reserved, rs_min(*charged, reserved + async->pending_bytes - growth_bytes));
    if (wanted > *charged)
        good = may_grow &&
               rs_account_try_grow(account, wanted - *charged, rs_async_memory_of(async), wait);
    else
        rs_account_shrink(account, *charged - wanted, rs_async_memory_of(async));
    if (good)
        *charged = async->charged_bytes = wanted;
    return good;
}

bool rs_async_settle(struct rs_async *async, size_t growth_bytes, bool may_grow, size_t *charged)
{
    struct rs_account *account = async->leaf.environment->account;
    struct rs_account_wait wait = {.is_contested = false};
    bool good, again = true;

    rs_mutex_lock(&async->leaf.lock);
    while (!(good = try_to_settle(async, growth_bytes, may_grow, charged, &wait)) && again &&
           wait.is_contested) {
        rs_mutex_unlock(&async->leaf.lock);
        again = rs_account_wait(account, &wait);
        rs_mutex_lock(&async->leaf.lock);
    }
    async->pending_bytes -= growth_bytes;
    rs_account_taken(account, growth_bytes, rs_async_memory_of(async));
    rs_mutex_unlock(&async->leaf.lock);
    return good;
}

CUresult rs_async_free_on_own_stream(struct rs_async *async, CUdeviceptr address)
{
    const struct rs_environment *environment = async->leaf.environment;
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    bool entered = rs_driver_context_enter(environment->context, &result);

    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemFreeAsync(
            address, rs_own_stream(environment->own_stream, environment->context));
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return result;
}

/* Polls the own stream for up to bound_ns; CUDA_ERROR_NOT_READY when it takes longer.  A real wait
 * would also cover work that other threads give to the stream later. */
static CUresult wait_for_own_stream(CUstream stream, uint64_t bound_ns)
{
    uint64_t begin_ns = rs_clock_ns();
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;

    while ((result = rs_driver.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           rs_clock_ns() - begin_ns < bound_ns)
        sched_yield();
    rs_capture_restore(mode);
    return result;
}

CUresult rs_async_allocate_on_own_stream(struct rs_async *async, size_t size_bytes,
                                         uint64_t bound_ns, CUdeviceptr *address)
{
    const struct rs_environment *environment = async->leaf.environment;
    CUstream stream = rs_own_stream(environment->own_stream, environment->context);
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    bool entered = rs_driver_context_enter(environment->context, &result);

    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemAllocFromPoolAsync(address, size_bytes, async->pool, stream);
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    if (result != CUDA_SUCCESS)
        return result;
    result = *address % RS_BLOCK_ALIGNMENT ? CUDA_ERROR_NOT_SUPPORTED /* as in leaf.c */
                                           : wait_for_own_stream(stream, bound_ns);
    if (result != CUDA_SUCCESS)
        (void)rs_async_free_on_own_stream(async, *address); /* ordered behind the allocation */
    return result;
}

void rs_async_settle_own_stream(const struct rs_async *async, uint64_t bound_ns)
{
    const struct rs_environment *environment = async->leaf.environment;

    (void)rs_own_stream_settle(rs_own_stream(environment->own_stream, environment->context),
                               bound_ns);
}

void rs_async_trim_pool(struct rs_async *async, size_t keep_bytes)
{
    CUstreamCaptureMode mode;

    rs_async_settle_own_stream(async, rs_async_idle_wait_ns);
    mode = rs_capture_relax();
    (void)rs_driver.cuMemPoolTrimTo(async->pool, keep_bytes);
    rs_capture_restore(mode);
}

size_t rs_async_give_back(struct rs_async *async, size_t keep_bytes, size_t at_least_bytes)
{
    size_t used_bytes, kept_bytes, before_bytes, after_bytes;

    rs_async_settle_own_stream(async, rs_async_idle_wait_ns);
    (void)rs_async_settle(async, 0, true, &before_bytes);
    if (!rs_async_pool_attribute(async, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) ||
        __builtin_add_overflow(used_bytes, keep_bytes, &kept_bytes))
        return 0;
    rs_async_trim_pool(async, rs_max(kept_bytes, at_least_bytes));
    (void)rs_async_settle(async, 0, true, &after_bytes);
    return before_bytes > after_bytes ? before_bytes - after_bytes : 0;
}
