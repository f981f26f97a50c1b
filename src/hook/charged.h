/* SPDX-License-Identifier: Apache-2.0 */
/* Forwarded calls whose memory is counted: the account is charged, the driver's call is made,
 * several times if need be, and the charge is kept or taken back (charge/charge.h). A hook returns
 * RS_CHARGED. */
#pragma once

#include "base/check.h"
#include "charge/charge.h"

#include <stdbool.h>
#include <stddef.h>

/* A function that frees the allocation that `key` names. */
typedef CUresult rs_charged_undo(unsigned long long key);

/* Makes a driver call as often as rs_charged_next says, and returns the result for the program.
 * `begin` calls one of the functions below that begin a charged call; `driver_call` is the
 * expression that makes the driver's call. */
#define RS_CHARGED(begin, driver_call)                                                             \
    ({                                                                                             \
        struct rs_charged_call call_ = (begin);                                                    \
        while (rs_charged_next(&call_))                                                            \
            call_.result = (driver_call);                                                          \
        rs_charged_end(&call_);                                                                    \
    })

struct rs_charged_call {
    CUresult result; /* the driver's latest answer, which the hook fills in */
    enum rs_path path;
    size_t size_bytes;
    void *key;
    rs_charged_undo *undo;
    CUmemoryPool pool;
    CUstream stream;
    enum { RS_CHARGED_BEGUN, RS_CHARGED_ASKED, RS_CHARGED_DONE, RS_CHARGED_REQUEST } state;
    bool is_charged, is_made;
    struct rs_charge_owner owner;
    struct rs_charge charge;
};

/* Begins a call that takes size_bytes. With RS_NO_DEVICE the memory belongs to the calling thread's
 * context; with a device's number it is memory of that device that outlives contexts. `key` points
 * to where the driver writes the address, array or handle (8 bytes each) by which a free will name
 * the allocation. If the program passed NULL, nothing is charged and the driver answers with its
 * own error.
 *
 * `undo` is set only for a call that the driver will probably refuse as invalid. The driver is then
 * asked before the account is charged, so that under a limit, too, the program gets the driver's
 * error and not out-of-memory. If the driver grants the call and the limit leaves no room, `undo`
 * frees the memory again. */
struct rs_charged_call rs_charged_begin(int device, enum rs_path path, size_t size_bytes, void *key,
                                        rs_charged_undo *undo);

/* Begins a stream-ordered allocation from `pool`, or, if that is NULL, from the current pool of the
 * stream's device. With is_per_thread a NULL stream is the calling thread's own default stream.
 *
 * The account is charged first, but the driver's pool may still grow past the limit: by a larger
 * unit than it was seen to use, or because its free memory was fragmented. Then the block is freed
 * in the order of its stream, and the allocation begins again; after a few attempts it is
 * refused. */
struct rs_charged_call rs_charged_begin_async(CUdeviceptr *address, size_t size_bytes,
                                              CUmemoryPool pool, CUstream stream,
                                              bool is_per_thread);

/* True when the driver's call is to be made, for the first time or once more. */
bool rs_charged_next(struct rs_charged_call *call);

/* Keeps the charge and records the allocation under its key, by which a later free finds it; takes
 * the charge back if the call failed. Returns the result for the program. */
CUresult rs_charged_end(struct rs_charged_call *call);

/* Called before the program is told that it is out of memory: counts the refusal and may report it
 * (rs_oom_refused). If the context's work has failed, returns its error instead, else
 * CUDA_ERROR_OUT_OF_MEMORY. Must not be called inside the request. */
RS_COLD CUresult rs_charged_refused(const struct rs_charge_owner *owner, enum rs_path path,
                                    size_t size_bytes);
