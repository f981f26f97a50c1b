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

/* ---- how much is held while fences cannot be had ---- */

enum { ROUNDS_MAX = 400 };

/* One block at a time, each used and freed: how many different addresses that takes. */
static unsigned addresses_of(size_t bytes, unsigned rounds)
{
    static CUdeviceptr seen[ROUNDS_MAX];
    unsigned count = 0, at;

    for (unsigned i = 0; i < rounds; i++) {
        CUdeviceptr block = allocate(bytes);
        fill(other, block, WORDS, i);
        MUST(cuMemFree(block));
        for (at = 0; at < count && seen[at] != block; at++)
            ;
        seen[at] = block;
        count += at == count;
    }
    return count;
}

/* So many frees are sealed behind a fence, unless that cannot be had. */
static void fences(const char *when)
{
    unsigned long long before, after;

    if (!hostcuda_call_count)
        return;
    before = hostcuda_call_count("cuCtxRecordEvent");
    for (int i = 0; i < 300; i++)
        MUST(cuMemFree(allocate(1 << 10)));
    after = hostcuda_call_count("cuCtxRecordEvent");
    if (after > before)
        return;
    printf("%s: no fence\n", when);
    exit(1);
}

/* A program whose stream captures for long holds 64 MiB and a little of what it has freed. */
static void growth(void)
{
    CUdeviceptr block = allocate(BYTES);
    size_t held_bytes = 0;
    CUgraph graph;
    unsigned count;

    if (hostcuda_used_bytes)
        held_bytes = hostcuda_used_bytes(0);
    MUST(cuStreamBeginCapture(stream, mode));
    fill(stream, block, WORDS, 5);
    count = addresses_of(8 << 20, ROUNDS_MAX);
    if (hostcuda_used_bytes)
        held_bytes = hostcuda_used_bytes(0) - held_bytes;
    if (count > 16 || held_bytes > 96 << 20)
        printf("400 blocks of 8 MiB, one at a time, took %u addresses and hold %zu MiB more\n",
               count, held_bytes >> 20);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(block));
    fences("after the capture");
}

/* What was freed before a capture gets its fence before it. */
static void freed_before(void)
{
    CUdeviceptr block = allocate(BYTES);
    unsigned long long before = 0;
    CUgraph graph;

    MUST(cuMemFree(block));
    if (hostcuda_call_count)
        before = hostcuda_call_count("cuCtxRecordEvent");
    MUST(cuStreamBeginCapture(stream, mode));
    if (hostcuda_call_count && hostcuda_call_count("cuCtxRecordEvent") == before)
        puts("no fence");
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphDestroy(graph));
}

static CUcontext context_new(void)
{
    CUcontext made;
    int count;

    MUST(cuDeviceGetCount(&count)); /* of another device, where there is one */
    MUST(cuCtxCreate_v2(&made, 0, count > 1 ? 1 : device));
    return made;
}

/* A capture is its context's affair, and goes with it. */
static void contexts(void)
{
    CUcontext second = context_new();
    CUstream capturing, kept;
    CUgraph graph;

    MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&kept, CU_STREAM_NON_BLOCKING));
    MUST(cuMemFree(allocate(BYTES))); /* a stack there too */
    MUST(cuStreamBeginCapture(capturing, mode));
    MUST(cuCtxSetCurrent(context));
    fences("while another context captures");
    MUST(cuCtxSetCurrent(second));
    for (int i = 0; i < 300; i++)
        MUST(cuMemFree(allocate(1 << 10))); /* no fence there */
    MUST(cuStreamEndCapture(capturing, &graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamBeginCapture(kept, mode));
    MUST(cuStreamBeginCapture(capturing, mode));
    MUST(cuStreamDestroy(capturing));
    MUST(cuCtxDestroy(second));
    MUST(cuCtxSetCurrent(context));
    fences("after a capturing context was destroyed");
}

static void start_primary(void)
{
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
}

