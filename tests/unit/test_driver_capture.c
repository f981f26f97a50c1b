/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/capture.h"

#include "driver/driver.h"
#include "host_memory.h"
#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- a driver of streams: their addresses are their handles ---- */

struct fake_stream {
    CUcontext context, owner;
    CUgreenCtx green;
    _Atomic bool captures, is_dead;
};

static char contexts[4], greens[2];

#define CONTEXT(n) ((CUcontext)(void *)&contexts[n])
#define GREEN(n)   ((CUgreenCtx)(void *)&greens[n])
#define STREAM(s)  ((CUstream)(void *)&(s))

enum { PRIMARY, OTHER, GREEN_CONTEXT };

static struct {
    _Atomic unsigned asked, wrong_calls;
    CUcontext dead, reborn;
    bool forgets_contexts;
} device;

static __thread CUcontext current, pushed_over;
static __thread CUstreamCaptureMode thread_mode;

static struct fake_stream *stream_of(CUstream handle)
{
    struct fake_stream *stream = (struct fake_stream *)(void *)handle;

    device.wrong_calls += thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    device.wrong_calls += stream->is_dead;
    return stream;
}

static CUresult fake_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult fake_id(CUcontext context, unsigned long long *id)
{
    *id = 1 + (context == device.reborn);
    return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
    if (context == device.dead)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pushed_over = current;
    current = context;
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    *context = current;
    current = pushed_over;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = thread_mode;

    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult fake_get_context(CUstream stream, CUcontext *context)
{
    if (device.forgets_contexts)
        return CUDA_ERROR_NOT_SUPPORTED;
    *context = stream == CU_STREAM_PER_THREAD ? current : stream_of(stream)->context;
    return CUDA_SUCCESS;
}

static CUresult fake_get_contexts(CUstream stream, CUcontext *owner, CUgreenCtx *green)
{
    *owner = stream == CU_STREAM_PER_THREAD ? current : stream_of(stream)->owner;
    *green = stream == CU_STREAM_PER_THREAD ? NULL : stream_of(stream)->green;
    return CUDA_SUCCESS;
}

static CUresult fake_is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    bool captures = stream == CU_STREAM_PER_THREAD || stream_of(stream)->captures;

    device.asked++;
    if (stream != CU_STREAM_PER_THREAD)
        device.wrong_calls += current != stream_of(stream)->context;
    *status = captures ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static int start(void **state)
{
    (void)state;
    device.asked = device.wrong_calls = 0;
    device.dead = device.reborn = NULL;
    device.forgets_contexts = false;
    host_left = -1;
    current = CONTEXT(PRIMARY);
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = fake_current,
        .cuCtxGetId = fake_id,
        .cuCtxPushCurrent_v2 = fake_push,
        .cuCtxPopCurrent_v2 = fake_pop,
        .cuThreadExchangeStreamCaptureMode = fake_exchange_mode,
        .cuStreamGetCtx = fake_get_context,
        .cuStreamGetCtx_v2 = fake_get_contexts,
        .cuStreamIsCapturing = fake_is_capturing,
    };
    atomic_store(&rs_driver_is_ready, true);
    return 0;
}

/* Each test leaves every gate open. */
static int end(void **state)
{
    (void)state;
    assert_false(rs_capture_is_any());
    assert_int_equal(device.wrong_calls, 0);
    assert_ptr_equal(current, CONTEXT(PRIMARY));
    return 0;
}

FIXTURE(start, end);

static struct fake_stream stream_in(unsigned context)
{
    return (struct fake_stream){CONTEXT(context), CONTEXT(context), NULL, false, false};
}

static struct fake_stream stream_in_green(unsigned green)
{
    return (struct fake_stream){CONTEXT(GREEN_CONTEXT), CONTEXT(PRIMARY), GREEN(green), false,
                                false};
}

static void begin(struct fake_stream *stream)
{
    struct rs_capture_stream origin = rs_capture_origin(STREAM(*stream), false);

    rs_capture_begin_enter();
    stream->captures = true;
    rs_capture_begin_leave(origin, true);
}

static void end_capture(struct fake_stream *stream)
{
    stream->captures = false;
    rs_capture_ended(rs_capture_stream(STREAM(*stream), false));
}

static bool is_open(unsigned context)
{
    bool passed = rs_capture_gate_enter(CONTEXT(context));

    if (passed)
        rs_capture_gate_leave();
    return passed;
}

static struct rs_capture_end destruction_of(struct fake_stream *stream)
{
    return rs_capture_end_begin(rs_capture_stream(STREAM(*stream), false));
}

static struct rs_capture_end end_of_context(unsigned context)
{
    return rs_capture_end_begin((struct rs_capture_stream){.context = CONTEXT(context)});
}

/* ---- whose gate is shut ---- */

