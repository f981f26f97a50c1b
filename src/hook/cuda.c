/* SPDX-License-Identifier: Apache-2.0 */
/* The driver layer: one short function per HOOK row.  Each asks the shim and forwards what is not
 * ours; nothing else happens here. */
#include "base/arithmetic.h"
#include "charge/again.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/end.h"
#include "context/exclusion.h"
#include "context/primary.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "hook/look_up.h"
#include "introspect/introspect.h"
#include "introspect/managed.h"
#include "introspect/peer.h"
#include "introspect/sync_memops.h"
#include "ipc/export.h"
#include "ipc/import.h"
#include "shim/commands.h"
#include "shim/shim.h"

/* clang-format off */
#define HOOK_lookup RS_HOOK_DECLARE
#define HOOK_device RS_HOOK_DECLARE
#define HOOK_managed RS_HOOK_DECLARE
#define HOOK_pinned RS_HOOK_DECLARE
#define HOOK_introspect RS_HOOK_DECLARE
#define HOOK_guard RS_HOOK_DECLARE
#define HOOK_context RS_HOOK_DECLARE
#define HOOK_async(symbol)   /* async.c */
#define HOOK_capture(symbol) /* capture.c */
#define HOOK_limit(symbol)   /* limit.c */
#define HOOK_count(symbol)
#define HOOK_retry(symbol)   /* again.c */
#define HOOK_wait(symbol)    /* wait.c */
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

CUresult rs_hook_missing(void)
{
    return rs_driver_ready(true) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE;
}

/* ---- look-ups ---- */

static CUresult hook_cuGetProcAddress(const char *symbol, void **function, int version,
                                      cuuint64_t flags)
{
    CUresult result = RS_FORWARD(cuGetProcAddress, (symbol, function, version, flags));

    if (result == CUDA_SUCCESS && function && *function)
        *function = rs_look_up_translate(symbol, *function, version, flags);
    return result;
}

static CUresult hook_cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                         cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    CUresult result = RS_FORWARD(cuGetProcAddress_v2, (symbol, function, version, flags, status));

    if (result == CUDA_SUCCESS && function && *function)
        *function = rs_look_up_translate(symbol, *function, version, flags);
    return result;
}

/* ---- device memory ---- */

enum { PITCH_BYTES = 512 }; /* what the driver rounds a row up to (MEASURED.md) */

__attribute__((noinline)) static CUresult forward_allocate(CUdeviceptr *address, size_t size_bytes)
{
    RS_CHARGED(RS_PATH_DRIVER, -1, size_bytes, RS_FORWARD(cuMemAlloc_v2, (address, size_bytes)),
               *address);
}

RS_HOT static CUresult hook_cuMemAlloc_v2(CUdeviceptr *address, size_t size_bytes)
{
    CUresult result;

    return RS_LIKELY(rs_shim_allocate(size_bytes, address, &result))
               ? result
               : forward_allocate(address, size_bytes);
}

static CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch_bytes,
                                        size_t width_bytes, size_t height, unsigned element_bytes)
{
    size_t row_bytes, size_bytes;
    CUresult result;

    if (rs_shim_allocate_pitch(width_bytes, height, element_bytes, address, pitch_bytes, &result))
        return result;
    if (!rs_round_up(width_bytes, PITCH_BYTES, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, height, &size_bytes))
        size_bytes = 0; /* the driver's own error */
    RS_CHARGED(
        RS_PATH_DRIVER, -1, size_bytes,
        RS_FORWARD(cuMemAllocPitch_v2, (address, pitch_bytes, width_bytes, height, element_bytes)),
        *address);
}

__attribute__((noinline)) static CUresult forward_free(CUdeviceptr address)
{
    RS_CHARGED_FREE(RS_KEYS_ADDRESSES, address, RS_FORWARD(cuMemFree_v2, (address)));
}

RS_HOT static CUresult hook_cuMemFree_v2(CUdeviceptr address)
{
    CUresult result;

    return RS_LIKELY(rs_shim_free(address, &result)) ? result : forward_free(address);
}

static CUresult hook_cuMemAllocManaged(CUdeviceptr *address, size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (rs_shim_allocate_managed(size_bytes, flags, address, &result))
        return result;
    RS_CHARGED(RS_PATH_MANAGED, -1, size_bytes,
               RS_FORWARD(cuMemAllocManaged, (address, size_bytes, flags)), *address);
}

/* ---- pinned host memory ---- */

