/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for which the driver takes memory of its own, on a device whose memory a pool keeps, as the
 * device itself counts them (hostcuda.h).
 *
 *   retry rows CALLS   each call, out of memory once: CALLS is 2 where it is made again, else 1
 *   retry full [busy]  what does not fit before the pool gives back what it keeps; busy: while the
 *                      GPU may still be using what was freed
 *   retry devices      of two devices the one that is out of memory gives back
 *
 * Prints what is wrong; "ok" and status 0 when nothing is. */
#include "../samples/sample.h"
#include "driver/cuda.h"
#include "hostcuda.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, KEPT_BYTES = 32 * MIB };

static unsigned wrong;
static CUcontext primary;
static CUmodule module;
static CUlibrary library;
static CUkernel kernel;
static CUgraph graph;
static CUgraphExec exec;
static CUdevResourceDesc description;
static CUgreenCtx green;
static CUmemGenericAllocationHandle handle;
static CUdeviceptr reserved, mapped;
static char page[4096] __attribute__((aligned(4096)));

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d, ", __LINE__);                                                         \
            printf(__VA_ARGS__);                                                                   \
            printf(": %s\n", #condition);                                                          \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)

/* ---- each call, undone at once where it made something ---- */

#define ROW(symbol, call, undo)                                                                    \
    static CUresult call_##symbol(void)                                                            \
    {                                                                                              \
        CUresult result = call;                                                                    \
        if (result == CUDA_SUCCESS)                                                                \
            undo;                                                                                  \
        return result;                                                                             \
    }

#define NOTHING (void)0

/* The library does not export it (src/hook/unexported.map). */
#define LOOKED_UP(symbol) ((__typeof__(&(symbol)))dlsym(RTLD_DEFAULT, #symbol))

static CUmodule made_module;
static CUlibrary made_library;
static CUgraphExec made_exec;
static CUgraphNode made_node;
static CUstream made_stream;
static CUevent made_event;
static CUcontext made_context;
static CUgreenCtx made_green;
static CUmemoryPool made_pool;
static CUfunction function;
static CUdeviceptr address;
static size_t bytes;
static void *host;

static CUmemPoolProps pool_props(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};

    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return props;
}

static CUresult pool_create(void)
{
    CUmemPoolProps props = pool_props();

    return cuMemPoolCreate(&made_pool, &props);
}

static CUresult memory_node(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = pool_props(), .bytesize = MIB};

    return cuGraphAddMemAllocNode(&made_node, graph, NULL, 0, &params);
}

static CUresult set_access(void)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return cuMemSetAccess(mapped, 2 * MIB, &access, 1);
}

static CUresult instantiate_with(__typeof__(&cuGraphInstantiateWithParams) instantiate)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};

    return instantiate(&made_exec, graph, &params);
}

ROW(cuModuleLoad, cuModuleLoad(&made_module, "/dev/null"), MUST(cuModuleUnload(made_module)))
ROW(cuModuleLoadData, cuModuleLoadData(&made_module, "image"), MUST(cuModuleUnload(made_module)))
ROW(cuModuleLoadDataEx, cuModuleLoadDataEx(&made_module, "image", 0, NULL, NULL),
    MUST(cuModuleUnload(made_module)))
ROW(cuModuleLoadFatBinary, cuModuleLoadFatBinary(&made_module, "image"),
    MUST(cuModuleUnload(made_module)))
ROW(cuModuleGetFunction, cuModuleGetFunction(&function, module, "fill32"), NOTHING)
ROW(cuModuleGetGlobal_v2, cuModuleGetGlobal_v2(&address, &bytes, module, "variable"), NOTHING)
ROW(cuFuncLoad, cuFuncLoad(function), NOTHING)
ROW(cuLibraryLoadData, cuLibraryLoadData(&made_library, "image", NULL, NULL, 0, NULL, NULL, 0),
    MUST(cuLibraryUnload(made_library)))
ROW(cuLibraryLoadFromFile,
    cuLibraryLoadFromFile(&made_library, "/dev/null", NULL, NULL, 0, NULL, NULL, 0),
    MUST(cuLibraryUnload(made_library)))
