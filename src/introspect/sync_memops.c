/* SPDX-License-Identifier: Apache-2.0 */
#include "introspect/sync_memops.h"

#include "context/context.h"
#include "driver/driver.h"

static CUresult set(CUdeviceptr address, bool wanted)
{
    unsigned value = wanted;

    if (!rs_driver.cuPointerSetAttribute)
        return CUDA_ERROR_NOT_FOUND;
    return rs_driver.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

/* Unsets the attribute in the driver unless a live block of the allocation wants it.  No lock is
 * held, as the call may wait; a block that sets it meanwhile is found after the call, which is then
 * undone. */
static CUresult clear(CUdeviceptr address)
{
    CUresult result = CUDA_SUCCESS;

    if (!rs_block_segment_syncs_memops(address)) {
        result = set(address, false);
        if (result == CUDA_SUCCESS && rs_block_segment_syncs_memops(address))
            (void)set(address, true);
    }
    return result;
}

void rs_sync_memops_note(CUdeviceptr address)
{
    rs_block_note_advice(address, &(struct rs_advice){RS_ADVISED_SYNC_MEMOPS, 0});
}

/* A block of device memory has only its own setting, also where it lies in managed memory. */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver)
{
    unsigned advised = rs_block_advised(address);

    if (advised & RS_ADVISED_SYNC_MEMOPS)
        return true;
    return kind == RS_KIND_MANAGED && of_the_driver && !(advised & RS_ADVISED_NO_SYNC_MEMOPS);
}

/* The driver's attribute stays set: neighbours have had it from the start. */
static void unset_managed(CUdeviceptr address)
{
    rs_block_note_advice(address, &(struct rs_advice){RS_ADVISED_NO_SYNC_MEMOPS, 0});
    rs_block_forget_sync_memops(address);
}

CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted)
{
    bool before = rs_block_syncs_memops(address);
    CUresult result;

    if (!wanted && kind == RS_KIND_MANAGED) {
        unset_managed(address);
        return CUDA_SUCCESS;
    }
    if (!wanted) {
        rs_block_forget_sync_memops(address);
        return before ? clear(address) : CUDA_SUCCESS;
    }
    rs_sync_memops_note(address); /* noted first, so that no concurrent clear() misses it */
    result = set(address, true);
    if (result != CUDA_SUCCESS && !before)
        rs_block_forget_sync_memops(address);
    return result;
}

void rs_sync_memops_freed(const struct rs_taken_block *block)
{
    CUstreamCaptureMode mode;
    CUresult result;
    bool entered;

    if (!(block->advice.advised & RS_ADVISED_SYNC_MEMOPS) || block->stack->kind == RS_KIND_MANAGED)
        return;
    mode = rs_capture_relax();
    entered = rs_driver_context_enter(block->stack->environment.context, &result);
    if (result == CUDA_SUCCESS)
        (void)clear(block->allocation.address); /* if that fails, copies wait more than needed */
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
}
