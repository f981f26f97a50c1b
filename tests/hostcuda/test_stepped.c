/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that run only when the test says so. */
#include "check.h"
#include "hostcuda.h"

static CUstream a, b;

static int start(void **state)
{
    *state = use_primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    drop_primary();
    return 0;
}

FIXTURE(start, stop);

static unsigned word_at(CUdeviceptr managed)
{
    return *(unsigned *)managed;
}

TEST(nothing_runs_until_it_is_stepped)
{
    CUdeviceptr word;
    OK(cuMemAllocManaged(&word, 4, CU_MEM_ATTACH_GLOBAL));
    *(unsigned *)word = 0;
    OK(fill32(a, word, 1, 1));
    OK(fill32(b, word, 1, 2));
    assert_int_equal(hostcuda_ready_count(), 2);
    assert_int_equal(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    assert_int_equal(hostcuda_step(b), 1);
    assert_int_equal(word_at(word), 2);
    assert_int_equal(hostcuda_step(b), 0);
    assert_int_equal(hostcuda_step(NULL), 1);
    assert_int_equal(word_at(word), 1);
    OK(cuStreamQuery(a));
    OK(cuMemFree(word));
}

TEST(order_between_streams_is_kept)
{
    CUevent event;
    CUdeviceptr word;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAllocManaged(&word, 4, CU_MEM_ATTACH_GLOBAL));
    OK(fill32(a, word, 1, 1));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(fill32(b, word, 1, 2));
    assert_int_equal(hostcuda_step(b), 0);
    assert_int_equal(hostcuda_step(a), 1);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    assert_int_equal(hostcuda_step(a), 1);
    OK(cuEventQuery(event));
    while (hostcuda_step(b))
        ;
    assert_int_equal(word_at(word), 2);
    OK(cuEventDestroy(event));
    OK(cuMemFree(word));
}

TEST(whole_context_waits_for_an_event)
{
    CUcontext ctx = *state;
    CUevent event;
    CUdeviceptr word;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&word, 4));
    OK(fill32(a, word, 1, 1));
    OK(cuEventRecord(event, a));
    OK(cuCtxWaitEvent(ctx, event));
    OK(fill32(NULL, word, 1, 2));
    OK(fill32(b, word, 1, 3));
    assert_int_equal(hostcuda_ready_count(), 1);
    assert_int_equal(hostcuda_step(b), 0);
    while (hostcuda_step(NULL))
        ;
    OK(cuStreamQuery(NULL));
    OK(cuStreamQuery(b));
    OK(cuEventDestroy(event));
    OK(cuMemFree(word));
}

TEST(a_wait_runs_what_it_needs)
{
    CUdeviceptr word;
    unsigned value = 0;
    OK(cuMemAlloc(&word, 4));
    OK(fill32(a, word, 1, 8));
    OK(cuMemcpyDtoHAsync(&value, word, 4, a));
    assert_int_equal(value, 8);
    OK(fill32(a, word, 1, 9));
    OK(cuMemFree(word));
    assert_int_equal(hostcuda_ready_count(), 0);
}