TEST(a_capture_shuts_the_gate_of_its_context_alone)
{
    struct fake_stream a = stream_in(PRIMARY), b = stream_in(OTHER);

    begin(&b);
    assert_true(is_open(PRIMARY));
    assert_false(is_open(OTHER));
    begin(&a);
    assert_false(is_open(PRIMARY));
    end_capture(&b);
    assert_true(is_open(OTHER));
    assert_false(is_open(PRIMARY));
    end_capture(&a);
    assert_true(is_open(PRIMARY));
}

TEST(a_green_contexts_capture_shuts_the_primarys_too)
{
    struct fake_stream stream = stream_in_green(0);

    begin(&stream);
    assert_false(is_open(PRIMARY));
    assert_false(is_open(GREEN_CONTEXT));
    assert_true(is_open(OTHER));
    end_capture(&stream);
}

TEST(a_capture_of_an_unknown_context_shuts_every_gate)
{
    struct fake_stream stream = stream_in(PRIMARY);

    device.forgets_contexts = true;
    begin(&stream);
    assert_false(is_open(PRIMARY));
    assert_false(is_open(OTHER));
    rs_capture_review(NULL); /* it may have died with its context: nobody asks */
    assert_int_equal(device.asked, 0);
    end_capture(&stream);
}

static void begin_per_thread(void)
{
    struct rs_capture_stream origin = rs_capture_origin(NULL, true);

    rs_capture_begin_enter();
    rs_capture_begin_leave(origin, true);
}

static void *review_elsewhere(void *unused)
{
    rs_capture_review(NULL);
    return unused;
}

