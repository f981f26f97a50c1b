/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about streams, events, waiting and captures. */
#include "facts.h"

#include "../unit/until.h"

#include <pthread.h>
#include <stdio.h>

static CUcontext primary;
static CUstream blocking, blocking2, free_stream;

static void streams_begin(void)
{
    primary = facts_begin();
    NEED(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    NEED(CU(cuStreamCreate)(&blocking2, CU_STREAM_DEFAULT));
    NEED(CU(cuStreamCreate)(&free_stream, CU_STREAM_NON_BLOCKING));
    /* First launches may wait for the device: get them out of the way while nothing is held. */
    CUdeviceptr words;
    facts_hold(blocking);
    facts_release();
    NEED(CU(cuMemAlloc_v2)(&words, 4));
    NEED(facts_fill(blocking, words, 1, 0));
    NEED(CU(cuCtxSynchronize)());
    NEED(CU(cuMemFree_v2)(words));
}

static CUevent event_new(void)
{
    CUevent event;
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/* Releases what is held, and waits until all is done. */
static void settle(void)
{
    facts_release();
    NEED(CU(cuCtxSynchronize)());
}

void facts_event(void)
{
    streams_begin();
    CUevent event = event_new(), timed, late;
    CUcontext other;
    CUstream others_stream;
    float ms = -1;
    SAY("bad_flags", CU(cuEventCreate)(&timed, 0x100));
    SAY("interprocess_with_timing", CU(cuEventCreate)(&timed, CU_EVENT_INTERPROCESS));
    SAY("null_out", CU(cuEventCreate)(NULL, 0));
    SAY("query_before_record", CU(cuEventQuery)(event));
    SAY("synchronize_before_record", CU(cuEventSynchronize)(event));
    SAY("wait_before_record", CU(cuStreamWaitEvent)(free_stream, event, 0));
    NEED(CU(cuEventCreate)(&timed, 0));
    NEED(CU(cuEventCreate)(&late, 0));
    SAY("elapsed_before_record", CU(cuEventElapsedTime)(&ms, timed, late));
    NEED(CU(cuEventRecord)(timed, free_stream));
    facts_hold(free_stream);
    NEED(CU(cuEventRecord)(late, free_stream));
    SAY("query_while_busy", CU(cuEventQuery)(late));
    SAY("elapsed_while_busy", CU(cuEventElapsedTime)(&ms, timed, late));
    settle();
    SAY("elapsed", CU(cuEventElapsedTime)(&ms, timed, late));
    SAY_YES("elapsed_is_positive", ms > 0);
    NEED(CU(cuEventRecord)(event, free_stream));
    NEED(CU(cuStreamSynchronize)(free_stream));
    SAY("elapsed_without_timing", CU(cuEventElapsedTime)(&ms, timed, event));
    SAY("query_when_done", CU(cuEventQuery)(event));
    facts_hold(free_stream);
    NEED(CU(cuEventRecord)(late, free_stream));
    SAY("destroy_while_busy", CU(cuEventDestroy_v2)(late));
    settle();
    NEED(CU(cuCtxCreate_v2)(&other, 0, 0));
    NEED(CU(cuStreamCreate)(&others_stream, 0));
    SAY("record_in_another_context", CU(cuEventRecord)(event, others_stream));
    NEED(CU(cuEventRecord)(event, free_stream));
    SAY("wait_in_another_context", CU(cuStreamWaitEvent)(others_stream, event, 0));
    CUresult result = CU(cuEventQuery)(event);
    SAY_YES("query_works_from_another_context", !result || result == CUDA_ERROR_NOT_READY);
    SAY("context_record_of_another", CU(cuCtxRecordEvent)(other, event));
}

static void *work_on_own_stream(void *unused)
{
    (void)unused;
    NEED(CU(cuCtxSetCurrent)(primary));
    facts_hold(CU_STREAM_PER_THREAD);
    return NULL;
}

static void hold_on_exited_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, work_on_own_stream, NULL);
    pthread_join(thread, NULL);
}

static void hold_on_destroyed(unsigned flags)
{
    CUstream gone;
    NEED(CU(cuStreamCreate)(&gone, flags));
    facts_hold(gone);
    NEED(CU(cuStreamDestroy_v2)(gone));
}

/* The event is not complete while that work is held. */
static void say_context_event(const char *name)
{
    CUevent event = event_new();
    NEED(CU(cuCtxRecordEvent)(primary, event));
    SAY(name, CU(cuEventQuery)(event));
    settle();
    NEED(CU(cuEventSynchronize)(event));
}

