/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that may end a context.  Each takes the context out of service, makes
 * the driver's call, and forgets the context's memory and captures when the context has ended. */
#include "config/mode.h"
#include "context/end.h"
#include "context/table.h"
#include "driver/capture.h"
#include "hook/hook.h"
#include "ipc/import.h"

/* A driver call that may end a context. */
struct ending {
    bool serving;    /* stacks serve in this process */
    CUdevice device; /* of a primary context */
    struct rs_ending of;
    struct rs_capture_end captures; /* of the context's streams */
};

static struct ending begin(CUcontext handle, bool is_sure)
{
    struct ending ending = {.serving = rs_mode_serving()};

    rs_import_context_ending();
    if (ending.serving)
        rs_ending_begin(&ending.of, handle, -1, is_sure);
    return ending;
}

static struct ending begin_primary(CUdevice device, bool is_sure)
{
    struct ending ending = {.serving = rs_mode_serving(), .device = device};

    rs_import_context_ending();
    if (ending.serving)
        rs_ending_begin_primary(&ending.of, device, is_sure);
    return ending;
}

static CUresult finish(struct ending ending, CUresult result, bool has_ended)
{
    if (ending.serving)
        rs_ending_finish(&ending.of, has_ended);
    rs_import_context_ended();
    return result;
}

/* ---- calls whose success ends the context ---- */

static struct rs_capture_end captures_of(CUcontext handle)
{
    return rs_capture_end_begin((struct rs_capture_stream){.context = handle});
}

static struct rs_capture_end captures_of_primary(CUdevice device)
{
    return captures_of(rs_capture_is_any() ? rs_driver_active_primary(device) : NULL);
}

static struct ending begin_destroy(CUcontext handle)
{
    struct ending ending = begin(handle, true);

    ending.captures = captures_of(handle);
    return ending;
}

static CUresult finish_destroy(struct ending ending, CUresult result)
{
    rs_capture_end_finish(ending.captures, result == CUDA_SUCCESS);
    return finish(ending, result, result == CUDA_SUCCESS);
}

static struct ending begin_reset(CUdevice device)
{
    struct ending ending = begin_primary(device, true);

    ending.captures = captures_of_primary(device);
    return ending;
}

RS_HOOK_BETWEEN(cuCtxDestroy_v2, (CUcontext handle), (handle), begin_destroy(handle),
                finish_destroy)
RS_HOOK_BETWEEN(cuCtxDestroy, (CUcontext handle), (handle), begin_destroy(handle), finish_destroy)
RS_HOOK_BETWEEN(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device), begin_reset(device),
                finish_destroy)
RS_HOOK_BETWEEN(cuDevicePrimaryCtxReset, (CUdevice device), (device), begin_reset(device),
                finish_destroy)

/* ---- calls that give up one reference: only the last one ends the context ---- */

static struct ending begin_release(CUdevice device)
{
    struct ending ending = begin_primary(device, false);

    ending.captures = captures_of_primary(device);
    return ending;
}

static CUresult finish_reference(struct ending ending, CUresult result)
{
    if (ending.serving)
        rs_ending_finish_release(&ending.of, ending.device, result == CUDA_SUCCESS);
    rs_import_context_ended();
    return result;
}

/* The captures end with the primary context.  The driver is asked for its state only where some
 * stream of it captures. */
static CUresult finish_release(struct ending ending, CUresult result)
{
    unsigned flags;
    int active = 1;

    if (ending.captures.last_begin && result == CUDA_SUCCESS)
        (void)rs_driver.cuDevicePrimaryCtxGetState(ending.device, &flags, &active);
    rs_capture_end_finish(ending.captures, !active);
    return finish_reference(ending, result);
}

RS_HOOK_BETWEEN(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device), begin_release(device),
                finish_release)
RS_HOOK_BETWEEN(cuDevicePrimaryCtxRelease, (CUdevice device), (device), begin_release(device),
                finish_release)

/* Gives up one use of the current context (cuCtxAttach, long deprecated).  The last use destroys
 * the context: then it is no longer current. */
CUresult cuCtxDetach(CUcontext handle)
{
    struct ending ending = begin(handle, false);
    CUcontext current = handle;
    CUresult result;
    bool ended;

    ending.captures = captures_of(handle);
    result = RS_FORWARD(cuCtxDetach, (handle));
    ended = result == CUDA_SUCCESS && rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
            current != handle;
    rs_capture_end_finish(ending.captures, ended);
    return finish(ending, result, ended);
}

bool rs_hook_green_device(CUgreenCtx green, CUdevice *device)
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

/* A green context holds a reference to its primary context, which may end with it.  Where the
 * driver knows no such green context, it ends none. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device;
    bool found = rs_mode_serving() && rs_hook_green_device(green, &device);
    struct ending ending = found ? begin_primary(device, false) : begin(NULL, false);
    CUresult result;

    ending.captures = rs_capture_end_begin((struct rs_capture_stream){.green = green});
    result = RS_FORWARD(cuGreenCtxDestroy, (green));
    rs_capture_end_finish(ending.captures, result == CUDA_SUCCESS);
    return found ? finish_reference(ending, result) : finish(ending, result, false);
}
