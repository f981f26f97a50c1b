/* SPDX-License-Identifier: Apache-2.0 */
/* A fence tells whether all work is done that a context was given before the fence.
 *
 * A fence is an event recorded by one cuCtxRecordEvent (driver 12.5 or newer). It covers every
 * stream of the context, including destroyed, per-thread and green ones. It costs 129 ns and delays
 * no work (MEASURED.md, "One fence"). On older drivers, and while a stream captures, no fence can
 * be recorded. Then only the driver's own full wait remains: a cuMemFree of a block returns when
 * the context is idle, and harms no capture. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

enum rs_fence_state {
    RS_FENCE_PENDING, /* some work is not done */
    RS_FENCE_DONE,    /* all work before the fence is done */
    RS_FENCE_BROKEN,  /* it will never be known whether the work is done */
    RS_FENCE_FAULT, /* work of the context has failed (rs_is_fault): the fence will never be done */
};

/* True for an error that work on the GPU causes (an illegal address, say). Every later call about
 * the context returns that error too, until the context ends. */
bool rs_is_fault(CUresult result);

/* True when the driver has context events (12.5 or newer). */
bool rs_fence_supported(void);

/* Makes an event for fences of this context; NULL when the driver refuses. */
CUevent rs_fence_create(CUcontext context);

/* Destroys an event of rs_fence_create. */
void rs_fence_destroy(CUevent event);

/* Whether a fence was recorded, and if not, why. */
enum rs_fence_refusal {
    RS_FENCE_GRANTED,  /* the fence was recorded */
    RS_FENCE_CAPTURES, /* a stream of the context captures, or may be about to; a fence can be
                          recorded later */
    RS_FENCE_REFUSED,  /* refused since rs_capture_is_distrusted, or by an error of the driver;
                          nothing says that this will pass */
    RS_FENCE_FAULTY, /* refused by the driver, since work of the context has failed (rs_is_fault) */
};

/* Records a fence with `event`. Returns true if it was recorded. Unless `refusal` is NULL, *refusal
 * tells whether it was, and if not, why. Never waits. */
bool rs_fence_record(CUcontext context, CUevent event, enum rs_fence_refusal *refusal);

/* Makes later work of `stream`, which may be of any context, wait on the GPU for all work that
 * `context` was given so far. The call itself does not wait. From then on fences of the stream's
 * own context cover that work too. Returns false when no fence can be recorded, or the stream
 * cannot wait for the fence. */
bool rs_fence_join(CUcontext context, CUstream stream);

/* Asks whether the fence that was recorded with `event` is done.  Never waits. */
enum rs_fence_state rs_fence_query(CUcontext context, CUevent event);

enum { RS_SENTINEL_BYTES = 512, RS_SENTINEL_BLOCKS = 9 };

/* Sentinels: small allocations made by the driver itself. To wait for all work of a context, the
 * library frees one of them with cuMemFree. The first one, the anchor, is freed only when there is
 * no other. A zeroed struct has no sentinels. */
struct rs_sentinel {
    _Atomic CUdeviceptr blocks[RS_SENTINEL_BLOCKS];
};

/* Adds a block of RS_SENTINEL_BYTES, allocated with the driver's cuMemAlloc. Returns false when
 * there is no room for it; the block is then still the caller's. Never waits. */
bool rs_sentinel_add(struct rs_sentinel *sentinel, CUdeviceptr block);

/* Allocates the anchor and one more block in advance, since a full device has no room for them
 * later. */
void rs_sentinel_prepare(struct rs_sentinel *sentinel, CUcontext context);

/* Waits, without bound, until all work of the context is done: frees a sentinel. Returns the
 * driver's answer; CUDA_ERROR_OUT_OF_MEMORY when there is no sentinel and the driver has no memory
 * for one. */
CUresult rs_sentinel_wait(struct rs_sentinel *sentinel, CUcontext context);

/* ---- idle contexts, for memory that only a driver call that waits can give back ---- */

/* Waits at most bound_ns for all work that the context was given so far. Returns RS_FENCE_DONE when
 * that work is done, RS_FENCE_PENDING when it is not done in time, and RS_FENCE_FAULT when it fails
 * meanwhile. Returns RS_FENCE_BROKEN when that is not known: the driver has no context events, a
 * stream captures, or no event could be made or recorded, as in a context whose work had failed
 * before. */
enum rs_fence_state rs_context_idle(CUcontext context, uint64_t bound_ns);

/* True when the context is idle, after a wait of at most 0.5 ms; a driver call that waits for the
 * context's work then returns at once. Called inside a request (base/request.h). The request
 * remembers the latest context that was not seen idle, and this function returns false for that one
 * without another wait, until rs_request_forget_busy. */
bool rs_request_sees_idle(CUcontext context);
