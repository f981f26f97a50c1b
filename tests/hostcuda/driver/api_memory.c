/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: device and managed memory. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/device.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"

#define PITCH_BYTES ((size_t)512)

static CUresult allocate(struct hc_region *region, struct hc_ctx *ctx, enum hc_kind kind,
                         size_t bytes, unsigned flags, CUdeviceptr *out)
{
    CUresult result = hc_capture_check_unsafe();
    if (result)
        return result;
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_alloc *alloc;
    result = hc_memory_take(region, ctx->owner, kind, bytes, flags, &alloc);
    if (!result)
        *out = alloc->base;
    return result;
}

HC_API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
    HC_ENTER(cuMemAlloc_v2);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    return allocate(&hc_device_at(ctx->device)->memory, ctx, HC_DEVICE, bytes, 0, dptr);
}

HC_API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                                   unsigned int element_bytes)
{
    HC_ENTER(cuMemAllocPitch_v2);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!dptr || !pitch || !width || !height)
        return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (width > SIZE_MAX - PITCH_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    if (height > SIZE_MAX / row)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = allocate(&hc_device_at(ctx->device)->memory, ctx, HC_DEVICE, row * height, 0, dptr);
    if (!result)
        *pitch = row;
    return result;
}

HC_API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
    HC_ENTER(cuMemAllocManaged);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(hc_managed_region(), ctx, HC_MANAGED, bytes, flags, dptr);
}

static bool is_freeable(const struct hc_alloc *alloc)
{
    return alloc && !alloc->is_freed &&
           (alloc->kind == HC_DEVICE || alloc->kind == HC_MANAGED || alloc->kind == HC_ASYNC ||
            (alloc->kind == HC_IMPORTED && alloc->pool));
}

HC_API CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    HC_ENTER(cuMemFree_v2);
    HC_LOCKED();
    if (!dptr)
        return CUDA_SUCCESS;
    CUresult result = hc_capture_check_unsafe();
    if (result)
        return result;
    struct hc_alloc *alloc = hc_memory_find_base(dptr);
    if (!is_freeable(alloc))
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc->ctx) {
        /* Memory of the stream-ordered allocator has no context, and its free does not wait. */
        hc_stream_wait_all(alloc->ctx);
        alloc = hc_memory_find_base(dptr);
        if (!is_freeable(alloc)) /* another thread freed it, or destroyed its context */
            return CUDA_ERROR_INVALID_VALUE;
        result = hc_ctx_error(alloc->ctx);
        if (result)
            return result;
    }
    if (alloc->graph)
        alloc->is_freed = true; /* its addresses stay with the graph */
    else
        hc_memory_release(alloc, HC_RACE_FREE);
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    HC_ENTER(cuMemGetInfo_v2);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    const struct hc_region *memory = &hc_device_at(ctx->device)->memory;
    if (free_bytes)
        *free_bytes = memory->capacity_bytes - memory->used_bytes;
    if (total_bytes)
        *total_bytes = memory->capacity_bytes;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr dptr)
{
    HC_ENTER(cuMemGetAddressRange_v2);
    HC_LOCKED();
    if (!base && !bytes)
        return CUDA_SUCCESS;
    const struct hc_alloc *alloc = hc_memory_find(dptr);
    if (!alloc)
        return CUDA_ERROR_NOT_FOUND;
    if (alloc->ctx && hc_ctx_error(alloc->ctx))
        return hc_ctx_error(alloc->ctx);
    if (base)
        *base = alloc->base;
    if (bytes)
        *bytes = alloc->size;
    return CUDA_SUCCESS;
}
