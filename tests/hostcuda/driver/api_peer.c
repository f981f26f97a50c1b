/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: access between devices. All devices of this driver can reach each other. */
#include "driver/call.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/lock.h"

HC_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    HC_ENTER(cuDeviceCanAccessPeer);
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device) || !hc_device_at(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute,
                                        CUdevice device, CUdevice peer)
{
    HC_ENTER(cuDeviceGetP2PAttribute);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device) || !hc_device_at(peer) || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
    return CUDA_SUCCESS;
}

/* The two contexts of a call about peers; the peer's must lie on another device. */
static CUresult both(CUcontext peer_handle, struct hc_ctx **ctx, struct hc_ctx **peer)
{
    CUresult result = hc_ctx_current(ctx);
    if (result)
        return result;
    result = peer_handle ? hc_ctx_of(peer_handle, peer) : CUDA_ERROR_INVALID_CONTEXT;
    if (!result && (*peer)->device == (*ctx)->device)
        result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return result;
}

HC_API CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags)
{
    HC_ENTER(cuCtxEnablePeerAccess);
    HC_LOCKED();
    struct hc_ctx *ctx, *peer;
    CUresult result = both(peer_handle, &ctx, &peer);
    if (result)
        return result;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (ctx->peers & 1u << peer->device)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxDisablePeerAccess(CUcontext peer_handle)
{
    HC_ENTER(cuCtxDisablePeerAccess);
    HC_LOCKED();
    struct hc_ctx *ctx, *peer;
    CUresult result = both(peer_handle, &ctx, &peer);
    if (result)
        return result;
    if (!(ctx->peers & 1u << peer->device))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    ctx->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}
