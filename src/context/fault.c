/* SPDX-License-Identifier: Apache-2.0 */
#include "context/fault.h"

#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"

#include <stddef.h>

/* Changes how the context serves, unless it is another thread's change, or its end, that came
 * first. Each thread then looks up anew. */
static void change(struct rs_context *context, unsigned char from, unsigned char to)
{
    if (atomic_compare_exchange_strong(&context->alive, &from, to))
        atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

static _Atomic bool any_fault;

bool rs_context_any_fault(void)
{
    return atomic_load(&any_fault);
}

RS_COLD void rs_context_note_fault(struct rs_context *context)
{
    atomic_store(&any_fault, true);
    change(context, RS_CONTEXT_SERVES, RS_CONTEXT_FAULTY);
}

RS_COLD void rs_context_note_fault_of(const struct rs_environment *environment)
{
    const char *stack = (const char *)environment - offsetof(struct rs_stack, environment);

    rs_context_note_fault(((const struct rs_stack *)(const void *)stack)->context);
}

static CUresult ask_without_wait(CUcontext handle)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    size_t free_bytes, total_bytes;
    CUresult result;
    bool entered = rs_driver_context_enter(handle, &result);

    if (result == CUDA_SUCCESS && rs_driver.cuMemGetInfo_v2)
        result = rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return result;
}

RS_COLD CUresult rs_context_ask_fault(struct rs_context *context)
{
    CUresult result = rs_sentinel_wait(&context->sentinel, context->handle);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) /* other threads have all sentinels in hand */
        result = ask_without_wait(context->handle);
    if (rs_is_fault(result))
        return result;
    change(context, RS_CONTEXT_FAULTY, RS_CONTEXT_SERVES);
    return CUDA_SUCCESS;
}
