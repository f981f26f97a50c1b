/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: contexts. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"

HC_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    HC_ENTER(cuDevicePrimaryCtxRetain);
    HC_LOCKED();
    struct hc_ctx *ctx;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = hc_ctx_primary_retain(device, &ctx);
    if (!result)
        *out = hc_ctx_handle(ctx);
    return result;
}

static CUresult release(CUdevice ordinal)
{
    HC_LOCKED();
    struct hc_device *device = hc_device_at(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary_count)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_count == 0 && device->primary->is_active)
        hc_ctx_destroy(device->primary);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    HC_ENTER(cuDevicePrimaryCtxRelease);
    return release(device);
}

HC_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    HC_ENTER(cuDevicePrimaryCtxRelease_v2);
    return release(device);
}

/* Who retained the context before must still release it. */
static CUresult reset(CUdevice ordinal)
{
    HC_LOCKED();
    struct hc_device *device = hc_device_at(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary && device->primary->is_active)
        hc_ctx_destroy(device->primary);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    HC_ENTER(cuDevicePrimaryCtxReset);
    return reset(device);
}

HC_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    HC_ENTER(cuDevicePrimaryCtxReset_v2);
    return reset(device);
}

HC_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    HC_ENTER(cuDevicePrimaryCtxGetState);
    HC_LOCKED();
    const struct hc_device *device = hc_device_at(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary ? device->primary->flags : 0;
    *active = device->primary && device->primary->is_active;
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags)
{
    HC_LOCKED();
    struct hc_device *device = hc_device_at(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    HC_ENTER(cuDevicePrimaryCtxSetFlags);
    return set_primary_flags(device, flags);
}

HC_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    HC_ENTER(cuDevicePrimaryCtxSetFlags_v2);
    return set_primary_flags(device, flags);
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    if (!out || (flags & ~(unsigned)CU_CTX_FLAGS_MASK))
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = hc_ctx_create(device, flags, NULL, &ctx);
    if (!result)
        result = hc_ctx_push(ctx);
    if (!result)
        *out = hc_ctx_handle(ctx);
    return result;
}

HC_API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    HC_ENTER(cuCtxCreate_v2);
    return create(out, flags, device);
}

HC_API CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count,
                               unsigned int flags, CUdevice device)
{
    HC_ENTER(cuCtxCreate_v3);
    return params || count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(out, flags, device);
}

HC_API CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags,
                               CUdevice device)
{
    HC_ENTER(cuCtxCreate_v4);
    if (params && (params->execAffinityParams || params->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(out, flags, device);
}

static CUresult destroy(CUcontext handle)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return result;
    if (ctx->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (hc_ctx_top() == ctx)
        hc_ctx_pop(&ctx);
    hc_ctx_destroy(ctx);
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxDestroy(CUcontext ctx)
{
    HC_ENTER(cuCtxDestroy);
    return destroy(ctx);
}

HC_API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    HC_ENTER(cuCtxDestroy_v2);
    return destroy(ctx);
}

static CUresult push(CUcontext handle)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = handle ? hc_ctx_of(handle, &ctx) : CUDA_ERROR_INVALID_CONTEXT;
    return result ? result : hc_ctx_push(ctx);
}

HC_API CUresult cuCtxPushCurrent(CUcontext ctx)
{
    HC_ENTER(cuCtxPushCurrent);
    return push(ctx);
}

HC_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    HC_ENTER(cuCtxPushCurrent_v2);
    return push(ctx);
}

static CUresult pop(CUcontext *out)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_pop(&ctx);
    if (!result && out)
        *out = hc_ctx_handle(ctx);
    return result;
}

HC_API CUresult cuCtxPopCurrent(CUcontext *ctx)
{
    HC_ENTER(cuCtxPopCurrent);
    return pop(ctx);
}

HC_API CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
    HC_ENTER(cuCtxPopCurrent_v2);
    return pop(ctx);
}

HC_API CUresult cuCtxSetCurrent(CUcontext handle)
{
    HC_ENTER(cuCtxSetCurrent);
    HC_LOCKED();
    struct hc_ctx *ctx = NULL;
    CUresult result = handle ? hc_ctx_of(handle, &ctx) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return result;
    hc_ctx_set(ctx);
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetCurrent(CUcontext *out)
{
    HC_ENTER(cuCtxGetCurrent);
    HC_LOCKED();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = hc_ctx_handle(hc_ctx_top());
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, CUcontext handle)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (result)
        return result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ctx->device;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetDevice(CUdevice *device)
{
    HC_ENTER(cuCtxGetDevice);
    return get_device(device, NULL);
}

HC_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    HC_ENTER(cuCtxGetDevice_v2);
    return get_device(device, ctx);
}

static CUresult synchronize(CUcontext handle)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (!result)
        result = hc_capture_check_context(ctx);
    if (result)
        return result;
    hc_stream_wait_all(ctx);
    hc_memory_settle(ctx);
    return hc_ctx_error(ctx);
}

HC_API CUresult cuCtxSynchronize(void)
{
    HC_ENTER(cuCtxSynchronize);
    return synchronize(NULL);
}

HC_API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    HC_ENTER(cuCtxSynchronize_v2);
    return synchronize(ctx);
}

HC_API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    HC_ENTER(cuCtxGetId);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (result)
        return result;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = ctx->id;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetFlags(unsigned int *flags)
{
    HC_ENTER(cuCtxGetFlags);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxSetFlags(unsigned int flags)
{
    HC_ENTER(cuCtxSetFlags);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (!result)
        ctx->flags = flags;
    return result;
}

HC_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    HC_ENTER(cuCtxGetApiVersion);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_of(handle, &ctx);
    if (result)
        return result;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    HC_ENTER(cuCtxGetStreamPriorityRange);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    HC_ENTER(cuCtxGetLimit);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = ctx->limits[limit];
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    HC_ENTER(cuCtxSetLimit);
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    HC_ENTER(cuCtxGetCacheConfig);
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    HC_ENTER(cuCtxSetCacheConfig);
    (void)config;
    return CUDA_SUCCESS;
}
