/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/stream.h"

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/race.h"
#include "driver/request.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

/* A thread's own stream in one context. */
struct own_stream {
    struct hc_ctx *ctx;
    unsigned long long ctx_id;
    struct hc_stream *stream;
    struct own_stream *next;
};

static __thread struct own_stream *own_streams;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static unsigned long long last_id;
static struct hc_stream *unused; /* a new stream gets the handle of the latest destroyed one */

static bool is_alive(const struct own_stream *own)
{
    return own->ctx->is_active && own->ctx->id == own->ctx_id;
}

/* The thread exits: its streams go, their work stays. */
static void thread_exits(void *list)
{
    HC_LOCKED();
    for (struct own_stream *own = list, *next; own; own = next) {
        next = own->next;
        if (is_alive(own))
            hc_stream_destroy(own->stream);
        free(own);
    }
    own_streams = NULL;
}

static void make_exit_key(void)
{
    if (pthread_key_create(&exit_key, thread_exits))
        abort();
}

static struct hc_stream *own_stream_in(struct hc_ctx *ctx)
{
    struct own_stream **link = &own_streams;
    while (*link) {
        struct own_stream *own = *link;
        if (!is_alive(own)) {
            *link = own->next;
            free(own);
        } else if (own->ctx == ctx) {
            return own->stream;
        } else {
            link = &own->next;
        }
    }
    struct own_stream *own = calloc(1, sizeof(*own));
    if (own)
        own->stream = hc_stream_create(ctx, HC_STREAM_THREAD, CU_STREAM_DEFAULT, 0);
    if (!own || !own->stream) {
        free(own);
        return NULL;
    }
    own->ctx = ctx;
    own->ctx_id = ctx->id;
    own->next = own_streams;
    own_streams = own;
    pthread_once(&exit_once, make_exit_key);
    pthread_setspecific(exit_key, own_streams);
    return own->stream;
}

