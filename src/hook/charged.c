/* SPDX-License-Identifier: Apache-2.0 */
#include "hook/charged.h"

#include "base/request.h"
#include "config/mode.h"
#include "context/context.h"
#include "driver/driver.h"
#include "report/out_of_memory.h"

#include <string.h>

/* Returns the device of the stream's context; a default stream is one of the current context.
 * RS_NO_DEVICE for an invalid stream, for which the driver answers with its own error. */
static int device_of_stream(CUstream stream)
{
    RS_RELAXED_GUARD();
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
    return device;
}

/* Fills in the context and device whose memory the call takes. Returns false when the settings deny
 * every allocation, or when there is no host memory for the context's record. The mode is asked for
 * again, since the attempt to serve the call from a stack may have shown that the settings are
 * invalid on this device. */
static bool find_charged_owner(struct rs_charged_call *call)
{
    enum rs_mode mode = rs_mode_now();
    struct rs_charge_owner owner = {.device = call->owner.device};

    if (call->size_bytes == 0 || mode != RS_MODE_SERVE || !rs_driver_ready(true)) {
        owner.device = RS_NO_DEVICE;
    } else if (call->path == RS_PATH_STREAM_ORDERED) {
        owner.device = device_of_stream(call->stream); /* the pool outlives contexts */
    } else if (owner.device == RS_NO_DEVICE) {
        /* NULL when no context is current (the driver then answers with its own error), or when a
         * tool's callback makes this call from inside a call of the library. */
        owner.context = rs_context_current(true);
        owner.device = owner.context ? owner.context->device : RS_NO_DEVICE;
        if (!owner.context && rs_context_lacks_host_memory())
            return false; /* else no limit would hold */
    }
    call->owner = owner;
    return call->size_bytes == 0 || mode != RS_MODE_DENY;
}

_Static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long) &&
                   sizeof(CUarray) == sizeof(unsigned long long) &&
                   sizeof(CUmemGenericAllocationHandle) == sizeof(unsigned long long),
               "every key of a charge has one size");

struct rs_charged_call rs_charged_begin(int device, enum rs_path path, size_t size_bytes, void *key,
                                        rs_charged_undo *undo)
{
    return (struct rs_charged_call){.result = CUDA_ERROR_OUT_OF_MEMORY,
                                    .path = path,
                                    .size_bytes = size_bytes,
                                    .key = key,
                                    .undo = undo,
                                    .owner = {.device = device}};
}

struct rs_charged_call rs_charged_begin_async(CUdeviceptr *address, size_t size_bytes,
                                              CUmemoryPool pool, CUstream stream,
                                              bool is_per_thread)
{
    struct rs_charged_call call =
        rs_charged_begin(RS_NO_DEVICE, RS_PATH_STREAM_ORDERED, size_bytes, address, NULL);

    call.pool = pool;
    call.stream = !stream && is_per_thread ? CU_STREAM_PER_THREAD : stream;
    return call;
}

/* Begins the request and charges the account. Returns false when the driver's call must not be
 * made. The owner is found inside the request, since the driver calls for that must not wait
 * either. An allocation that begins again keeps its request and its deadline. */
static bool charge_call(struct rs_charged_call *call)
{
    if (call->state != RS_CHARGED_REQUEST) {
        call->state = RS_CHARGED_REQUEST;
        rs_request_begin();
        if (!find_charged_owner(call))
            return false;
    }
    call->is_charged =
        call->path == RS_PATH_STREAM_ORDERED
            ? rs_charge_async_begin(&call->charge, &call->owner, call->pool, call->stream,
                                    call->size_bytes)
            : rs_charge_begin(&call->charge, &call->owner, call->path, call->size_bytes);
    return call->is_charged;
}

/* Charges a call with an `undo`, after the driver's answer. Returns true if the driver was out of
 * memory and must be asked once more. The call is charged by then, and goes on like one without
 * `undo`, which is charged before the driver is asked. */
static bool charge_later(struct rs_charged_call *call)
{
    call->is_made = call->result == CUDA_SUCCESS;
    if (!call->is_made && call->result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    if (!charge_call(call))
        call->result = CUDA_ERROR_OUT_OF_MEMORY;
    return call->is_charged && !call->is_made;
}

static bool begin_async_anew(struct rs_charged_call *call)
{
    CUdeviceptr *address = call->key;
    bool anew;

    call->is_charged = false;
    if (!rs_charge_async_end(&call->charge, call->result,
                             call->result == CUDA_SUCCESS ? *address : 0))
        return false;
    anew = rs_charge_async_undo(&call->charge, *address, call->stream);
    *address = 0;
    call->result = CUDA_ERROR_OUT_OF_MEMORY;
    return anew && charge_call(call);
}

bool rs_charged_next(struct rs_charged_call *call)
{
    switch (call->state) {
    case RS_CHARGED_BEGUN:
        if (!call->key)
            call->state = RS_CHARGED_DONE;
        else if (call->undo && rs_mode_now() != RS_MODE_DENY)
            call->state = RS_CHARGED_ASKED;
        else
            return charge_call(call);
        return true;
    case RS_CHARGED_ASKED:
        return charge_later(call);
    case RS_CHARGED_REQUEST:
        if (!call->is_charged || call->is_made)
            return false;
        return rs_charge_again(&call->charge, call->result) ||
               (call->path == RS_PATH_STREAM_ORDERED && begin_async_anew(call));
    case RS_CHARGED_DONE:
        break;
    }
    return false;
}

CUresult rs_charged_end(struct rs_charged_call *call)
{
    unsigned long long key = 0;

    if (call->state != RS_CHARGED_REQUEST)
        return call->result;
    if (call->result == CUDA_SUCCESS || call->is_made)
        memcpy(&key, call->key, sizeof(key));
    if (call->is_charged)
        rs_charge_end(&call->charge, call->result, key);
    rs_request_end();
    if (RS_UNLIKELY(call->result == CUDA_ERROR_OUT_OF_MEMORY))
        call->result = rs_charged_refused(&call->owner, call->path, call->size_bytes);
    if (call->is_made && call->result != CUDA_SUCCESS)
        (void)call->undo(key);
    return call->result;
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
