/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: copies and fills.
 * Which of them wait: a synchronous copy that touches host memory waits until it is done; one
 * inside the device, and a synchronous fill, do not. An asynchronous copy from pageable memory has
 * read its source when it returns, one to pageable memory is done when it returns. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/config.h"
#include "driver/context.h"
#include "driver/copy.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/race.h"
#include "driver/stream.h"

#include <stdlib.h>
#include <string.h>

enum end { HOST, DEVICE, ANY };

static bool is_pageable(const void *pointer)
{
    return !hc_memory_is_known((uintptr_t)pointer);
}

/* A device address must be known to the driver; that it is alive is the device's concern. */
static bool is_valid_end(enum end end, const void *pointer)
{
    return pointer &&
           (end != DEVICE || hc_config.pageable || hc_memory_is_known((uintptr_t)pointer));
}

static CUresult stage(struct hc_copy *copy, void **staged)
{
    char *buffer = malloc(copy->width * copy->height);
    if (!buffer)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t row = 0; row < copy->height; row++)
        memcpy(buffer + row * copy->width, copy->from + row * copy->from_pitch, copy->width);
    copy->from = buffer;
    copy->from_pitch = copy->width;
    *staged = buffer;
    return CUDA_SUCCESS;
}

static CUresult wait_for(struct hc_stream *stream, struct hc_op *op)
{
    struct hc_clock clock = {0};
    struct hc_ctx *ctx = stream->ctx;
    hc_clock_join(&clock, &stream->clock);
    hc_op_wait(op);
    hc_op_unref(op);
    hc_race_host_knows(&clock);
    hc_clock_clear(&clock);
    return hc_ctx_error(ctx);
}

static bool is_host_memory(const void *pointer)
{
    const struct hc_alloc *alloc = hc_memory_find((uintptr_t)pointer);
    return !alloc || alloc->kind == HC_PINNED || alloc->kind == HC_REGISTERED;
}

static CUresult submit(struct hc_stream *stream, struct hc_copy copy, bool is_sync)
{
    bool waits =
        is_sync ? is_host_memory(copy.from) || is_host_memory(copy.to) : is_pageable(copy.to);
    void *staged = NULL;
    if (!stream->capture && is_pageable(copy.from) && hc_config.pageable) {
        waits = true; /* earlier work may write it */
    } else if (!stream->capture && is_pageable(copy.from)) {
        CUresult result = stage(&copy, &staged);
        if (result)
            return result;
    }
    struct hc_work work = hc_copy_work(&copy);
    work.staged = staged;
    struct hc_op *op;
    CUresult result = hc_stream_submit(stream, &work, &op);
    if (result) {
        free(staged);
        return result;
    }
    if (op && waits)
        return wait_for(stream, op);
    hc_op_unref(op);
    return CUDA_SUCCESS;
}

static CUresult copy_on(CUstream handle, bool is_sync, enum end to_end, void *to, enum end from_end,
                        const void *from, struct hc_copy shape)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (result)
        return result;
    if (is_sync) {
        result = hc_capture_check_stream(stream);
        if (result)
            return result;
    }
    if (!shape.width || !shape.height)
        return CUDA_SUCCESS;
    if (!is_valid_end(to_end, to) || !is_valid_end(from_end, from))
        return CUDA_ERROR_INVALID_VALUE;
    shape.to = to;
    shape.from = from;
    return submit(stream, shape, is_sync);
}

static CUresult copy_bytes(CUstream stream, bool is_sync, enum end to_end, void *to,
                           enum end from_end, const void *from, size_t bytes)
{
    struct hc_copy shape = {.width = bytes, .height = 1, .to_pitch = bytes, .from_pitch = bytes};
    return copy_on(stream, is_sync, to_end, to, from_end, from, shape);
}

#define PTR(dptr) ((void *)(uintptr_t)(dptr))

HC_PAIR(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
        copy_bytes(hc_default_, true, ANY, PTR(to), ANY, PTR(from), bytes));
HC_PAIR(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes),
        copy_bytes(hc_default_, true, DEVICE, PTR(to), HOST, from, bytes));
HC_PAIR(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes),
        copy_bytes(hc_default_, true, HOST, to, DEVICE, PTR(from), bytes));
HC_PAIR(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
        copy_bytes(hc_default_, true, DEVICE, PTR(to), DEVICE, PTR(from), bytes));
HC_PAIR(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
        copy_bytes(HC_STREAM(stream), false, ANY, PTR(to), ANY, PTR(from), bytes));
