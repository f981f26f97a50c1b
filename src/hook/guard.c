/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that act on memory by its address. For an address inside a block the
 * driver would act on its whole allocation around the block. So these hooks limit the call to the
 * block, or note what it did. */
#include "base/check.h"
#include "context/block.h"
#include "hook/hook.h"
#include "introspect/introspect.h"
#include "ipc/export.h"
#include "ipc/import.h"
#include "resource/segment.h"

#include <unistd.h>

/* ---- attributes ---- */

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    if (introspection.what == RS_INTROSPECTED_BLOCK && value &&
        attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && rs_driver.cuPointerSetAttribute)
        return rs_sync_memops_set(address, introspection.block.kind, *(const unsigned *)value != 0);
    result = RS_FORWARD(cuPointerSetAttribute, (value, attribute, address));
    /* If an attribute cannot be set, the driver answers INVALID_VALUE for an allocation of its own,
     * but NOT_SUPPORTED for mapped memory (`virtual`; measured on an H200). */
    if (introspection.what == RS_INTROSPECTED_BLOCK && result == CUDA_ERROR_NOT_SUPPORTED)
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

/* Refuses a range in memory of the library that no live block is near. Callers round a block
 * outwards to whole pages, so the range may begin before the block. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size_bytes,
                                       CUmemRangeHandleType type, unsigned long long flags)
{
    if (rs_introspect(address).what == RS_INTROSPECTED_FREED &&
        !rs_block_is_near(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return RS_FORWARD(cuMemGetHandleForAddressRange, (handle, address, size_bytes, type, flags));
}

/* ---- advice ----
 *
 * The driver keeps advice per page. Managed blocks share no page (RS_MANAGED_UNIT), so advice is
 * forwarded unchanged, noted, and undone when the block is freed: a reused block starts with the
 * default. */

/* rs_advice.device_accesses has a bit for each device below this number. */
enum { DEVICES_NOTED = 64 };

/* Returns what must be undone for this advice when the block is freed: nothing for advice that
 * unsets something. */
static struct rs_advice to_be_undone(CUmem_advise advice, CUdevice device)
{
    struct rs_advice undo = {0, 0};

    if (advice == CU_MEM_ADVISE_SET_READ_MOSTLY)
        undo.advised = RS_ADVISED_READ_MOSTLY;
    else if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        undo.advised = RS_ADVISED_LOCATION;
    else if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY && device >= 0 && device < DEVICES_NOTED)
        undo.device_accesses = 1ull << device;
    else if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY)
        undo.advised = RS_ADVISED_HOST_ACCESS;
    return undo;
}

/* True when the range, which begins in the block, ends in it or in its last host page: the driver
 * rounds ranges outwards to the host's pages. */
static bool is_inside_block(const struct rs_block_view *block, CUdeviceptr address,
                            size_t size_bytes)
{
    size_t room_bytes;

    return rs_round_up(block->size_bytes, (size_t)sysconf(_SC_PAGESIZE), &room_bytes) &&
           size_bytes <= room_bytes - (size_t)(address - block->address);
}

/* True when the answer must be CUDA_ERROR_INVALID_VALUE: the range begins in memory of the library
 * but in no live block, or it begins in a managed block and ends outside that block. */
static bool refuses_advice(CUdeviceptr address, size_t size_bytes)
{
    struct rs_introspection introspection = rs_introspect(address);

    if (introspection.what == RS_INTROSPECTED_FREED)
        return true;
    return introspection.what == RS_INTROSPECTED_BLOCK &&
           introspection.block.kind == RS_KIND_MANAGED &&
           !is_inside_block(&introspection.block, address, size_bytes);
}

/* If the driver has accepted the advice, notes it, so that it is undone when the block is freed.
 * Returns `result`. `device` is CU_DEVICE_CPU for the host. */
