/* SPDX-License-Identifier: Apache-2.0 */
/* Tells streams apart by the number that the driver gives each (cuStreamGetId, driver 12.0).  A
 * block freed in the order of a stream may be handed out again in the order of a stream only if
 * it is the same one.  Handles do not tell: a new stream may get the handle of a destroyed one. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Stores the number of a live stream, on which memory is to be allocated, in *key.  Returns
 * false when nothing may be assumed of the stream's order: for the NULL stream; for
 * CU_STREAM_LEGACY and CU_STREAM_PER_THREAD unless `context` is current (a green context has
 * default streams of its own); for a stream that captures (its work runs later, and repeatedly);
 * and on drivers without such numbers.  Thread safe, like all functions here. */
bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key);

/* Stores the number of a stream in whose order memory is freed.  Returns false also for a stream
 * that was destroyed: it has no order, and the driver is not asked about its handle.  A handle
 * that was destroyed and came back counts as destroyed, unless the block was allocated on the
 * new stream, whose number is `allocated_on` (0: unknown). */
bool rs_stream_key_to_free(CUstream stream, CUcontext context, unsigned long long allocated_on,
                           unsigned long long *key);

/* The program is about to destroy the stream.  Called before the driver's call. */
void rs_stream_destroyed(CUstream stream);

/* Returns the handle by which a stream, meant in the current context, can be used in `context`,
 * a context of `device`.  That is `stream` itself, unless it is a default stream
 * (CU_STREAM_LEGACY or CU_STREAM_PER_THREAD) of another context of the same device, which has no
 * handle there: then NULL.  Called before `context` is entered. */
CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream);
