/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/own_stream.h"

#include "base/lock.h"
#include "driver/context.h"
#include "driver/driver.h"

CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context)
{
    CUstream stream = atomic_load_explicit(&own->stream, memory_order_acquire), made = NULL;
    CUstreamCaptureMode mode;
    CUresult result;
    bool entered;

    if (stream)
        return stream;
    mode = rs_capture_relax();
    entered = rs_driver_context_enter(context, &result);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && !atomic_compare_exchange_strong(&own->stream, &stream, made))
        (void)rs_driver.cuStreamDestroy_v2(made); /* another thread made one first */
    else if (result == CUDA_SUCCESS)
        stream = made;
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return stream;
}

CUresult rs_own_stream_wait(CUstream stream)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result = rs_driver.cuStreamSynchronize(stream);

    rs_capture_restore(mode);
    return result;
}

CUresult rs_own_stream_poll(CUstream stream, uint64_t bound_ns)
{
    uint64_t begin_ns = rs_clock_ns();
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    unsigned turn = 0;

    while ((result = rs_driver.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           rs_clock_ns() - begin_ns < bound_ns)
        rs_poll_pause(turn++);
    rs_capture_restore(mode);
    return result;
}

/* Queries before it synchronises: where streams share a channel, the stream could be behind the
 * program's work, and that work may wait for this thread. */
bool rs_own_stream_settle(CUstream stream, uint64_t bound_ns)
{
    return rs_own_stream_poll(stream, bound_ns) == CUDA_SUCCESS &&
           rs_own_stream_wait(stream) == CUDA_SUCCESS;
}