static CUresult hook_cuMemHostAlloc(void **address, size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (rs_shim_allocate_host(size_bytes, flags, address, &result))
        return result;
    RS_AGAIN(result, RS_AGAIN_CURRENT_AT_ONCE,
             RS_FORWARD(cuMemHostAlloc, (address, size_bytes, flags)));
    return result;
}

static CUresult hook_cuMemAllocHost_v2(void **address, size_t size_bytes)
{
    CUresult result;

    if (rs_shim_allocate_host(size_bytes, 0, address, &result))
        return result;
    RS_AGAIN(result, RS_AGAIN_CURRENT_AT_ONCE,
             RS_FORWARD(cuMemAllocHost_v2, (address, size_bytes)));
    return result;
}

static CUresult hook_cuMemFreeHost(void *address)
{
    CUresult result;

    if (rs_shim_free_host(address, &result))
        return result;
    return RS_FORWARD(cuMemFreeHost, (address));
}

/* ---- observers ---- */

static CUresult hook_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t free_seen, total_seen;
    CUresult result;

    rs_shim_attend(); /* a limit that was changed shows in the answer */
    result = RS_FORWARD(cuMemGetInfo_v2, (&free_seen, &total_seen));

    if (result != CUDA_SUCCESS)
        return result;
    rs_introspect_memory_info(&free_seen, &total_seen);
    if (free_bytes)
        *free_bytes = free_seen;
    if (total_bytes)
        *total_bytes = total_seen;
    return result;
}

static CUresult hook_cuDeviceTotalMem_v2(size_t *total_bytes, CUdevice device)
{
    CUresult result = RS_FORWARD(cuDeviceTotalMem_v2, (total_bytes, device));

    if (result == CUDA_SUCCESS)
        rs_introspect_total_memory(device, total_bytes);
    return result;
}

static bool is_corrected(const struct rs_introspection *introspection)
{
    return introspection->what == RS_INTROSPECTED_BLOCK ||
           introspection->what == RS_INTROSPECTED_OPENED;
}

static CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size_bytes,
                                             CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        return CUDA_ERROR_NOT_FOUND;
    result = RS_FORWARD(cuMemGetAddressRange_v2, (base, size_bytes, address));
    if (!is_corrected(&introspection) ||
        (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)) /* memory of the process */
        return result;
    if (base)
        *base = introspection.address;
    if (size_bytes)
        *size_bytes = introspection.size_bytes;
    return CUDA_SUCCESS;
}

/* Instead of an address that is no host memory of the program's one that the driver knows nothing
 * of. */
static void *visible_host(void *address)
{
    struct rs_introspection introspection = rs_introspect((CUdeviceptr)(uintptr_t)address);

    if (introspection.what == RS_INTROSPECTED_FREED || rs_introspect_as_requested(&introspection))
        return (void *)(uintptr_t)rs_introspect_unknown_address();
    return address;
}

static CUresult hook_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                           CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    result = RS_FORWARD(cuPointerGetAttribute, (data, attribute, address));
    if (is_corrected(&introspection))
        result = rs_introspect_attribute(&introspection, address, attribute, result, data);
    return result;
}

static CUresult hook_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                            void **data, CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUdeviceptr asked =
        introspection.what == RS_INTROSPECTED_FREED ? rs_introspect_unknown_address() : address;
    CUresult result = RS_FORWARD(cuPointerGetAttributes, (count, attributes, data, asked));

    if (result == CUDA_SUCCESS && is_corrected(&introspection))
        rs_introspect_attributes(&introspection, address, count, attributes, data);
    if (result == CUDA_SUCCESS && introspection.what == RS_INTROSPECTED_FREED)
        rs_introspect_instead(asked, address, count, attributes, data);
    return result;
}

static CUresult hook_cuMemHostGetFlags(unsigned *flags, void *address)
{
    return RS_FORWARD(cuMemHostGetFlags, (flags, visible_host(address)));
}

static CUresult hook_cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address,
                                                  unsigned flags)
{
    return RS_FORWARD(cuMemHostGetDevicePointer_v2, (device, visible_host(address), flags));
}

/* ---- guards: entry points that must not see memory of ours, or not as it is ---- */

static CUresult hook_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                           CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    if (introspection.what == RS_INTROSPECTED_BLOCK && value &&
        attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && rs_driver.cuPointerSetAttribute)
        return rs_sync_memops_set(address, introspection.kind, *(const unsigned *)value != 0);
    result = RS_FORWARD(cuPointerSetAttribute, (value, attribute, address));
    /* Of mapped memory (`virtual`) the driver says this whatever is to be set; of memory that it
     * allocated by itself it says the other, where that cannot be set (measured on an H200). */
    if (introspection.what == RS_INTROSPECTED_BLOCK && result == CUDA_ERROR_NOT_SUPPORTED)
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

