/* SPDX-License-Identifier: Apache-2.0 */
/* Steps in the order of the arguments, for scenes about what a stack holds when:
 *
 * - device|managed|pinned|ordered MIB: allocates; prints the result where it is a refusal
 * - node|any_node|any_node_v2|any_node_v3 MIB: adds a node that allocates to a graph; prints a
 * refusal
 * - free: the latest block
 * - push EXPRESSION, pop: the resource of the thread
 * - used: prints what the device has in use, in MiB, contexts aside
 * - info: prints free and total memory as the driver tells them, in MiB
 * - wait: waits for the context's work
 * - work, go: gives the context work that ends with the latter
 * - stream, event: waits for a stream that is idle, for an event of it
 * - reset, retain: the primary context, which is there at the start
 * - create, destroy: a context of the program's own
 * - exec: becomes this program anew, which reads steps
 *
 * Without arguments the steps are lines of stdin, each answered by its output and "done". */
#include "device_work.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* As programs have it that were built for any CUDA. */
#undef cuCtxCreate_v2
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

enum { BLOCKS_MAX = 64, MIB = 1 << 20 };

struct block {
    void *address;
    enum { DEVICE, PINNED, ORDERED } kind;
};

static struct block blocks[BLOCKS_MAX];
static unsigned block_count;
static CUcontext context;
static size_t context_bytes; /* that the device had in use before anything was allocated */

static void begin(int is_primary)
{
    if (is_primary) {
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
        MUST(cuCtxSetCurrent(context));
    } else {
        MUST(cuCtxCreate_v2(&context, 0, 0));
    }
    context_bytes = hostcuda_used_bytes(0);
}

static void end(int is_primary)
{
    if (is_primary)
        MUST(cuDevicePrimaryCtxReset(0));
    else
        MUST(cuCtxDestroy(context));
    block_count = 0;
}

/* By the call for memory nodes, or by a version of the one for all nodes. */
static CUresult add_node(const char *kind, size_t bytes)
{
    CUgraphNodeParams params = {
        .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        .alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                  .bytesize = bytes},
    };
    CUresult (*first)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *) =
        (__typeof__(first))(uintptr_t)dlsym(RTLD_DEFAULT, "cuGraphAddNode");
    __typeof__(&cuGraphAddNode_v2) third =
        (__typeof__(third))(uintptr_t)dlsym(RTLD_DEFAULT, "cuGraphAddNode_v3");
    CUgraphNode node;
    CUgraph graph;

    MUST(cuGraphCreate(&graph, 0));
    if (strcmp(kind, "any_node") == 0)
        return first(&node, graph, NULL, 0, &params);
    if (strcmp(kind, "any_node_v2") == 0)
        return cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params);
    if (strcmp(kind, "any_node_v3") == 0)
        return third(&node, graph, NULL, NULL, 0, &params);
    return cuGraphAddMemAllocNode(&node, graph, NULL, 0,
                                  (CUDA_MEM_ALLOC_NODE_PARAMS *)&params.alloc);
}

static void allocate_node(const char *kind, size_t bytes)
{
    CUresult result = add_node(kind, bytes);

    if (result != CUDA_SUCCESS)
        printf("%s %zu: %d\n", kind, bytes / MIB, (int)result);
}

static void allocate(const char *kind, size_t bytes)
{
    struct block *block = &blocks[block_count];
    CUdeviceptr address = 0;
    CUresult result;

    if (strstr(kind, "node")) {
        allocate_node(kind, bytes);
        return;
    }
    CHECK(block_count < BLOCKS_MAX);
    block->kind = DEVICE;
    if (strcmp(kind, "device") == 0) {
        result = cuMemAlloc(&address, bytes);
    } else if (strcmp(kind, "managed") == 0) {
        result = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
    } else if (strcmp(kind, "ordered") == 0) {
        block->kind = ORDERED;
        result = cuMemAllocAsync(&address, bytes, NULL);
    } else {
        block->kind = PINNED;
        result = cuMemHostAlloc((void **)&address, bytes, 0);
    }
    block->address = (void *)(uintptr_t)address;
    block_count += result == CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        printf("%s %zu: %d\n", kind, bytes / MIB, (int)result);
}