ROW(cuLibraryGetModule, cuLibraryGetModule(&made_module, library), NOTHING)
ROW(cuLibraryGetGlobal, cuLibraryGetGlobal(&address, &bytes, library, "variable"), NOTHING)
ROW(cuLibraryGetManaged, cuLibraryGetManaged(&address, &bytes, library, "variable"), NOTHING)
ROW(cuKernelGetFunction, cuKernelGetFunction(&function, kernel), NOTHING)
ROW(cuGraphInstantiate, LOOKED_UP(cuGraphInstantiate)(&made_exec, graph, NULL, NULL, 0),
    MUST(cuGraphExecDestroy(made_exec)))
ROW(cuGraphInstantiate_v2, cuGraphInstantiate_v2(&made_exec, graph, NULL, NULL, 0),
    MUST(cuGraphExecDestroy(made_exec)))
ROW(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags(&made_exec, graph, 0),
    MUST(cuGraphExecDestroy(made_exec)))
ROW(cuGraphInstantiateWithParams, instantiate_with(cuGraphInstantiateWithParams),
    MUST(cuGraphExecDestroy(made_exec)))
ROW(cuGraphInstantiateWithParams_ptsz, instantiate_with(cuGraphInstantiateWithParams_ptsz),
    MUST(cuGraphExecDestroy(made_exec)))
ROW(cuGraphUpload, cuGraphUpload(exec, NULL), NOTHING)
ROW(cuGraphUpload_ptsz, cuGraphUpload_ptsz(exec, NULL), NOTHING)
ROW(cuGraphAddNode, cuGraphAddNode(&made_node, graph, NULL, 0, NULL), NOTHING)
ROW(cuGraphAddNode_v2, cuGraphAddNode_v2(&made_node, graph, NULL, NULL, 0, NULL), NOTHING)
ROW(cuGraphAddNode_v3, cuGraphAddNode_v3(&made_node, graph, NULL, NULL, 0, NULL), NOTHING)
ROW(cuStreamCreate, cuStreamCreate(&made_stream, 0), MUST(cuStreamDestroy_v2(made_stream)))
ROW(cuStreamCreateWithPriority, cuStreamCreateWithPriority(&made_stream, 0, 0),
    MUST(cuStreamDestroy_v2(made_stream)))
ROW(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate(&made_stream, green, CU_STREAM_NON_BLOCKING, 0),
    MUST(cuStreamDestroy_v2(made_stream)))
ROW(cuEventCreate, cuEventCreate(&made_event, 0), MUST(cuEventDestroy_v2(made_event)))
ROW(cuCtxCreate, LOOKED_UP(cuCtxCreate)(&made_context, 0, 0), MUST(cuCtxDestroy_v2(made_context)))
ROW(cuCtxCreate_v2, cuCtxCreate_v2(&made_context, 0, 0), MUST(cuCtxDestroy_v2(made_context)))
ROW(cuCtxCreate_v3, cuCtxCreate_v3(&made_context, NULL, 0, 0, 0),
    MUST(cuCtxDestroy_v2(made_context)))
ROW(cuCtxCreate_v4, cuCtxCreate_v4(&made_context, NULL, 0, 0), MUST(cuCtxDestroy_v2(made_context)))
ROW(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&made_context, 0),
    MUST(cuDevicePrimaryCtxRelease_v2(0)))
ROW(cuGreenCtxCreate, cuGreenCtxCreate(&made_green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
    MUST(cuGreenCtxDestroy(made_green)))
ROW(cuCtxSetLimit, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096), NOTHING)
ROW(cuMemHostRegister, LOOKED_UP(cuMemHostRegister)(page, sizeof(page), 0),
    MUST(cuMemHostUnregister(page)))
ROW(cuMemHostRegister_v2, cuMemHostRegister_v2(page, sizeof(page), 0),
    MUST(cuMemHostUnregister(page)))
ROW(cuMemSetAccess, set_access(), NOTHING)

/* Of other groups. */
ROW(cuMemHostAlloc, cuMemHostAlloc(&host, 4096, 0), MUST(cuMemFreeHost(host)))
ROW(cuMemAllocHost_v2, cuMemAllocHost_v2(&host, 4096), MUST(cuMemFreeHost(host)))
ROW(cuMemPoolCreate, pool_create(), MUST(cuMemPoolDestroy(made_pool)))
ROW(cuGraphAddMemAllocNode, memory_node(), NOTHING)
ROW(cuMemMap, cuMemMap(reserved, 2 * MIB, 0, handle, 0), MUST(cuMemUnmap(reserved, 2 * MIB)))

