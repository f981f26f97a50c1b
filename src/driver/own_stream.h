/* SPDX-License-Identifier: Apache-2.0 */
/* The one stream per context that our own stream-ordered calls use (the async leaves, prefetch,
 * fills): never the program's, whose captures and order they would disturb.  Non-blocking, so that
 * it does not meet the program's NULL stream either. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>

/* All zero at first.  Ends with its context. */
struct rs_own_stream {
    _Atomic(CUstream) stream;
};

/* The stream, made at its first use; NULL when the driver refuses.  Thread safe. */
CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context);

/* Waits until all that was given to the stream is done.  Harms no capture. */
CUresult rs_own_stream_wait(CUstream stream);