/* The stream's answer to a query once it is done, which it soon is if nothing holds its work. */
static CUresult answer_when_done(CUstream stream)
{
    CUresult result;
    (void)UNTIL((result = CU(cuStreamQuery)(stream)) != CUDA_ERROR_NOT_READY);
    return result;
}

/* The stream's answer while its work is expected to be held: a first other one, if one comes while
 * it is asked many times. No slow machine can make that of work that is held. */
static CUresult answer_while_held(CUstream stream)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    for (unsigned naps = 0; naps < 300 && result == CUDA_ERROR_NOT_READY; until_nap(&naps))
        result = CU(cuStreamQuery)(stream);
    return result;
}

void facts_order(void)
{
    streams_begin();
    CUevent event = event_new();
    CUdeviceptr words;
    NEED(CU(cuMemAlloc_v2)(&words, 4096));
    SAY("query_idle", CU(cuStreamQuery)(blocking));
    SAY("null_query_idle", CU(cuStreamQuery)(NULL));
    facts_hold(blocking);
    SAY("query_busy", CU(cuStreamQuery)(blocking));
    SAY("null_query_while_blocking_works", CU(cuStreamQuery)(NULL));
    SAY("other_blocking_query_meanwhile", CU(cuStreamQuery)(blocking2));
    settle();
    facts_hold(free_stream);
    SAY("null_query_while_non_blocking_works", CU(cuStreamQuery)(NULL));
    settle();
    facts_hold(CU_STREAM_PER_THREAD);
    SAY("null_query_while_own_works", CU(cuStreamQuery)(NULL));
    settle();
    hold_on_exited_thread();
    SAY("null_query_while_an_exited_threads_own_works", CU(cuStreamQuery)(NULL));
    settle();
    hold_on_destroyed(CU_STREAM_DEFAULT);
    SAY("null_query_while_destroyed_blocking_works", CU(cuStreamQuery)(NULL));
    settle();
    hold_on_destroyed(CU_STREAM_NON_BLOCKING);
    SAY("null_query_while_destroyed_non_blocking_works", CU(cuStreamQuery)(NULL));
    settle();
    facts_hold(NULL);
    SAY("blocking_query_while_null_works", CU(cuStreamQuery)(blocking));
    NEED(CU(cuEventRecord)(event, blocking));
    SAY("event_on_blocking_while_null_works", CU(cuEventQuery)(event));
    NEED(CU(cuEventRecord)(event, free_stream));
    NEED(CU(cuStreamSynchronize)(free_stream));
    SAY("event_on_non_blocking_while_null_works", CU(cuEventQuery)(event));
    settle();
    facts_hold(blocking);
    NEED(facts_fill(blocking2, words, 1, 1));
    SAY("blocking_beside_a_busy_blocking", answer_when_done(blocking2));
    NEED(CU(cuStreamQuery)(blocking2));
    NEED(CU(cuEventRecord)(event, NULL));
    NEED(facts_fill(blocking2, words, 1, 1));
    NEED(facts_fill(free_stream, words + 512, 1, 1));
    SAY("non_blocking_after_a_record_on_null", answer_when_done(free_stream));
    SAY("blocking_after_a_record_on_null", answer_while_held(blocking2));
    SAY("event_on_null_while_blocking_works", CU(cuEventQuery)(event));
    settle();
    facts_hold(blocking);
    NEED(CU(cuCtxRecordEvent)(primary, event));
    NEED(facts_fill(blocking2, words, 1, 1));
    NEED(facts_fill(free_stream, words + 512, 1, 1));
    SAY("blocking_after_a_context_event", answer_when_done(blocking2));
    SAY("non_blocking_after_a_context_event", answer_when_done(free_stream));
    settle();
    facts_hold(NULL);
    say_context_event("context_event_while_null_works");
    facts_hold(blocking);
    say_context_event("context_event_while_blocking_works");
    facts_hold(free_stream);
    say_context_event("context_event_while_non_blocking_works");
    hold_on_destroyed(CU_STREAM_DEFAULT);
    say_context_event("context_event_while_destroyed_blocking_works");
    hold_on_destroyed(CU_STREAM_NON_BLOCKING);
    say_context_event("context_event_while_destroyed_non_blocking_works");
    hold_on_exited_thread();
    say_context_event("context_event_while_an_exited_threads_own_works");
    facts_hold(free_stream);
    NEED(CU(cuEventRecord)(event, free_stream));
    NEED(CU(cuCtxWaitEvent)(primary, event));
    NEED(facts_fill(NULL, words, 1, 1));
    SAY("null_after_a_context_wait", answer_while_held(NULL));
    settle();
    NEED(CU(cuMemFree_v2)(words));
}

