/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/placement.h"

#include "driver/context.h"
#include "driver/driver.h"

static CUmemLocation location_of(int where)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_HOST};

    if (where != RS_PLACEMENT_HOST)
        location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = where};
    return location;
}

static CUresult advise(CUdeviceptr address, size_t size_bytes, CUmem_advise advice, int where)
{
    if (rs_driver.cuMemAdvise_v2)
        return rs_driver.cuMemAdvise_v2(address, size_bytes, advice, location_of(where));
    if (rs_driver.cuMemAdvise)
        return rs_driver.cuMemAdvise(address, size_bytes, advice, where);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult prefetch(CUdeviceptr address, size_t size_bytes, int where, CUstream stream)
{
    if (rs_driver.cuMemPrefetchAsync_v2)
        return rs_driver.cuMemPrefetchAsync_v2(address, size_bytes, location_of(where), 0, stream);
    if (rs_driver.cuMemPrefetchAsync)
        return rs_driver.cuMemPrefetchAsync(address, size_bytes, where, stream);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult rs_placement_advise(CUcontext context, CUdeviceptr address, size_t size_bytes,
                             CUmem_advise advice, int where)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    bool entered = rs_driver_context_enter(context, &result);

    if (result == CUDA_SUCCESS)
        result = advise(address, size_bytes, advice, where);
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return result;
}

CUresult rs_placement_prefetch(CUcontext context, CUdeviceptr address, size_t size_bytes, int where,
                               CUstream stream)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;
    bool entered = rs_driver_context_enter(context, &result);

    if (result == CUDA_SUCCESS)
        result = prefetch(address, size_bytes, where, stream);
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return result;
}
