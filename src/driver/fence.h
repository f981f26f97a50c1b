/* SPDX-License-Identifier: Apache-2.0 */
/* Fences: "is all work that this context was given before done?"
 *
 * One cuCtxRecordEvent (driver 12.5) covers every stream of the context, destroyed, per-thread and
 * green ones included, costs 129 ns and delays nothing (MEASURED.md, "One fence").  Older
 * drivers have no such event; there, and while a stream captures, only the driver's own wait
 * remains: freeing a block with cuMemFree returns when the context is idle, and harms no capture.
 */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

enum rs_fence_state {
    RS_FENCE_PENDING,
    RS_FENCE_DONE,
    RS_FENCE_BROKEN, /* the context has an error: it will never be done */
};

/* False for drivers without context events. */
bool rs_fence_supported(void);

/* An event for fences in this context, or NULL. */
CUevent rs_fence_create(CUcontext context);
void rs_fence_destroy(CUevent event);

/* Why there is no fence. */
enum rs_fence_refusal {
    RS_FENCE_GRANTED,
    RS_FENCE_CAPTURES, /* for the moment: a stream of the context captures */
    RS_FENCE_REFUSED,  /* the driver, or the distrust of driver/capture.h; full waits remain */
};

/* Records the fence.  Whether it did, and why not, is also in *refusal, unless that is NULL. */
bool rs_fence_record(CUcontext context, CUevent event, enum rs_fence_refusal *refusal);

/* The stream, of any context, comes after all that `context` was given so far, without a wait here:
 * fences of the stream's own context cover that work from now on.  False where no fence can be had.
 */
bool rs_fence_join(CUcontext context, CUstream stream);

enum rs_fence_state rs_fence_query(CUcontext context, CUevent event);

enum { RS_SENTINEL_BYTES = 512, RS_SENTINEL_SPARES = 8 };

/* The driver's own wait; unbounded.  A context's sentinel blocks, all zero at first. */
struct rs_sentinel {
    _Atomic CUdeviceptr anchor, spares[RS_SENTINEL_SPARES];
};

/* Hands over a block of that size, taken with the real cuMemAlloc.  Never waits.  False when there
 * are enough: then it is still the caller's. */
bool rs_sentinel_add(struct rs_sentinel *sentinel, CUdeviceptr block);

/* Takes the blocks in advance, for a device that will be full.  The context is current. */
void rs_sentinel_prepare(struct rs_sentinel *sentinel, CUcontext context);

CUresult rs_sentinel_wait(struct rs_sentinel *sentinel, CUcontext context);
