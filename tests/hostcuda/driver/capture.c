/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/capture.h"

#include "driver/capture_session.h"
#include "driver/context.h"
#include "driver/event.h"
#include "driver/graph.h"

#include <stdlib.h>
#include <string.h>

static struct hc_session *sessions;
static unsigned long long last_id;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUstreamCaptureMode hc_capture_exchange_mode(CUstreamCaptureMode mode)
{
    CUstreamCaptureMode before = thread_mode;
    thread_mode = mode;
    return before;
}

static void spoil(struct hc_session *session)
{
    session->is_spoilt = true;
}

static bool is_forbidden_by(const struct hc_session *session)
{
    if (pthread_equal(session->thread, pthread_self()))
        return session->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult hc_capture_check_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    for (struct hc_session *session = sessions; session; session = session->next) {
        if (!is_forbidden_by(session))
            continue;
        spoil(session);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

static CUresult check_streams_of(const struct hc_ctx *ctx)
{
    CUresult result = CUDA_SUCCESS;
    for (struct hc_stream *stream = ctx->streams; stream; stream = stream->next) {
        if (!stream->capture)
            continue;
        spoil(stream->capture->session);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult hc_capture_check_context(struct hc_ctx *ctx)
{
    CUresult result = check_streams_of(ctx);
    for (const struct hc_ctx *green = ctx->greens; green; green = green->next) {
        CUresult more = check_streams_of(green);
        result = result ? result : more;
    }
    return result;
}

CUresult hc_capture_check_implicit(const struct hc_stream *stream, bool harmless)
{
    CUresult result = CUDA_SUCCESS;
    if (stream->kind != HC_STREAM_NULL)
        return result;
    for (struct hc_stream *other = stream->ctx->streams; other; other = other->next) {
        if (!other->capture || !hc_stream_is_blocking(other))
            continue;
        if (!harmless)
            spoil(other->capture->session);
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

CUresult hc_capture_check_stream(struct hc_stream *stream)
{
    CUresult result = hc_capture_check_implicit(stream, false);
    if (result)
        return result;
    if (stream->capture) {
        spoil(stream->capture->session);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return hc_capture_check_unsafe();
}

/* The session's record of a stream's latest nodes. */
static CUresult set_tips(struct hc_capture *capture, struct hc_node *const *tips, unsigned count)
{
    struct hc_node **copy = malloc((count ? count : 1) * sizeof(*copy));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(copy, tips, count * sizeof(*copy));
    free(capture->tips);
    capture->tips = copy;
    capture->tip_count = count;
    return CUDA_SUCCESS;
}

static bool has_tip(const struct hc_capture *capture, const struct hc_node *node)
{
    for (unsigned i = 0; i < capture->tip_count; i++) {
        if (capture->tips[i] == node)
            return true;
    }
    return false;
}

static CUresult add_tips(struct hc_capture *capture, struct hc_node *const *tips, unsigned count)
{
    struct hc_node **all = realloc(capture->tips, (capture->tip_count + count + 1) * sizeof(*all));
    if (!all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->tips = all;
    for (unsigned i = 0; i < count; i++) {
        if (!has_tip(capture, tips[i]))
            all[capture->tip_count++] = tips[i];
    }
    return CUDA_SUCCESS;
}

static CUresult join(struct hc_stream *stream, struct hc_session *session)
{
    struct hc_capture *capture = calloc(1, sizeof(*capture));
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->session = session;
    capture->stream = stream;
    capture->next = session->members;
    session->members = capture;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

CUresult hc_capture_begin(struct hc_stream *stream, CUstreamCaptureMode mode)
{
    if (stream->kind == HC_STREAM_NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct hc_session *session = calloc(1, sizeof(*session));
    if (!session)
        return CUDA_ERROR_OUT_OF_MEMORY;
    session->graph = hc_graph_new();
    if (!session->graph || join(stream, session)) {
        if (session->graph)
            hc_graph_free(session->graph);
        free(session);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session->mode = mode;
    session->thread = pthread_self();
    session->origin = stream;
    session->id = ++last_id;
    session->next = sessions;
    sessions = session;
    return CUDA_SUCCESS;
}

static void unlink_session(struct hc_session *session)
{
    struct hc_session **link = &sessions;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
}

/* All its streams are ordinary again. */
static void close_session(struct hc_session *session)
{
    unlink_session(session);
    while (session->members) {
        struct hc_capture *capture = session->members;
        session->members = capture->next;
        capture->stream->capture = NULL;
        free(capture->tips);
        free(capture);
    }
    hc_event_forget_session(session->id);
    free(session);
}

/* Each node that another stream added must be followed by one of the stream that began. */
static bool is_joined(const struct hc_session *session)
{
    const struct hc_capture *origin = session->origin->capture;
    for (const struct hc_capture *member = session->members; member; member = member->next) {
        for (unsigned i = 0; member != origin && i < member->tip_count; i++) {
            if (!hc_graph_leads_to(member->tips[i], origin->tips, origin->tip_count))
                return false;
        }
    }
    return true;
}

CUresult hc_capture_end(struct hc_stream *stream, struct hc_graph **graph)
{
    *graph = NULL;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct hc_session *session = stream->capture->session;
    if (session->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (session->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !pthread_equal(session->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = CUDA_SUCCESS;
    if (session->is_spoilt)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(session))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result)
        hc_graph_free(session->graph);
    else
        *graph = session->graph;
    close_session(session);
    return result;
}

void hc_capture_abandon(struct hc_stream *stream)
{
    if (!stream->capture)
        return;
    struct hc_session *session = stream->capture->session;
    spoil(session);
    if (session->origin == stream) {
        hc_graph_free(session->graph);
        close_session(session);
        return;
    }
    struct hc_capture **link = &session->members;
    while (*link != stream->capture)
        link = &(*link)->next;
    *link = stream->capture->next;
    free(stream->capture->tips);
    free(stream->capture);
    stream->capture = NULL;
}

CUresult hc_capture_add_node(struct hc_stream *stream, CUgraphNodeType type,
                             const struct hc_work *work)
{
    struct hc_capture *capture = stream->capture;
    if (capture->session->is_spoilt)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct hc_node *node =
        hc_graph_add(capture->session->graph, type, work, capture->tips, capture->tip_count);
    return node ? set_tips(capture, &node, 1) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hc_capture_add(struct hc_stream *stream, const struct hc_work *work)
{
    return hc_capture_add_node(stream, work->type, work);
}

CUresult hc_capture_record(struct hc_stream *stream, struct hc_event *event)
{
    const struct hc_capture *capture = stream->capture;
    if (capture->session->is_spoilt)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return hc_event_capture(event, capture->session->id, capture->tips, capture->tip_count);
}

static struct hc_session *session_of(unsigned long long id)
{
    struct hc_session *session = sessions;
    while (session && session->id != id)
        session = session->next;
    return session;
}

CUresult hc_capture_wait(struct hc_stream *stream, struct hc_event *event)
{
    struct hc_session *session = session_of(event->session_id);
    if (!session && !stream->capture)
        return CUDA_ERROR_CAPTURED_EVENT; /* that capture is over */
    if (!session) {                       /* a capturing stream waits for work outside */
        spoil(stream->capture->session);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream->kind == HC_STREAM_NULL) {
        spoil(session);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture && stream->capture->session != session) {
        spoil(session);
        spoil(stream->capture->session);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (session->is_spoilt)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = stream->capture ? CUDA_SUCCESS : join(stream, session);
    return result ? result : add_tips(stream->capture, event->tips, event->tip_count);
}
