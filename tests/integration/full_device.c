/* SPDX-License-Identifier: Apache-2.0 */
/* A device that is full of freed memory, on 1 GiB: whatever the program asks for next, by whichever
 * way, is served as the driver alone would serve it, whose free has waited; and nothing waits that
 * the driver's own allocation would not wait for.
 *
 * full_device pending WAY    600 MiB while 100 ms of work use 700 MiB that were freed
 * full_device ending WAY     the same while another context is about to end, which takes 200 ms
 * full_device too_much WAY   2 GiB, while a kernel waits for this thread: refused at once
 * full_device ready WAY      900 MiB, while a kernel waits, and nobody uses what is free: served
 *
 * full_device refused WAY    2 GiB, twice: asked of the driver a few times, and 100 MiB are served
 *
 * WAY: plain, async, create, array, context (another context's cuMemAlloc), kept (a pool of the
 * driver that keeps its memory), small (such a pool of at most 512 MiB).  The scenes also run on a
 * GPU, with a block that fills it to 1 GiB. */
#include "device_work.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

static CUdevice device;
static CUcontext first, second;
static CUstream stream;

/* ---- the ways to memory ---- */

static CUresult by_plain(size_t bytes)
{
    CUdeviceptr block;

    return cuMemAlloc(&block, bytes);
}

static CUresult by_async(size_t bytes)
{
    CUdeviceptr block;

    return cuMemAllocAsync(&block, bytes, stream);
}

static CUresult by_create(size_t bytes)
{
    const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    CUmemGenericAllocationHandle handle;

    return cuMemCreate(&handle, bytes, &properties, 0);
}

static CUresult by_array(size_t bytes)
{
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = 16384,
                                              .Height = bytes / 16384 / 4,
                                              .Format = CU_AD_FORMAT_FLOAT,
                                              .NumChannels = 1};
    CUarray array;

    return cuArrayCreate(&array, &descriptor);
}

static CUresult by_context(size_t bytes)
{
    CUcontext popped;
    CUresult result;

    MUST(cuCtxPushCurrent(second));
    result = by_plain(bytes);
    MUST(cuCtxPopCurrent(&popped));
    return result;
}

static CUresult by_pool(size_t bytes, size_t maximum_bytes)
{
    static CUmemoryPool pool;
    const CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .maxSize = maximum_bytes,
    };
    cuuint64_t threshold = UINT64_MAX;
    CUdeviceptr block;

    if (!pool) {
        MUST(cuMemPoolCreate(&pool, &properties));
        MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    }
    return cuMemAllocFromPoolAsync(&block, bytes, pool, stream);
}

static CUresult by_kept(size_t bytes)
{
    return by_pool(bytes, 0);
}

static CUresult by_small(size_t bytes)
{
    return by_pool(bytes, 512 * MIB);
}

static const struct way {
    const char *name;
    CUresult (*allocate)(size_t bytes);
} ways[] = {{"plain", by_plain}, {"async", by_async},     {"create", by_create},
            {"array", by_array}, {"context", by_context}, {"kept", by_kept},
            {"small", by_small}};

static CUresult ask(const struct way *way, size_t bytes)
{
    CUresult result;

    hostcuda_request_begin();
    result = way->allocate(bytes);
    hostcuda_request_end();
    return result;
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr block;

    MUST(HOSTCUDA_REQUEST(cuMemAlloc(&block, bytes)));
    return block;
}

/* ---- the scenes ---- */

static void pending(const struct way *way)
{
    CUdeviceptr block = allocate(700 * MIB);

    hold(stream, block, 1024, 7, 100000);
    MUST(cuMemFree(block));
    MUST(ask(way, 600 * MIB));
}

static void *end_third(void *data)
{
    CUcontext third = data;

    MUST(cuCtxDestroy(third));
    return NULL;
}

static void ending(const struct way *way)
{
    CUcontext third;
    pthread_t thread;

    MUST(cuCtxCreate_v2(&third, 0, device));
    MUST(cuCtxSetCurrent(first));
    CHECK(hostcuda_fault_add("cuCtxDestroy_v2:before_us=200000:code=0") == 0);
    CHECK(pthread_create(&thread, NULL, end_third, third) == 0);
    while (hostcuda_call_count("cuCtxDestroy_v2") == 0)
        ;
    pending(way);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A kernel runs until the flag is raised, and this thread raises it only afterwards. */
static unsigned *start_waiting_kernel(void)
{
    unsigned *flag = flag_new();

    stop_at(stream, flag);
    return flag;
}

static void too_much(const struct way *way)
{
    unsigned *flag;
    double begin_s;

    MUST(cuMemFree(allocate(300 * MIB)));
    flag = start_waiting_kernel();
    begin_s = now_s();
    CHECK(ask(way, 2048 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(now_s() - begin_s < 5); /* not as long as a request may wait */
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
}

static unsigned long long driver_calls(void)
{
    return hostcuda_call_count("cuMemAlloc_v2") + hostcuda_call_count("cuMemAllocAsync") +
           hostcuda_call_count("cuMemAllocFromPoolAsync") + hostcuda_call_count("cuMemCreate") +
           hostcuda_call_count("cuArrayCreate_v2");
}

/* What a refused call took for itself, and kept, is no reason to make it again. */
static void refused(const struct way *way)
{
    /* Where the device has room, the refusal is looked into for longer. */
    unsigned long long before, most = way->allocate == by_small ? 12 : 6;

    MUST(cuMemFree(allocate(300 * MIB)));
    MUST(cuCtxSynchronize());
    for (int i = 0; i < 2; i++) {
        before = driver_calls();
        CHECK(ask(way, 2048 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(driver_calls() - before <= most);
    }
    MUST(ask(way, 100 * MIB));
}

static void ready(const struct way *way)
{
    CUdeviceptr block = allocate(300 * MIB), other = allocate(300 * MIB);
    unsigned *flag;

    MUST(cuMemFree(block));
    MUST(cuMemFree(other));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(allocate(1000))); /* what was freed before is fenced */
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(allocate(300 * MIB)));
    MUST(cuCtxSynchronize());
    flag = start_waiting_kernel();
    MUST(ask(way, 850 * MIB));
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
}

static const struct scene {
    const char *name;
    void (*play)(const struct way *way);
} scenes[] = {{"pending", pending},
              {"ending", ending},
              {"too_much", too_much},
              {"refused", refused},
              {"ready", ready}};

static void start(void)
{
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate_v2(&second, 0, device));
    MUST(cuDevicePrimaryCtxRetain(&first, device));
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
    watchdog(argv[1], 40);
    start();
    scene->play(way);
    puts("ok");
    return 0;
}
