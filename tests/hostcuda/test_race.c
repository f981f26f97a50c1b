/* SPDX-License-Identifier: Apache-2.0 */
/* The stream-order race detector: what it says, and what it must not say. The work is done when the
 * report comes, so that only the order can tell. */
#include "race_fixture.h"

#include <stdlib.h>
#include <sys/mman.h>

TEST(failed_free_leaves_the_block_as_it_was)
{
    hostcuda_note_free((void *)words);
    hostcuda_note_free_failed((void *)words);
    OK(cuMemsetD8Async(words, 1, 64, a));
    expect_silence(); /* it lives on */
    hostcuda_note_free((void *)words);
    hostcuda_note_free((void *)words);
    hostcuda_note_free_failed((void *)words); /* since it was freed already */
    OK(cuMemsetD8Async(words, 1, 64, a));
    expect_report("use after free");
}

static void reuse_of_the_block(void)
{
    hostcuda_note_free((void *)words);
    hostcuda_note_allocate((void *)words, 4096);
}

TEST(reuse_without_waiting_is_reported)
{
    OK(fill32(a, words, 16, 1));
    let_finish();
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

TEST(reuse_after_each_kind_of_wait_is_silent)
{
    CUcontext ctx = *state;
    OK(fill32(a, words, 16, 1));
    OK(cuStreamSynchronize(a));
    reuse_of_the_block();
    OK(fill32(a, words, 16, 1));
    OK(cuEventRecord(event, a));
    OK(cuEventSynchronize(event));
    reuse_of_the_block();
    OK(fill32(a, words, 16, 1));
    OK(cuCtxRecordEvent(ctx, event));
    while (cuEventQuery(event))
        hostcuda_step(NULL);
    reuse_of_the_block();
    OK(fill32(a, words, 16, 1));
    while (cuStreamQuery(a))
        hostcuda_step(NULL);
    reuse_of_the_block();
    OK(fill32(a, words, 16, 1));
    OK(cuCtxSynchronize());
    reuse_of_the_block();
    CUdeviceptr sentinel;
    OK(fill32(a, words, 16, 1));
    OK(cuMemAlloc(&sentinel, 512));
    OK(cuMemFree(sentinel)); /* waits for the whole context */
    reuse_of_the_block();
    expect_silence();
}

TEST(null_query_says_nothing_of_non_blocking_streams)
{
    OK(fill32(a, words, 16, 1));
    let_finish();
    OK(cuStreamQuery(NULL));
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

TEST(order_through_another_stream_counts)
{
    OK(fill32(a, words, 16, 1));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuStreamSynchronize(b));
    reuse_of_the_block();
    expect_silence();
}

TEST(event_before_the_last_operation_is_not_enough)
{
    OK(fill32(a, words, 16, 1));
    OK(cuEventRecord(event, a));
    OK(fill32(a, words, 16, 2));
    let_finish();
    OK(cuEventSynchronize(event));
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

TEST(use_after_free_is_reported)
{
    hostcuda_note_free((void *)words);
    OK(fill32(a, words, 16, 1));
    expect_report("use after free");
}

/* A thread's stack may come to lie where addresses were reserved and given back. */
TEST(a_copy_to_host_memory_where_device_memory_was_is_silent)
{
    enum { BYTES = 2 << 20 };
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    void *buffer;
    OK(cuMemAddressReserve(&range, BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    OK(cuMemUnmap(range, BYTES));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(range, BYTES));
    buffer = mmap((void *)range, BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    assert_ptr_equal(buffer, (void *)range);
    OK(cuMemcpyDtoH(buffer, words, 16));
    expect_silence();
    munmap(buffer, BYTES);
}

TEST(use_of_freed_driver_memory_is_reported)
{
    CUdeviceptr first, second;
    OK(cuMemAlloc(&first, 512));
    OK(cuMemAlloc(&second, 512)); /* keeps the driver's block mapped */
    OK(cuMemFree(first));
    OK(fill32(a, first, 16, 1));
    expect_report("use after free");
    OK(cuMemFree(second));
}

TEST(stream_ordered_block_must_be_ordered_before_use)
{
    CUdeviceptr block;
    OK(cuMemAllocAsync(&block, 4096, a));
    OK(fill32(a, block, 16, 1));
    expect_silence();
    let_finish();
    OK(fill32(b, block, 16, 1));
    expect_report("use before the allocation is ordered");
    OK(cuStreamSynchronize(b));
    OK(cuMemFreeAsync(block, a));
}

TEST(stream_ordered_free_must_follow_all_use)
{
    CUdeviceptr block;
    OK(cuMemAllocAsync(&block, 4096, a));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(fill32(b, block, 16, 1));
    OK(cuMemFreeAsync(block, a));
    expect_report("free before earlier work is ordered");
}

TEST(stream_ordered_pool_may_reuse_on_its_stream)
{
    OK(fill32(a, words, 16, 1));
    hostcuda_note_free_on((void *)words, a);
    hostcuda_note_allocate_on((void *)words, 4096, a);
    OK(fill32(a, words, 16, 2));
    expect_silence();
    hostcuda_note_free_on((void *)words, a);
    hostcuda_note_allocate_on((void *)words, 4096, b);
    expect_report("reuse before earlier work is ordered");
}

TEST(block_handed_out_twice_is_reported)
{
    hostcuda_note_allocate((char *)words + 512, 512);
    expect_report("memory handed out twice");
}

TEST(live_block_given_back_to_the_driver_is_reported)
{
    CUdeviceptr pool;
    OK(cuMemAlloc(&pool, 4 << 20));
    hostcuda_note_allocate((char *)pool + 4096, 512);
    OK(cuMemFree(pool));
    expect_report("memory of a live block given back to the driver");
}

TEST(splitting_keeps_the_history)
{
    OK(fill32(a, words, 1024, 1));
    hostcuda_note_free((void *)words);
    OK(cuStreamSynchronize(a));
    hostcuda_note_allocate((char *)words + 512, 512);
    expect_silence();
    OK(fill32(b, words + 1024, 16, 1)); /* behind the new block: freed */
    expect_report("use after free");
}

TEST(graph_launch_uses_what_its_nodes_use)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(fill32(a, words, 16, 1));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    reuse_of_the_block(); /* a capture uses nothing */
    expect_silence();
    OK(cuGraphLaunch(exec, b));
    let_finish();
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void set_flag(void *flag)
{
    __atomic_store_n((int *)flag, 1, __ATOMIC_SEQ_CST);
}

TEST(host_function_tells_the_program)
{
    int flag = 0;
    OK(fill32(a, words, 16, 1));
    OK(cuLaunchHostFunc(a, set_flag, &flag));
    while (!__atomic_load_n(&flag, __ATOMIC_SEQ_CST))
        hostcuda_step(NULL);
    reuse_of_the_block();
    expect_silence();
}
