/* SPDX-License-Identifier: Apache-2.0 */
/* The stream-order race detector: what it says, and what it must not say. Nothing here depends on
 * the timing: the work is often long done when the report comes. */
#include "check.h"
#include "hostcuda.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static CUdeviceptr words;
static CUstream a, b;
static CUevent event;

static int start(void **state)
{
    *state = use_primary();
    OK(cuMemAlloc(&words, 1 << 20));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    hostcuda_note_allocate((void *)words, 4096);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuCtxSynchronize());
    OK(cuMemFree(words));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    OK(cuEventDestroy(event));
    drop_primary();
    hostcuda_race_reset();
    return 0;
}

/* The stream's work is done, but the program has not asked. */
static void let_finish(void)
{
    struct timespec delay = {0, 5000000};
    nanosleep(&delay, NULL);
}

static void expect_report(const char *what)
{
    assert_true(hostcuda_race_count() > 0);
    assert_string_equal(hostcuda_race_last(), what);
}

static void expect_silence(void)
{
    if (hostcuda_race_count())
        fail_msg("%s", hostcuda_race_last());
}

static void failed_free_leaves_the_block_as_it_was(void **state)
{
    (void)state;
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

static void reuse_without_waiting_is_reported(void **state)
{
    (void)state;
    OK(fill32(a, words, 16, 1));
    let_finish();
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

static void reuse_after_each_kind_of_wait_is_silent(void **state)
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
        ;
    reuse_of_the_block();
    OK(fill32(a, words, 16, 1));
    while (cuStreamQuery(a))
        ;
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

static void null_query_says_nothing_of_non_blocking_streams(void **state)
{
    (void)state;
    OK(fill32(a, words, 16, 1));
    let_finish();
    OK(cuStreamQuery(NULL));
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

static void order_through_another_stream_counts(void **state)
{
    (void)state;
    OK(fill32(a, words, 16, 1));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuStreamSynchronize(b));
    reuse_of_the_block();
    expect_silence();
}

static void event_before_the_last_operation_is_not_enough(void **state)
{
    (void)state;
    OK(fill32(a, words, 16, 1));
    OK(cuEventRecord(event, a));
    OK(fill32(a, words, 16, 2));
    let_finish();
    OK(cuEventSynchronize(event));
    reuse_of_the_block();
    expect_report("reuse before earlier work is ordered");
}

static void use_after_free_is_reported(void **state)
{
    (void)state;
    hostcuda_note_free((void *)words);
    OK(fill32(a, words, 16, 1));
    expect_report("use after free");
}

/* A thread's stack may come to lie where addresses were reserved and given back. */
static void a_copy_to_host_memory_where_device_memory_was_is_silent(void **state)
{
    (void)state;
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

static void use_of_freed_driver_memory_is_reported(void **state)
{
    (void)state;
    CUdeviceptr first, second;
    OK(cuMemAlloc(&first, 512));
    OK(cuMemAlloc(&second, 512)); /* keeps the driver's block mapped */
    OK(cuMemFree(first));
    OK(fill32(a, first, 16, 1));
    expect_report("use after free");
    OK(cuMemFree(second));
}

static void stream_ordered_block_must_be_ordered_before_use(void **state)
{
    (void)state;
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

static void stream_ordered_free_must_follow_all_use(void **state)
{
    (void)state;
    CUdeviceptr block;
    OK(cuMemAllocAsync(&block, 4096, a));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(fill32(b, block, 16, 1));
    OK(cuMemFreeAsync(block, a));
    expect_report("free before earlier work is ordered");
}

static void stream_ordered_pool_may_reuse_on_its_stream(void **state)
{
    (void)state;
    OK(fill32(a, words, 16, 1));
    hostcuda_note_free_on((void *)words, a);
    hostcuda_note_allocate_on((void *)words, 4096, a);
    OK(fill32(a, words, 16, 2));
    expect_silence();
    hostcuda_note_free_on((void *)words, a);
    hostcuda_note_allocate_on((void *)words, 4096, b);
    expect_report("reuse before earlier work is ordered");
}

static void block_handed_out_twice_is_reported(void **state)
{
    (void)state;
    hostcuda_note_allocate((char *)words + 512, 512);
    expect_report("memory handed out twice");
}

static void live_block_given_back_to_the_driver_is_reported(void **state)
{
    (void)state;
    CUdeviceptr pool;
    OK(cuMemAlloc(&pool, 4 << 20));
    hostcuda_note_allocate((char *)pool + 4096, 512);
    OK(cuMemFree(pool));
    expect_report("memory of a live block given back to the driver");
}

static void splitting_keeps_the_history(void **state)
{
    (void)state;
    OK(fill32(a, words, 1024, 1));
    hostcuda_note_free((void *)words);
    OK(cuStreamSynchronize(a));
    hostcuda_note_allocate((char *)words + 512, 512);
    expect_silence();
    OK(fill32(b, words + 1024, 16, 1)); /* behind the new block: freed */
    expect_report("use after free");
}

static void graph_launch_uses_what_its_nodes_use(void **state)
{
    (void)state;
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

static void host_function_tells_the_program(void **state)
{
    (void)state;
    int flag = 0;
    OK(fill32(a, words, 16, 1));
    OK(cuLaunchHostFunc(a, set_flag, &flag));
    while (!__atomic_load_n(&flag, __ATOMIC_SEQ_CST))
        ;
    reuse_of_the_block();
    expect_silence();
}

/* With HOSTCUDA_RACE_OWNER naming this program. */
static void owner_may_fill_what_is_freed_but_must_order_it(void **state)
{
    (void)state;
    hostcuda_note_free((void *)words);
    OK(fill32(a, words, 16, 1));
    expect_silence();
    let_finish();
    hostcuda_note_allocate((void *)words, 4096);
    expect_report("reuse before earlier work is ordered");
}

/* Two parts of what was one block; only one of them is being filled. */
static void owner_may_fill_a_part_and_hand_out_another(void **state)
{
    (void)state;
    hostcuda_note_free((void *)words);
    OK(fill32(a, words + 1024, 16, 1)); /* bytes 1024 to 1088 */
    let_finish();
    hostcuda_note_allocate((void *)words, 1024);
    hostcuda_note_allocate((void *)(words + 1088), 1024);
    expect_silence();
    hostcuda_note_allocate((void *)(words + 1084), 2);
    expect_report("reuse before earlier work is ordered");
}

/* The parts know what was done to the whole. */
static void owners_fill_does_not_hide_earlier_work(void **state)
{
    (void)state;
    OK(fill32(b, words, 1024, 1));
    hostcuda_note_free((void *)words);
    OK(fill32(a, words + 1024, 16, 1));
    OK(cuStreamSynchronize(a));
    hostcuda_note_allocate((void *)(words + 1024), 64);
    expect_report("reuse before earlier work is ordered");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(reuse_without_waiting_is_reported),
        TEST(reuse_after_each_kind_of_wait_is_silent),
        TEST(null_query_says_nothing_of_non_blocking_streams),
        TEST(order_through_another_stream_counts),
        TEST(event_before_the_last_operation_is_not_enough),
        TEST(use_after_free_is_reported),
        TEST(a_copy_to_host_memory_where_device_memory_was_is_silent),
        TEST(use_of_freed_driver_memory_is_reported),
        TEST(stream_ordered_block_must_be_ordered_before_use),
        TEST(stream_ordered_free_must_follow_all_use),
        TEST(stream_ordered_pool_may_reuse_on_its_stream),
        TEST(block_handed_out_twice_is_reported),
        TEST(live_block_given_back_to_the_driver_is_reported),
        TEST(failed_free_leaves_the_block_as_it_was),
        TEST(splitting_keeps_the_history),
        TEST(graph_launch_uses_what_its_nodes_use),
        TEST(host_function_tells_the_program),
    };
    const struct CMUnitTest owner_tests[] = {
        TEST(owner_may_fill_what_is_freed_but_must_order_it),
        TEST(owner_may_fill_a_part_and_hand_out_another),
        TEST(owners_fill_does_not_hide_earlier_work),
    };
    if (getenv("HOSTCUDA_RACE_OWNER"))
        return cmocka_run_group_tests_name("race_owner", owner_tests, NULL, NULL);
    return cmocka_run_group_tests_name("race", tests, NULL, NULL);
}