/* The primary context comes back with the same handle. */
static void primary(void)
{
    MUST(cuMemFree(allocate(BYTES)));
    MUST(cuStreamBeginCapture(stream, mode));
    MUST(cuDevicePrimaryCtxReset(device));
    MUST(cuDevicePrimaryCtxRelease(device));
    start_primary();
    fences("after a reset");
    MUST(cuStreamBeginCapture(stream, mode));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuDevicePrimaryCtxRelease(device));
    churn(1); /* the capture is under way */
    MUST(cuDevicePrimaryCtxRelease(device));
    start_primary();
    fences("after the last release");
}

#if CUDA_VERSION >= 12040
static CUgreenCtx green_new(void)
{
    CUdevResourceDesc description;
    CUdevResource resource;
    CUgreenCtx green;

    MUST(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    MUST(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

/* A green context's memory is its primary's, and a fence of that spoils its captures. */
static void green_contexts(void)
{
    CUgreenCtx green = green_new();
    CUstream capturing;
    CUgraph graph;

    MUST(cuGreenCtxStreamCreate(&capturing, green, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuMemFree(allocate(BYTES)));
    MUST(cuStreamBeginCapture(capturing, mode));
    churn(1);
    MUST(cuStreamEndCapture(capturing, &graph));
    MUST(cuGraphDestroy(graph));
    fences("after a green context's capture");
    MUST(cuStreamBeginCapture(capturing, mode));
    MUST(cuGreenCtxDestroy(green));
    fences("after a capturing green context was destroyed");
}

/* The last that held the primary: its memory is gone with it. */
static void last_green_context(void)
{
    CUgreenCtx green = green_new();
    CUdeviceptr block = allocate(BYTES), again;

    MUST(cuDevicePrimaryCtxRelease(device));
    MUST(cuGreenCtxDestroy(green));
    CHECK(cuMemFree(block) != CUDA_SUCCESS); /* hardware: CUDA_ERROR_CONTEXT_IS_DESTROYED */
    start_primary();
    again = allocate(BYTES);
    fill(other, again, WORDS, 7);
    MUST(cuStreamSynchronize(other));
    CHECK(last_word(again) == 7);
    MUST(cuMemFree(again));
}
#else
static void green_contexts(void)
{
}

static void last_green_context(void)
{
}
#endif

/* The driver has the call, and refuses it. */
static void refused(void)
{
    unsigned count;

    if (hostcuda_fault_add)
        CHECK(hostcuda_fault_add("cuCtxRecordEvent:code=801") == 0);
    count = addresses_of(8 << 20, 60);
    if (count > 16)
        printf("60 blocks of 8 MiB, one at a time, took %u addresses\n", count);
    if (hostcuda_fault_clear)
        hostcuda_fault_clear();
    fences("when fences can be had again");
}

/* The library has it on every driver. */
extern CUresult begin_to_cig(CUstream stream, void *parameters) __asm__("cuStreamBeginCaptureToCig")
    __attribute__((weak));

/* Work that no fence covers may come: full waits from then on, in frees. */
static void distrust(void)
{
    unsigned count;

    MUST(cuMemFree(allocate(BYTES)));
    if (begin_to_cig)
        CHECK(begin_to_cig(stream, NULL) != CUDA_SUCCESS);
    count = addresses_of(8 << 20, 60);
    if (count > 16)
        printf("60 blocks of 8 MiB, one at a time, took %u addresses\n", count);
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
    watchdog(scene, ENOUGH_S);
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
    else if (!strcmp(scene, "growth"))
        growth();
    else if (!strcmp(scene, "freed_before"))
        freed_before();
    else if (!strcmp(scene, "contexts"))
        contexts();
    else if (!strcmp(scene, "primary"))
        primary();
    else if (!strcmp(scene, "green_contexts"))
        green_contexts();
    else if (!strcmp(scene, "last_green_context"))
        last_green_context();
    else if (!strcmp(scene, "refused"))
        refused();
    else if (!strcmp(scene, "distrust"))
        distrust();
    else
        return 2;
    puts("ok");
    return 0;
}
