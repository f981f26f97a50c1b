/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/own_stream.h"

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
    entered = rs_context_enter(context, &result);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && !atomic_compare_exchange_strong(&own->stream, &stream, made))
        (void)rs_driver.cuStreamDestroy_v2(made); /* another thread was first */
    else if (result == CUDA_SUCCESS)
        stream = made;
    rs_context_leave(entered);
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