static const struct row {
    const char *symbol;
    CUresult (*call)(void);
} rows[] = {
#define HOOK_lookup(symbol)
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_capture(symbol)
#define HOOK_context(symbol)
#define HOOK_async(symbol)
#define HOOK_limit(symbol)
#define HOOK_count(symbol)
#define HOOK_wait(symbol)
#define HOOK_retry(symbol)                                       {#symbol, call_##symbol},
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"
    HOOK_retry(cuMemHostAlloc)         /* */
    HOOK_retry(cuMemAllocHost_v2)      /* */
    HOOK_retry(cuMemPoolCreate)        /* */
    HOOK_retry(cuGraphAddMemAllocNode) /* */
    HOOK_retry(cuMemMap)               /* */
};

/* ---- what a pool keeps ---- */

static bool is_busy;

/* Work of 20 ms, from a library: a module would take memory. */
static void start_work(void)
{
    static CUlibrary kernels;
    static CUkernel spin;
    size_t microseconds = 20000;
    void *arguments[] = {&microseconds};

    if (!spin) {
        MUST(cuLibraryLoadData(&kernels, "image", NULL, NULL, 0, NULL, NULL, 0));
        MUST(cuLibraryGetKernel(&spin, kernels, "spin_us"));
    }
    MUST(cuLaunchKernel((CUfunction)spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
}

/* The device's memory in use after one more block was freed, which a pool keeps. */
static size_t keep(int device, size_t size_bytes)
{
    CUdeviceptr block;

    MUST(cuMemAlloc_v2(&block, size_bytes));
    if (is_busy)
        start_work();
    MUST(cuMemFree_v2(block));
    return hostcuda_used_bytes(device);
}

static CUresult faulty(const struct row *row, int code, unsigned long long calls)
{
    unsigned long long before = hostcuda_call_count(row->symbol), made;
    char rule[128];
    CUresult result;

    snprintf(rule, sizeof(rule), "%s:count=1:code=%d", row->symbol, code);
    MUST(hostcuda_fault_add(rule));
    result = row->call();
    made = hostcuda_call_count(row->symbol) - before;
    /* To ask whether the context is idle the library makes an event of its own. */
    EXPECT(made == calls ||
               (made == calls + 1 && calls > 1 && !strcmp(row->symbol, "cuEventCreate")),
           "%s with error %d: %llu calls", row->symbol, code, made);
    hostcuda_fault_clear();
    return result;
}

static void play_row(const struct row *row, unsigned calls)
{
    CUresult plain = row->call(), result;
    size_t kept = keep(0, KEPT_BYTES), used;

    EXPECT(plain != CUDA_ERROR_OUT_OF_MEMORY, "%s", row->symbol);
    result = faulty(row, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(result == CUDA_ERROR_UNKNOWN, "%s answers %d", row->symbol, (int)result);
    EXPECT(hostcuda_used_bytes(0) >= kept, "%s after another error", row->symbol);
    result = faulty(row, CUDA_ERROR_OUT_OF_MEMORY, calls);
    used = hostcuda_used_bytes(0);
    EXPECT(result == (calls > 1 ? plain : CUDA_ERROR_OUT_OF_MEMORY), "%s answers %d", row->symbol,
           (int)result);
    EXPECT((used + KEPT_BYTES / 2 <= kept) == (calls > 1), "%s leaves %zu of %zu bytes in use",
           row->symbol, used, kept);
    if (calls < 2)
        return;
    result = faulty(row, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY, "%s answers %d when nothing is left", row->symbol,
           (int)result);
}

static void begin(int device)
{
    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    MUST(cuCtxSetCurrent(primary));
}

static void make_subjects(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUdevResource resource;

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "fill32"));
    MUST(cuModuleGetFunction(&function, module, "fill32"));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuMemAddressReserve(&reserved, 4 * MIB, 0, 0, 0));
    MUST(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    mapped = reserved + 2 * MIB;
    MUST(cuMemMap(mapped, 2 * MIB, 0, handle, 0));
}

static void play_rows(unsigned calls)
{
    begin(0);
    make_subjects();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        play_row(&rows[i], calls);
}

/* ---- a device that is full ---- */

static void fill(void)
{
    size_t free_bytes, total_bytes;

    MUST(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    keep(0, (free_bytes / MIB - 36) * MIB); /* `virtual` takes pieces of 32 MiB */
}

/* The compiler's log is that of the call that was answered. */
static void load_with_log(void)
{
    char log[16] = "nothing";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof(log)};

    MUST(cuModuleLoadDataEx(&made_module, "image", 2, options, values));
    EXPECT(!strcmp(log, "loaded"), "cuModuleLoadDataEx says '%s'", log);
    EXPECT((size_t)values[1] == strlen("loaded"), "cuModuleLoadDataEx with a log");
    MUST(cuModuleUnload(made_module));
}

/* 64 MiB are what a context takes, and a module. */
static void play_full(void)
{
    CUdevResource resource;
    CUcontext created;

    MUST(cuCtxCreate_v2(&created, 0, 0));
    MUST(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    fill();
    MUST(call_cuCtxCreate_v2());
    fill();
    MUST(call_cuDevicePrimaryCtxRetain());
    fill();
    MUST(call_cuGreenCtxCreate());
    fill();
    MUST(call_cuModuleLoadData());
    fill();
    MUST(call_cuModuleLoadFatBinary());
    fill();
    load_with_log();
    fill();
    MUST(cuModuleLoadData(&module, "image"));
    EXPECT(hostcuda_used_bytes(0) >= 128 * MIB, "a module's memory");
    MUST(cuCtxDestroy_v2(created));
    EXPECT(hostcuda_used_bytes(0) == 0, "%zu bytes are left in use", hostcuda_used_bytes(0));
}

/* ---- two devices ---- */

static CUresult create_on_the_other(void)
{
    CUresult result = cuCtxCreate_v2(&made_context, 0, 1);

    if (result == CUDA_SUCCESS)
        MUST(cuCtxDestroy_v2(made_context));
    return result;
}

static CUresult retain_the_other(void)
{
    CUresult result = cuDevicePrimaryCtxRetain(&made_context, 1);

    if (result == CUDA_SUCCESS)
        MUST(cuDevicePrimaryCtxRelease_v2(1));
    return result;
}

/* No context is current where `current` is NULL. */
static void play_on_the_other(const struct row *row, CUcontext first, CUcontext second,
                              CUcontext current)
{
    size_t kept_first, kept_second;

    MUST(cuCtxSetCurrent(first));
    kept_first = keep(0, KEPT_BYTES);
    MUST(cuCtxSetCurrent(second));
    kept_second = keep(1, KEPT_BYTES);
    MUST(cuCtxSetCurrent(current));
    MUST(faulty(row, CUDA_ERROR_OUT_OF_MEMORY, 2));
    EXPECT(hostcuda_used_bytes(0) == kept_first, "%s: the first device", row->symbol);
    EXPECT(hostcuda_used_bytes(1) + KEPT_BYTES <= kept_second, "%s: the second", row->symbol);
}

static void play_devices(void)
{
    static const struct row on_the_other[] = {
        {"cuCtxCreate_v2", create_on_the_other},
        {"cuDevicePrimaryCtxRetain", retain_the_other},
        {"cuGreenCtxStreamCreate", call_cuGreenCtxStreamCreate},
    };
    CUcontext first, second;
    CUdevResource resource;

    begin(0);
    first = primary;
    begin(1);
    second = primary;
    MUST(cuDeviceGetDevResource(1, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    MUST(cuGreenCtxCreate(&green, description, 1, CU_GREEN_CTX_DEFAULT_STREAM));
    for (size_t i = 0; i < sizeof(on_the_other) / sizeof(on_the_other[0]); i++) {
        play_on_the_other(&on_the_other[i], first, second, first);
        play_on_the_other(&on_the_other[i], first, second, NULL);
    }
}

int main(int argc, char **argv)
{
    MUST(cuInit(0));
    is_busy = argc > 2 && !strcmp(argv[2], "busy");
    if (argc > 2 && !strcmp(argv[1], "rows"))
        play_rows((unsigned)atoi(argv[2]));
    else if (argc > 1 && !strcmp(argv[1], "full"))
        play_full();
    else if (argc > 1 && !strcmp(argv[1], "devices"))
        play_devices();
    else
        return 2;
    if (wrong == 0)
        printf("ok\n");
    return wrong != 0;
}