static CUdeviceptr block;
static void *host_block;

static CUresult call_free(void *unused)
{
    (void)unused;
    return CU(cuMemFree_v2)(block);
}

static CUresult call_free_host(void *unused)
{
    (void)unused;
    return CU(cuMemFreeHost)(host_block);
}

static CUresult call_free_async(void *stream)
{
    return CU(cuMemFreeAsync)(block, stream);
}

static CUresult call_alloc(void *unused)
{
    (void)unused;
    return CU(cuMemAlloc_v2)(&block, 3 << 20);
}

static CUresult call_synchronize(void *unused)
{
    (void)unused;
    return CU(cuCtxSynchronize)();
}

static CUresult call_stream_synchronize(void *stream)
{
    return CU(cuStreamSynchronize)(stream);
}

static CUresult call_stream_destroy(void *stream)
{
    return CU(cuStreamDestroy_v2)(stream);
}

static CUresult call_copy_in(void *unused)
{
    static char source[256];
    (void)unused;
    return CU(cuMemcpyHtoD_v2)(block, source, sizeof(source));
}

static CUresult call_copy_out(void *unused)
{
    static char target[256];
    (void)unused;
    return CU(cuMemcpyDtoH_v2)(target, block, sizeof(target));
}

static CUresult call_fill(void *unused)
{
    (void)unused;
    return CU(cuMemsetD8_v2)(block, 1, 256);
}

static void say_waits(const char *name, CUresult (*call)(void *), void *argument)
{
    CUresult result;
    bool waited = facts_waits(call, argument, &result);
    facts_say(name, "%d %s", result, waited ? "waits" : "does not wait");
    NEED(CU(cuCtxSynchronize)());
}

static void block_new(void)
{
    NEED(CU(cuMemAlloc_v2)(&block, 4096));
}

void facts_wait(void)
{
    streams_begin();
    CUcontext other;
    CUstream others_stream, spare;
    block_new(), facts_hold(NULL);
    say_waits("free_for_null", call_free, NULL);
    block_new(), facts_hold(blocking);
    say_waits("free_for_blocking", call_free, NULL);
    block_new(), facts_hold(free_stream);
    say_waits("free_for_non_blocking", call_free, NULL);
    block_new(), facts_hold(CU_STREAM_PER_THREAD);
    say_waits("free_for_own", call_free, NULL);
    block_new(), hold_on_exited_thread();
    say_waits("free_for_an_exited_threads_own", call_free, NULL);
    block_new(), hold_on_destroyed(CU_STREAM_DEFAULT);
    say_waits("free_for_destroyed_blocking", call_free, NULL);
    block_new(), hold_on_destroyed(CU_STREAM_NON_BLOCKING);
    say_waits("free_for_destroyed_non_blocking", call_free, NULL);
    NEED(CU(cuMemAllocManaged)(&block, 4096, CU_MEM_ATTACH_GLOBAL));
    facts_hold(free_stream);
    say_waits("free_of_managed", call_free, NULL);
    NEED(CU(cuMemHostAlloc)(&host_block, 4096, 0));
    facts_hold(free_stream);
    say_waits("free_of_pinned", call_free_host, NULL);
    NEED(CU(cuMemAllocAsync)(&block, 4096, NULL));
    NEED(CU(cuStreamSynchronize)(NULL));
    facts_hold(free_stream);
    say_waits("free_of_stream_ordered", call_free, NULL);
    block_new(), facts_hold(free_stream);
    say_waits("async_free_of_plain_on_another_stream", call_free_async, blocking);
    facts_hold(free_stream);
    say_waits("alloc", call_alloc, NULL);
    NEED(CU(cuMemFree_v2)(block));
    facts_hold(free_stream);
    say_waits("context_synchronize", call_synchronize, NULL);
    facts_hold(free_stream);
    say_waits("synchronize_of_another_stream", call_stream_synchronize, blocking);
    facts_hold(blocking);
    say_waits("synchronize_of_null_for_blocking", call_stream_synchronize, NULL);
    facts_hold(NULL);
    say_waits("synchronize_of_blocking_for_null", call_stream_synchronize, blocking);
    NEED(CU(cuStreamCreate)(&spare, CU_STREAM_NON_BLOCKING));
    facts_hold(spare);
    say_waits("stream_destroy", call_stream_destroy, spare);
    block_new(), facts_hold(blocking);
    say_waits("copy_in_for_blocking", call_copy_in, NULL);
    facts_hold(free_stream);
    say_waits("copy_in_for_non_blocking", call_copy_in, NULL);
    facts_hold(blocking);
    say_waits("copy_out_for_blocking", call_copy_out, NULL);
    facts_hold(blocking);
    say_waits("fill_for_blocking", call_fill, NULL);
    NEED(CU(cuCtxCreate_v2)(&other, 0, 0));
    NEED(CU(cuStreamCreate)(&others_stream, CU_STREAM_NON_BLOCKING));
    facts_hold(others_stream);
    NEED(CU(cuCtxSetCurrent)(primary));
    say_waits("free_for_another_context", call_free, NULL);
    NEED(CU(cuStreamSynchronize)(others_stream));
    NEED(CU(cuMemHostAlloc)(&host_block, 4096, 0));
    NEED(CU(cuCtxSetCurrent)(other));
    facts_hold(others_stream);
    NEED(CU(cuCtxSetCurrent)(primary));
    say_waits("free_of_pinned_for_another_context", call_free_host, NULL);
    NEED(CU(cuStreamSynchronize)(others_stream));
    NEED(CU(cuMemAllocManaged)(&block, 4096, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuCtxSetCurrent)(other));
    facts_hold(others_stream);
    NEED(CU(cuCtxSetCurrent)(primary));
    say_waits("free_of_managed_for_another_context", call_free, NULL);
    NEED(CU(cuStreamSynchronize)(others_stream));
}

