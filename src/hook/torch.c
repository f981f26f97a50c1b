/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for PyTorch's pluggable allocator (include/rmmshim/rmmshim.h): they allocate and
 * free device memory of a device's primary context in the order of a stream. The stream is a
 * CUstream; NULL means the legacy default stream. */
#include "base/log.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/context.h"
#include "context/end.h"
#include "driver/stream.h"
#include "hook/allocation.h"
#include "hook/caller.h"
#include "hook/hook.h"
#include "rmmshim/rmmshim.h"

/* A primary context that was made current for one call. */
struct visit {
    bool entered, retained;
    CUstream stream; /* the caller's stream as a handle in this context; NULL: it has none there */
};

/* Makes the device's primary context current. Returns false when there is no such device, or its
 * primary context cannot be made current. */
static bool visit_primary(enum rs_mode mode, int device, CUstream stream, struct visit *visit)
{
    const struct rs_context *current = mode == RS_MODE_SERVE ? rs_context_current(false) : NULL;
    CUcontext primary = NULL;
    unsigned flags = 0;
    CUresult result;
    int active = 0;

    *visit = (struct visit){.stream = stream};
    if (current && current->primary && current->device == device)
        return true;
    if (!rs_driver.cuDevicePrimaryCtxGetState || !rs_driver.cuDevicePrimaryCtxRelease_v2 ||
        rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS ||
        rs_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return false;
    /* A primary context that this call has started is not released, since the memory will be in it.
     * The runtime keeps it active too. */
    visit->retained = active;
    visit->stream = rs_stream_from(device, primary, stream);
    visit->entered = rs_driver_context_enter(primary, &result);
    if (result == CUDA_SUCCESS)
        return true;
    if (visit->retained)
        rs_context_release_primary(device);
    return false;
}

static void leave_primary(int device, const struct visit *visit)
{
    rs_driver_context_leave(visit->entered);
    if (visit->retained)
        rs_context_release_primary(device);
}

static CUstream stream_of(void *stream)
{
    return stream ? (CUstream)stream : CU_STREAM_LEGACY;
}

static CUresult torch_allocate(size_t size_bytes, int device, CUstream stream, unsigned object,
                               CUdeviceptr *address)
{
    enum rs_mode mode = rs_mode_now();
    CUresult result = CUDA_ERROR_NOT_INITIALIZED;
    struct visit visit;

    if (!visit_primary(mode, device, stream, &visit))
        return result;
    if (!rs_shim_allocate(mode, RS_HOOK_GROUP_DEVICE, 0, size_bytes, visit.stream, object, address,
                          &result))
        result = rs_driver.cuMemAlloc_v2(address, size_bytes);
    leave_primary(device, &visit);
    return result;
}

void *rmmshim_torch_alloc(ssize_t size, int device, void *stream)
{
    static bool said; /* one line is enough: a program may ask again and again */
    CUresult result = CUDA_ERROR_NOT_INITIALIZED;
    CUdeviceptr address = 0;
    char buffer[32];

    if (size <= 0)
        return NULL;
    if (rs_driver_ready(true))
        result =
            torch_allocate((size_t)size, device, stream_of(stream), RS_CALLER_OBJECT(), &address);
    if (result == CUDA_SUCCESS)
        return (void *)(uintptr_t)address;
    if (rs_log_once(&said))
        rs_log("rmmshim_torch_alloc: %zu bytes on device %d cannot be allocated: %s", (size_t)size,
               device,
               rs_driver_ready(false) ? rs_driver_error_name(result, buffer) : "no CUDA driver");
    return NULL;
}

static CUresult free_driver_block(CUdeviceptr address, int device)
{
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    struct visit visit;

    if (rs_driver_ready(false) && visit_primary(rs_mode_now(), device, NULL, &visit)) {
        result = rs_driver.cuMemFree_v2(address);
        leave_primary(device, &visit);
    }
    return result;
}

void rmmshim_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
    static bool said;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)ptr;
    CUresult result;
    char buffer[32];

    (void)size; /* the size is in the block's record */
    if (!ptr)
        return;
    if (!rs_mode_serving() || !rs_shim_free_in_order(at, stream_of(stream), &result))
        result = free_driver_block(at, device);
    if (result != CUDA_SUCCESS && rs_log_once(&said))
        rs_log("rmmshim_torch_free: %p on device %d was not freed: %s%s", ptr, device,
               rs_driver_ready(false) ? rs_driver_error_name(result, buffer) : "no CUDA driver",
               result == CUDA_ERROR_INVALID_VALUE
                   ? ": it was freed before, or rmmshim_torch_alloc did not return it"
                   : "");
}

void rmmshim_torch_record_stream(void *ptr, void *stream)
{
    struct rs_block_record *block =
        ptr && rs_mode_serving() ? rs_block_beginning_at((CUdeviceptr)(uintptr_t)ptr) : NULL;

    (void)stream;
    if (block) /* the free then orders the block after all work of the context, not after one
                  stream's alone */
        atomic_store_explicit(&block->has_other_streams, true, memory_order_relaxed);
}
