/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that may end a context. Each makes the driver's call, and forgets the
 * context's memory and captures when the context has ended. During a call that ends the context if
 * it succeeds, the context is out of service. During a call that gives up one reference, it stays
 * in service (context/end.h). */
#include "config/mode.h"
#include "context/end.h"
#include "context/table.h"
#include "driver/capture.h"
#include "hook/hook.h"
#include "ipc/import.h"

/* A driver call that may end a context. */
struct ending {
    bool serving; /* stacks serve in this process */
    struct rs_ending of;
    /* The captures of the context's streams, which end with the context. */
    struct rs_capture_end captures;
};

/* Called before the driver's call, with the parameters of rs_ending_begin. The captures of the
 * streams that `captures` identifies end with the context. */
static struct ending begin_end(CUcontext handle, CUdevice device, bool is_sure,
                               struct rs_capture_stream captures)
{
    struct ending ending = {.serving = rs_mode_serving()};

    rs_import_context_ending();
    if (ending.serving)
        rs_ending_begin(&ending.of, handle, device, is_sure);
    ending.captures = rs_capture_end_begin(captures);
    return ending;
}

static struct ending begin_primary(CUdevice device, bool is_sure)
{
    CUcontext handle = rs_capture_is_any() ? rs_driver_active_primary(device) : NULL;

    return begin_end(NULL, device, is_sure, (struct rs_capture_stream){.context = handle});
}

static CUresult finish_end(struct ending ending, CUresult result, bool has_ended,
                           bool captures_ended)
{
    rs_capture_end_finish(ending.captures, captures_ended);
    if (ending.serving)
        rs_ending_finish(&ending.of, has_ended);
    rs_import_context_ended();
    return result;
}

/* ---- calls whose success ends the context ---- */

static struct ending begin_context_destroy(CUcontext handle)
{
    return begin_end(handle, -1, true, (struct rs_capture_stream){.context = handle});
}

static CUresult finish_context_destroy(struct ending ending, CUresult result)
{
    return finish_end(ending, result, result == CUDA_SUCCESS, result == CUDA_SUCCESS);
}

RS_HOOK_BETWEEN(cuCtxDestroy_v2, (CUcontext handle), (handle), begin_context_destroy(handle),
                finish_context_destroy)
RS_HOOK_BETWEEN(cuCtxDestroy, (CUcontext handle), (handle), begin_context_destroy(handle),
                finish_context_destroy)
RS_HOOK_BETWEEN(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device),
                begin_primary(device, true), finish_context_destroy)
RS_HOOK_BETWEEN(cuDevicePrimaryCtxReset, (CUdevice device), (device), begin_primary(device, true),
                finish_context_destroy)

/* ---- calls that give up one reference: only the last one ends the context ---- */

/* Captures on streams of the primary context end with it. So if there are any, the driver is asked
 * after the release whether the context is still active. */
static CUresult release(__typeof__(&cuDevicePrimaryCtxRelease) real, CUdevice device)
{
    struct ending ending = begin_primary(device, false);
    CUresult result = real ? real(device) : rs_hook_missing();
    unsigned flags;
    int active = 1;

    if (ending.captures.last_begin && result == CUDA_SUCCESS)
        (void)rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active);
    return finish_end(ending, result, result == CUDA_SUCCESS, !active);
}

RS_HOOK_BY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), release, device)
RS_HOOK_BY(cuDevicePrimaryCtxRelease, (CUdevice device), release, device)

/* Gives up one use of the current context. cuCtxAttach counts the uses; both functions are long
 * deprecated. Giving up the last use destroys the context, which is then no longer current. */
CUresult cuCtxDetach(CUcontext handle)
{
    struct ending ending =
        begin_end(handle, -1, false, (struct rs_capture_stream){.context = handle});
    CUcontext current = handle;
    CUresult result = RS_FORWARD(cuCtxDetach, (handle));
    bool ended = result == CUDA_SUCCESS && rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                 current != handle;

    return finish_end(ending, result, ended, ended);
}

bool rs_hook_green_device(CUgreenCtx green, CUdevice *device)
{
    RS_RELAXED_GUARD();
    CUcontext context = NULL;
    CUresult result;

    if (!green || !rs_driver.cuCtxFromGreenCtx ||
        rs_driver.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS)
        return false;
    RS_CONTEXT_GUARD(context, &result);
    return result == CUDA_SUCCESS && rs_driver.cuCtxGetDevice(device) == CUDA_SUCCESS;
}

/* A green context holds a reference to its device's primary context, so the primary context may end
 * with the green one. If the driver does not know the handle, no context ends. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device;
    bool found = rs_mode_serving() && rs_hook_green_device(green, &device);
    struct ending ending =
        begin_end(NULL, found ? device : -1, false, (struct rs_capture_stream){.green = green});

    return finish_context_destroy(ending, RS_FORWARD(cuGreenCtxDestroy, (green)));
}