/* ---- captures ---- */

static const char *const mode_names[] = {"global", "thread_local", "relaxed"};

struct calls {
    const char *name;
    CUresult (*call)(void);
};

static CUevent captured_event;
static CUdeviceptr allocated, managed_block, pool_block;
static CUmemoryPool current_pool;

static CUresult in_alloc(void)
{
    CUresult result = CU(cuMemAlloc_v2)(&allocated, 512);
    return result;
}

static CUresult in_free(void)
{
    return CU(cuMemFree_v2)(block);
}

static CUresult in_managed(void)
{
    return CU(cuMemAllocManaged)(&allocated, 512, CU_MEM_ATTACH_GLOBAL);
}

static CUresult in_advise(void)
{
    return CU(cuMemAdvise)(managed_block, 4096, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0);
}

static CUresult in_host_alloc(void)
{
    void *memory;
    return CU(cuMemHostAlloc)(&memory, 512, 0);
}

static CUresult in_info(void)
{
    size_t bytes;
    return CU(cuMemGetInfo_v2)(&bytes, &bytes);
}

static CUresult in_event_query(void)
{
    return CU(cuEventQuery)(captured_event);
}

static CUresult in_event_synchronize(void)
{
    return CU(cuEventSynchronize)(captured_event);
}

static CUresult in_event_create(void)
{
    CUevent event;
    return CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING);
}

static CUresult in_query_other(void)
{
    return CU(cuStreamQuery)(blocking2);
}

static CUresult in_synchronize_other(void)
{
    return CU(cuStreamSynchronize)(blocking2);
}

static CUresult in_null_query(void)
{
    return CU(cuStreamQuery)(NULL);
}

static CUresult in_null_record(void)
{
    return CU(cuEventRecord)(captured_event, NULL);
}

static CUresult in_null_is_capturing(void)
{
    CUstreamCaptureStatus status;
    return CU(cuStreamIsCapturing)(NULL, &status);
}

static CUresult in_context_synchronize(void)
{
    return CU(cuCtxSynchronize)();
}

/* Stream-ordered memory, on a stream that does not capture. */

static CUresult in_alloc_async(void)
{
    return CU(cuMemAllocAsync)(&allocated, 512, blocking2);
}

static CUresult in_alloc_from_pool(void)
{
    return CU(cuMemAllocFromPoolAsync)(&allocated, 512, current_pool, blocking2);
}

static CUresult in_free_async(void)
{
    CUresult result = CU(cuMemFreeAsync)(pool_block, blocking2);
    if (result == CUDA_SUCCESS)
        pool_block = 0;
    return result;
}

