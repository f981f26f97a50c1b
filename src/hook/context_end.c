/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that may end a context.  Each takes the context out of service, makes
 * the driver's call, and forgets the context's memory and captures when the context has ended. */
#include "config/mode.h"
#include "context/end.h"
#include "context/exclusion.h"
#include "context/primary.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "ipc/import.h"

#define HOOK_context RS_HOOK_DECLARE
#include "hook/groups.h"

/* A driver call that may end a context. */
struct ending {
    bool serving;                   /* stacks serve in this process */
    struct rs_context *excluded;    /* no deallocation of the library's is under way in it */
    struct rs_context *context;     /* out of service, or in doubt where it may live on; NULL: it
                                       is not known */
    struct rs_capture_end captures; /* of the context's streams */
};

static struct ending begin(CUcontext handle)
{
    struct ending ending = {.serving = rs_mode_serving()};

    rs_import_context_ending();
    if (ending.serving)
        ending.excluded = rs_context_ending_enter(handle);
    return ending;
}

static struct ending begin_primary(CUdevice device)
{
    struct ending ending = {.serving = rs_mode_serving()};

    rs_import_context_ending();
    if (ending.serving)
        ending.excluded = rs_context_ending_enter_primary(device);
    return ending;
}

static CUresult finish(const struct ending *ending, CUresult result)
{
    if (ending->serving)
        rs_context_ending_leave(ending->excluded);
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
    struct ending ending = begin(handle);

    if (ending.serving)
        ending.context = rs_context_end_begin(handle);
    ending.captures = captures_of(handle);
    return ending;
}

static struct ending begin_reset(CUdevice device)
{
    struct ending ending = begin_primary(device);

    if (ending.serving)
        ending.context = rs_context_end_begin_primary(device);
    ending.captures = captures_of_primary(device);
    return ending;
}

static CUresult finish_destroy(const struct ending *ending, CUresult result)
{
    rs_capture_end_finish(ending->captures, result == CUDA_SUCCESS);
    rs_context_end_finish(ending->context, result == CUDA_SUCCESS);
    return finish(ending, result);
}

static CUresult hook_cuCtxDestroy_v2(CUcontext handle)
{
    const struct ending ending = begin_destroy(handle);

    return finish_destroy(&ending, RS_FORWARD(cuCtxDestroy_v2, (handle)));
}

static CUresult hook_cuCtxDestroy(CUcontext handle)
{
    const struct ending ending = begin_destroy(handle);

    return finish_destroy(&ending, RS_FORWARD(cuCtxDestroy, (handle)));
}

static CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    const struct ending ending = begin_reset(device);

    return finish_destroy(&ending, RS_FORWARD(cuDevicePrimaryCtxReset_v2, (device)));
}

static CUresult hook_cuDevicePrimaryCtxReset(CUdevice device)
{
    const struct ending ending = begin_reset(device);

    return finish_destroy(&ending, RS_FORWARD(cuDevicePrimaryCtxReset, (device)));
}

/* ---- calls that give up one reference: only the last one ends the context ---- */

static struct ending begin_release(CUdevice device)
{
    struct ending ending = begin_primary(device);

    if (ending.serving)
        ending.context = rs_context_release_begin(device);
    ending.captures = captures_of_primary(device);
    return ending;
}

/* The captures end with the primary context.  The driver is asked for its state only where some
 * stream of it captures. */
static void finish_captures(struct rs_capture_end captures, CUdevice device, CUresult result)
{
    unsigned flags;
    int active = 1;

    if (captures.last_begin && result == CUDA_SUCCESS)
        (void)rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active);
    rs_capture_end_finish(captures, !active);
}

static CUresult finish_release(const struct ending *ending, CUdevice device, CUresult result)
{
    finish_captures(ending->captures, device, result);
    if (ending->serving)
        rs_context_release_finish(device, ending->context, result == CUDA_SUCCESS);
    return finish(ending, result);
}

static CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    const struct ending ending = begin_release(device);

    return finish_release(&ending, device, RS_FORWARD(cuDevicePrimaryCtxRelease_v2, (device)));
}

static CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device)
{
    const struct ending ending = begin_release(device);

    return finish_release(&ending, device, RS_FORWARD(cuDevicePrimaryCtxRelease, (device)));
}

/* Gives up one use of the current context (cuCtxAttach, long deprecated).  The last use destroys
 * the context: then it is no longer current. */
static CUresult hook_cuCtxDetach(CUcontext handle)
{
    struct ending ending = begin(handle);
    CUcontext current = handle;
    CUresult result;
    bool ended;

    if (ending.serving)
        ending.context = rs_context_detach_begin(handle);
    ending.captures = captures_of(handle);
    result = RS_FORWARD(cuCtxDetach, (handle));
    ended = result == CUDA_SUCCESS && rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
            current != handle;
    rs_capture_end_finish(ending.captures, ended);
    rs_context_doubt_end(ending.context, ended);
    return finish(&ending, result);
}

/* False without a driver, and for a handle that is no green context. */
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

/* A green context holds a reference to its primary context, which may end with it.  Where the
 * driver knows no such green context, it ends none. */
static CUresult hook_cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device;
    bool found = rs_mode_serving() && green_device(green, &device);
    struct ending ending = found ? begin_primary(device) : begin(NULL);
    CUresult result;

    if (found)
        ending.context = rs_context_release_begin(device);
    ending.captures = rs_capture_end_begin((struct rs_capture_stream){.green = green});
    result = RS_FORWARD(cuGreenCtxDestroy, (green));
    rs_capture_end_finish(ending.captures, result == CUDA_SUCCESS);
    if (found)
        rs_context_release_finish(device, ending.context, result == CUDA_SUCCESS);
    return finish(&ending, result);
}