/* Callers round a block outwards to pages, so a range of it may begin before it. */
static CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address,
                                                   size_t size_bytes, CUmemRangeHandleType type,
                                                   unsigned long long flags)
{
    if (rs_introspect(address).what == RS_INTROSPECTED_FREED &&
        !rs_block_is_near(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return RS_FORWARD(cuMemGetHandleForAddressRange, (handle, address, size_bytes, type, flags));
}

static CUresult hook_cuMemAdvise(CUdeviceptr address, size_t size_bytes, CUmem_advise advice,
                                 CUdevice device)
{
    CUresult result;

    if (rs_managed_refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemAdvise, (address, size_bytes, advice, device));
    if (result == CUDA_SUCCESS)
        rs_managed_note_advice(address, advice, device);
    return result;
}

static CUresult hook_cuMemAdvise_v2(CUdeviceptr address, size_t size_bytes, CUmem_advise advice,
                                    CUmemLocation location)
{
    CUresult result;

    if (rs_managed_refuses_advice(address, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemAdvise_v2, (address, size_bytes, advice, location));
    if (result == CUDA_SUCCESS)
        rs_managed_note_advice(address, advice, rs_managed_device_of(location));
    return result;
}

static CUresult hook_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t size_bytes,
                                            unsigned flags)
{
    CUresult result;

    if (rs_managed_attach(stream, false, &address, &size_bytes, &flags, &result))
        return result;
    return RS_FORWARD(cuStreamAttachMemAsync, (stream, address, size_bytes, flags));
}

static CUresult hook_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address,
                                                 size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (rs_managed_attach(stream, true, &address, &size_bytes, &flags, &result))
        return result;
    return RS_FORWARD(cuStreamAttachMemAsync_ptsz, (stream, address, size_bytes, flags));
}

/* Access that our memory cannot be given does not count as given, and what we enabled ourselves the
 * program has yet to enable. */
static CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult result = RS_FORWARD(cuCtxEnablePeerAccess, (peer, flags));
    bool was_lent = (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) &&
                    rs_peer_end_loan(peer);

    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED && was_lent)
        return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = rs_peer_changed(peer, true);
    if (result != CUDA_SUCCESS)
        (void)RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result;
}

static CUresult hook_cuCtxDisablePeerAccess(CUcontext peer)
{
    CUresult result;

    if (rs_peer_is_lent(peer))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    result = RS_FORWARD(cuCtxDisablePeerAccess, (peer));
    return result == CUDA_SUCCESS ? rs_peer_changed(peer, false) : result;
}

static CUresult hook_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                        size_t count)
{
    CUresult result = RS_FORWARD(cuMemPoolSetAccess, (pool, access, count));

    if (result == CUDA_SUCCESS)
        rs_shim_note_pool_access(pool, access, count);
    return result;
}

/* ---- memory of several processes ---- */

static CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUresult result;

    if (rs_export(address, handle, &result))
        return result;
    return RS_FORWARD(cuIpcGetMemHandle, (handle, address));
}

static CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    CUresult result;

    if (RS_DRIVER_HAS(cuIpcOpenMemHandle) &&
        rs_import_open(rs_driver.cuIpcOpenMemHandle, address, &handle, flags, &result))
        return result;
    result = RS_FORWARD(cuIpcOpenMemHandle, (address, handle, flags));
    if (result == CUDA_SUCCESS)
        rs_import_note_native(*address);
    return result;
}

static CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle,
                                           unsigned flags)
{
    CUresult result;

    if (RS_DRIVER_HAS(cuIpcOpenMemHandle_v2) &&
        rs_import_open(rs_driver.cuIpcOpenMemHandle_v2, address, &handle, flags, &result))
        return result;
    result = RS_FORWARD(cuIpcOpenMemHandle_v2, (address, handle, flags));
    if (result == CUDA_SUCCESS)
        rs_import_note_native(*address);
    return result;
}

static CUresult hook_cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result;

    if (rs_import_close(address, &result))
        return result;
    return RS_FORWARD(cuIpcCloseMemHandle, (address));
}

/* ---- contexts ---- */

/* A context's end, in three steps: out of service, the driver's call, memory forgotten.  `captures`
 * are those of its streams. */
#define END_CONTEXT(begin, of, call)                                                               \
    bool serving = begin_ending();                                                                 \
    struct rs_context *context = serving ? (begin) : NULL;                                         \
    struct rs_capture_end captures = (of);                                                         \
    CUresult result = call;                                                                        \
    rs_capture_end_finish(captures, result == CUDA_SUCCESS);                                       \
    rs_context_end_finish(context, result == CUDA_SUCCESS);                                        \
    end_ending(serving);                                                                           \
    return result

