/* SPDX-License-Identifier: Apache-2.0 */
/* Memory while a stream captures, on the driver API.
 *
 *   captures SCENE [MODE]     prints "ok", or what is wrong.  MODE: 0 global, 1 thread-local,
 *                             2 relaxed, as the driver numbers them */
#include "device_work.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { WORDS = 60000, BYTES = 4 * WORDS, LARGE = 40 << 20, BLOCKS = 24 };

static CUdevice device;
static CUcontext context;
static CUstream stream, other;
static CUstreamCaptureMode mode;

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, bytes));
    return block;
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec;

    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static unsigned last_word(CUdeviceptr block)
{
    unsigned value = 0;

    MUST(cuMemcpyDtoH(&value, block + BYTES - 4, 4));
    return value;
}

/* Blocks of many sizes come and go, some from the driver, in both kinds of call. */
static void churn(unsigned seed)
{
    CUdeviceptr blocks[BLOCKS] = {0};
    struct sequence sequence = {seed};

    for (int i = 0; i < 200; i++) {
        unsigned at = (unsigned)sequence_below(&sequence, BLOCKS);
        if (blocks[at] && i % 2)
            MUST(cuMemFreeAsync(blocks[at], other));
        else if (blocks[at])
            MUST(cuMemFree(blocks[at]));
        blocks[at] = allocate(sequence_size(&sequence, 24));
        MUST(cuMemsetD8Async(blocks[at], 7, 1, other));
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i])
            MUST(cuMemFree(blocks[i]));
}

static void *churn_elsewhere(void *data)
{
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 5; i++)
        churn(*(unsigned *)data + i);
    return NULL;
}

/* Allocations and frees in the thread that captures, and in another, spoil nothing; memory taken
 * meanwhile is the program's like any other, in the graph and after it. */
static void allocations(void)
{
    CUdeviceptr block = allocate(BYTES), within, before = allocate(BYTES);
    unsigned seeds[2] = {100, 200};
    pthread_t threads[2];
    CUgraphExec exec;
    CUgraph graph;

    fill(stream, block, WORDS, 5);
    fill(stream, before, WORDS, 5); /* freed in the capture: under way */
    MUST(cuStreamBeginCapture(stream, mode));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, churn_elsewhere, &seeds[i]) == 0);
    add_one(stream, block, WORDS);
    within = allocate(BYTES);
    MUST(cuMemFree(before));
    fill(stream, within, WORDS, 40);
    churn(1);
    add_one(stream, within, WORDS);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    MUST(cuMemFree(allocate(LARGE)));
    MUST(cuStreamEndCapture(stream, &graph));
    exec = instantiate(graph);
    churn(2);
    for (unsigned i = 1; i <= 3; i++) {
        MUST(cuGraphLaunch(exec, stream));
        MUST(cuStreamSynchronize(stream));
        CHECK(last_word(block) == 5 + i);
        CHECK(last_word(within) == 41);
    }
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(within));
    CHECK(cuMemFree(within) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree(block));
    churn(3);
}

/* A block whose free is refused as the stream captures is still there; one freed while a launch
 * that uses it is under way is nobody's before that is done. */
static void frees(void)
{
    CUdeviceptr block = allocate(BYTES), again;
    unsigned *flag = flag_new();
    CUgraphExec exec;
    CUgraph graph;

    MUST(cuStreamBeginCapture(stream, mode));
    stop_at(stream, flag);
    fill(stream, block, WORDS, 9);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamEndCapture(stream, &graph));
    exec = instantiate(graph);
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuMemAlloc(&again, BYTES));
    CHECK(again != block);
    fill(other, again, WORDS, 3);
    MUST(cuStreamSynchronize(other));
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
    CHECK(last_word(again) == 3);
    MUST(cuMemFree(again));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFreeHost(flag));
}

