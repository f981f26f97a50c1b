/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: arrays, without their contents: they take memory, have descriptors, and die with
 * their context. */
#include "driver/array.h"
#include "driver/call.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/memory.h"

#include <stdlib.h>

#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

struct hc_array {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct hc_alloc *alloc; /* NULL: memory is mapped later */
};

void hc_array_forget(struct hc_array *array)
{
    hc_handle_remove(array);
    free(array);
}

/* Bytes of one channel; 0 for a format that is not there. */
static size_t channel_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static size_t at_least_one(size_t value)
{
    return value ? value : 1;
}

static size_t round_up(size_t value, size_t step)
{
    return (value + step - 1) / step * step;
}

/* 0 if no array is like that.  Memory is laid out in tiles of 64 bytes by 8 rows, also of an array
 * with one row (facts_h200.txt: footprint.row). */
static size_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels)
{
    size_t element = channel_bytes(of->Format) * of->NumChannels, bytes = 0;
    if (!of->Width || !levels ||
        (of->NumChannels != 1 && of->NumChannels != 2 && of->NumChannels != 4))
        return 0;
    for (unsigned level = 0; element && level < levels && level < 32; level++) {
        size_t depth = of->Flags & CUDA_ARRAY3D_LAYERED ? of->Depth : of->Depth >> level;
        bytes += round_up(element * at_least_one(of->Width >> level), 64) *
                 round_up(at_least_one(of->Height >> level), 8) * at_least_one(depth);
    }
    return bytes;
}

static CUresult create(void **out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels,
                       enum hc_handle_type type)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    size_t bytes = out && descriptor ? bytes_of(descriptor, levels) : 0;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_array *array = calloc(1, sizeof(*array));
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->descriptor = *descriptor;
    if (!(descriptor->Flags & WITHOUT_MEMORY))
        result = hc_memory_take(&hc_device_at(ctx->device)->memory, ctx->owner, HC_ARRAY, bytes, 0,
                                &array->alloc);
    if (result) {
        free(array);
        return result;
    }
    if (array->alloc)
        array->alloc->array = array;
    hc_handle_add(array, type);
    *out = array;
    return CUDA_SUCCESS;
}

static CUresult destroy(struct hc_array *array, enum hc_handle_type type)
{
    HC_LOCKED();
    if (!hc_handle_is(array, type))
        return CUDA_ERROR_INVALID_HANDLE;
    if (array->alloc)
        hc_memory_release(array->alloc, HC_RACE_FREE); /* forgets the array */
    else
        hc_array_forget(array);
    return CUDA_SUCCESS;
}

HC_API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *of)
{
    HC_ENTER(cuArrayCreate_v2);
    if (!of)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = of->Width,
                                    .Height = of->Height,
                                    .Format = of->Format,
                                    .NumChannels = of->NumChannels};
    return create((void **)out, &full, 1, HC_HANDLE_ARRAY);
}

HC_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *of)
{
    HC_ENTER(cuArray3DCreate_v2);
    return create((void **)out, of, 1, HC_HANDLE_ARRAY);
}

HC_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle)
{
    HC_ENTER(cuArray3DGetDescriptor_v2);
    HC_LOCKED();
    const struct hc_array *array = (const struct hc_array *)handle;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_handle_is(array, HC_HANDLE_ARRAY))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = array->descriptor;
    return CUDA_SUCCESS;
}

HC_API CUresult cuArrayDestroy(CUarray array)
{
    HC_ENTER(cuArrayDestroy);
    return destroy((struct hc_array *)array, HC_HANDLE_ARRAY);
}

HC_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *of,
                                       unsigned levels)
{
    HC_ENTER(cuMipmappedArrayCreate);
    return create((void **)out, of, levels, HC_HANDLE_MIPMAPPED);
}

HC_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    HC_ENTER(cuMipmappedArrayDestroy);
    return destroy((struct hc_array *)array, HC_HANDLE_MIPMAPPED);
}
