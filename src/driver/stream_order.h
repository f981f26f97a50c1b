/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a block freed in the order of a stream may be handed out again in the order of another:
 * only when both are the same stream, by the number that the driver gives each (cuStreamGetId,
 * driver 12.0).  Handles do not tell: a destroyed stream's comes back for a new one. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* The number of a stream that is to be allocated on, so that it is alive.  False, and then nothing
 * may be assumed of the stream's order: for the NULL stream, for CU_STREAM_LEGACY and
 * CU_STREAM_PER_THREAD unless `context` is current (a green context has default streams of its
 * own), for a stream that captures (its work runs later, and again), and on drivers without such
 * numbers. Thread safe. */
bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key);

/* The same for a free: a stream that has been destroyed has no order, and its handle is not asked
 * about, nor is one that came back since, unless the block was allocated on the new stream:
 * allocated_on is the number then, 0 when it is not known. */
bool rs_stream_key_to_free(CUstream stream, CUcontext context, unsigned long long allocated_on,
                           unsigned long long *key);

/* The program is about to destroy the stream. */
void rs_stream_destroyed(CUstream stream);

/* A stream that was meant in the context that is current, seen from a context of that device:
 * itself, unless it is a default stream of another context of the same device (not its primary one,
 * or a green one), which no handle tells there: then NULL.  Called before the other context is
 * entered.
 */
CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream);
