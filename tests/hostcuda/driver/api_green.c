/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: green contexts. A green context has streams of its own, with their own NULL stream;
 * its memory belongs to the primary context. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/event.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/stream.h"

#include <stdlib.h>
#include <string.h>

#define SM_COUNT 132u
#define SM_STEP  8u

struct desc {
    unsigned sm_count;
};

static CUdevResource resource_of(unsigned sm_count)
{
    CUdevResource resource;
    memset(&resource, 0, sizeof(resource));
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm.smCount = sm_count;
    return resource;
}

HC_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
                                       CUdevResourceType type)
{
    HC_ENTER(cuDeviceGetDevResource);
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *resource = resource_of(SM_COUNT);
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource *resource,
                                    CUdevResourceType type)
{
    HC_ENTER(cuCtxGetDevResource);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (result)
        return result;
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = resource_of(ctx->sm_count ? ctx->sm_count : SM_COUNT);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count,
                                            const CUdevResource *input, CUdevResource *remaining,
                                            unsigned int flags, unsigned int least)
{
    HC_ENTER(cuDevSmResourceSplitByCount);
    (void)flags;
    if (!count || !input || input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least ? (least + SM_STEP - 1) / SM_STEP * SM_STEP : SM_STEP;
    unsigned possible = input->sm.smCount / each;
    unsigned made = groups && *count < possible ? *count : possible;
    for (unsigned i = 0; groups && i < made; i++)
        groups[i] = resource_of(each);
    if (remaining)
        *remaining = resource_of(input->sm.smCount - made * each);
    *count = made;
    return made ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

HC_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                          unsigned int count)
{
    HC_ENTER(cuDevResourceGenerateDesc);
    HC_LOCKED();
    if (!out || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct desc *desc = calloc(1, sizeof(*desc));
    if (!desc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < count; i++)
        desc->sm_count += resources[i].sm.smCount;
    hc_handle_add(desc, HC_HANDLE_DESC);
    *out = (CUdevResourceDesc)desc;
    return CUDA_SUCCESS;
}

HC_API CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc handle, CUdevice device,
                                 unsigned int flags)
{
    HC_ENTER(cuGreenCtxCreate);
    HC_LOCKED();
    struct hc_ctx *primary, *green;
    if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM || !hc_handle_is(handle, HC_HANDLE_DESC))
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = hc_ctx_primary_retain(device, &primary);
    if (result)
        return result;
    result = hc_ctx_create(device, primary->flags, primary, &green);
    if (result) {
        hc_device_at(device)->primary_count--;
        return result;
    }
    green->sm_count = ((struct desc *)handle)->sm_count;
    *out = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

/* The handle of a green context is also that of its CUcontext. */
static CUresult green_of(CUgreenCtx handle, struct hc_ctx **green)
{
    CUresult result = handle ? hc_ctx_of((CUcontext)handle, green) : CUDA_ERROR_INVALID_CONTEXT;
    return !result && (*green)->owner == *green ? CUDA_ERROR_INVALID_CONTEXT : result;
}

HC_API CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    HC_ENTER(cuGreenCtxDestroy);
    HC_LOCKED();
    struct hc_ctx *green;
    CUresult result = green_of(handle, &green);
    if (result)
        return result;
    struct hc_device *device = hc_device_at(green->device);
    if (hc_ctx_top() == green)
        hc_ctx_pop(&green);
    hc_ctx_destroy(green);
    if (device->primary_count && !--device->primary_count && device->primary->is_active)
        hc_ctx_destroy(device->primary);
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
    HC_ENTER(cuCtxFromGreenCtx);
    HC_LOCKED();
    struct hc_ctx *green;
    CUresult result = green_of(handle, &green);
    if (!result && !out)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *out = hc_ctx_handle(green);
    return result;
}

HC_API CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource *resource,
                                         CUdevResourceType type)
{
    HC_ENTER(cuGreenCtxGetDevResource);
    HC_LOCKED();
    struct hc_ctx *green;
    CUresult result = green_of(handle, &green);
    if (result)
        return result;
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = resource_of(green->sm_count);
    return CUDA_SUCCESS;
}

HC_API CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long *id)
{
    HC_ENTER(cuGreenCtxGetId);
    HC_LOCKED();
    struct hc_ctx *green;
    CUresult result = green_of(handle, &green);
    if (!result && !id)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *id = green->id;
    return result;
}

HC_API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned int flags,
                                       int priority)
{
    HC_ENTER(cuGreenCtxStreamCreate);
    HC_LOCKED();
    struct hc_ctx *green;
    CUresult result = green_of(handle, &green);
    if (result)
        return result;
    if (!out || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_stream *stream = hc_stream_create(green, HC_STREAM_CREATED, flags, priority);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

static CUresult stream_green(CUstream handle, CUgreenCtx *green)
{
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle ? handle : CU_STREAM_LEGACY, &stream);
    if (!result && !green)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *green = stream->ctx == stream->ctx->owner ? NULL : (CUgreenCtx)stream->ctx;
    return result;
}

HC_API CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
    HC_ENTER(cuStreamGetGreenCtx);
    HC_LOCKED();
    return stream_green(stream, green);
}

HC_API CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event_handle)
{
    HC_ENTER(cuGreenCtxRecordEvent);
    HC_LOCKED();
    struct hc_ctx *green;
    struct hc_event *event;
    CUresult result = green_of(handle, &green);
    if (!result)
        result = hc_event_of(event_handle, &event);
    return result ? result : hc_event_record_context(event, green);
}

HC_API CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event_handle)
{
    HC_ENTER(cuGreenCtxWaitEvent);
    HC_LOCKED();
    struct hc_ctx *green;
    struct hc_event *event;
    CUresult result = green_of(handle, &green);
    if (!result)
        result = hc_event_of(event_handle, &event);
    return result ? result : hc_event_wait_context(event, green);
}
