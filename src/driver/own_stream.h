/* SPDX-License-Identifier: Apache-2.0 */
/* The one stream per context that our own stream-ordered calls use (the async leaves, prefetch,
 * fills): never the program's, whose captures and order they would disturb.  Non-blocking, so that
 * it does not meet the program's NULL stream either. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* All zero at first.  Ends with its context. */
struct rs_own_stream {
    _Atomic(CUstream) stream;
};

/* The stream, made at its first use; NULL when the driver refuses.  Thread safe. */
CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context);

/* Waits until all that was given to the stream is done.  Harms no capture. */
CUresult rs_own_stream_wait(CUstream stream);

/* The same, unless that takes longer than bound_ns: false then.  What cuMemFreeAsync was given of
 * cuMemAlloc's memory stays taken, for this process and all others, until somebody waits so, also
 * when the stream has long come to it (an H200: 40 times 2 GiB were 80 GiB).  4 GiB take 1 to 2 ms,
 * however busy other streams are. */
bool rs_own_stream_settle(CUstream stream, uint64_t bound_ns);
