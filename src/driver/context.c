/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/context.h"

#include "driver/driver.h"

bool rs_context_enter(CUcontext context, CUresult *result)
{
    CUcontext current = NULL;

    *result = rs_driver.cuCtxGetCurrent(&current);
    if (*result != CUDA_SUCCESS || current == context)
        return false;
    *result = rs_driver.cuCtxPushCurrent_v2(context);
    return *result == CUDA_SUCCESS;
}

void rs_context_leave(bool entered)
{
    CUcontext popped;

    if (entered)
        (void)rs_driver.cuCtxPopCurrent_v2(&popped);
}

CUcontext rs_context_active_primary(CUdevice device)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;

    /* Retaining an inactive one would start it. */
    if (!rs_driver.cuDevicePrimaryCtxGetState || !rs_driver.cuDevicePrimaryCtxRelease_v2 ||
        rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        rs_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    return primary;
}
