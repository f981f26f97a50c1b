/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: pinned host memory. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/device.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"

#include <stdlib.h>

#define KNOWN_FLAGS                                                                                \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)

static CUresult allocate(void **out, size_t bytes, unsigned flags)
{
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (!result)
        result = hc_capture_check_unsafe();
    if (result)
        return result;
    if (!out || (flags & ~(unsigned)KNOWN_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (!bytes) {
        *out = NULL;
        return CUDA_SUCCESS;
    }
    struct hc_alloc *alloc;
    /* Every pinned allocation is mapped for the device where addresses are shared. */
    result = hc_memory_take(hc_pinned_region(), ctx->owner, HC_PINNED, bytes,
                            flags | CU_MEMHOSTALLOC_DEVICEMAP, &alloc);
    if (!result)
        *out = (void *)alloc->base;
    return result;
}

HC_API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    HC_ENTER(cuMemHostAlloc);
    HC_LOCKED();
    return allocate(out, bytes, flags);
}

HC_API CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    HC_ENTER(cuMemAllocHost_v2);
    HC_LOCKED();
    return allocate(out, bytes, 0);
}

static bool is_of(const struct hc_alloc *alloc, enum hc_kind kind)
{
    return alloc && alloc->kind == kind;
}

HC_API CUresult cuMemFreeHost(void *pointer)
{
    HC_ENTER(cuMemFreeHost);
    HC_LOCKED();
    CUresult result = hc_capture_check_unsafe();
    if (result)
        return result;
    struct hc_alloc *alloc = hc_memory_find_base((uintptr_t)pointer);
    if (!is_of(alloc, HC_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    hc_stream_wait_all(alloc->ctx);
    alloc = hc_memory_find_base((uintptr_t)pointer);
    if (!is_of(alloc, HC_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    result = hc_ctx_error(alloc->ctx);
    if (!result)
        hc_memory_release(alloc, HC_RACE_FREE);
    return result;
}

HC_API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
    HC_ENTER(cuMemHostGetFlags);
    HC_LOCKED();
    const struct hc_alloc *alloc = hc_memory_find((uintptr_t)pointer);
    if (!flags ||
        !(is_of(alloc, HC_PINNED) || is_of(alloc, HC_REGISTERED) || is_of(alloc, HC_MANAGED)))
        return CUDA_ERROR_INVALID_VALUE;
    /* Of managed memory an H200 says that the device reaches it. */
    *flags = alloc->kind == HC_MANAGED ? CU_MEMHOSTALLOC_DEVICEMAP : alloc->flags;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *pointer, unsigned int flags)
{
    HC_ENTER(cuMemHostGetDevicePointer_v2);
    HC_LOCKED();
    const struct hc_alloc *alloc = hc_memory_find((uintptr_t)pointer);
    if (!dptr || flags || !(is_of(alloc, HC_PINNED) || is_of(alloc, HC_REGISTERED)))
        return CUDA_ERROR_INVALID_VALUE;
    *dptr = (CUdeviceptr)pointer;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    HC_ENTER(cuMemHostRegister_v2);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (!result)
        result = hc_capture_check_unsafe();
    if (result)
        return result;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (hc_memory_region_of((uintptr_t)pointer))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct hc_alloc *alloc = calloc(1, sizeof(*alloc));
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *alloc = (struct hc_alloc){.base = (uintptr_t)pointer,
                               .size = bytes,
                               .reserved_bytes = bytes,
                               .kind = HC_REGISTERED,
                               .device = ctx->device,
                               .flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP};
    if (hc_memory_note(alloc, ctx->owner))
        return CUDA_SUCCESS;
    free(alloc);
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

HC_API CUresult cuMemHostUnregister(void *pointer)
{
    HC_ENTER(cuMemHostUnregister);
    HC_LOCKED();
    CUresult result = hc_capture_check_unsafe();
    if (result)
        return result;
    struct hc_alloc *alloc = hc_memory_find_base((uintptr_t)pointer);
    if (!is_of(alloc, HC_REGISTERED))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    hc_stream_wait_all(alloc->ctx);
    alloc = hc_memory_find_base((uintptr_t)pointer);
    if (is_of(alloc, HC_REGISTERED))
        hc_memory_release(alloc, HC_RACE_FREE);
    return CUDA_SUCCESS;
}
