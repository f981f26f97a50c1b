/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/stream_order.h"

#include "driver/driver.h"

static bool ask(CUstream stream, unsigned long long *key)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;

    /* The legacy stream answers with an error while a blocking stream captures. */
    return rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE &&
           rs_driver.cuStreamGetId(stream, key) == CUDA_SUCCESS;
}

static bool is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream)
{
    CUcontext current = NULL;
    CUdevice current_device;

    if (!is_default(stream) || rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current ||
        current == context)
        return stream;
    if (rs_driver.cuCtxGetDevice(&current_device) == CUDA_SUCCESS && current_device != device)
        return stream; /* the caller means the device's, whichever is current */
    return NULL;
}

bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key)
{
    CUcontext current = NULL;

    if (!stream || !rs_driver.cuStreamGetId || !rs_driver.cuStreamIsCapturing)
        return false;
    if (is_default(stream) &&
        (rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context))
        return false;
    return ask(stream, key);
}
