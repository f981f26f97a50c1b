/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the program's waits for its work, and of what begins and ends stream captures. */
#include "driver/stream.h"
#include "base/check.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/capture.h"
#include "driver/fence.h"
#include "hook/hook.h"
#include "shim/commands.h"

/* ---- waits ----
 *
 * A wait changes what is idle: the driver's pools, and resources with a release threshold, give
 * back the free memory that they hold above it. Other processes of a job are told how much is idle
 * now. */

struct wait {
    enum rs_synchronise end;
    CUcontext context; /* whose work is waited for; NULL: the current one's */
};

static struct wait begin_wait(enum rs_synchronise end, CUcontext context)
{
    if (rs_mode_serving())
        rs_poll_commands_in_request();
    rs_context_synchronise(RS_SYNCHRONISE_BEGIN, NULL);
    return (struct wait){end, context};
}

static CUresult end_wait(struct wait wait, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        if (wait.end == RS_SYNCHRONISE_END_ALL)
            rs_shim_waited_for_all();
        rs_context_synchronise(wait.end, wait.context);
        rs_charge_synchronised();
        if (RS_UNLIKELY(rs_limit_has_job))
            rs_job_look();
    } else if (rs_is_fault(result) && rs_mode_serving()) {
        (void)rs_context_fault_or(result); /* asks the driver about the current context, since the
                                              error may be of another one */
    }
    return result;
}

#define WAIT(symbol, parameters, arguments, end, context)                                          \
    RS_HOOK_BETWEEN(symbol, parameters, arguments, begin_wait(RS_SYNCHRONISE_END_##end, context),  \
                    end_wait)

WAIT(cuCtxSynchronize, (void), (), ALL, NULL)
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context), ALL, context)
WAIT(cuStreamSynchronize, (CUstream stream), (stream), SOME, NULL)
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream), SOME, NULL)
WAIT(cuEventSynchronize, (CUevent event), (event), SOME, NULL)

/* ---- captures (driver/capture.h) ---- */

/* Called before the driver's call that begins a capture. Records the fences of the blocks freed so
 * far, since none can be recorded during the capture. Then holds the gate (driver/capture.h) until
 * leave_begin, so that no thread records a fence while the capture begins. */
static struct rs_capture_stream enter_begin(CUstream stream, bool per_thread_default)
{
    struct rs_capture_stream origin = rs_capture_origin(stream, per_thread_default);

    rs_context_synchronise_slowly(RS_SYNCHRONISE_CAPTURE, NULL);
    rs_capture_begin_enter();
    return origin;
}

static CUresult leave_begin(struct rs_capture_stream origin, CUresult result)
{
    rs_capture_begin_leave(origin, result == CUDA_SUCCESS);
    return result;
}

#define BEGIN(symbol, parameters, arguments)                                                       \
    RS_HOOK_BETWEEN(symbol, parameters, arguments, enter_begin(stream, false), leave_begin)        \
    RS_HOOK_BETWEEN(symbol##_ptsz, parameters, arguments, enter_begin(stream, true), leave_begin)

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
       const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
      (stream, graph, dependencies, edges, count, mode))
BEGIN(cuStreamBeginRecaptureToGraph,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
       void *data),
      (stream, mode, graph, callback, data))

static CUresult begin_to_cig(__typeof__(&cuStreamBeginCaptureToCig) real, CUstream stream,
                             CUstreamCigCaptureParams *params)
{
    rs_capture_distrust("cuStreamBeginCaptureToCig");
    return real ? real(stream, params) : rs_hook_missing();
}

RS_HOOK_BY(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *params),
           begin_to_cig, stream, params)
RS_HOOK_BY(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, CUstreamCigCaptureParams *params),
           begin_to_cig, stream, params)

/* Ends a capture. A call that fails may have left the capture under way (when it came from a wrong
 * thread, for example) or have ended it (when the capture was invalidated). So the driver is then
 * asked whether the stream still captures. */
static CUresult end_capture(__typeof__(&cuStreamEndCapture) real, bool per_thread_default,
                            CUstream stream, CUgraph *graph)
{
    CUresult result = real ? real(stream, graph) : rs_hook_missing();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    __typeof__(&cuStreamIsCapturing) ask =
        per_thread_default ? rs_driver.cuStreamIsCapturing_ptsz : rs_driver.cuStreamIsCapturing;

    if (result == CUDA_SUCCESS || !ask || ask(stream, &status) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
        rs_capture_ended(rs_capture_stream(stream, per_thread_default));
    return result;
}

RS_HOOK_BY(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end_capture, false, stream, graph)
RS_HOOK_BY(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), end_capture, true, stream,
           graph)

/* A capture ends when the stream on which it began is destroyed, not when streams that joined it
 * are. */
static struct rs_capture_end begin_stream_destroy(CUstream stream)
{
    rs_stream_destroyed(stream);
    return rs_capture_end_begin(rs_capture_stream(stream, false));
}

static CUresult finish_stream_destroy(struct rs_capture_end end, CUresult result)
{
    rs_capture_end_finish(end, result == CUDA_SUCCESS);
    return result;
}

RS_HOOK_BETWEEN(cuStreamDestroy_v2, (CUstream stream), (stream), begin_stream_destroy(stream),
                finish_stream_destroy)
RS_HOOK_BETWEEN(cuStreamDestroy, (CUstream stream), (stream), begin_stream_destroy(stream),
                finish_stream_destroy)