static CUresult note_advice(CUdeviceptr address, CUmem_advise advice, CUdevice device,
                            CUresult result)
{
    struct rs_advice undo = to_be_undone(advice, device);

    if (result == CUDA_SUCCESS && (undo.advised || undo.device_accesses) &&
        rs_introspect(address).block.kind == RS_KIND_MANAGED)
        rs_block_note_advice(address, &undo);
    return result;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size_bytes, CUmem_advise advice, CUdevice device)
{
    if (refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return note_advice(address, advice, device,
                       RS_FORWARD(cuMemAdvise, (address, size_bytes, advice, device)));
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size_bytes, CUmem_advise advice,
                        CUmemLocation location)
{
    bool is_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    if (refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return note_advice(address, advice, is_device ? (CUdevice)location.id : CU_DEVICE_CPU,
                       RS_FORWARD(cuMemAdvise_v2, (address, size_bytes, advice, location)));
}

/* ---- attachments ----
 *
 * The driver keeps attachments per driver allocation.  For blocks they have no effect: stacks serve
 * only globally attached memory, and only if all devices access managed memory concurrently with
 * the host, where an attachment restricts nothing. */

static bool is_null_stream(CUstream stream, bool is_per_thread)
{
    return (!stream && !is_per_thread) || stream == CU_STREAM_LEGACY;
}

/* Answers for a managed block of a stack as the driver does for an allocation. A valid call
 * attaches the driver's allocation around the block globally: that changes nothing, but the driver
 * checks stream, context and capture. */
static CUresult attach_memory(__typeof__(&cuStreamAttachMemAsync) real, bool is_per_thread,
                              CUstream stream, CUdeviceptr address, size_t size_bytes,
                              unsigned flags)
{
    struct rs_introspection introspection = rs_introspect(address);
    bool is_whole = address == introspection.block.address &&
                    (size_bytes == 0 || size_bytes == introspection.block.size_bytes);
    struct rs_segment segment;

    if (!real)
        return rs_hook_missing();
    if (introspection.what == RS_INTROSPECTED_FOREIGN ||
        (introspection.what == RS_INTROSPECTED_BLOCK && introspection.block.kind == RS_KIND_PINNED))
        return real(stream, address, size_bytes, flags);
    /* The driver refuses to attach a part of an allocation, or device memory. It would accept a
     * block of device memory that lies in managed memory, so the call is refused here. */
    if (introspection.what == RS_INTROSPECTED_FREED ||
        introspection.block.kind != RS_KIND_MANAGED || !is_whole ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
         flags != CU_MEM_ATTACH_SINGLE) ||
        (flags == CU_MEM_ATTACH_SINGLE && is_null_stream(stream, is_per_thread)) ||
        !rs_segment_find(address, &segment))
        return CUDA_ERROR_INVALID_VALUE;
    return real(stream, segment.start, 0, CU_MEM_ATTACH_GLOBAL);
}

RS_HOOK_BY(cuStreamAttachMemAsync,
           (CUstream stream, CUdeviceptr address, size_t size_bytes, unsigned flags), attach_memory,
           false, stream, address, size_bytes, flags)
RS_HOOK_BY(cuStreamAttachMemAsync_ptsz,
           (CUstream stream, CUdeviceptr address, size_t size_bytes, unsigned flags), attach_memory,
           true, stream, address, size_bytes, flags)

/* ---- access of other devices ---- */

/* Enables access to the driver's memory and to that of the stacks. If the latter is impossible, the
 * driver's part is undone. Access that the library enabled for its own use (rs_peer_lend) does not
 * count as enabled by the program. */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult result = RS_FORWARD(cuCtxEnablePeerAccess, (peer, flags));
    bool was_lent = (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) &&
                    rs_peer_is_lent(peer, true);

    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED && was_lent)
        return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = rs_peer_changed(peer, true);
    if (result != CUDA_SUCCESS)
        (void)RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUresult result;

    if (rs_peer_is_lent(peer, false))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    result = RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result == CUDA_SUCCESS ? rs_peer_changed(peer, false) : result;
}

/* ---- memory of several processes ---- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUresult result;

    if (rs_export(address, handle, &result))
        return result;
    return RS_FORWARD(cuIpcGetMemHandle, (handle, address));
}

static CUresult ipc_open(__typeof__(&cuIpcOpenMemHandle) real, CUdeviceptr *address,
                         CUipcMemHandle handle, unsigned flags)
{
    CUresult result;

    if (!real)
        return rs_hook_missing();
    if (rs_import_open(real, address, &handle, flags, &result))
        return result;
    result = real(address, handle, flags);
    if (result == CUDA_SUCCESS)
        rs_import_note_native(*address);
    return result;
}

RS_HOOK_BY(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags),
           ipc_open, address, handle, flags)
RS_HOOK_BY(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags),
           ipc_open, address, handle, flags)

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result;

    if (rs_import_close(address, &result))
        return result;
    return RS_FORWARD(cuIpcCloseMemHandle, (address));
}
