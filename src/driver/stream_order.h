/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a block freed in the order of a stream may be handed out again in the order of another:
 * only when both are the same stream. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* A stream that was meant in the context that is current, seen from a context of that device:
 * itself, unless it is a default stream of another context of the same device (not its primary one,
 * or a green one), which no handle tells there: then NULL.  Called before the other context is
 * entered.
 */
CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream);

/* The number that tells a stream from all others of this process, destroyed ones included, whose
 * handles come back for new streams (cuStreamGetId, driver 12.0).  The stream must not have been
 * destroyed.  False, and then nothing may be assumed of the stream's order: for the NULL stream,
 * for CU_STREAM_LEGACY and CU_STREAM_PER_THREAD unless `context` is current (a green context has
 * default streams of its own), for a stream that captures (its work runs later, and again), and on
 * drivers without such numbers.  Thread safe. */
bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key);
