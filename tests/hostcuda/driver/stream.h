/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and the order that they impose. The caller holds the lock. */
#pragma once

#include "driver/clock.h"
#include "driver/op.h"

struct hc_capture;

enum hc_stream_kind { HC_STREAM_NULL, HC_STREAM_THREAD, HC_STREAM_CREATED };

struct hc_stream {
    enum hc_stream_kind kind;
    struct hc_ctx *ctx;
    unsigned flags;
    int priority;
    unsigned long long id;
    bool is_destroyed;          /* kept until its work is done */
    struct hc_op *tail;         /* its latest operation, or NULL */
    struct hc_capture *capture; /* not NULL while it captures */
    struct hc_clock clock;      /* of its latest operation */
    unsigned slot;              /* in vector clocks */
    uint64_t tick;              /* operations so far */
    size_t lingering_bytes;     /* hc_memory_linger */
    struct hc_stream *next;     /* in the context's list */
};

/* Returns the stream that a handle names for the calling thread; CU_STREAM_LEGACY and
 * CU_STREAM_PER_THREAD name those of the current context. */
CUresult hc_stream_of(CUstream handle, struct hc_stream **stream);

struct hc_stream *hc_stream_create(struct hc_ctx *ctx, enum hc_stream_kind kind, unsigned flags,
                                   int priority);
/* Invalidates the handle; the stream's work goes on. */
void hc_stream_destroy(struct hc_stream *stream);

/* Frees the streams of a context that has no work left. */
void hc_stream_drop_all(struct hc_ctx *ctx);

/* True for the NULL stream's partners: all but those made with CU_STREAM_NON_BLOCKING. */
static inline bool hc_stream_is_blocking(const struct hc_stream *stream)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Submits work to a stream, or adds it to the graph that the stream captures. *out, unless out is
 * NULL, becomes a reference to the operation, or NULL when it was captured. */
CUresult hc_stream_submit(struct hc_stream *stream, const struct hc_work *work, struct hc_op **out);

/* As hc_stream_submit, for a stream that does not capture. */
CUresult hc_stream_enqueue(struct hc_stream *stream, const struct hc_work *work,
                           struct hc_op **out);

/* Makes the stream's later work wait for an operation of another stream. */
CUresult hc_stream_wait(struct hc_stream *stream, struct hc_op *op, const struct hc_clock *clock);

/* True if all work given to the stream is done; for the NULL stream also that of its partners. */
bool hc_stream_is_idle(const struct hc_stream *stream);

/* Returns an operation that is done when all work given so far to the context, its green contexts
 * and its destroyed streams is. It is in no stream and delays none. Its clock is joined into
 * *clock. */
struct hc_op *hc_stream_fence(struct hc_ctx *ctx, struct hc_clock *clock);

/* Makes all later work of the context and its green contexts wait for an operation. */
void hc_stream_hold_context(struct hc_ctx *ctx, struct hc_op *op, const struct hc_clock *clock);

/* Wait for all work given so far to the context, or to the stream. */
void hc_stream_wait_all(struct hc_ctx *ctx);
void hc_stream_synchronize(struct hc_stream *stream);
