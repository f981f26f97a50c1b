/* SPDX-License-Identifier: Apache-2.0 */
/* A device that is full of freed memory, on 1 GiB: whatever the program asks for next, by whichever
 * way, is served as the driver alone would serve it, whose free has waited; and nothing waits that
 * the driver's own allocation would not wait for.
 *
 * full_device pending WAY    600 MiB while 100 ms of work use 700 MiB that were freed
 * full_device ending WAY     the same while another context is about to end, which takes 200 ms
 * full_device busy WAY       600 MiB while work follows the free of 700 MiB of managed memory
 * full_device too_much WAY   2 GiB, while a kernel waits for this thread: refused at once
 * full_device ready WAY      900 MiB, while a kernel waits, and nobody uses what is free: served
 *
 * WAY: plain, async, create, array, context (another context's cuMemAlloc).  The scenes also run on
 * a GPU, with a block that fills it to 1 GiB. */
#include "device_work.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

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

static const struct way {
    const char *name;
    CUresult (*allocate)(size_t bytes);
} ways[] = {{"plain", by_plain},
            {"async", by_async},
            {"create", by_create},
            {"array", by_array},
            {"context", by_context}};

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
    return hostcuda_call_count
               ? hostcuda_call_count("cuEventQuery") + hostcuda_call_count("cuStreamQuery")
               : 0;
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

static void busy(const struct way *way)
{
    CUdeviceptr used = allocate(MIB), block;

    MUST(cuMemAllocManaged(&block, 700 * MIB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemFree(block));
    MUST(cuCtxSynchronize());
    hold(stream, used, 1024, 7, 100000);
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
    enum { QUESTIONS_MOST = 1000 }; /* a request that waits asks all the time, for 15 s */
    unsigned long long before;
    unsigned *flag;

    MUST(cuMemFree(allocate(300 * MIB)));
    flag = start_waiting_kernel();
    before = questions();
    CHECK(ask(way, 2048 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(questions() - before < QUESTIONS_MOST);
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
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
              {"busy", busy},
              {"ending", ending},
              {"too_much", too_much},
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
    watchdog(argv[1], ENOUGH_S);
    start();
    scene->play(way);
    puts("ok");
    return 0;
}