static CUmemoryPool pool_of(CUdeviceptr block)
{
    CUmemoryPool pool = NULL;

    MUST(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    return pool;
}

/* Asking how much is free is allowed in every capture, and an allocation that no device can serve
 * is refused as ever; for both the library asks and trims the driver's pools, which by themselves
 * would spoil the capture. */
static void pools(void)
{
    cuuint64_t threshold = UINT64_MAX;
    size_t free_bytes, total_bytes;
    CUmemoryPool pool;
    CUdeviceptr block, too_large;
    CUgraph graph;

    MUST(cuDeviceGetMemPool(&pool, device));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(cuMemAllocFromPoolAsync(&block, LARGE, pool, other));
    MUST(cuMemFreeAsync(block, other)); /* the pool keeps it */
    MUST(cuStreamSynchronize(other));
    block = allocate(BYTES); /* the stack is there */
    MUST(cuStreamBeginCapture(stream, mode));
    fill(stream, block, WORDS, 5);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    CHECK(cuMemAlloc(&too_large, 2 * total_bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(block));
}

/* What a capturing stream allocates is the graph's, whoever serves others; it is freed in the
 * graph, or after a launch by either call. */
static void nodes(void)
{
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr inside, kept, ours, beside, to = allocate(BYTES);
    CUgraphNodeType types[8];
    CUgraphNode list[8];
    CUgraphExec exec;
    CUgraph graph;
    size_t count = 8, memory_nodes = 0;

    MUST(cuStreamBeginCapture(stream, mode));
    MUST(cuMemAllocAsync(&inside, BYTES, stream));
    MUST(cuMemAllocAsync(&kept, BYTES, stream));
    MUST(cuThreadExchangeStreamCaptureMode(&relaxed)); /* else the driver refuses the next */
    MUST(cuMemAllocAsync(&beside, BYTES, other));      /* this one does not capture */
    MUST(cuThreadExchangeStreamCaptureMode(&relaxed));
    fill(other, beside, WORDS, 77);
    fill(stream, inside, WORDS, 21);
    fill(stream, kept, WORDS, 22);
    MUST(cuMemcpyDtoDAsync(to, inside, BYTES, stream));
    MUST(cuMemFreeAsync(inside, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphGetNodes(graph, list, &count));
    for (size_t i = 0; i < count; i++) {
        MUST(cuGraphNodeGetType(list[i], &types[i]));
        memory_nodes +=
            types[i] == CU_GRAPH_NODE_TYPE_MEM_ALLOC || types[i] == CU_GRAPH_NODE_TYPE_MEM_FREE;
    }
    CHECK(count == 6 && memory_nodes == 3);
    CHECK(cuMemFree(inside) == CUDA_ERROR_INVALID_VALUE);
    exec = instantiate(graph);
    for (int i = 0; i < 4; i++) {
        ours = allocate(BYTES);
        fill(stream, ours, WORDS, 23);
        MUST(cuGraphLaunch(exec, stream));
        MUST(cuStreamSynchronize(stream));
        CHECK(last_word(to) == 21 && last_word(kept) == 22 && last_word(ours) == 23);
        CHECK(cuMemFreeAsync(inside, stream) == CUDA_ERROR_INVALID_VALUE);
        if (i % 2)
            MUST(cuMemFree(kept));
        else
            MUST(cuMemFreeAsync(kept, stream));
        CHECK(cuMemFree(kept) == CUDA_ERROR_INVALID_VALUE);
        MUST(cuMemFree(ours));
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuStreamSynchronize(other));
    CHECK(last_word(beside) == 77);
    MUST(cuMemFreeAsync(beside, other));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(to));
}

/* The same with nodes made by hand, and with a block of ours that the graph cannot free. */
static void nodes_by_hand(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = BYTES};
    CUgraphNode allocation, node;
    CUmemoryPool graphs;
    CUdeviceptr block = allocate(BYTES);
    CUgraphExec exec;
    CUgraph graph;

    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &memory));
    CHECK(cuGraphAddMemFreeNode(&node, graph, &allocation, 1, block) == CUDA_ERROR_INVALID_VALUE);
    exec = instantiate(graph);
    MUST(cuGraphLaunch(exec, stream));
    graphs = pool_of(memory.dptr);
    fill(stream, memory.dptr, WORDS, 31);
    MUST(cuMemcpyDtoDAsync(block, memory.dptr, BYTES, stream));
    MUST(cuMemFreeAsync(memory.dptr, stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(last_word(block) == 31);
    CHECK(pool_of(block) == NULL || pool_of(block) != graphs);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(block));
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";

    mode = argc > 2 ? (CUstreamCaptureMode)atoi(argv[2]) : CU_STREAM_CAPTURE_MODE_GLOBAL;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    gpu_work_load();
    watchdog(scene, 60);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    if (!strcmp(scene, "allocations"))
        allocations();
    else if (!strcmp(scene, "frees"))
        frees();
    else if (!strcmp(scene, "pools"))
        pools();
    else if (!strcmp(scene, "nodes"))
        nodes();
    else if (!strcmp(scene, "nodes_by_hand"))
        nodes_by_hand();
    else
        return 2;
    puts("ok");
    return 0;
}
