/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: streams. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_stream *stream = hc_stream_create(ctx, HC_STREAM_CREATED, flags, priority);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

HC_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    HC_ENTER(cuStreamCreate);
    return create(stream, flags, 0);
}

HC_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    HC_ENTER(cuStreamCreateWithPriority);
    int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return create(stream, flags, clamped);
}

/* Also in a context that has failed. */
static CUresult destroy(CUstream handle)
{
    HC_LOCKED();
    if (!hc_handle_is(handle, HC_HANDLE_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    hc_stream_destroy((struct hc_stream *)handle);
    return CUDA_SUCCESS;
}

HC_API CUresult cuStreamDestroy(CUstream stream)
{
    HC_ENTER(cuStreamDestroy);
    return destroy(stream);
}

HC_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    HC_ENTER(cuStreamDestroy_v2);
    return destroy(stream);
}

static CUresult query(CUstream handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result)
        result = hc_capture_check_stream(stream);
    if (result)
        return result;
    return hc_stream_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

HC_PAIR(cuStreamQuery, _ptsz, (CUstream stream), query(HC_STREAM(stream)));

static CUresult synchronize(CUstream handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result)
        result = hc_capture_check_stream(stream);
    if (result)
        return result;
    const struct hc_ctx *ctx = stream->ctx;
    hc_stream_synchronize(stream);
    hc_memory_settle_stream(stream);
    return hc_ctx_error(ctx);
}

HC_PAIR(cuStreamSynchronize, _ptsz, (CUstream stream), synchronize(HC_STREAM(stream)));

static CUresult get_flags(CUstream handle, unsigned *flags)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !flags)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *flags = stream->flags;
    return result;
}

HC_PAIR(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned int *flags),
        get_flags(HC_STREAM(stream), flags));

static CUresult get_priority(CUstream handle, int *priority)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !priority)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *priority = stream->priority;
    return result;
}

HC_PAIR(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority),
        get_priority(HC_STREAM(stream), priority));

static CUresult get_id(CUstream handle, unsigned long long *id)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !id)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *id = stream->id;
    return result;
}

HC_PAIR(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id),
        get_id(HC_STREAM(stream), id));

static CUresult get_device(CUstream handle, CUdevice *device)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *device = stream->ctx->device;
    return result;
}

HC_PAIR(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice *device),
        get_device(HC_STREAM(stream), device));

static CUresult get_ctx(CUstream handle, CUcontext *ctx)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !ctx)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *ctx = hc_ctx_handle(stream->ctx);
    return result;
}

HC_PAIR(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *ctx), get_ctx(HC_STREAM(stream), ctx));

static CUresult get_ctx_or_green(CUstream handle, CUcontext *ctx, CUgreenCtx *green)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && (!ctx || !green))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct hc_ctx *owner = stream->ctx->owner;
    *ctx = hc_ctx_handle(owner);
    *green = stream->ctx == owner ? NULL : (CUgreenCtx)stream->ctx;
    return CUDA_SUCCESS;
}

HC_PAIR(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext *ctx, CUgreenCtx *green),
        get_ctx_or_green(HC_STREAM(stream), ctx, green));

static CUresult attach(CUstream handle, CUdeviceptr dptr, size_t length, unsigned flags)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (result)
        return result;
    const struct hc_alloc *alloc = hc_memory_find_base(dptr);
    if (!alloc || alloc->kind != HC_MANAGED || (length && length != alloc->size))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
        flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_ATTACH_SINGLE && (!handle || handle == CU_STREAM_LEGACY))
        return CUDA_ERROR_INVALID_VALUE; /* no particular stream, says the manual */
    return hc_stream_submit(stream, &(struct hc_work){.type = CU_GRAPH_NODE_TYPE_EMPTY}, NULL);
}

HC_PAIR(cuStreamAttachMemAsync, _ptsz,
        (CUstream stream, CUdeviceptr dptr, size_t length, unsigned int flags),
        attach(HC_STREAM(stream), dptr, length, flags));
