/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a block freed in the order of a stream may be handed out again in the order of another:
 * only when both are the same stream. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* The number that tells a stream from all others of this process, destroyed ones included, whose
 * handles come back for new streams (cuStreamGetId, driver 12.0).  `context` is the one that the
 * handles CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are meant in; another stream must not have been
 * destroyed.  False, and then nothing may be assumed of the stream's order: for the NULL stream,
 * for a stream that captures (its work runs later, and again), and on drivers without such numbers.
 * Thread safe. */
bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key);
