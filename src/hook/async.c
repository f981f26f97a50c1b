/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of stream-ordered memory from the current pool, and of its frees. */
#include "driver/driver.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "shim/shim.h"

/* clang-format off */
#define HOOK_async RS_HOOK_DECLARE
#define HOOK_lookup(symbol) /* the others: cuda.c, capture.c, limit.c */
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_capture(symbol)
#define HOOK_context(symbol)
#define HOOK_limit(symbol)
#define HOOK_count(symbol)
#define HOOK_retry(symbol)
#define HOOK_wait(symbol)
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

static CUstream named(CUstream stream, CUstream default_stream)
{
    return stream ? stream : default_stream;
}

static CUresult hook_cuMemAllocAsync(CUdeviceptr *address, size_t size_bytes, CUstream stream)
{
    CUresult served;

    if (rs_shim_allocate_async(size_bytes, named(stream, CU_STREAM_LEGACY), address, &served))
        return served;
    RS_CHARGED_ASYNC(NULL, false, RS_FORWARD(cuMemAllocAsync, (address, size_bytes, stream)));
}

static CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size_bytes, CUstream stream)
{
    CUresult served;

    if (rs_shim_allocate_async(size_bytes, named(stream, CU_STREAM_PER_THREAD), address, &served))
        return served;
    RS_CHARGED_ASYNC(NULL, true, RS_FORWARD(cuMemAllocAsync_ptsz, (address, size_bytes, stream)));
}

static CUresult hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult result;

    if (rs_shim_free_async(address, named(stream, CU_STREAM_LEGACY), &result))
        return result;
    RS_CHARGED_FREE(RS_KEYS_ADDRESSES, address, RS_FORWARD(cuMemFreeAsync, (address, stream)));
}

static CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    CUresult result;

    if (rs_shim_free_async(address, named(stream, CU_STREAM_PER_THREAD), &result))
        return result;
    RS_CHARGED_FREE(RS_KEYS_ADDRESSES, address, RS_FORWARD(cuMemFreeAsync_ptsz, (address, stream)));
}
