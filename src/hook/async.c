/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of stream-ordered memory from the device's current pool, and of its frees. */
#include "config/mode.h"
#include "driver/driver.h"
#include "hook/caller.h"
#include "hook/charged.h"
#include "shim/shim.h"

#define HOOK_async RS_HOOK_DECLARE
#include "hook/groups.h"

static CUstream named(CUstream stream, CUstream default_stream)
{
    return stream ? stream : default_stream;
}

static CUresult call_allocate(const struct rs_charged_async *with)
{
    return RS_FORWARD(cuMemAllocAsync, (with->address, with->size_bytes, with->stream));
}

static CUresult call_allocate_ptsz(const struct rs_charged_async *with)
{
    return RS_FORWARD(cuMemAllocAsync_ptsz, (with->address, with->size_bytes, with->stream));
}

static CUresult hook_cuMemAllocAsync(CUdeviceptr *address, size_t size_bytes, CUstream stream)
{
    const struct rs_charged_async arguments = {address, size_bytes, NULL, stream, false};
    CUresult served;

    if (rs_shim_allocate_async(size_bytes, named(stream, CU_STREAM_LEGACY),
                               rs_caller_object(__builtin_return_address(0)), address, &served))
        return served;
    return rs_charged_async(&arguments, call_allocate);
}

static CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size_bytes, CUstream stream)
{
    const struct rs_charged_async arguments = {address, size_bytes, NULL, stream, true};
    CUresult served;

    if (rs_shim_allocate_async(size_bytes, named(stream, CU_STREAM_PER_THREAD),
                               rs_caller_object(__builtin_return_address(0)), address, &served))
        return served;
    return rs_charged_async(&arguments, call_allocate_ptsz);
}

static CUresult hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    bool serving = rs_mode_serving();
    struct rs_charge charge;
    CUresult result;

    if (serving && rs_shim_free_async(address, named(stream, CU_STREAM_LEGACY), &result))
        return result;
    charge = rs_charge_free_begin(serving, RS_KEYS_ADDRESSES, address);
    return rs_charge_free_end(charge, RS_FORWARD(cuMemFreeAsync, (address, stream)));
}

static CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    bool serving = rs_mode_serving();
    struct rs_charge charge;
    CUresult result;

    if (serving && rs_shim_free_async(address, named(stream, CU_STREAM_PER_THREAD), &result))
        return result;
    charge = rs_charge_free_begin(serving, RS_KEYS_ADDRESSES, address);
    return rs_charge_free_end(charge, RS_FORWARD(cuMemFreeAsync_ptsz, (address, stream)));
}