static bool begin_ending(void)
{
    bool serving = rs_mode_serving();

    if (serving)
        rs_context_ending_enter();
    return serving;
}

static void end_ending(bool serving)
{
    if (serving)
        rs_context_ending_leave();
    rs_import_context_ended();
}

static struct rs_capture_end captures_of(CUcontext handle)
{
    return rs_capture_end_begin((struct rs_capture_stream){.context = handle});
}

static struct rs_capture_end captures_of_primary(CUdevice device)
{
    return captures_of(rs_capture_is_any() ? rs_driver_active_primary(device) : NULL);
}

static CUresult hook_cuCtxDestroy_v2(CUcontext handle)
{
    END_CONTEXT(rs_context_end_begin(handle), captures_of(handle),
                RS_FORWARD(cuCtxDestroy_v2, (handle)));
}

static CUresult hook_cuCtxDestroy(CUcontext handle)
{
    END_CONTEXT(rs_context_end_begin(handle), captures_of(handle),
                RS_FORWARD(cuCtxDestroy, (handle)));
}

static CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    END_CONTEXT(rs_context_end_begin_primary(device), captures_of_primary(device),
                RS_FORWARD(cuDevicePrimaryCtxReset_v2, (device)));
}

static CUresult hook_cuDevicePrimaryCtxReset(CUdevice device)
{
    END_CONTEXT(rs_context_end_begin_primary(device), captures_of_primary(device),
                RS_FORWARD(cuDevicePrimaryCtxReset, (device)));
}

/* Only the last reference ends the context, and only afterwards can one tell. */
static void note_release(CUdevice device)
{
    if (rs_mode_serving())
        rs_context_released_primary(device);
}

/* Of a primary context that was released. */
static void note_captures(struct rs_capture_end captures, CUdevice device, CUresult result)
{
    unsigned flags;
    int active = 1;

    if (captures.last_begin && result == CUDA_SUCCESS)
        (void)rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active);
    rs_capture_end_finish(captures, !active);
}

static CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    bool serving = begin_ending();
    struct rs_capture_end captures = captures_of_primary(device);
    CUresult result = RS_FORWARD(cuDevicePrimaryCtxRelease_v2, (device));

    note_captures(captures, device, result);
    if (result == CUDA_SUCCESS)
        note_release(device);
    end_ending(serving);
    return result;
}

static CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device)
{
    bool serving = begin_ending();
    struct rs_capture_end captures = captures_of_primary(device);
    CUresult result = RS_FORWARD(cuDevicePrimaryCtxRelease, (device));

    note_captures(captures, device, result);
    if (result == CUDA_SUCCESS)
        note_release(device);
    end_ending(serving);
    return result;
}

/* Gives up one use of the current context (cuCtxAttach, long deprecated).  The last one destroys
 * it, which shows in that it is no longer current. */
static CUresult hook_cuCtxDetach(CUcontext handle)
{
    bool serving = begin_ending();
    struct rs_capture_end captures = captures_of(handle);
    CUresult result = RS_FORWARD(cuCtxDetach, (handle));
    CUcontext current = handle;
    bool ended = result == CUDA_SUCCESS && rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                 current != handle;

    rs_capture_end_finish(captures, ended);
    if (ended && rs_mode_serving())
        rs_context_end_finish(rs_context_end_begin(handle), true);
    end_ending(serving);
    return result;
}

/* False without a driver, or when that is no green context. */
static bool green_device(CUgreenCtx green, CUdevice *device)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUcontext context = NULL;
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    bool entered = false;

    if (green && rs_driver.cuCtxFromGreenCtx &&
        rs_driver.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS) {
        entered = rs_driver_context_enter(context, &result);
        if (result == CUDA_SUCCESS)
            result = rs_driver.cuCtxGetDevice(device);
        rs_driver_context_leave(entered);
    }
    rs_capture_restore(mode);
    return result == CUDA_SUCCESS;
}

/* A green context holds its primary, which may end with it. */
static CUresult hook_cuGreenCtxDestroy(CUgreenCtx green)
{
    bool serving = begin_ending();
    CUdevice device;
    bool found = serving && green_device(green, &device);
    struct rs_capture_end captures =
        rs_capture_end_begin((struct rs_capture_stream){.green = green});
    CUresult result = RS_FORWARD(cuGreenCtxDestroy, (green));

    rs_capture_end_finish(captures, result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS && found)
        note_release(device);
    end_ending(serving);
    return result;
}