static void release(void)
{
    struct block block = blocks[--block_count];

    if (block.kind == PINNED) {
        MUST(cuMemFreeHost(block.address));
    } else if (block.kind == ORDERED) {
        MUST(cuMemFreeAsync((CUdeviceptr)(uintptr_t)block.address, NULL));
        MUST(cuCtxSynchronize());
    } else {
        MUST(cuMemFree((CUdeviceptr)(uintptr_t)block.address));
    }
}

static void push(const char *expression)
{
    int (*push_resource)(const char *) =
        (int (*)(const char *))(uintptr_t)dlsym(RTLD_DEFAULT, "rmmshim_push_resource");

    printf("push: %d\n", push_resource ? push_resource(expression) : -1);
}

static void pop(void)
{
    int (*pop_resource)(void) =
        (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "rmmshim_pop_resource");

    CHECK(pop_resource && pop_resource() == 0);
}

static void info(void)
{
    size_t free_bytes, total_bytes;

    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    printf("info %zu %zu\n", free_bytes / MIB, total_bytes / MIB);
}

static unsigned *flag;

static void work(void)
{
    CUstream stream;

    watchdog("work", ENOUGH_S);
    gpu_work_load();
    flag = flag ? flag : flag_new();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    stop_at(stream, flag);
}

static void wait_for_little(bool is_event)
{
    CUstream stream;
    CUevent event;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(event, stream));
    if (is_event)
        MUST(cuEventSynchronize(event));
    else
        MUST(cuStreamSynchronize(stream));
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
}

/* Steps without an argument about the device's work; false for any other. */
static bool step_of_work(const char *name)
{
    if (strcmp(name, "wait") == 0)
        MUST(cuCtxSynchronize());
    else if (strcmp(name, "work") == 0)
        work();
    else if (strcmp(name, "go") == 0)
        flag_raise(flag);
    else if (strcmp(name, "stream") == 0 || strcmp(name, "event") == 0)
        wait_for_little(name[0] == 'e');
    else
        return false;
    return true;
}

/* Steps without an argument. */
static void step(const char *name)
{
    if (step_of_work(name))
        return;
    if (strcmp(name, "free") == 0)
        release();
    else if (strcmp(name, "pop") == 0)
        pop();
    else if (strcmp(name, "used") == 0)
        printf("used %zu\n", (hostcuda_used_bytes(0) - context_bytes) / MIB);
    else if (strcmp(name, "info") == 0)
        info();
    else if (strcmp(name, "exec") == 0)
        execl("/proc/self/exe", "memory_steps", (char *)NULL);
    else if (strcmp(name, "retain") == 0 || strcmp(name, "create") == 0)
        begin(name[0] == 'r');
    else if (strcmp(name, "reset") == 0 || strcmp(name, "destroy") == 0)
        end(name[0] == 'r');
    else
        CHECK(!"a step");
}

static int read_steps(void)
{
    char line[256], *value;

    (void)setvbuf(stdin, NULL, _IONBF, 0); /* what follows `exec` is for who comes then */
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        value = strchr(line, ' ');
        if (value)
            *value++ = '\0';
        if (value)
            allocate(line, strtoul(value, NULL, 10) * MIB);
        else
            step(line);
        puts("done");
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    MUST(cuInit(0));
    begin(1);
    if (argc == 1)
        return read_steps();
    for (int i = 1; i < argc; i++) {
        size_t mib = i + 1 < argc ? strtoul(argv[i + 1], NULL, 10) : 0;

        if (mib > 0)
            allocate(argv[i++], mib * MIB);
        else if (i + 1 < argc && strcmp(argv[i], "push") == 0)
            push(argv[++i]);
        else
            step(argv[i]);
    }
    return 0;
}
