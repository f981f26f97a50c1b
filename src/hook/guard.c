/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that act on memory by its address.  For an unchanged address in a block
 * of a stack the driver would act on the larger allocation around the block. */
#include "context/block.h"
#include "driver/driver.h"
#include "introspect/introspect.h"
#include "introspect/managed.h"
#include "introspect/peer.h"
#include "introspect/sync_memops.h"
#include "ipc/export.h"
#include "ipc/import.h"
#include "shim/shim.h"

#define HOOK_guard RS_HOOK_DECLARE
#include "hook/groups.h"

/* ---- attributes and advice ---- */

static CUresult hook_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                           CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    if (introspection.what == RS_INTROSPECTED_BLOCK && value &&
        attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && rs_driver.cuPointerSetAttribute)
        return rs_sync_memops_set(address, introspection.kind, *(const unsigned *)value != 0);
    result = RS_FORWARD(cuPointerSetAttribute, (value, attribute, address));
    /* For mapped memory (`virtual`) the driver answers NOT_SUPPORTED whichever attribute is set;
     * for an allocation of its own it answers INVALID_VALUE where the attribute cannot be set
     * (measured on an H200). */
    if (introspection.what == RS_INTROSPECTED_BLOCK && result == CUDA_ERROR_NOT_SUPPORTED)
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

/* Callers round a block outwards to pages, so the range of a block may begin before the block. */
static CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address,
                                                   size_t size_bytes, CUmemRangeHandleType type,
                                                   unsigned long long flags)
{
    if (rs_introspect(address).what == RS_INTROSPECTED_FREED &&
        !rs_block_is_near(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return RS_FORWARD(cuMemGetHandleForAddressRange, (handle, address, size_bytes, type, flags));
}

static CUresult hook_cuMemAdvise(CUdeviceptr address, size_t size_bytes, CUmem_advise advice,
                                 CUdevice device)
{
    CUresult result;

    if (rs_managed_refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemAdvise, (address, size_bytes, advice, device));
    if (result == CUDA_SUCCESS)
        rs_managed_note_advice(address, advice, device);
    return result;
}

static CUresult hook_cuMemAdvise_v2(CUdeviceptr address, size_t size_bytes, CUmem_advise advice,
                                    CUmemLocation location)
{
    CUresult result;

    if (rs_managed_refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemAdvise_v2, (address, size_bytes, advice, location));
    if (result == CUDA_SUCCESS)
        rs_managed_note_advice(address, advice, rs_managed_device_of(location));
    return result;
}

static CUresult hook_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t size_bytes,
                                            unsigned flags)
{
    CUresult result;

    if (rs_managed_attach(stream, false, &address, &size_bytes, &flags, &result))
        return result;
    return RS_FORWARD(cuStreamAttachMemAsync, (stream, address, size_bytes, flags));
}

static CUresult hook_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address,
                                                 size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (rs_managed_attach(stream, true, &address, &size_bytes, &flags, &result))
        return result;
    return RS_FORWARD(cuStreamAttachMemAsync_ptsz, (stream, address, size_bytes, flags));
}

/* ---- access of other devices ---- */

/* Access is enabled only when the stacks' memory got it too.  Access that the library enabled for
 * itself (a loan, introspect/peer.h) counts as not enabled for the program. */
static CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult result = RS_FORWARD(cuCtxEnablePeerAccess, (peer, flags));
    bool was_lent = (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) &&
                    rs_peer_end_loan(peer);

    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED && was_lent)
        return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = rs_peer_changed(peer, true);
    if (result != CUDA_SUCCESS)
        (void)RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result;
}

static CUresult hook_cuCtxDisablePeerAccess(CUcontext peer)
{
    CUresult result;

    if (rs_peer_is_lent(peer))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    result = RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result == CUDA_SUCCESS ? rs_peer_changed(peer, false) : result;
}

static CUresult hook_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                        size_t count)
{
    CUresult result = RS_FORWARD(cuMemPoolSetAccess, (pool, access, count));

    if (result == CUDA_SUCCESS)
        rs_shim_note_pool_access(pool, access, count);
    return result;
}

/* ---- memory of several processes ---- */

static CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUresult result;

    if (rs_export(address, handle, &result))
        return result;
    return RS_FORWARD(cuIpcGetMemHandle, (handle, address));
}

static CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    CUresult result;

    if (RS_DRIVER_HAS(cuIpcOpenMemHandle) &&
        rs_import_open(rs_driver.cuIpcOpenMemHandle, address, &handle, flags, &result))
        return result;
    result = RS_FORWARD(cuIpcOpenMemHandle, (address, handle, flags));
    if (result == CUDA_SUCCESS)
        rs_import_note_native(*address);
    return result;
}

static CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle,
                                           unsigned flags)
{
    CUresult result;

    if (RS_DRIVER_HAS(cuIpcOpenMemHandle_v2) &&
        rs_import_open(rs_driver.cuIpcOpenMemHandle_v2, address, &handle, flags, &result))
        return result;
    result = RS_FORWARD(cuIpcOpenMemHandle_v2, (address, handle, flags));
    if (result == CUDA_SUCCESS)
        rs_import_note_native(*address);
    return result;
}

static CUresult hook_cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result;

    if (rs_import_close(address, &result))
        return result;
    return RS_FORWARD(cuIpcCloseMemHandle, (address));
}
