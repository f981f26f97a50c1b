/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is full of freed memory: the device in host memory has addresses for 1 GiB of
 * it.  Whatever the program asks for next is served as the driver alone would serve it, whose free
 * has waited; and nothing waits that the driver's own allocation would not wait for.
 *
 * full_host ready WAY      600 MiB, where nobody uses 600 MiB that were freed
 * full_host pending WAY    the same while 100 ms of work use what was freed
 * full_host busy WAY       the same while 100 ms of later work keep the context busy
 * full_host beside WAY     the same, where another context is busy until this thread goes on
 * full_host live WAY       the same, where the 600 MiB are in use: refused at once
 * full_host too_much WAY   more than any host has, while a kernel waits for this thread: refused at
 *                          once
 * full_host fault WAY      where the driver refuses once, and has memory when some has gone back
 *
 * WAY: flags (other flags than those of the freed memory), same (its own, and 700 MiB), plain
 * (cuMemAllocHost), context (another context's), device (another device's), managed, register
 * (cuMemHostRegister), create (cuMemCreate of host memory), spill (cuMemAlloc, of which the device
 * has too little). */
#include "device_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

enum { OTHER_FLAGS = CU_MEMHOSTALLOC_WRITECOMBINED, HOST = 2 /* CU_MEM_LOCATION_TYPE_HOST */ };

static CUcontext first, second, other_device;
static CUstream stream;

/* ---- the ways to memory ---- */

static CUresult by_flags(size_t bytes)
{
    void *block;

    return cuMemHostAlloc(&block, bytes, OTHER_FLAGS);
}

static CUresult by_same(size_t bytes)
{
    void *block;

    return cuMemHostAlloc(&block, bytes < 1024 * MIB ? bytes + 100 * MIB : bytes, 0);
}

static CUresult by_plain(size_t bytes)
{
    void *block;

    return cuMemAllocHost(&block, bytes);
}

static CUresult in_context(CUcontext context, size_t bytes)
{
    CUcontext popped;
    CUresult result;

    MUST(cuCtxPushCurrent(context));
    result = by_plain(bytes);
    MUST(cuCtxPopCurrent(&popped));
    return result;
}

static CUresult by_context(size_t bytes)
{
    return in_context(second, bytes);
}

static CUresult by_device(size_t bytes)
{
    return in_context(other_device, bytes);
}

static CUresult by_spill(size_t bytes)
{
    CUdeviceptr block;

    return cuMemAlloc(&block, bytes);
}

static CUresult by_managed(size_t bytes)
{
    CUdeviceptr block;

    return cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult by_register(size_t bytes)
{
    return cuMemHostRegister(malloc(bytes), bytes, 0);
}

static CUresult by_create(size_t bytes)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemGenericAllocationHandle handle;

    properties.location.type = (CUmemLocationType)HOST;
    return cuMemCreate(&handle, bytes, &properties, 0);
}

static const struct way {
    const char *name, *symbol;
    CUresult (*allocate)(size_t bytes);
} ways[] = {{"flags", "cuMemHostAlloc", by_flags},
            {"same", "cuMemHostAlloc", by_same},
            {"plain", "cuMemAllocHost_v2,cuMemHostAlloc", by_plain},
            {"context", "cuMemHostAlloc", by_context},
            {"device", "cuMemHostAlloc", by_device},
            {"managed", "cuMemAllocManaged", by_managed},
            {"spill", NULL, by_spill},
            {"register", "cuMemHostRegister_v2", by_register},
            {"create", "cuMemCreate", by_create}};

static CUresult ask(const struct way *way, size_t bytes)
{
    CUresult result;

    hostcuda_request_begin();
    result = way->allocate(bytes);
    hostcuda_request_end();
    return result;
}

/* How often somebody has asked whether work is done. */
static unsigned long long questions(void)
{
    return hostcuda_call_count("cuEventQuery") + hostcuda_call_count("cuStreamQuery");
}

static void *allocate(void)
{
    void *block;

    MUST(HOSTCUDA_REQUEST(cuMemHostAlloc(&block, 600 * MIB, 0)));
    return block;
}

/* ---- the scenes ---- */

static void ready(const struct way *way)
{
    MUST(cuMemFreeHost(allocate()));
    MUST(ask(way, 600 * MIB));
}

static void pending(const struct way *way)
{
    void *block = allocate();

    hold(stream, (CUdeviceptr)(uintptr_t)block, 1024, 7, 100000);
    MUST(cuMemFreeHost(block));
    MUST(ask(way, 600 * MIB));
}

static void busy(const struct way *way)
{
    CUdeviceptr used;

    MUST(cuMemAlloc(&used, MIB));
    MUST(cuMemFreeHost(allocate()));
    MUST(cuCtxSynchronize());
    hold(stream, used, 1024, 7, 100000);
    MUST(ask(way, 600 * MIB));
}

/* A kernel runs until the flag is raised, and this thread raises it only afterwards. */
static void beside(const struct way *way)
{
    unsigned *flag = flag_new();
    CUstream beside_stream;
    CUcontext popped;

    MUST(cuCtxPushCurrent(second));
    MUST(cuStreamCreate(&beside_stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemFreeHost(flag_new())); /* the busy context keeps some memory too */
    MUST(cuCtxPopCurrent(&popped));
    MUST(cuMemFreeHost(allocate()));
    MUST(cuCtxPushCurrent(second));
    stop_at(beside_stream, flag);
    MUST(cuCtxPopCurrent(&popped));
    MUST(ask(way, 600 * MIB));
    flag_raise(flag);
}

static void live(const struct way *way)
{
    unsigned long long before;

    (void)allocate();
    before = questions();
    CHECK(ask(way, 600 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(questions() - before < 100);
}

static void too_much(const struct way *way)
{
    unsigned *flag = flag_new();
    unsigned long long before;
    void *block = allocate();

    stop_at(stream, flag);
    if (getenv("SERVED")) /* else the free would wait for ever */
        MUST(cuMemFreeHost(block));
    before = questions();
    CHECK(ask(way, (size_t)1 << 50) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(questions() - before < 1000); /* a request that waits asks all the time, for 15 s */
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
}

static void fault(const struct way *way)
{
    char rule[128];

    MUST(cuMemFreeHost(allocate()));
    snprintf(rule, sizeof(rule), "%s:count=1:code=2", way->symbol);
    CHECK(hostcuda_fault_add(rule) == 0);
    MUST(ask(way, 2 * MIB));
}

static const struct scene {
    const char *name;
    void (*play)(const struct way *way);
} scenes[] = {{"ready", ready}, {"pending", pending},   {"busy", busy},  {"beside", beside},
              {"live", live},   {"too_much", too_much}, {"fault", fault}};

static void start(void)
{
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&second, 0, 0));
    MUST(cuDevicePrimaryCtxRetain(&other_device, 1));
    MUST(cuDevicePrimaryCtxRetain(&first, 0));
    MUST(cuCtxSetCurrent(first));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gpu_work_load();
}

int main(int argc, char **argv)
{
    const struct scene *scene = NULL;
    const struct way *way = NULL;

    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]) && argc == 3; i++)
        if (!strcmp(argv[1], scenes[i].name))
            scene = &scenes[i];
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]) && argc == 3; i++)
        if (!strcmp(argv[2], ways[i].name))
            way = &ways[i];
    if (!scene || !way)
        return 2;
    watchdog(argv[1], ENOUGH_S);
    start();
    scene->play(way);
    puts("ok");
    return 0;
}
