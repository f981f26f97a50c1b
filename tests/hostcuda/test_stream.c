/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUstream blocking, blocking2, free_stream;
static unsigned *flag;

static int start(void **state)
{
    *state = use_primary();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&blocking2, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    flag = flag_new();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    flag_raise(flag);
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(blocking2));
    OK(cuStreamDestroy(free_stream));
    OK(cuMemFreeHost(flag));
    drop_primary();
    return 0;
}

FIXTURE(start, stop);

static CUevent event_new(void)
{
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

TEST(null_query_covers_blocking_streams_only)
{
    OK(spin_until(free_stream, flag));
    OK(cuStreamQuery(NULL));
    OK(spin_until(blocking, flag));
    assert_int_equal(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuStreamQuery(blocking2));
}

static void *work_on_own_stream(void *ctx)
{
    OK(cuCtxSetCurrent(ctx));
    OK(spin_until(CU_STREAM_PER_THREAD, flag));
    return NULL;
}

TEST(null_query_covers_the_stream_of_an_exited_thread)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, work_on_own_stream, *state));
    OK(pthread_join(thread, NULL));
    assert_int_equal(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
}

TEST(record_on_null_holds_later_blocking_work)
{
    CUevent event = event_new();
    OK(spin_until(blocking, flag));
    OK(spin_us(blocking2, 1));
    OK(cuStreamSynchronize(blocking2)); /* side by side so far */
    OK(cuEventRecord(event, NULL));
    OK(spin_us(blocking2, 1));
    OK(spin_us(free_stream, 1));
    OK(cuStreamSynchronize(free_stream));
    assert_int_equal(cuStreamQuery(blocking2), CUDA_ERROR_NOT_READY);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(blocking2));
    OK(cuEventDestroy(event));
}

TEST(event_on_a_blocking_stream_follows_null_work)
{
    CUevent event = event_new();
    OK(spin_until(NULL, flag));
    OK(cuEventRecord(event, blocking));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
}

TEST(stream_waits_for_event)
{
    CUevent event = event_new();
    CUdeviceptr words;
    unsigned value = 0;
    OK(cuMemAlloc(&words, 4));
    OK(spin_us(blocking, 3000));
    OK(fill32(blocking, words, 1, 7));
    OK(cuEventRecord(event, blocking));
    OK(cuStreamWaitEvent(free_stream, event, 0));
    OK(cuMemcpyDtoHAsync(&value, words, 4, free_stream));
    assert_int_equal(value, 7); /* to pageable memory: done on return */
    OK(cuMemFree(words));
    OK(cuEventDestroy(event));
}

TEST(context_event_covers_all_and_delays_none)
{
    CUcontext ctx = *state;
    CUevent event = event_new();
    CUstream gone;
    OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(spin_until(gone, flag));
    OK(cuStreamDestroy(gone));
    OK(cuCtxRecordEvent(ctx, event));
    OK(spin_us(blocking, 1));
    OK(spin_us(NULL, 1));
    OK(cuStreamSynchronize(NULL)); /* not held by the event */
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
}

TEST(stale_handles_are_refused)
{
    CUstream stream;
    CUevent event = event_new();
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamDestroy(stream));
    assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(event));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST(capture_builds_a_graph)
{
    CUdeviceptr words;
    CUgraph graph;
    CUgraphExec exec;
    CUevent event = event_new();
    unsigned value = 0;
    OK(cuMemAlloc(&words, 4));
    OK(cuMemsetD32(words, 0, 1));
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(fill32(blocking, words, 1, 41));
    OK(cuEventRecord(event, blocking));
    OK(cuStreamWaitEvent(free_stream, event, 0));
    void *args[] = {&words, &(size_t){1}};
    OK(launch("add_one", free_stream, args));
    OK(cuEventRecord(event, free_stream));
    OK(cuStreamWaitEvent(blocking, event, 0));
    OK(cuStreamEndCapture(blocking, &graph));
    OK(cuMemcpyDtoH(&value, words, 4));
    assert_int_equal(value, 0);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, blocking));
    OK(cuMemcpyDtoH(&value, words, 4));
    assert_int_equal(value, 42);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy(event));
    OK(cuMemFree(words));
}

/* Begins a capture, makes the call, ends the capture: what the call and the end answer. */
#define IN_CAPTURE(stream, mode, call, call_result, end_result)                                    \
    do {                                                                                           \
        CUgraph graph_ = NULL;                                                                     \
        OK(cuStreamBeginCapture(stream, mode));                                                    \
        assert_int_equal(call, call_result);                                                       \
        assert_int_equal(cuStreamEndCapture(stream, &graph_), end_result);                         \
        if (graph_)                                                                                \
            OK(cuGraphDestroy(graph_));                                                            \
    } while (0)

