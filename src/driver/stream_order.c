/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/stream_order.h"

#include "driver/context.h"
#include "driver/driver.h"

static bool ask(CUstream stream, unsigned long long *key)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;

    /* The legacy stream answers with an error while a blocking stream captures. */
    return rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE &&
           rs_driver.cuStreamGetId(stream, key) == CUDA_SUCCESS;
}

bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key)
{
    bool entered, known;
    CUresult result;

    if (!stream || !rs_driver.cuStreamGetId || !rs_driver.cuStreamIsCapturing)
        return false;
    if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
        return ask(stream, key);
    entered = rs_context_enter(context, &result);
    known = result == CUDA_SUCCESS && ask(stream, key);
    rs_context_leave(entered);
    return known;
}
