/* SPDX-License-Identifier: Apache-2.0 */
/* A capture from begin to end, for the entry points of capture. The caller holds the lock. */
#pragma once

#include "driver/capture.h"

#include <pthread.h>

/* All streams that take part in one capture. */
struct hc_session {
    CUstreamCaptureMode mode;
    pthread_t thread; /* thread that began it */
    struct hc_stream *origin;
    struct hc_graph *graph;
    bool is_spoilt;
    unsigned long long id;
    struct hc_capture *members;
    struct hc_session *next;
};

/* One stream's part in a capture: the nodes that its next node comes after. */
struct hc_capture {
    struct hc_session *session;
    struct hc_stream *stream;
    struct hc_node **tips;
    unsigned tip_count;
    struct hc_capture *next;
};

CUresult hc_capture_begin(struct hc_stream *stream, CUstreamCaptureMode mode);
/* The caller owns *graph, which is NULL on failure. */
CUresult hc_capture_end(struct hc_stream *stream, struct hc_graph **graph);
CUresult hc_capture_add_node(struct hc_stream *stream, CUgraphNodeType type,
                             const struct hc_work *work);

/* Sets the calling thread's capture mode; returns the previous one. */
CUstreamCaptureMode hc_capture_exchange_mode(CUstreamCaptureMode mode);
