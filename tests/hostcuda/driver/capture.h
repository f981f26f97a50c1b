/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: which streams capture, and which calls that forbids. The caller holds the lock.
 */
#pragma once

#include "driver/stream.h"

struct hc_event;
struct hc_graph;
struct hc_node;

/* For a call that is not safe in a capture: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the captures
 * that forbid it are spoilt. */
CUresult hc_capture_check_unsafe(void);

/* For a call that waits for or asks about the whole context: any capture of it forbids that. */
CUresult hc_capture_check_context(struct hc_ctx *ctx);

/* For work on a stream, or a question about it: the NULL stream while a blocking stream captures.
 * `harmless` does not spoil the captures. */
CUresult hc_capture_check_implicit(const struct hc_stream *stream, bool harmless);

/* For a question about, or a wait for, one stream. */
CUresult hc_capture_check_stream(struct hc_stream *stream);

/* Adds work to the graph of a capturing stream. */
CUresult hc_capture_add(struct hc_stream *stream, const struct hc_work *work);

/* An event recorded on a capturing stream, and a stream that waits for such an event. */
CUresult hc_capture_record(struct hc_stream *stream, struct hc_event *event);
CUresult hc_capture_wait(struct hc_stream *stream, struct hc_event *event);

/* The stream is destroyed or its context is: its capture is over. */
void hc_capture_abandon(struct hc_stream *stream);