static CUresult in_device_pool(void)
{
    return CU(cuDeviceGetMemPool)(&current_pool, 0);
}

static CUresult in_pool_attribute(void)
{
    cuuint64_t bytes;
    return CU(cuMemPoolGetAttribute)(current_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
}

static CUresult in_pool_trim(void)
{
    return CU(cuMemPoolTrimTo)(current_pool, 0);
}

static CUresult in_context_record(void)
{
    return CU(cuCtxRecordEvent)(primary, captured_event);
}

static CUresult in_range(void)
{
    size_t bytes;
    return CU(cuMemGetAddressRange_v2)(NULL, &bytes, block);
}

static const struct calls calls[] = {
    {"alloc", in_alloc},
    {"free", in_free},
    {"managed", in_managed},
    {"advise", in_advise},
    {"host_alloc", in_host_alloc},
    {"info", in_info},
    {"range", in_range},
    {"event_query", in_event_query},
    {"event_synchronize", in_event_synchronize},
    {"event_create", in_event_create},
    {"query_of_another_stream", in_query_other},
    {"synchronize_of_another_stream", in_synchronize_other},
    {"null_query", in_null_query},
    {"null_record", in_null_record},
    {"null_is_capturing", in_null_is_capturing},
    {"context_synchronize", in_context_synchronize},
    {"context_record", in_context_record},
    {"alloc_async", in_alloc_async},
    {"alloc_from_pool", in_alloc_from_pool},
    {"free_async", in_free_async},
    {"device_pool", in_device_pool},
    {"pool_attribute", in_pool_attribute},
    {"pool_trim", in_pool_trim},
};

static void say_in_capture(const char *who, CUstream stream, CUstreamCaptureMode mode,
                           const struct calls *call)
{
    CUgraph graph = NULL;
    char name[128];
    snprintf(name, sizeof(name), "%s_%s_%s", who, mode_names[mode], call->name);
    block_new();
    if (!pool_block)
        NEED(CU(cuMemAllocAsync)(&pool_block, 512, blocking2));
    NEED(CU(cuStreamBeginCapture_v2)(stream, mode));
    CUresult result = call->call();
    CUresult end = CU(cuStreamEndCapture)(stream, &graph);
    if (graph)
        NEED(CU(cuGraphDestroy)(graph));
    facts_say(name, "%d end %d", result, end);
}

static void *call_in_thread(void *call)
{
    NEED(CU(cuCtxSetCurrent)(primary));
    return (void *)(uintptr_t)((CUresult(*)(void))(uintptr_t)call)();
}

static void say_from_another_thread(const char *name, CUstreamCaptureMode mode,
                                    CUresult (*call)(void))
{
    CUgraph graph = NULL;
    pthread_t thread;
    void *result;
    block_new();
    NEED(CU(cuStreamBeginCapture_v2)(free_stream, mode));
    pthread_create(&thread, NULL, call_in_thread, (void *)(uintptr_t)call);
    pthread_join(thread, &result);
    facts_say(name, "%d end %d", (int)(uintptr_t)result,
              CU(cuStreamEndCapture)(free_stream, &graph));
    if (graph)
        NEED(CU(cuGraphDestroy)(graph));
}

static void say_misuse(void)
{
    CUgraph graph = NULL;
    CUstreamCaptureStatus status = (CUstreamCaptureStatus)9;
    CUstream gone;
    SAY("begin_on_null", CU(cuStreamBeginCapture_v2)(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY("end_without_begin", CU(cuStreamEndCapture)(free_stream, &graph));
    NEED(CU(cuStreamBeginCapture_v2)(free_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY("begin_twice", CU(cuStreamBeginCapture_v2)(free_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY("is_capturing", CU(cuStreamIsCapturing)(free_stream, &status));
    SAY("is_capturing_status", status);
    SAY("end", CU(cuStreamEndCapture)(free_stream, &graph));
    NEED(CU(cuStreamIsCapturing)(free_stream, &status));
    SAY("is_capturing_status_after", status);
    NEED(CU(cuStreamBeginCapture_v2)(free_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    NEED(CU(cuEventRecord)(captured_event, free_stream));
    NEED(CU(cuStreamWaitEvent)(blocking, captured_event, 0));
    NEED(CU(cuStreamIsCapturing)(blocking, &status));
    SAY("forked_stream_status", status);
    NEED(facts_fill(blocking, block, 1, 1));
    SAY("end_unjoined", CU(cuStreamEndCapture)(free_stream, &graph));
    NEED(CU(cuStreamIsCapturing)(blocking, &status));
    SAY("forked_stream_status_after", status);
    NEED(CU(cuStreamCreate)(&gone, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuStreamBeginCapture_v2)(gone, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY("destroy_of_a_capturing_stream", CU(cuStreamDestroy_v2)(gone));
    SAY("context_synchronize_after_that", CU(cuCtxSynchronize)());
}

void facts_capture(void)
{
    streams_begin();
    captured_event = event_new();
    block_new();
    NEED(CU(cuMemAllocManaged)(&managed_block, 4096, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuDeviceGetMemPool)(&current_pool, 0));
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (int mode = 0; mode < 3; mode++) {
            say_in_capture("non_blocking", free_stream, (CUstreamCaptureMode)mode, &calls[i]);
            say_in_capture("blocking", blocking, (CUstreamCaptureMode)mode, &calls[i]);
        }
    }
    say_from_another_thread("other_thread_alloc_global", CU_STREAM_CAPTURE_MODE_GLOBAL, in_alloc);
    say_from_another_thread("other_thread_alloc_thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            in_alloc);
    say_from_another_thread("other_thread_alloc_relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, in_alloc);
    say_from_another_thread("other_thread_free_global", CU_STREAM_CAPTURE_MODE_GLOBAL, in_free);
    say_from_another_thread("other_thread_free_thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            in_free);
    say_from_another_thread("other_thread_context_synchronize_relaxed",
                            CU_STREAM_CAPTURE_MODE_RELAXED, in_context_synchronize);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SAY("exchange", CU(cuThreadExchangeStreamCaptureMode)(&mode));
    SAY("mode_before", mode);
    say_in_capture("relaxed_thread_non_blocking", free_stream, CU_STREAM_CAPTURE_MODE_GLOBAL,
                   &calls[0]);
    say_in_capture("relaxed_thread_non_blocking", free_stream, CU_STREAM_CAPTURE_MODE_GLOBAL,
                   &calls[1]);
    say_in_capture("relaxed_thread_blocking", blocking, CU_STREAM_CAPTURE_MODE_GLOBAL, &calls[1]);
    NEED(CU(cuThreadExchangeStreamCaptureMode)(&mode));
    mode = (CUstreamCaptureMode)7;
    SAY("exchange_bad_mode", CU(cuThreadExchangeStreamCaptureMode)(&mode));
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    NEED(CU(cuThreadExchangeStreamCaptureMode)(&mode));
    SAY("mode_after_a_bad_one", mode);
    NEED(CU(cuMemFree_v2)(managed_block));
    say_misuse();
}

/* ---- host functions ---- */

static void allocate_inside(void *result)
{
    CUdeviceptr pointer;
    *(CUresult *)result = CU(cuMemAlloc_v2)(&pointer, 512);
}

static void query_inside(void *result)
{
    *(CUresult *)result = CU(cuStreamQuery)(free_stream);
}

static void query_event_inside(void *result)
{
    *(CUresult *)result = CU(cuEventQuery)(captured_event);
}

static void get_current_inside(void *result)
{
    CUcontext ctx;
    *(CUresult *)result = CU(cuCtxGetCurrent)(&ctx);
}

static void range_inside(void *result)
{
    *(CUresult *)result = in_range();
}

static void attribute_inside(void *result)
{
    unsigned long long id;
    *(CUresult *)result = CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block);
}

static void info_inside(void *result)
{
    *(CUresult *)result = in_info();
}

static void free_inside(void *result)
{
    *(CUresult *)result = in_free();
}

static void say_inside(const char *name, CUhostFn function)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    NEED(CU(cuLaunchHostFunc)(blocking, function, &result));
    NEED(CU(cuStreamSynchronize)(blocking));
    SAY(name, result);
}

void facts_host_function(void)
{
    streams_begin();
    captured_event = event_new();
    block_new();
    say_inside("query_inside", query_inside);
    say_inside("alloc_inside", allocate_inside);
    say_inside("event_query_inside", query_event_inside);
    say_inside("current_inside", get_current_inside);
    say_inside("range_inside", range_inside);
    say_inside("attribute_inside", attribute_inside);
    say_inside("info_inside", info_inside);
    say_inside("free_inside", free_inside); /* last: it may wait for itself */
}