HC_PAIR(cuMemcpyHtoDAsync_v2, _ptsz,
        (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
        copy_bytes(HC_STREAM(stream), false, DEVICE, PTR(to), HOST, from, bytes));
HC_PAIR(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
        copy_bytes(HC_STREAM(stream), false, HOST, to, DEVICE, PTR(from), bytes));
HC_PAIR(cuMemcpyDtoDAsync_v2, _ptsz,
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
        copy_bytes(HC_STREAM(stream), false, DEVICE, PTR(to), DEVICE, PTR(from), bytes));

/* Between devices: the addresses say all that the contexts could. */
HC_PAIR(cuMemcpyPeer, _ptds,
        (CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes),
        ((void)to_ctx, (void)from_ctx,
         copy_bytes(hc_default_, true, DEVICE, PTR(to), DEVICE, PTR(from), bytes)));
HC_PAIR(cuMemcpyPeerAsync, _ptsz,
        (CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes,
         CUstream stream),
        ((void)to_ctx, (void)from_ctx,
         copy_bytes(HC_STREAM(stream), false, DEVICE, PTR(to), DEVICE, PTR(from), bytes)));

static char *end_of_2d(CUmemorytype type, const void *host, CUdeviceptr device)
{
    if (type == CU_MEMORYTYPE_HOST)
        return (char *)(uintptr_t)host;
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? PTR(device) : NULL;
}

static CUresult copy_2d(CUstream stream, bool is_sync, const CUDA_MEMCPY2D *copy)
{
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    const char *from = end_of_2d(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
    char *to = end_of_2d(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
    size_t from_pitch = copy->srcPitch ? copy->srcPitch : copy->WidthInBytes + copy->srcXInBytes;
    size_t to_pitch = copy->dstPitch ? copy->dstPitch : copy->WidthInBytes + copy->dstXInBytes;
    if (!from || !to || from_pitch < copy->WidthInBytes || to_pitch < copy->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_copy shape = {.width = copy->WidthInBytes,
                            .height = copy->Height,
                            .to_pitch = to_pitch,
                            .from_pitch = from_pitch};
    return copy_on(stream, is_sync, copy->dstMemoryType == CU_MEMORYTYPE_DEVICE ? DEVICE : ANY,
                   to + copy->dstY * to_pitch + copy->dstXInBytes,
                   copy->srcMemoryType == CU_MEMORYTYPE_DEVICE ? DEVICE : ANY,
                   from + copy->srcY * from_pitch + copy->srcXInBytes, shape);
}

HC_PAIR(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy_2d(hc_default_, true, copy));
HC_PAIR(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy),
        copy_2d(hc_default_, true, copy));
HC_PAIR(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
        copy_2d(HC_STREAM(stream), false, copy));

static CUresult fill(CUstream handle, bool is_sync, CUdeviceptr to, unsigned value,
                     unsigned element_bytes, size_t width, size_t height, size_t pitch)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && is_sync)
        result = hc_capture_check_stream(stream);
    if (result || !width || !height)
        return result;
    if ((!hc_config.pageable && !hc_memory_is_known(to)) || to % element_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_fill shape = {.to = PTR(to),
                            .value = value,
                            .element_bytes = element_bytes,
                            .width = width,
                            .height = height,
                            .pitch = pitch};
    struct hc_work work = hc_fill_work(&shape);
    return hc_stream_submit(stream, &work, NULL);
}

HC_PAIR(cuMemsetD8_v2, _ptds, (CUdeviceptr to, unsigned char value, size_t count),
        fill(hc_default_, true, to, value, 1, count, 1, 0));
HC_PAIR(cuMemsetD16_v2, _ptds, (CUdeviceptr to, unsigned short value, size_t count),
        fill(hc_default_, true, to, value, 2, count, 1, 0));
HC_PAIR(cuMemsetD32_v2, _ptds, (CUdeviceptr to, unsigned int value, size_t count),
        fill(hc_default_, true, to, value, 4, count, 1, 0));
HC_PAIR(cuMemsetD8Async, _ptsz,
        (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 1, count, 1, 0));
HC_PAIR(cuMemsetD16Async, _ptsz,
        (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 2, count, 1, 0));
HC_PAIR(cuMemsetD32Async, _ptsz,
        (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 4, count, 1, 0));
HC_PAIR(cuMemsetD2D8_v2, _ptds,
        (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
        fill(hc_default_, true, to, value, 1, width, height, pitch));
HC_PAIR(cuMemsetD2D16_v2, _ptds,
        (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
        fill(hc_default_, true, to, value, 2, width, height, pitch));
HC_PAIR(cuMemsetD2D32_v2, _ptds,
        (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height),
        fill(hc_default_, true, to, value, 4, width, height, pitch));
HC_PAIR(cuMemsetD2D8Async, _ptsz,
        (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
         CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 1, width, height, pitch));
HC_PAIR(cuMemsetD2D16Async, _ptsz,
        (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
         CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 2, width, height, pitch));
HC_PAIR(cuMemsetD2D32Async, _ptsz,
        (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
         CUstream stream),
        fill(HC_STREAM(stream), false, to, value, 4, width, height, pitch));
