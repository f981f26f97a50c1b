/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of questions about memory: each forwards the question and corrects the driver's answer, so
 * that a block looks like an allocation of the driver's own. */
#include "introspect/introspect.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "shim/commands.h"

#define HOOK_introspect RS_HOOK_DECLARE
#include "hook/groups.h"

static bool is_corrected(const struct rs_introspection *introspection)
{
    return introspection->what == RS_INTROSPECTED_BLOCK ||
           introspection->what == RS_INTROSPECTED_OPENED;
}

/* ---- sizes of memory ---- */

static CUresult hook_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t free_seen, total_seen;
    CUresult result;

    if (rs_mode_serving())
        rs_shim_attend_in_request(); /* a limit that was changed shows in the answer */
    result = RS_FORWARD(cuMemGetInfo_v2, (&free_seen, &total_seen));
    if (result != CUDA_SUCCESS)
        return result;
    rs_introspect_memory_info(&free_seen, &total_seen);
    if (free_bytes)
        *free_bytes = free_seen;
    if (total_bytes)
        *total_bytes = total_seen;
    return result;
}

static CUresult hook_cuDeviceTotalMem_v2(size_t *total_bytes, CUdevice device)
{
    CUresult result = RS_FORWARD(cuDeviceTotalMem_v2, (total_bytes, device));

    if (result == CUDA_SUCCESS)
        rs_introspect_total_memory(device, total_bytes);
    return result;
}

/* ---- attributes of an address ---- */

static CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size_bytes,
                                             CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        return CUDA_ERROR_NOT_FOUND;
    result = RS_FORWARD(cuMemGetAddressRange_v2, (base, size_bytes, address));
    if (!is_corrected(&introspection) ||
        (result != CUDA_SUCCESS &&
         result != CUDA_ERROR_NOT_FOUND)) /* memory of the process itself: NOT_FOUND */
        return result;
    if (base)
        *base = introspection.address;
    if (size_bytes)
        *size_bytes = introspection.size_bytes;
    return CUDA_SUCCESS;
}

/* The address to ask the driver about: `address`, or one that the driver does not know, for memory
 * of a stack that is not host memory to the program. */
static void *visible_host(void *address)
{
    struct rs_introspection introspection = rs_introspect((CUdeviceptr)(uintptr_t)address);

    if (introspection.what == RS_INTROSPECTED_FREED || rs_introspect_as_requested(&introspection))
        return (void *)(uintptr_t)rs_introspect_unknown_address();
    return address;
}

static CUresult hook_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                           CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    result = RS_FORWARD(cuPointerGetAttribute, (data, attribute, address));
    if (is_corrected(&introspection))
        result = rs_introspect_attribute(&introspection, address, attribute, result, data);
    return result;
}

static CUresult hook_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                            void **data, CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUdeviceptr asked =
        introspection.what == RS_INTROSPECTED_FREED ? rs_introspect_unknown_address() : address;
    CUresult result = RS_FORWARD(cuPointerGetAttributes, (count, attributes, data, asked));

    if (result == CUDA_SUCCESS && is_corrected(&introspection))
        rs_introspect_attributes(&introspection, address, count, attributes, data);
    if (result == CUDA_SUCCESS && introspection.what == RS_INTROSPECTED_FREED)
        rs_introspect_instead(asked, address, count, attributes, data);
    return result;
}

static CUresult hook_cuMemHostGetFlags(unsigned *flags, void *address)
{
    return RS_FORWARD(cuMemHostGetFlags, (flags, visible_host(address)));
}

static CUresult hook_cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address,
                                                  unsigned flags)
{
    return RS_FORWARD(cuMemHostGetDevicePointer_v2, (device, visible_host(address), flags));
}
