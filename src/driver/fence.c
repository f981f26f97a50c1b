/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/fence.h"

#include "base/lock.h"
#include "base/request.h"
#include "driver/capture.h"
#include "driver/driver.h"

bool rs_is_fault(CUresult result)
{
    /* Results that headers before CUDA 12.8 do not name. */
    enum { TENSOR_MEMORY_LEAK = 721, CONTAINED = 226 };

    switch ((int)result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case TENSOR_MEMORY_LEAK:
        return true;
    default:
        return false;
    }
}

bool rs_fence_supported(void)
{
    return rs_driver.cuCtxRecordEvent && rs_driver.cuEventCreate && rs_driver.cuEventQuery &&
           rs_driver.cuEventDestroy_v2;
}

CUevent rs_fence_create(CUcontext context)
{
    CUevent event = NULL;
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(context, &result);

    if (result == CUDA_SUCCESS &&
        rs_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    return event;
}

void rs_fence_destroy(CUevent event)
{
    RS_RELAXED_GUARD();

    (void)rs_driver.cuEventDestroy_v2(event);
}

/* Returns what a result of cuCtxRecordEvent means.  An error about captures means that a capture
 * has begun by a call that is not hooked. */
static enum rs_fence_refusal refusal_of(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return RS_FENCE_GRANTED;
    if (rs_is_fault(result))
        return RS_FENCE_FAULTY;
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT
               ? RS_FENCE_CAPTURES
               : RS_FENCE_REFUSED;
}

bool rs_fence_record(CUcontext context, CUevent event, enum rs_fence_refusal *refusal)
{
    enum rs_fence_refusal why = rs_capture_is_distrusted() ? RS_FENCE_REFUSED : RS_FENCE_CAPTURES;

    RS_ASSERT(rs_fence_supported());
    if (rs_capture_gate_enter(context)) {
        why = refusal_of(rs_driver.cuCtxRecordEvent(context, event));
        rs_capture_gate_leave();
    }
    if (refusal)
        *refusal = why;
    return why == RS_FENCE_GRANTED;
}

/* It is assumed, and was not measured, that a stream waits for an event of cuCtxRecordEvent, and
 * for an event of another device, as it does for any other event. */
bool rs_fence_join(CUcontext context, CUstream stream)
{
    RS_RELAXED_GUARD();
    CUevent event;
    bool joined;

    if (!rs_fence_supported() || !rs_driver.cuStreamWaitEvent)
        return false;
    event = rs_fence_create(context);
    if (!event)
        return false;
    joined = rs_fence_record(context, event, NULL) &&
             rs_driver.cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS;
    rs_fence_destroy(event);
    return joined;
}

enum rs_fence_state rs_fence_query(CUcontext context, CUevent event)
{
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(context, &result);

    if (result == CUDA_SUCCESS)
        result = rs_driver.cuEventQuery(event);
    return result == CUDA_SUCCESS           ? RS_FENCE_DONE
           : result == CUDA_ERROR_NOT_READY ? RS_FENCE_PENDING
           : rs_is_fault(result)            ? RS_FENCE_FAULT
                                            : RS_FENCE_BROKEN;
}

/* Allocates a sentinel block.  Returns 0 when the driver refuses. */
static CUdeviceptr take_sentinel(CUcontext context)
{
    CUdeviceptr sentinel = 0;
    CUresult result;
    RS_CONTEXT_GUARD(context, &result);

    if (result == CUDA_SUCCESS &&
        rs_driver.cuMemAlloc_v2(&sentinel, RS_SENTINEL_BYTES) != CUDA_SUCCESS)
        sentinel = 0;
    return sentinel;
}

bool rs_sentinel_add(struct rs_sentinel *sentinel, CUdeviceptr block)
{
    bool stored = !block;

    for (int i = 0; !stored && i < RS_SENTINEL_BLOCKS; i++) {
        CUdeviceptr expected = 0;
        stored = !atomic_load(&sentinel->blocks[i]) &&
                 atomic_compare_exchange_strong(&sentinel->blocks[i], &expected, block);
    }
    return stored;
}

/* Takes a sentinel out of the struct and returns it; 0 when there is none. The anchor is taken
 * last: only when refill could not get 512 bytes for another one. */
static CUdeviceptr take_sentinel_block(struct rs_sentinel *sentinel)
{
    CUdeviceptr block = 0;

    for (int i = RS_SENTINEL_BLOCKS - 1; !block && i >= 0; i--)
        if (atomic_load(&sentinel->blocks[i]))
            block = atomic_exchange(&sentinel->blocks[i], 0);
    return block;
}

/* Allocates the anchor, and one more sentinel, if they are missing and the driver has memory for
 * them. */
static void refill(struct rs_sentinel *sentinel, CUcontext context)
{
    for (int times = 0; times < 2; times++) {
        bool has_spare = false;
        for (int i = 1; !has_spare && i < RS_SENTINEL_BLOCKS; i++)
            has_spare = atomic_load(&sentinel->blocks[i]);
        if (has_spare && atomic_load(&sentinel->blocks[0]))
            return;
        (void)rs_sentinel_add(
            /* This fails only if other threads have filled all places meanwhile; the block then
             * stays allocated until its context ends. */
            sentinel, take_sentinel(context));
    }
}

void rs_sentinel_prepare(struct rs_sentinel *sentinel, CUcontext context)
{
    RS_RELAXED_GUARD();

    refill(sentinel, context);
}

/* Frees one sentinel while another one, the anchor, stays. So the driver keeps the 2 MiB in which
 * both lie, and an allocation and a free cost 2 us instead of 55. */
CUresult rs_sentinel_wait(struct rs_sentinel *sentinel, CUcontext context)
{
    RS_RELAXED_GUARD();
    CUdeviceptr block;
    CUresult result;

    refill(sentinel, context);
    block = take_sentinel_block(sentinel);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_driver.cuMemFree_v2(block);
    if (result == CUDA_SUCCESS)
        refill(sentinel, context);
    else
        (void)rs_sentinel_add(sentinel,
                              /* The driver did not free the block, since the context has an error.
                               */
                              block);
    return result;
}

/* ---- idle contexts ---- */

enum { IDLE_NS = 500 * 1000 }; /* the longest that a request waits for a context to be idle */

enum rs_fence_state rs_context_idle(CUcontext context, uint64_t bound_ns)
{
    CUevent event = rs_fence_supported() ? rs_fence_create(context) : NULL;
    enum rs_fence_state state = RS_FENCE_BROKEN;
    uint64_t begin_ns = rs_clock_ns();
    unsigned turn = 0;

    if (!event)
        return state;
    if (rs_fence_record(context, event, NULL))
        while ((state = rs_fence_query(context, event)) == RS_FENCE_PENDING &&
               rs_clock_ns() - begin_ns < bound_ns)
            rs_poll_pause(turn++);
    rs_fence_destroy(event);
    return state;
}

bool rs_request_sees_idle(CUcontext context)
{
    enum rs_fence_state state;

    if (context && rs_request.busy == context)
        return false;
    state = rs_context_idle(context, IDLE_NS);
    if (state != RS_FENCE_DONE) /* noted, so that the request does not look again */
        rs_request_note_busy(context, state == RS_FENCE_PENDING);
    return state == RS_FENCE_DONE;
}
