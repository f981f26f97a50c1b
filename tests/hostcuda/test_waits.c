/* SPDX-License-Identifier: Apache-2.0 */
/* Waits inside allocations: which are reports, and which are not.  The schedule is stepped: an
 * operation is not done before somebody waits for it or steps. */
#include "check.h"
#include "hostcuda.h"

static CUdeviceptr words, managed;
static CUstream stream;
static CUevent event;
static unsigned *flag;

static int start(void **state)
{
    *state = use_primary();
    OK(cuMemAlloc(&words, 1 << 20));
    OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    flag = flag_new();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    flag_raise(flag);
    OK(cuCtxSynchronize());
    OK(cuMemFree(words));
    OK(cuMemFree(managed));
    OK(cuMemFreeHost(flag));
    OK(cuStreamDestroy(stream));
    OK(cuEventDestroy(event));
    drop_primary();
    hostcuda_wait_reset();
    return 0;
}

FIXTURE(start, stop);

/* Work that is not done when the wait begins. */
static void make_busy(void)
{
    OK(spin_us(stream, 1));
}

static void finish_all(void)
{
    while (hostcuda_step(NULL))
        ;
}

static void expect(unsigned long long reports)
{
    assert_int_equal(hostcuda_wait_count(), reports);
}

static CUresult free_device(void)
{
    CUresult result = cuMemFree(words);
    OK(cuMemAlloc(&words, 1 << 20));
    return result;
}

static CUresult free_managed(void)
{
    CUresult result = cuMemFree(managed);
    OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    return result;
}

static CUresult free_pinned(void)
{
    CUresult result = cuMemFreeHost(flag);
    flag = flag_new();
    return result;
}

static CUresult synchronize_context(void)
{
    return cuCtxSynchronize();
}

static CUresult synchronize_stream(void)
{
    return cuStreamSynchronize(stream);
}

static CUresult synchronize_event(void)
{
    OK(cuEventRecord(event, stream));
    return cuEventSynchronize(event);
}

/* A fence's answer, and a free that waits for work that came after it, as another thread's would.
 */
static void query_and_free(CUevent fence)
{
    OK(cuEventQuery(fence));
    make_busy();
    OK(free_device());
}

/* All three in one allocation, with a fence of everything in a context (NULL: the current one). */
static void fence_query_and_free(CUcontext context, CUevent fence)
{
    hostcuda_request_begin();
    OK(cuCtxRecordEvent(context, fence));
    finish_all();
    query_and_free(fence);
    hostcuda_request_end();
}

static CUresult (*const waits[])(void) = {free_device,        free_managed,
                                          free_pinned,        synchronize_context,
                                          synchronize_stream, synchronize_event};

TEST(each_wait_in_an_allocation_is_a_report)
{
    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        make_busy();
        OK(HOSTCUDA_REQUEST(waits[i]()));
        expect(i + 1);
    }
}

TEST(a_wait_outside_allocations_is_no_report)
{
    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        make_busy();
        OK(waits[i]());
    }
    expect(0);
}

TEST(a_wait_where_all_work_is_done_is_no_report)
{
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        OK(HOSTCUDA_REQUEST(waits[i]()));
    expect(0);
}

TEST(a_driver_allocation_is_silent_while_a_kernel_waits)
{
    CUdeviceptr block, ordered;
    OK(spin_until(stream, flag));
    OK(HOSTCUDA_REQUEST(cuMemAlloc(&block, 4 << 20)));
    OK(HOSTCUDA_REQUEST(cuMemAllocAsync(&ordered, 4 << 20, stream)));
    assert_int_equal(HOSTCUDA_REQUEST(cuMemAlloc(&block, (size_t)1 << 40)),
                     CUDA_ERROR_OUT_OF_MEMORY);
    flag_raise(flag);
    OK(cuMemFree(block));
    OK(cuMemFreeAsync(ordered, stream));
    expect(0);
}

TEST(a_fence_seen_done_in_the_same_allocation_excuses_later_work)
{
    fence_query_and_free(NULL, event);
    expect(0);
}

TEST(a_fence_that_is_not_done_excuses_nothing)
{
    make_busy();
    hostcuda_request_begin();
    OK(cuCtxRecordEvent(NULL, event));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(free_device());
    hostcuda_request_end();
    expect(1);
}

TEST(a_fence_from_before_the_allocation_excuses_nothing)
{
    OK(cuCtxRecordEvent(NULL, event));
    finish_all();
    hostcuda_request_begin();
    query_and_free(event);
    hostcuda_request_end();
    expect(1);
    hostcuda_request_begin();
    OK(cuCtxRecordEvent(NULL, event));
    finish_all();
    OK(cuEventQuery(event));
    hostcuda_request_end();
    make_busy();
    OK(HOSTCUDA_REQUEST(free_device()));
    expect(2);
    hostcuda_request_begin();
    OK(cuCtxRecordEvent(NULL, event));
    hostcuda_request_end();
    finish_all();
    hostcuda_request_begin();
    query_and_free(event);
    hostcuda_request_end();
    expect(3);
}

TEST(an_event_of_one_stream_excuses_nothing)
{
    hostcuda_request_begin();
    OK(cuEventRecord(event, stream));
    finish_all();
    query_and_free(event);
    hostcuda_request_end();
    expect(1);
}

TEST(a_stream_found_done_may_be_waited_for)
{
    hostcuda_request_begin();
    OK(cuStreamQuery(stream));
    make_busy();
    OK(synchronize_stream());
    expect(0);
    make_busy();
    OK(free_device());
    expect(1);
    hostcuda_request_end();
    make_busy();
    OK(HOSTCUDA_REQUEST(synchronize_stream()));
    expect(2);
}

TEST(a_fence_of_another_context_excuses_nothing)
{
    CUcontext other, popped;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    CUevent others;
    OK(cuEventCreate(&others, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxPopCurrent(&popped));
    fence_query_and_free(other, others);
    expect(1);
    OK(cuCtxDestroy(other));
}