/* One thread has a per-thread stream in each context, and nobody else can ask about them. */
TEST(per_thread_streams_are_told_apart_by_context)
{
    pthread_t thread;

    begin_per_thread();
    current = CONTEXT(OTHER);
    begin_per_thread();
    assert_int_equal(pthread_create(&thread, NULL, review_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(device.asked, 0);
    rs_capture_review(NULL);
    assert_int_equal(device.asked, 2);
    rs_capture_ended(rs_capture_stream(NULL, true));
    assert_true(is_open(OTHER));
    assert_false(is_open(PRIMARY));
    current = CONTEXT(PRIMARY);
    rs_capture_ended(rs_capture_stream(CU_STREAM_PER_THREAD, false));
}

/* ---- captures that go with something ---- */

TEST(a_capture_goes_with_its_stream)
{
    struct fake_stream stream = stream_in(PRIMARY);
    struct rs_capture_end ending;

    begin(&stream);
    ending = destruction_of(&stream);
    rs_capture_end_finish(ending, false); /* the driver refused */
    assert_false(is_open(PRIMARY));
    rs_capture_end_finish(destruction_of(&stream), true);
    assert_true(is_open(PRIMARY));
}

/* A new stream gets the handle, and captures, before the destroying thread is back. */
TEST(a_handle_that_comes_back_captures_on)
{
    struct fake_stream stream = stream_in(PRIMARY);
    struct rs_capture_end ending;

    begin(&stream);
    ending = destruction_of(&stream);
    begin(&stream);
    rs_capture_end_finish(ending, true);
    assert_false(is_open(PRIMARY));
    end_capture(&stream);
    assert_true(is_open(PRIMARY));
}

TEST(captures_go_with_their_context)
{
    struct fake_stream a = stream_in(OTHER), b = stream_in(OTHER), c = stream_in(PRIMARY);
    struct rs_capture_end ending;

    begin(&a);
    begin(&c);
    begin(&b);
    rs_capture_end_finish(end_of_context(OTHER), false);
    assert_false(is_open(OTHER));
    ending = end_of_context(OTHER);
    rs_capture_end_finish(ending, true);
    assert_true(is_open(OTHER));
    assert_false(is_open(PRIMARY));
    rs_capture_end_finish(end_of_context(PRIMARY), true);
}

TEST(captures_go_with_their_green_context_and_its_primary)
{
    struct fake_stream a = stream_in_green(0), b = stream_in_green(1);

    begin(&a);
    begin(&b);
    rs_capture_end_finish(rs_capture_end_begin((struct rs_capture_stream){.green = GREEN(0)}),
                          true);
    assert_false(is_open(PRIMARY));
    rs_capture_end_finish(end_of_context(PRIMARY), true);
    assert_true(is_open(PRIMARY));
}

/* ---- review ---- */

TEST(a_review_finds_captures_that_ended_unseen)
{
    struct fake_stream a = stream_in(PRIMARY), b = stream_in(PRIMARY), c = stream_in(OTHER);

    begin(&a);
    begin(&b);
    begin(&c);
    rs_capture_review(CONTEXT(PRIMARY));
    assert_int_equal(device.asked, 2);
    a.captures = b.captures = c.captures = false;
    rs_capture_review(CONTEXT(PRIMARY));
    assert_true(is_open(PRIMARY));
    assert_false(is_open(OTHER));
    rs_capture_review(NULL);
}

TEST(a_review_asks_no_stream_that_is_about_to_die)
{
    struct fake_stream a = stream_in(PRIMARY), b = stream_in(OTHER);
    struct rs_capture_end first, second;

    begin(&a);
    begin(&b);
    first = destruction_of(&a);
    second = end_of_context(OTHER);
    a.is_dead = b.is_dead = true;
    rs_capture_review(NULL);
    assert_int_equal(device.asked, 0);
    rs_capture_end_finish(first, true);
    rs_capture_end_finish(second, false);
    b.is_dead = false;
    rs_capture_review(NULL);
    assert_int_equal(device.asked, 1);
    end_capture(&b);
}

TEST(a_context_that_ended_unseen_captures_no_more)
{
    struct fake_stream stream = stream_in(OTHER);

    begin(&stream);
    device.dead = CONTEXT(OTHER);
    rs_capture_review(CONTEXT(OTHER));
    assert_int_equal(device.asked, 0);
}

/* As a primary context does; another stream may have the handle, or none. */
TEST(a_context_that_came_back_captures_no_more)
{
    struct fake_stream stream = stream_in(PRIMARY);

    begin(&stream);
    device.reborn = CONTEXT(PRIMARY);
    stream.is_dead = true;
    rs_capture_review(CONTEXT(PRIMARY));
    assert_int_equal(device.asked, 0);
    assert_true(is_open(PRIMARY));
}

TEST(a_gate_that_stays_shut_is_reviewed)
{
    struct fake_stream stream = stream_in(PRIMARY);
    unsigned shut = 0;

    begin(&stream);
    stream.captures = false;
    while (shut < 100 && !is_open(PRIMARY))
        shut++;
    assert_in_range(shut, 0, 15);
}

TEST(a_review_does_not_wait)
{
    struct fake_stream a = stream_in(PRIMARY), b = stream_in(PRIMARY);

    begin(&a);
    rs_capture_begin_enter();
    rs_capture_review(NULL);
    assert_int_equal(device.asked, 0);
    rs_capture_begin_leave(rs_capture_stream(STREAM(b), false), false);
    end_capture(&a);
}

/* ---- many ---- */

TEST(any_number_may_capture)
{
    enum { MANY = 2000 };
    struct fake_stream *streams = calloc(MANY, sizeof(*streams));

    assert_non_null(streams);
    for (unsigned i = 0; i < MANY; i++) {
        streams[i] = stream_in(PRIMARY);
        begin(&streams[i]);
    }
    for (unsigned i = 0; i < MANY; i++) {
        assert_false(is_open(PRIMARY));
        end_capture(&streams[i]);
    }
    assert_true(is_open(PRIMARY));
    assert_false(rs_capture_is_distrusted());
    free(streams);
}

/* Streams come, capture and go, their handles come back at once, and somebody asks all the while:
 * never about a dead one, and no gate is open that should be shut. */
static void *capture_again_and_again(void *data)
{
    struct fake_stream *stream = data;
    struct rs_capture_end ending;

    current = CONTEXT(PRIMARY);
    for (unsigned i = 0; i < 2000; i++) {
        stream->is_dead = false;
        begin(stream);
        device.wrong_calls += is_open(PRIMARY);
        if (i % 2) {
            end_capture(stream);
            continue;
        }
        ending = destruction_of(stream);
        stream->is_dead = true;
        rs_capture_end_finish(ending, true);
    }
    return NULL;
}

static _Atomic bool is_over;

static void *review_all_the_while(void *unused)
{
    current = CONTEXT(PRIMARY);
    while (!is_over) {
        rs_capture_review(NULL);
        (void)is_open(PRIMARY);
    }
    return unused;
}

TEST(threads_capture_side_by_side)
{
    struct fake_stream streams[3] = {stream_in(PRIMARY), stream_in(PRIMARY), stream_in(PRIMARY)};
    pthread_t threads[3], reviewer;

    is_over = false;
    assert_int_equal(pthread_create(&reviewer, NULL, review_all_the_while, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, capture_again_and_again, &streams[i]),
                         0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    is_over = true;
    assert_int_equal(pthread_join(reviewer, NULL), 0);
}

/* The last: there is no way back. */
TEST(without_memory_to_note_it_a_capture_is_distrusted)
{
    enum { MANY = 5000 };
    struct fake_stream *streams = calloc(MANY, sizeof(*streams));

    assert_non_null(streams);
    host_left = 0;
    for (unsigned i = 0; i < MANY; i++) {
        streams[i] = stream_in(PRIMARY);
        begin(&streams[i]);
    }
    for (unsigned i = 0; i < MANY; i++)
        end_capture(&streams[i]);
    host_left = -1;
    assert_true(rs_capture_is_distrusted());
    assert_false(is_open(PRIMARY));
    free(streams);
}
