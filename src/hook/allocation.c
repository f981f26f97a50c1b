/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the allocations that stacks serve, and of their frees: device memory, managed memory and
 * pinned host memory.  Each asks the shim and forwards the call when the shim declines it. */
#include "base/check.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "hook/caller.h"
#include "hook/charged.h"
#include "report/publish.h"
#include "shim/shim.h"

#define HOOK_device  RS_HOOK_DECLARE
#define HOOK_managed RS_HOOK_DECLARE
#define HOOK_pinned  RS_HOOK_DECLARE
#include "hook/groups.h"

/* Who asked is the object that the hook's call returns to. */
#define CALLER_OBJECT() rs_caller_object(__builtin_return_address(0))

/* ---- device memory ---- */

enum { PITCH_BYTES = 512 }; /* the driver rounds a row up to it (MEASURED.md) */

struct linear {
    CUdeviceptr *address;
    size_t size_bytes;
    unsigned flags; /* of managed memory */
};

static CUresult call_allocate(const void *arguments)
{
    const struct linear *with = arguments;

    return RS_FORWARD(cuMemAlloc_v2, (with->address, with->size_bytes));
}

/* No stack serves it. */
RS_COLD static void note_forwarded(enum rs_kind kind)
{
    if (rs_mode_serving())
        rs_publish_forwarded(kind);
}

__attribute__((noinline)) static CUresult forward_allocate(CUdeviceptr *address, size_t size_bytes)
{
    const struct linear arguments = {address, size_bytes, 0};

    note_forwarded(RS_KIND_DEVICE);
    return rs_charged(RS_NO_DEVICE,
                      &(struct rs_charged_request){RS_PATH_DRIVER, size_bytes, address,
                                                   call_allocate, &arguments});
}

RS_HOT static CUresult hook_cuMemAlloc_v2(CUdeviceptr *address, size_t size_bytes)
{
    CUresult result;

    return RS_LIKELY(rs_shim_allocate(size_bytes, CALLER_OBJECT(), address, &result))
               ? result
               : forward_allocate(address, size_bytes);
}

static CUresult undo_allocate(unsigned long long address)
{
    return RS_FORWARD(cuMemFree_v2, (address));
}

struct pitched {
    CUdeviceptr *address;
    size_t *pitch_bytes;
    size_t width_bytes, height;
    unsigned element_bytes;
};

static CUresult call_allocate_pitch(const void *arguments)
{
    const struct pitched *with = arguments;

    return RS_FORWARD(cuMemAllocPitch_v2, (with->address, with->pitch_bytes, with->width_bytes,
                                           with->height, with->element_bytes));
}

static CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch_bytes,
                                        size_t width_bytes, size_t height, unsigned element_bytes)
{
    const struct pitched arguments = {address, pitch_bytes, width_bytes, height, element_bytes};
    struct rs_charged_request request = {RS_PATH_DRIVER, 0, address, call_allocate_pitch,
                                         &arguments};
    size_t row_bytes;
    CUresult result;

    if (rs_shim_allocate_pitch(width_bytes, height, element_bytes, CALLER_OBJECT(), address,
                               pitch_bytes, &result))
        return result;
    if (!rs_round_up(width_bytes, PITCH_BYTES, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, height, &request.size_bytes))
        request.size_bytes = 0; /* the driver's own error */
    if (!pitch_bytes || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return rs_charged_later(RS_NO_DEVICE, &request, undo_allocate);
    return rs_charged(RS_NO_DEVICE, &request);
}

__attribute__((noinline)) static CUresult forward_free(CUdeviceptr address, bool serving)
{
    struct rs_charge charge = rs_charge_free_begin(serving, RS_KEYS_ADDRESSES, address);

    if (serving && address)
        rs_publish_forwarded_free(RS_KIND_DEVICE);
    return rs_charge_free_end(charge, RS_FORWARD(cuMemFree_v2, (address)));
}

RS_HOT static CUresult hook_cuMemFree_v2(CUdeviceptr address)
{
    CUresult result;

    if (RS_UNLIKELY(!rs_mode_serving()))
        return forward_free(address, false);
    return RS_LIKELY(rs_shim_free(address, &result)) ? result : forward_free(address, true);
}

/* ---- managed memory ---- */

static CUresult call_allocate_managed(const void *arguments)
{
    const struct linear *with = arguments;

    return RS_FORWARD(cuMemAllocManaged, (with->address, with->size_bytes, with->flags));
}

static CUresult hook_cuMemAllocManaged(CUdeviceptr *address, size_t size_bytes, unsigned flags)
{
    const struct linear arguments = {address, size_bytes, flags};
    const struct rs_charged_request request = {RS_PATH_MANAGED, size_bytes, address,
                                               call_allocate_managed, &arguments};
    CUresult result;

    if (rs_shim_allocate_managed(size_bytes, flags, CALLER_OBJECT(), address, &result))
        return result;
    note_forwarded(RS_KIND_MANAGED);
    return flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST
               ? rs_charged(RS_NO_DEVICE, &request)
               : rs_charged_later(RS_NO_DEVICE, &request, undo_allocate);
}

/* ---- pinned host memory ---- */

static CUresult hook_cuMemHostAlloc(void **address, size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (rs_shim_allocate_host(size_bytes, flags, CALLER_OBJECT(), address, &result))
        return result;
    note_forwarded(RS_KIND_PINNED);
    return RS_AGAIN_HOST(size_bytes, RS_FORWARD(cuMemHostAlloc, (address, size_bytes, flags)));
}

static CUresult hook_cuMemAllocHost_v2(void **address, size_t size_bytes)
{
    CUresult result;

    if (rs_shim_allocate_host(size_bytes, 0, CALLER_OBJECT(), address, &result))
        return result;
    note_forwarded(RS_KIND_PINNED);
    return RS_AGAIN_HOST(size_bytes, RS_FORWARD(cuMemAllocHost_v2, (address, size_bytes)));
}

static CUresult hook_cuMemFreeHost(void *address)
{
    CUresult result;

    if (rs_mode_serving() && rs_shim_free_host(address, &result))
        return result;
    if (rs_mode_serving() && address)
        rs_publish_forwarded_free(RS_KIND_PINNED);
    return RS_FORWARD(cuMemFreeHost, (address));
}
