/* SPDX-License-Identifier: Apache-2.0 */
#include "introspect/managed.h"

#include "base/check.h"
#include "context/context.h"
#include "driver/driver.h"
#include "introspect/introspect.h"
#include "resource/segment.h"

#include <unistd.h>

enum { DEVICES_NOTED = 64 }; /* devices that have a bit in rs_advice.device_accesses */

/* ---- advice ---- */

CUdevice rs_managed_device_of(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? (CUdevice)location.id : CU_DEVICE_CPU;
}

/* Returns what this advice adds to the noted advice; nothing for advice that unsets. */
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

/* True when the range ends in the block or in its last host page, as the driver rounds ranges
 * outwards to the host's pages. */
static bool is_inside(const struct rs_introspection *block, CUdeviceptr address, size_t size_bytes)
{
    size_t room_bytes;

    return rs_round_up(block->size_bytes, (size_t)sysconf(_SC_PAGESIZE), &room_bytes) &&
           size_bytes <= room_bytes - (size_t)(address - block->address);
}

bool rs_managed_refuses_advice(CUdeviceptr address, size_t size_bytes)
{
    struct rs_introspection introspection = rs_introspect(address);

    if (introspection.what == RS_INTROSPECTED_FREED)
        return true;
    return introspection.what == RS_INTROSPECTED_BLOCK && introspection.kind == RS_KIND_MANAGED &&
           !is_inside(&introspection, address, size_bytes);
}

void rs_managed_note_advice(CUdeviceptr address, CUmem_advise advice, CUdevice device)
{
    struct rs_advice undo = to_be_undone(advice, device);

    if ((undo.advised || undo.device_accesses) && rs_introspect(address).kind == RS_KIND_MANAGED)
        rs_block_note_advice(address, &undo);
}

static CUresult unadvise(const struct rs_taken_block *block, CUmem_advise advice, int where)
{
    return rs_placement_advise(block->stack->environment.context, block->allocation.address,
                               block->allocation.size_bytes, advice, where);
}

CUresult rs_managed_unadvise(const struct rs_taken_block *block)
{
    const struct rs_advice *advice = &block->advice;
    CUresult result = CUDA_SUCCESS;

    if (advice->advised & RS_ADVISED_READ_MOSTLY)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_READ_MOSTLY, RS_PLACEMENT_HOST);
    if (result == CUDA_SUCCESS && advice->advised & RS_ADVISED_LOCATION)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, RS_PLACEMENT_HOST);
    if (result == CUDA_SUCCESS && advice->advised & RS_ADVISED_HOST_ACCESS)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_ACCESSED_BY, RS_PLACEMENT_HOST);
    for (int device = 0; device < DEVICES_NOTED && result == CUDA_SUCCESS; device++)
        if (advice->device_accesses >> device & 1)
            result = unadvise(block, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device);
    return result;
}

/* ---- attachments ---- */

static bool is_null_stream(CUstream stream, bool is_per_thread)
{
    return (!stream && !is_per_thread) || stream == CU_STREAM_LEGACY;
}

bool rs_managed_attach(CUstream stream, bool is_per_thread, CUdeviceptr *address,
                       size_t *size_bytes, unsigned *flags, CUresult *result)
{
    struct rs_introspection introspection = rs_introspect(*address);
    bool is_whole = *address == introspection.address &&
                    (*size_bytes == 0 || *size_bytes == introspection.size_bytes);
    struct rs_segment segment;

    *result = CUDA_ERROR_INVALID_VALUE;
    if (introspection.what == RS_INTROSPECTED_FOREIGN ||
        (introspection.what == RS_INTROSPECTED_BLOCK && introspection.kind == RS_KIND_PINNED))
        return false;
    /* The driver refuses parts of an allocation, and device memory; a block of device memory may
     * lie in managed memory, which the driver would accept. */
    if (introspection.what == RS_INTROSPECTED_FREED || introspection.kind != RS_KIND_MANAGED ||
        !is_whole)
        return true;
    if (*flags != CU_MEM_ATTACH_GLOBAL && *flags != CU_MEM_ATTACH_HOST &&
        *flags != CU_MEM_ATTACH_SINGLE)
        return true;
    if (*flags == CU_MEM_ATTACH_SINGLE && is_null_stream(stream, is_per_thread))
        return true;
    if (!rs_segment_find(*address, &segment))
        return true;
    *address = segment.start;
    *size_bytes = 0;
    *flags = CU_MEM_ATTACH_GLOBAL;
    return false;
}
