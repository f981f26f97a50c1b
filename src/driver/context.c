/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/context.h"

#include "driver/driver.h"

#include <stdatomic.h>

enum { PRIMARIES_MAX = 64 };

bool rs_driver_context_enter(CUcontext context, CUresult *result)
{
    CUcontext current = NULL;

    *result = rs_driver.cuCtxGetCurrent(&current);
    if (*result != CUDA_SUCCESS || current == context)
        return false;
    *result = rs_driver.cuCtxPushCurrent_v2(context);
    return *result == CUDA_SUCCESS;
}

void rs_driver_context_leave(bool entered)
{
    CUcontext popped;

    if (entered)
        (void)rs_driver.cuCtxPopCurrent_v2(&popped);
}

/* Handles of primary contexts, by device.  A primary context that was reset, or released by all,
 * comes back with the same handle (measured for a reset, assumed for a release). */
static _Atomic(CUcontext) primaries[PRIMARIES_MAX];

bool rs_driver_is_primary_active(CUdevice device)
{
    unsigned flags;
    int active = 0;

    return rs_driver.cuDevicePrimaryCtxGetState && rs_driver.cuDevicePrimaryCtxRelease_v2 &&
           rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUcontext rs_driver_known_primary(CUdevice device)
{
    return device >= 0 && device < PRIMARIES_MAX ? atomic_load(&primaries[device]) : NULL;
}

CUcontext rs_driver_learn_primary(CUdevice device)
{
    CUcontext primary = NULL;

    /* Retaining an inactive primary context would start it. */
    if (!rs_driver_is_primary_active(device) ||
        rs_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    if (device < PRIMARIES_MAX)
        atomic_store(&primaries[device], primary);
    return primary;
}

CUcontext rs_driver_active_primary(CUdevice device)
{
    CUcontext known = rs_driver_known_primary(device);

    if (!known)
        return rs_driver_learn_primary(device);
    return rs_driver_is_primary_active(device) ? known : NULL;
}
