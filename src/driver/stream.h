/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: tells which stream a handle stands for, and makes the library's own streams.
 *
 * Streams are told apart by the number that the driver gives each (cuStreamGetId, driver 12.0). A
 * block that was freed in the order of a stream may be allocated again at once only in the order of
 * the same stream. Handles do not suffice to tell that, since a new stream may get the handle of a
 * destroyed one. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Stores the number of a live stream, on which memory is to be allocated, in *key. Returns false
 * when nothing may be assumed of the stream's order:
 *   - for the NULL stream;
 *   - for CU_STREAM_LEGACY and CU_STREAM_PER_THREAD unless `context` is current (a green context
 *     has its own);
 *   - for a stream that captures, since its work runs later, and repeatedly;
 *   - on drivers that give streams no numbers.
 * Thread safe, like all functions here. */
bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key);

/* Stores the number of a stream in whose order memory is freed. Returns false where rs_stream_key
 * does, and for a destroyed stream, which has no order, and whose handle must not be passed to the
 * driver. If a stream with this handle was destroyed, the handle may be a new stream's by now. It
 * is taken for the new stream's only if the block was allocated on that stream: `allocated_on` is
 * the number of the stream of the allocation (0: unknown). */
bool rs_stream_key_to_free(CUstream stream, CUcontext context, unsigned long long allocated_on,
                           unsigned long long *key);

/* Notes that the stream will be destroyed. Called before the driver's call that destroys it. */
void rs_stream_destroyed(CUstream stream);

/* Returns the handle by which a stream of the current context can be used in `context`, a context
 * of `device`. That is `stream` itself, except for a default stream (CU_STREAM_LEGACY or
 * CU_STREAM_PER_THREAD) of another context of the same device. Such a stream has no handle in
 * `context`, and the result is NULL. Called before `context` is entered. */
CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream);

/* ---- the library's own stream ---- */

/* Each context has one stream for the library's own stream-ordered calls (the async leaves,
 * prefetch, fills), and another that waits for the work of other contexts (rs_context.joining). The
 * program's streams are not used, since that would disturb their captures and order. Both are
 * non-blocking, so that they do not synchronise with the program's NULL stream. */

/* A zeroed struct has no stream yet.  The stream ends with its context. */
struct rs_own_stream {
    _Atomic(CUstream) stream;
};

/* Returns the stream, which the first call creates; NULL when the driver refuses.  Thread safe. */
CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context);

/* Waits without bound until all work of the stream is done. Invalidates no capture. Returns the
 * driver's answer. */
CUresult rs_own_stream_wait(CUstream stream);

/* Queries the stream until its work is done, for up to bound_ns. Returns CUDA_ERROR_NOT_READY when
 * the work takes longer. Work that other threads give to the stream meanwhile counts too. */
CUresult rs_own_stream_poll(CUstream stream, uint64_t bound_ns);

/* Waits at most bound_ns for all work of the stream, and then synchronises with the stream. Returns
 * false when the work is not done in time, or the driver reports an error. The synchronisation
 * gives memory back: memory of cuMemAlloc that was passed to cuMemFreeAsync stays taken, for all
 * processes, until somebody synchronises with the stream, even long after the stream has reached
 * the free (H200: 40 times 2 GiB kept 80 GiB). It takes 1 to 2 ms for 4 GiB, however busy other
 * streams are. */
bool rs_own_stream_settle(CUstream stream, uint64_t bound_ns);