TEST(capture_is_spoilt_as_measured)
{
    CUcontext ctx = *state;
    CUdeviceptr pointer = 0;
    CUevent event = event_new(), fresh;
    CUstreamCaptureStatus status;
    size_t bytes;
    const CUstreamCaptureMode GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const CUstreamCaptureMode THREAD = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    const CUstreamCaptureMode RELAXED = CU_STREAM_CAPTURE_MODE_RELAXED;
    IN_CAPTURE(free_stream, GLOBAL, cuMemAlloc(&pointer, 16), 900, 901);
    IN_CAPTURE(free_stream, THREAD, cuMemFree(1), 900, 901);
    IN_CAPTURE(free_stream, RELAXED, cuMemFree(1), 1, 0);
    IN_CAPTURE(free_stream, GLOBAL, cuEventQuery(event), 900, 901);
    IN_CAPTURE(free_stream, GLOBAL, cuStreamQuery(blocking), 900, 901);
    IN_CAPTURE(free_stream, GLOBAL, cuStreamSynchronize(blocking), 900, 901);
    IN_CAPTURE(free_stream, RELAXED, cuCtxSynchronize(), 900, 901);
    IN_CAPTURE(free_stream, RELAXED, cuCtxRecordEvent(ctx, event), 900, 901);
    IN_CAPTURE(free_stream, RELAXED, cuEventRecord(event, NULL), 0, 0);
    IN_CAPTURE(blocking, RELAXED, cuEventRecord(event, NULL), 906, 901);
    IN_CAPTURE(blocking, RELAXED, cuStreamQuery(NULL), 906, 901);
    IN_CAPTURE(blocking, GLOBAL, cuStreamIsCapturing(NULL, &status), 906, 0);
    IN_CAPTURE(free_stream, GLOBAL, cuMemGetInfo(&bytes, &bytes), 0, 0);
    IN_CAPTURE(blocking, GLOBAL, cuEventCreate(&fresh, 0), 0, 0);
    IN_CAPTURE(blocking, GLOBAL, cuEventRecord(event, free_stream), 0, 0);
    OK(cuEventDestroy(event));
    OK(cuEventDestroy(fresh));
}

TEST(capture_must_be_joined_and_ended_where_it_began)
{
    CUgraph graph = NULL;
    CUevent event = event_new();
    CUdeviceptr words;
    CUstreamCaptureStatus status;
    OK(cuMemAlloc(&words, 4));
    assert_int_equal(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
                     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(event, blocking));
    OK(cuStreamWaitEvent(free_stream, event, 0));
    assert_int_equal(cuStreamEndCapture(free_stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    OK(fill32(free_stream, words, 1, 1));
    assert_int_equal(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_null(graph);
    OK(cuStreamIsCapturing(free_stream, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuEventDestroy(event));
    OK(cuMemFree(words));
}

TEST(destroying_the_stream_ends_its_capture)
{
    CUcontext ctx = *state;
    CUstream gone;
    CUevent event = event_new();
    OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamDestroy(gone));
    OK(cuCtxRecordEvent(ctx, event));
    OK(cuCtxSynchronize());
    OK(cuEventDestroy(event));
}

/* Work from before a capture still counts for the driver's own wait. */
TEST(free_waits_for_work_from_before_a_capture)
{
    CUgraph graph;
    CUdeviceptr block;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuMemAlloc(&block, 512));
    OK(spin_us(free_stream, 20000));
    OK(cuStreamBeginCapture(free_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemFree(block));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(free_stream, &graph));
    OK(cuStreamQuery(free_stream));
    OK(cuGraphDestroy(graph));
}

TEST(relaxed_thread_harms_no_capture)
{
    CUdeviceptr pointer;
    CUgraph graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemAlloc(&pointer, 512));
    OK(cuMemFree(pointer));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(blocking, &graph));
    OK(cuGraphDestroy(graph));
}

TEST(fault_is_sticky_until_the_context_goes)
{
    CUcontext ctx;
    CUdeviceptr pointer;
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(launch("fault", NULL, NULL));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuMemAlloc(&pointer, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(*state));
    OK(cuCtxSynchronize());
}

static void query_inside(void *result)
{
    *(CUresult *)result = cuStreamQuery(free_stream);
}

static void allocate_inside(void *result)
{
    CUdeviceptr pointer;
    *(CUresult *)result = cuMemAlloc(&pointer, 16);
}

TEST(host_functions_may_only_ask_about_streams)
{
    CUresult result = CUDA_SUCCESS;
    OK(cuLaunchHostFunc(blocking, allocate_inside, &result));
    OK(cuStreamSynchronize(blocking));
    assert_int_equal(result, CUDA_ERROR_NOT_PERMITTED);
    OK(cuLaunchHostFunc(blocking, query_inside, &result));
    OK(cuStreamSynchronize(blocking));
    OK(result);
}

TEST(forked_child_has_no_driver)
{
    pid_t child = fork();
    if (!child) {
        CUdeviceptr pointer;
        _exit(cuMemAlloc(&pointer, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void free_at_exit(void)
{
    CUresult result = cuMemFree((CUdeviceptr)512);
    _exit(result == CUDA_ERROR_DEINITIALIZED ? 0 : 1);
}

/* In a process of its own, since exit can be tried only once. */
TEST(calls_after_the_drivers_exit_are_refused)
{
    int status;
    pid_t child = fork();
    if (!child) {
        char name[] = "exit", *arguments[] = {name, NULL};
        execv("/proc/self/exe", arguments);
        _exit(2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int unit_prepare(int argc, char **argv)
{
    if (!argc || strcmp(argv[0], "exit"))
        return 0;
    atexit(free_at_exit);
    OK(cuInit(0));
    return 1;
}