CUresult hc_stream_of(CUstream handle, struct hc_stream **stream)
{
    if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || !handle) {
        struct hc_ctx *ctx;
        CUresult result = hc_ctx_current(&ctx);
        if (result)
            return result;
        *stream = handle == CU_STREAM_PER_THREAD ? own_stream_in(ctx) : ctx->null_stream;
        return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!hc_handle_is(handle, HC_HANDLE_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    *stream = (struct hc_stream *)handle;
    return hc_ctx_error((*stream)->ctx);
}

struct hc_stream *hc_stream_create(struct hc_ctx *ctx, enum hc_stream_kind kind, unsigned flags,
                                   int priority)
{
    struct hc_stream *stream = unused;
    if (stream)
        unused = stream->next;
    else if (!(stream = malloc(sizeof(*stream))))
        return NULL;
    *stream = (struct hc_stream){
        .kind = kind,
        .ctx = ctx,
        .flags = flags,
        .priority = priority,
        .id = ++last_id,
    };
    stream->slot = hc_race_slot_take(&stream->tick);
    /* At the end: the order of the list is the order of creation. */
    struct hc_stream **link = &ctx->streams;
    while (*link)
        link = &(*link)->next;
    *link = stream;
    if (kind == HC_STREAM_CREATED)
        hc_handle_add(stream, HC_HANDLE_STREAM);
    return stream;
}

static bool is_done(const struct hc_stream *stream)
{
    return !stream->tail || stream->tail->done;
}

/* Takes a stream out of its context's list. */
static void release(struct hc_stream **link)
{
    struct hc_stream *stream = *link;
    *link = stream->next;
    hc_race_slot_give(stream->slot, stream->tick);
    stream->ctx->owner->lingering_bytes += stream->lingering_bytes;
    stream->lingering_bytes = 0;
    hc_op_unref(stream->tail);
    hc_clock_clear(&stream->clock);
    stream->tail = NULL;
    stream->next = unused;
    unused = stream;
}

static void release_done(struct hc_ctx *ctx)
{
    for (struct hc_stream **link = &ctx->streams; *link;) {
        struct hc_stream *stream = *link;
        if (stream->is_destroyed && is_done(stream)) {
            /* Whoever waits for the context waits for its work, done or not. */
            hc_clock_join(&ctx->gone_clock, &stream->clock);
            if (hc_stream_is_blocking(stream))
                hc_clock_join(&ctx->gone_blocking_clock, &stream->clock);
            release(link);
        } else {
            link = &stream->next;
        }
    }
}

void hc_stream_destroy(struct hc_stream *stream)
{
    hc_capture_abandon(stream);
    hc_handle_remove(stream);
    stream->is_destroyed = true;
    release_done(stream->ctx);
}

void hc_stream_drop_all(struct hc_ctx *ctx)
{
    while (ctx->streams) {
        hc_capture_abandon(ctx->streams);
        hc_handle_remove(ctx->streams);
        release(&ctx->streams);
    }
    ctx->null_stream = NULL;
    hc_op_unref(ctx->gate);
    ctx->gate = NULL;
    hc_clock_clear(&ctx->gate_clock);
    hc_clock_clear(&ctx->gone_clock);
    hc_clock_clear(&ctx->gone_blocking_clock);
}

/* Puts an operation after all that is in the stream; the NULL stream holds its partners' work too.
 */
static void follow(const struct hc_stream *stream, struct hc_op *op, struct hc_clock *clock)
{
    hc_op_after(op, stream->tail);
    hc_clock_join(clock, &stream->clock);
    if (stream->kind != HC_STREAM_NULL)
        return;
    hc_clock_join(clock, &stream->ctx->gone_blocking_clock);
    for (const struct hc_stream *other = stream->ctx->streams; other; other = other->next) {
        if (other == stream || !hc_stream_is_blocking(other))
            continue;
        hc_op_after(op, other->tail);
        hc_clock_join(clock, &other->clock);
    }
}

/* Puts an operation that will be the stream's latest after all that it must come after. */
static void order(struct hc_stream *stream, struct hc_op *op)
{
    const struct hc_stream *null_stream = stream->ctx->null_stream;
    follow(stream, op, &stream->clock);
    if (stream->kind != HC_STREAM_NULL && hc_stream_is_blocking(stream)) {
        hc_op_after(op, null_stream->tail);
        hc_clock_join(&stream->clock, &null_stream->clock);
    }
    hc_op_after(op, stream->ctx->gate);
    hc_clock_join(&stream->clock, &stream->ctx->gate_clock);
    hc_clock_join(&stream->clock, &hc_host_clock);
}

static void append(struct hc_stream *stream, struct hc_op *op)
{
    op->stream = stream;
    if (op->work.tells_host)
        hc_clock_join(&op->clock, &stream->clock);
    hc_race_tick(stream, &op->work);
    hc_op_unref(stream->tail);
    stream->tail = hc_op_ref(op);
    hc_op_start(op);
}

static CUresult enqueue_after(struct hc_stream *stream, const struct hc_work *work,
                              struct hc_op *earlier, const struct hc_clock *clock,
                              struct hc_op **out)
{
    struct hc_op *op = hc_op_new(stream->ctx, work);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    release_done(stream->ctx);
    order(stream, op);
    hc_op_after(op, earlier);
    if (clock)
        hc_clock_join(&stream->clock, clock);
    append(stream, op);
    if (out)
        *out = op;
    else
        hc_op_unref(op);
    return CUDA_SUCCESS;
}

CUresult hc_stream_enqueue(struct hc_stream *stream, const struct hc_work *work, struct hc_op **out)
{
    return enqueue_after(stream, work, NULL, NULL, out);
}

CUresult hc_stream_submit(struct hc_stream *stream, const struct hc_work *work, struct hc_op **out)
{
    if (out)
        *out = NULL;
    CUresult result = hc_capture_check_implicit(stream, false);
    if (!result && stream->capture)
        return hc_capture_add(stream, work);
    return result ? result : enqueue_after(stream, work, NULL, NULL, out);
}

CUresult hc_stream_wait(struct hc_stream *stream, struct hc_op *op, const struct hc_clock *clock)
{
    return enqueue_after(stream, NULL, op, clock, NULL);
}

/* Without an operation of its own: a program that polls would leave thousands. */
bool hc_stream_is_idle(const struct hc_stream *stream)
{
    bool has_partners = stream->kind == HC_STREAM_NULL;
    struct hc_clock clock = {0};
    bool is_idle = is_done(stream);
    hc_clock_join(&clock, &stream->clock);
    if (has_partners)
        hc_clock_join(&clock, &stream->ctx->gone_blocking_clock);
    for (const struct hc_stream *other = has_partners ? stream->ctx->streams : NULL; other;
         other = other->next) {
        if (other == stream || !hc_stream_is_blocking(other))
            continue;
        is_idle &= is_done(other);
        hc_clock_join(&clock, &other->clock);
    }
    if (is_idle) {
        hc_race_host_knows(&clock);
        hc_request_saw_stream_idle(stream);
    }
    hc_clock_clear(&clock);
    return is_idle;
}

static void fence_streams(struct hc_ctx *ctx, struct hc_op *op, struct hc_clock *clock)
{
    release_done(ctx);
    hc_clock_join(clock, &ctx->gone_clock);
    for (struct hc_stream *stream = ctx->streams; stream; stream = stream->next) {
        hc_op_after(op, stream->tail);
        hc_clock_join(clock, &stream->clock);
    }
}

struct hc_op *hc_stream_fence(struct hc_ctx *ctx, struct hc_clock *clock)
{
    struct hc_op *op = hc_op_new(ctx, NULL);
    if (!op)
        abort();
    hc_clock_join(clock, &hc_host_clock);
    fence_streams(ctx, op, clock);
    for (struct hc_ctx *green = ctx->greens; green; green = green->next)
        fence_streams(green, op, clock);
    hc_op_start(op);
    return op;
}

static void hold(struct hc_ctx *ctx, struct hc_op *op, const struct hc_clock *clock)
{
    struct hc_op *gate = hc_op_new(ctx, NULL);
    if (!gate)
        abort();
    hc_op_after(gate, ctx->gate);
    hc_op_after(gate, op);
    hc_op_unref(ctx->gate);
    ctx->gate = gate;
    hc_clock_join(&ctx->gate_clock, clock);
    hc_op_start(gate);
}

void hc_stream_hold_context(struct hc_ctx *ctx, struct hc_op *op, const struct hc_clock *clock)
{
    hold(ctx, op, clock);
    for (struct hc_ctx *green = ctx->greens; green; green = green->next)
        hold(green, op, clock);
}

void hc_stream_wait_all(struct hc_ctx *ctx)
{
    struct hc_clock clock = {0};
    struct hc_op *fence = hc_stream_fence(ctx, &clock);
    hc_op_wait(fence);
    hc_op_unref(fence);
    hc_race_host_knows(&clock);
    hc_clock_clear(&clock);
}

void hc_stream_synchronize(struct hc_stream *stream)
{
    /* Another thread may destroy the stream meanwhile: the fence keeps what is needed. */
    struct hc_clock clock = {0};
    struct hc_op *fence = hc_op_new(stream->ctx, NULL);
    if (!fence)
        abort();
    follow(stream, fence, &clock);
    fence->stream_id = stream->id;
    hc_op_start(fence);
    hc_op_wait(fence);
    hc_op_unref(fence);
    hc_race_host_knows(&clock);
    hc_clock_clear(&clock);
}
