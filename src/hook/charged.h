/* SPDX-License-Identifier: Apache-2.0 */
/* Forwarded calls that are counted: each charges the account, makes the driver's call and settles
 * the charge (charge/charge.h).
 *
 * A driver call that may be made several times is passed as a callback with its arguments; the
 * functions that make it are inline, so the compiler calls the driver directly. */
#pragma once

#include "base/check.h"
#include "base/request.h"
#include "charge/charge.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Finds the owner of size_bytes of memory that the calling thread's context is about to take, or,
 * with a device's number in place of RS_NO_DEVICE, of memory of a device that outlives contexts.
 * False when the settings deny every allocation.  The mode is asked here, since a shim function
 * that declined the call may have found the settings bad on this device. */
bool rs_charged_owner(int device, size_t size_bytes, struct rs_charge_owner *owner);

/* The same for memory that an allocation on the stream takes. */
bool rs_charged_owner_stream(CUstream stream, size_t size_bytes, struct rs_charge_owner *owner);

/* Makes one driver call. */
typedef CUresult rs_charged_call(const void *arguments);

/* A call that takes memory.  `key` is where the driver writes the address, array or handle that a
 * later free names; all of them have 8 bytes. */
struct rs_charged_request {
    enum rs_path path;
    size_t size_bytes;
    const void *key;
    rs_charged_call *call;
    const void *arguments;
};

_Static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long) &&
                   sizeof(CUarray) == sizeof(unsigned long long) &&
                   sizeof(CUmemGenericAllocationHandle) == sizeof(unsigned long long),
               "every key of a charge has one size");

/* The program is about to be told that it is out of memory: the report (report/out_of_memory.h).
 * Returns the result.  Outside of the request. */
RS_COLD CUresult rs_charged_refused(const struct rs_charge_owner *owner, enum rs_path path,
                                    size_t size_bytes);

/* Charges the account of the owner (rs_charged_owner), makes the call, makes it again after each
 * out-of-memory error for which memory was given back, and enters the allocation under its key.
 * Finding the owner is part of the request: the driver calls for it must not wait. */
RS_HOT_INLINE CUresult rs_charged(int device, const struct rs_charged_request *request)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    unsigned long long key = 0;
    struct rs_charge_owner owner;
    struct rs_charge charge;

    if (RS_UNLIKELY(!request->key))
        return request->call(request->arguments); /* the driver's own error */
    rs_request_begin();
    if (rs_charged_owner(device, request->size_bytes, &owner) &&
        rs_charge_begin(&charge, &owner, request->path, request->size_bytes)) {
        do
            result = request->call(request->arguments);
        while (rs_charge_again(&charge.next, result));
        if (result == CUDA_SUCCESS)
            memcpy(&key, request->key, sizeof(key));
        result = rs_charge_end(&charge, result, key);
    }
    rs_request_end();
    if (RS_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY))
        return rs_charged_refused(&owner, request->path, request->size_bytes);
    return result;
}

/* rs_charged for a call that the driver will probably refuse as invalid: under a limit, too, the
 * program gets that error and not out-of-memory.  The driver is asked before the account is
 * charged; `undo` frees what it made all the same, where the limit leaves no room for it. */
RS_COLD CUresult rs_charged_later(int device, const struct rs_charged_request *request,
                                  CUresult (*undo)(unsigned long long key));

/* The arguments of a stream-ordered allocation. */
struct rs_charged_async {
    CUdeviceptr *address;
    size_t size_bytes;
    CUmemoryPool pool; /* NULL: the current pool of the stream's device */
    CUstream stream;
    bool per_thread_default; /* a NULL stream is the calling thread's own default stream */
};

/* The same as rs_charged for stream-ordered memory.  A pool may grow past the limit all the same:
 * by a unit of the driver that was not known yet, or because the free memory in it was fragmented.
 * Then the block is freed in the order of its stream, and the allocation is begun anew. */
RS_HOT_INLINE CUresult rs_charged_async(const struct rs_charged_async *with,
                                        CUresult (*call)(const struct rs_charged_async *with))
{
    bool is_per_thread = !with->stream && with->per_thread_default;
    CUstream stream = is_per_thread ? CU_STREAM_PER_THREAD : with->stream;
    struct rs_pool_charge charge = {.turn = 0};
    struct rs_charge_owner owner;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool anew;

    if (!with->address)
        return call(with); /* the driver's own error */
    rs_request_begin();    /* one request, and one patience, however often it is begun anew */
    anew = rs_charged_owner_stream(stream, with->size_bytes, &owner);
    while (anew && rs_charge_async_begin(&charge, &owner, with->pool, stream, with->size_bytes)) {
        do
            result = call(with);
        while (rs_charge_again(&charge.next, result));
        anew = rs_charge_async_end(&charge, result, result == CUDA_SUCCESS ? *with->address : 0);
        if (anew) {
            anew = rs_charge_async_undo(&charge, *with->address, stream);
            *with->address = 0;
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    rs_request_end();
    if (RS_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY))
        return rs_charged_refused(&owner, RS_PATH_STREAM_ORDERED, with->size_bytes);
    return result;
}
