/* SPDX-License-Identifier: Apache-2.0 */
#include "hook/charged.h"

#include "config/mode.h"
#include "context/context.h"
#include "driver/driver.h"
#include "report/out_of_memory.h"

/* False when the settings deny every allocation.  *is_counted: the account is charged. */
static bool is_allowed(size_t size_bytes, bool *is_counted)
{
    enum rs_mode mode = rs_mode_now();

    *is_counted = size_bytes > 0 && mode == RS_MODE_SERVE && rs_driver_ready(true);
    return size_bytes == 0 || mode != RS_MODE_DENY;
}

bool rs_charged_owner(int device, size_t size_bytes, struct rs_charge_owner *owner)
{
    struct rs_context *context = NULL;
    bool is_counted, allowed = is_allowed(size_bytes, &is_counted);

    if (is_counted && device == RS_NO_DEVICE)
        context = rs_context_owner();
    /* Without a context the driver answers its own error, or a tool's callback calls inside a call
     * of the library. */
    owner->device = context ? context->device : is_counted ? device : RS_NO_DEVICE;
    owner->context = context;
    return allowed;
}

/* The device of the stream's context, or of the current context for a default stream.  RS_NO_DEVICE
 * for what is no stream: the driver's own error. */
static int device_of(CUstream stream)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUcontext context = NULL;
    CUdevice device = RS_NO_DEVICE;
    CUresult result, asked = CUDA_SUCCESS;
    bool entered = false;

    if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
        rs_driver.cuStreamGetCtx)
        asked = rs_driver.cuStreamGetCtx(stream, &context);
    if (asked == CUDA_SUCCESS && context)
        entered = rs_driver_context_enter(context, &result);
    if (asked == CUDA_ERROR_INVALID_HANDLE || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = RS_NO_DEVICE;
    rs_driver_context_leave(entered);
    rs_capture_restore(mode);
    return device;
}

bool rs_charged_owner_stream(CUstream stream, size_t size_bytes, struct rs_charge_owner *owner)
{
    bool is_counted, allowed = is_allowed(size_bytes, &is_counted);

    owner->device = is_counted ? device_of(stream) : RS_NO_DEVICE;
    owner->context = NULL; /* the pool outlives contexts */
    return allowed;
}

static CUresult call_made(const void *arguments)
{
    (void)arguments;
    return CUDA_SUCCESS;
}

RS_COLD CUresult rs_charged_later(int device, const struct rs_charged_request *request,
                                  CUresult (*undo)(unsigned long long key))
{
    struct rs_charged_request made = *request;
    CUresult result = rs_mode_now() == RS_MODE_DENY ? CUDA_ERROR_OUT_OF_MEMORY
                                                    : request->call(request->arguments);
    unsigned long long key;

    if (result == CUDA_ERROR_OUT_OF_MEMORY) /* so it is a call like any other */
        return rs_charged(device, request);
    if (result != CUDA_SUCCESS || !request->key)
        return result;
    made.call = call_made;
    memcpy(&key, request->key, sizeof(key));
    result = rs_charged(device, &made);
    if (result != CUDA_SUCCESS)
        (void)undo(key);
    return result;
}

RS_COLD CUresult rs_charged_refused(const struct rs_charge_owner *owner, enum rs_path path,
                                    size_t size_bytes)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (owner->device != RS_NO_DEVICE)
        result = rs_context_fault_or(result);
    if (owner->device != RS_NO_DEVICE && result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_oom_refused(owner->device, path == RS_PATH_MANAGED ? RS_KIND_MANAGED : RS_KIND_DEVICE,
                       size_bytes);
    return result;
}
