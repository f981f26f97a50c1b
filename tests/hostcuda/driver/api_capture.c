/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: stream capture. */
#include "driver/call.h"
#include "driver/capture_session.h"
#include "driver/graph.h"
#include "driver/lock.h"

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (result)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    return hc_capture_begin(stream, mode);
}

HC_PAIR(cuStreamBeginCapture, _ptsz, (CUstream stream),
        begin(HC_STREAM(stream), CU_STREAM_CAPTURE_MODE_GLOBAL));
HC_PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode),
        begin(HC_STREAM(stream), mode));

static CUresult end(CUstream handle, CUgraph *out)
{
    HC_LOCKED();
    struct hc_stream *stream;
    struct hc_graph *graph;
    CUresult result = hc_stream_of(handle, &stream);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    result = hc_capture_end(stream, &graph);
    *out = (CUgraph)graph;
    return result;
}

HC_PAIR(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph),
        end(HC_STREAM(stream), graph));

static CUstreamCaptureStatus status_of(const struct hc_stream *stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->session->is_spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = hc_capture_check_implicit(stream, true);
    if (!result)
        *status = status_of(stream);
    return result;
}

HC_PAIR(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status),
        is_capturing(HC_STREAM(stream), status));

static CUresult get_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                         CUgraph *graph, const CUgraphNode **tips, size_t *tip_count)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = hc_capture_check_implicit(stream, true);
    if (result)
        return result;
    *status = status_of(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    const struct hc_capture *capture = stream->capture;
    if (id)
        *id = capture->session->id;
    if (graph)
        *graph = (CUgraph)capture->session->graph;
    if (tips)
        *tips = (const CUgraphNode *)capture->tips;
    if (tip_count)
        *tip_count = capture->tip_count;
    return CUDA_SUCCESS;
}

HC_PAIR(cuStreamGetCaptureInfo, _ptsz,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
        get_info(HC_STREAM(stream), status, id, NULL, NULL, NULL));
HC_PAIR(cuStreamGetCaptureInfo_v2, _ptsz,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **tips, size_t *tip_count),
        get_info(HC_STREAM(stream), status, id, graph, tips, tip_count));

static CUresult get_info_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                            CUgraph *graph, const CUgraphNode **tips, const CUgraphEdgeData **edges,
                            size_t *tip_count)
{
    if (edges)
        *edges = NULL; /* every edge of this device is a plain one */
    return get_info(stream, status, id, graph, tips, tip_count);
}

HC_PAIR(cuStreamGetCaptureInfo_v3, _ptsz,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **tips, const CUgraphEdgeData **edges, size_t *tip_count),
        get_info_v3(HC_STREAM(stream), status, id, graph, tips, edges, tip_count));

HC_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    HC_ENTER(cuThreadExchangeStreamCaptureMode);
    HC_LOCKED();
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = hc_capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}
