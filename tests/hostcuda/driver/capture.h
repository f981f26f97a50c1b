/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: which streams capture, and which calls are forbidden meanwhile. The caller holds
 * the lock. */
#pragma once

#include "driver/stream.h"

struct hc_event;
struct hc_graph;
struct hc_node;

/* Checks a call that is unsafe in a capture: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture
 * forbids it, which then is spoilt. */
CUresult hc_capture_check_unsafe(void);

/* Checks a call that waits for, or asks about, the whole context: any capture in the context
 * forbids it. */
CUresult hc_capture_check_context(struct hc_ctx *ctx);

/* Checks work on a stream, or a question about it: the NULL stream is forbidden while a blocking
 * stream captures. `harmless` leaves the captures unspoilt. */
CUresult hc_capture_check_implicit(const struct hc_stream *stream, bool harmless);

/* Checks a question about, or a wait for, one stream. */
CUresult hc_capture_check_stream(struct hc_stream *stream);

/* Adds work to the graph of a capturing stream. */
CUresult hc_capture_add(struct hc_stream *stream, const struct hc_work *work);

/* Record an event on a capturing stream; let a stream wait for such an event. */
CUresult hc_capture_record(struct hc_stream *stream, struct hc_event *event);
CUresult hc_capture_wait(struct hc_stream *stream, struct hc_event *event);

/* Ends the capture of a stream that is destroyed or whose context is. */
void hc_capture_abandon(struct hc_stream *stream);
