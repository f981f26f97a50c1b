/* SPDX-License-Identifier: Apache-2.0 */
/* Events and their entry points. */
#include "driver/event.h"

#include "driver/call.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/event_page.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/race.h"
#include "driver/request.h"
#include "driver/stream.h"
#include "hostcuda.h"

#include <stdlib.h>
#include <string.h>

static struct hc_event *events;
static unsigned live_count;
static struct hc_event *unused; /* a new event gets the handle of the latest destroyed one */

CUresult hc_event_of(CUevent handle, struct hc_event **event)
{
    if (!hc_handle_is(handle, HC_HANDLE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    *event = (struct hc_event *)handle;
    return hc_ctx_error((*event)->ctx);
}

static void clear(struct hc_event *event)
{
    hc_op_unref(event->op);
    event->op = NULL;
    hc_clock_clear(&event->clock);
    free(event->tips);
    event->tips = NULL;
    event->tip_count = 0;
    event->session_id = 0;
    event->request_id = 0;
}

void hc_event_set(struct hc_event *event, struct hc_op *op, const struct hc_clock *clock)
{
    clear(event);
    event->op = op;
    hc_clock_join(&event->clock, clock);
}

CUresult hc_event_capture(struct hc_event *event, unsigned long long session_id,
                          struct hc_node *const *tips, unsigned tip_count)
{
    struct hc_node **copy = malloc((tip_count + 1) * sizeof(*copy));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (tip_count)
        memcpy(copy, tips, tip_count * sizeof(*copy));
    clear(event);
    event->tips = copy;
    event->tip_count = tip_count;
    event->session_id = session_id;
    return CUDA_SUCCESS;
}

void hc_event_forget_session(unsigned long long session_id)
{
    for (struct hc_event *event = events; event; event = event->next) {
        if (event->session_id != session_id)
            continue;
        free(event->tips);
        event->tips = NULL;
        event->tip_count = 0;
    }
}

struct hc_event *hc_event_new(struct hc_ctx *ctx, unsigned flags)
{
    struct hc_event *event = unused;
    if (event)
        unused = event->next;
    else if (!(event = malloc(sizeof(*event))))
        return NULL;
    *event = (struct hc_event){.ctx = ctx, .flags = flags, .next = events, .link = &events};
    if (events)
        events->link = &event->next;
    events = event;
    live_count++;
    hc_handle_add(event, HC_HANDLE_EVENT);
    return event;
}

HC_API CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    HC_ENTER(cuEventCreate);
    HC_LOCKED();
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!out || (flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_event_page *page = NULL;
    if ((flags & CU_EVENT_INTERPROCESS) && !(page = hc_event_page_create()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct hc_event *event = hc_event_new(ctx, flags);
    if (!event) {
        hc_event_page_leave(page);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->page = page;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

static void release(struct hc_event *event)
{
    hc_handle_remove(event);
    clear(event);
    hc_event_page_leave(event->page);
    *event->link = event->next;
    if (event->next)
        event->next->link = event->link;
    event->next = unused;
    unused = event;
    live_count--;
}

void hc_event_drop_all(const struct hc_ctx *ctx)
{
    for (struct hc_event *event = events, *next; event; event = next) {
        next = event->next;
        if (event->ctx == ctx)
            release(event);
    }
}

static CUresult destroy(CUevent handle)
{
    HC_LOCKED();
    struct hc_event *event;
    if (hc_event_of(handle, &event) == CUDA_ERROR_INVALID_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    release(event);
    return CUDA_SUCCESS;
}

HC_API CUresult cuEventDestroy(CUevent event)
{
    HC_ENTER(cuEventDestroy);
    return destroy(event);
}

HC_API CUresult cuEventDestroy_v2(CUevent event)
{
    HC_ENTER(cuEventDestroy_v2);
    return destroy(event);
}

static CUresult record(CUevent event_handle, CUstream stream_handle)
{
    HC_LOCKED();
    struct hc_event *event;
    struct hc_stream *stream;
    CUresult result = hc_event_of(event_handle, &event);
    if (!result)
        result = hc_stream_of(stream_handle, &stream);
    if (result)
        return result;
    if (event->ctx->owner != stream->ctx->owner)
        return CUDA_ERROR_INVALID_HANDLE;
    result = hc_capture_check_implicit(stream, false);
    if (result)
        return result;
    if (stream->capture)
        return hc_capture_record(stream, event);
    struct hc_work work;
    struct hc_op *op;
    if (event->page)
        hc_event_page_record(event->page, &work);
    result = hc_stream_enqueue(stream, event->page ? &work : NULL, &op);
    if (!result)
        hc_event_set(event, op, &stream->clock);
    return result;
}

HC_PAIR(cuEventRecord, _ptsz, (CUevent event, CUstream stream), record(event, HC_STREAM(stream)));

static CUresult record_with_flags(CUevent event, CUstream stream, unsigned flags)
{
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return flags ? CUDA_ERROR_NOT_SUPPORTED : record(event, stream);
}

HC_PAIR(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned int flags),
        record_with_flags(event, HC_STREAM(stream), flags));

CUresult hc_event_record_context(struct hc_event *event, struct hc_ctx *ctx)
{
    if (event->ctx->owner != ctx->owner)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = hc_capture_check_context(ctx);
    if (result)
        return result;
    struct hc_clock clock = {0};
    struct hc_op *fence = hc_stream_fence(ctx, &clock);
    hc_event_set(event, fence, &clock);
    event->request_id = hc_request_id();
    hc_clock_clear(&clock);
    return CUDA_SUCCESS;
}

HC_API CUresult cuCtxRecordEvent(CUcontext ctx_handle, CUevent event_handle)
{
    HC_ENTER(cuCtxRecordEvent);
    HC_LOCKED();
    struct hc_ctx *ctx;
    struct hc_event *event;
    CUresult result = hc_ctx_of(ctx_handle, &ctx);
    if (!result)
        result = hc_event_of(event_handle, &event);
    return result ? result : hc_event_record_context(event, ctx);
}

CUresult hc_event_wait_context(struct hc_event *event, struct hc_ctx *ctx)
{
    CUresult result = hc_capture_check_context(ctx);
    if (!result && event->session_id)
        result = CUDA_ERROR_CAPTURED_EVENT;
    if (!result && event->op)
        hc_stream_hold_context(ctx, event->op, &event->clock);
    return result;
}

HC_API CUresult cuCtxWaitEvent(CUcontext ctx_handle, CUevent event_handle)
{
    HC_ENTER(cuCtxWaitEvent);
    HC_LOCKED();
    struct hc_ctx *ctx;
    struct hc_event *event;
    CUresult result = hc_ctx_of(ctx_handle, &ctx);
    if (!result)
        result = hc_event_of(event_handle, &event);
    return result ? result : hc_event_wait_context(event, ctx);
}

/* What forbids to ask about the event. */
static CUresult check(const struct hc_event *event)
{
    CUresult result = hc_capture_check_unsafe();
    return !result && event->session_id ? CUDA_ERROR_CAPTURED_EVENT : result;
}

HC_API CUresult cuEventQuery(CUevent handle)
{
    HC_ENTER(cuEventQuery);
    HC_LOCKED();
    struct hc_event *event;
    CUresult result = hc_event_of(handle, &event);
    if (!result)
        result = check(event);
    if (result)
        return result;
    if ((event->op && !event->op->done) || (event->page && !hc_event_page_is_done(event->page)))
        return CUDA_ERROR_NOT_READY;
    hc_race_host_knows(&event->clock);
    if (event->request_id && event->request_id == hc_request_id())
        hc_request_saw_idle(event->ctx);
    return CUDA_SUCCESS;
}

HC_API CUresult cuEventSynchronize(CUevent handle)
{
    HC_ENTER(cuEventSynchronize);
    HC_LOCKED();
    struct hc_event *event;
    CUresult result = hc_event_of(handle, &event);
    if (!result)
        result = check(event);
    if (result)
        return result;
    /* The event may be recorded again or destroyed meanwhile: what counts is its meaning now. */
    struct hc_ctx *ctx = event->ctx;
    struct hc_clock clock = {0};
    hc_clock_join(&clock, &event->clock);
    struct hc_op *op = event->page ? hc_event_page_op(event->page, ctx) : hc_op_ref(event->op);
    hc_op_wait(op);
    hc_op_unref(op);
    hc_race_host_knows(&clock);
    hc_clock_clear(&clock);
    hc_memory_settle(ctx);
    return hc_ctx_error(ctx);
}

static CUresult elapsed(float *milliseconds, CUevent first_handle, CUevent last_handle)
{
    HC_LOCKED();
    struct hc_event *first, *last;
    CUresult result = hc_event_of(first_handle, &first);
    if (!result)
        result = hc_event_of(last_handle, &last);
    if (result)
        return result;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!first->op || !last->op || ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!first->op->done || !last->op->done)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(last->op->done_ns - first->op->done_ns) / 1e6);
    return CUDA_SUCCESS;
}

HC_API CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last)
{
    HC_ENTER(cuEventElapsedTime);
    return elapsed(milliseconds, first, last);
}

HC_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent last)
{
    HC_ENTER(cuEventElapsedTime_v2);
    return elapsed(milliseconds, first, last);
}

static CUresult wait(CUstream stream_handle, CUevent event_handle, unsigned flags)
{
    HC_LOCKED();
    struct hc_event *event;
    struct hc_stream *stream;
    CUresult result = hc_stream_of(stream_handle, &stream);
    if (!result)
        result = hc_event_of(event_handle, &event);
    if (result)
        return result;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (event->session_id || stream->capture)
        return hc_capture_wait(stream, event);
    result = hc_capture_check_implicit(stream, false);
    struct hc_work work;
    if (!result && event->page) {
        hc_event_page_wait(event->page, &work);
        result = hc_stream_enqueue(stream, &work, NULL);
    }
    if (result || !event->op)
        return result;
    return hc_stream_wait(stream, event->op, &event->clock);
}

HC_PAIR(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned int flags),
        wait(HC_STREAM(stream), event, flags));

HC_API unsigned hostcuda_live_events(void)
{
    HC_LOCKED();
    return live_count;
}
