/* SPDX-License-Identifier: Apache-2.0 */
/* The one stream per context for the library's own stream-ordered calls (the async leaves,
 * prefetch, fills).  The program's streams are never used: that would disturb their captures and
 * order.  It is non-blocking, so that it does not synchronise with the program's NULL stream. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A zeroed struct has no stream yet.  The stream ends with its context. */
struct rs_own_stream {
    _Atomic(CUstream) stream;
};

/* Returns the stream, which the first call creates; NULL when the driver refuses.  Thread safe. */
CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context);

/* Waits without bound until all work of the stream is done.  Harms no capture. */
CUresult rs_own_stream_wait(CUstream stream);

/* Queries the stream for up to bound_ns; CUDA_ERROR_NOT_READY when its work takes longer.  Does not
 * wait for work that other threads give to the stream later. */
CUresult rs_own_stream_poll(CUstream stream, uint64_t bound_ns);

/* Waits at most bound_ns for all work of the stream.  Returns false when it is not done by then,
 * or the driver reports an error.  Memory of cuMemAlloc that was passed to cuMemFreeAsync stays
 * taken, for all processes, until somebody synchronises with the stream, even long after the
 * stream has reached the free (H200: 40 times 2 GiB kept 80 GiB).  The synchronisation takes 1
 * to 2 ms for 4 GiB, however busy other streams are. */
bool rs_own_stream_settle(CUstream stream, uint64_t bound_ns);
