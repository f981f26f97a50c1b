/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static CUstream stream;

static int start(void **state)
{
    *state = use_primary();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuStreamDestroy(stream));
    drop_primary();
    return 0;
}

GROUP_FIXTURE(start, stop);

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

TEST(nodes_added_by_hand_run_in_their_order)
{
    CUdeviceptr words;
    CUgraph graph;
    CUgraphNode first, second;
    size_t count = 1;
    unsigned value = 20, out = 0;
    OK(cuMemAlloc(&words, 4));
    void *fill_args[] = {&words, &count, &value}, *add_args[] = {&words, &count};
    CUDA_KERNEL_NODE_PARAMS params = {.func = kernel_named("fill32"),
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = fill_args};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&first, graph, NULL, 0, &params));
    params.func = kernel_named("add_one");
    params.kernelParams = add_args;
    OK(cuGraphAddKernelNode(&second, graph, &first, 1, &params));
    CUgraphExec exec = instantiate(graph);
    OK(cuGraphDestroy(graph)); /* what was made of it stays */
    OK(cuGraphLaunch(exec, stream));
    OK(cuMemcpyDtoHAsync(&out, words, 4, stream));
    assert_int_equal(out, 21);
    OK(cuGraphExecDestroy(exec));
    OK(cuMemFree(words));
}

TEST(captured_allocation_lives_in_a_launch)
{
    CUdeviceptr inside, copy;
    CUgraph graph;
    unsigned out = 0;
    OK(cuMemAlloc(&copy, 4));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&inside, 4096, stream));
    OK(fill32(stream, inside, 1, 33));
    OK(cuMemcpyDtoDAsync(copy, inside, 4, stream));
    OK(cuMemFreeAsync(inside, stream));
    OK(cuStreamEndCapture(stream, &graph));
    assert_int_equal(cuMemFree(inside), CUDA_ERROR_INVALID_VALUE); /* not launched yet */
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        OK(cuMemsetD32(copy, 0, 1));
        OK(cuCtxSynchronize());
        OK(cuGraphLaunch(exec, stream));
        OK(cuMemcpyDtoHAsync(&out, copy, 4, stream));
        assert_int_equal(out, 33);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(copy));
}

TEST(graph_allocation_may_be_freed_outside)
{
    CUdeviceptr inside;
    CUgraph graph;
    unsigned out = 0;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&inside, 4096, stream));
    OK(fill32(stream, inside, 1, 34));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(exec, stream));
        OK(cuMemcpyDtoHAsync(&out, inside, 4, stream));
        assert_int_equal(out, 34);
        OK(cuMemFreeAsync(inside, stream));
        assert_int_equal(cuMemFreeAsync(inside, stream), CUDA_ERROR_INVALID_VALUE);
    }
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

TEST(allocation_nodes_added_by_hand_allocate_at_each_launch)
{
    CUgraph graph;
    CUgraphNode first, second, last;
    CUdeviceptr plain;
    unsigned out = 0;
    size_t count = 1, value = 35;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
        .bytesize = 4096};
    OK(cuMemAlloc(&plain, 4));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&first, graph, NULL, 0, &memory));
    void *args[] = {&memory.dptr, &count, &value}, *copy_args[] = {&plain, &memory.dptr, &value};
    CUDA_KERNEL_NODE_PARAMS params = {.func = kernel_named("fill32"),
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = args};
    OK(cuGraphAddKernelNode(&second, graph, &first, 1, &params));
    value = 4; /* bytes */
    params.func = kernel_named("copy");
    params.kernelParams = copy_args;
    OK(cuGraphAddKernelNode(&last, graph, &second, 1, &params));
    assert_int_equal(cuGraphAddMemFreeNode(&second, graph, &last, 1, plain),
                     CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphAddMemFreeNode(&second, graph, &last, 1, memory.dptr));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        OK(cuMemsetD32(plain, 0, 1));
        OK(cuCtxSynchronize());
        OK(cuGraphLaunch(exec, stream));
        OK(cuMemcpyDtoHAsync(&out, plain, 4, stream));
        assert_int_equal(out, 35);
    }
    assert_int_equal(cuMemFreeAsync(memory.dptr, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(plain));
}
