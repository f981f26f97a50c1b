/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the entry points that begin and end stream captures (driver/capture.h). */
#include "driver/capture.h"

#include "base/check.h"
#include "driver/driver.h"
#include "driver/stream_order.h"
#include "hook/hook.h"

/* clang-format off */
#define HOOK_capture RS_HOOK_DECLARE
#define HOOK_lookup(symbol) /* the others: cuda.c */
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_context(symbol)
#define HOOK_async(symbol)
#define HOOK_limit(symbol)
#define HOOK_count(symbol)
#define HOOK_retry(symbol)
#define HOOK_wait(symbol)
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

/* No capture begins between a look at the gate and what is done behind it. */
#define BEGIN_CAPTURE(stream, per_thread, call)                                                    \
    struct rs_capture_stream origin = rs_capture_origin(stream, per_thread);                       \
    CUresult result;                                                                               \
    rs_capture_begin_enter();                                                                      \
    result = call;                                                                                 \
    rs_capture_begin_leave(origin, result == CUDA_SUCCESS);                                        \
    return result

static CUresult hook_cuStreamBeginCapture(CUstream stream)
{
    BEGIN_CAPTURE(stream, false, RS_FORWARD(cuStreamBeginCapture, (stream)));
}

static CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN_CAPTURE(stream, true, RS_FORWARD(cuStreamBeginCapture_ptsz, (stream)));
}

static CUresult hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(stream, false, RS_FORWARD(cuStreamBeginCapture_v2, (stream, mode)));
}

static CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(stream, true, RS_FORWARD(cuStreamBeginCapture_v2_ptsz, (stream, mode)));
}

static CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *dependencies,
                                                 const CUgraphEdgeData *edges, size_t count,
                                                 CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(
        stream, false,
        RS_FORWARD(cuStreamBeginCaptureToGraph, (stream, graph, dependencies, edges, count, mode)));
}

static CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                      const CUgraphNode *dependencies,
                                                      const CUgraphEdgeData *edges, size_t count,
                                                      CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(stream, true,
                  RS_FORWARD(cuStreamBeginCaptureToGraph_ptsz,
                             (stream, graph, dependencies, edges, count, mode)));
}

static CUresult hook_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                                   CUgraph graph, CUgraphRecaptureCallback callback,
                                                   void *data)
{
    BEGIN_CAPTURE(stream, false,
                  RS_FORWARD(cuStreamBeginRecaptureToGraph, (stream, mode, graph, callback, data)));
}

static CUresult hook_cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                        CUgraph graph,
                                                        CUgraphRecaptureCallback callback,
                                                        void *data)
{
    BEGIN_CAPTURE(
        stream, true,
        RS_FORWARD(cuStreamBeginRecaptureToGraph_ptsz, (stream, mode, graph, callback, data)));
}

static CUresult hook_cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *params)
{
    rs_capture_distrust("cuStreamBeginCaptureToCig");
    return RS_FORWARD(cuStreamBeginCaptureToCig, (stream, params));
}

static CUresult hook_cuStreamBeginCaptureToCig_ptsz(CUstream stream,
                                                    CUstreamCigCaptureParams *params)
{
    rs_capture_distrust("cuStreamBeginCaptureToCig");
    return RS_FORWARD(cuStreamBeginCaptureToCig_ptsz, (stream, params));
}

typedef CUresult ask_function(CUstream stream, CUstreamCaptureStatus *status);

/* An end that the driver refused (from a wrong thread, say) leaves the capture going; one that it
 * answered with an error (the capture was spoilt) ends it all the same.  The stream itself tells.
 */
static CUresult note_end(struct rs_capture_stream origin, CUstream stream, ask_function *ask,
                         CUresult result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    if (result == CUDA_SUCCESS || !ask || ask(stream, &status) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
        rs_capture_ended(origin);
    return result;
}

static CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult result = RS_FORWARD(cuStreamEndCapture, (stream, graph));

    return note_end(rs_capture_stream(stream, false), stream, rs_driver.cuStreamIsCapturing,
                    result);
}

static CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    CUresult result = RS_FORWARD(cuStreamEndCapture_ptsz, (stream, graph));

    return note_end(rs_capture_stream(stream, true), stream, rs_driver.cuStreamIsCapturing_ptsz,
                    result);
}

/* Only the origin's end ends a capture; streams that joined it may come and go. */
#define DESTROY_STREAM(stream, call)                                                               \
    rs_stream_destroyed(stream);                                                                   \
    struct rs_capture_end end = rs_capture_end_begin(rs_capture_stream(stream, false));            \
    CUresult result = call;                                                                        \
    rs_capture_end_finish(end, result == CUDA_SUCCESS);                                            \
    return result

static CUresult hook_cuStreamDestroy_v2(CUstream stream)
{
    DESTROY_STREAM(stream, RS_FORWARD(cuStreamDestroy_v2, (stream)));
}

static CUresult hook_cuStreamDestroy(CUstream stream)
{
    DESTROY_STREAM(stream, RS_FORWARD(cuStreamDestroy, (stream)));
}
