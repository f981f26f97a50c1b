/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that fails (an illegal address), in a program of which the checks are those of its frees
 * and allocations.  The driver alone answers the error to each of them until the context ends; the
 * library answers it from the moment at which the driver has said so in passing.
 *
 * fault frees    64 frees after the fault: from the first that is told on, all fail, and so does
 *                whatever else is asked of the context; another context is served
 * fault large    one free of 64 MiB
 * fault fence    blocks are freed before the fault; the next allocation is told of it
 * fault wait     a wait of the program is told of it
 * fault thread   a thread that has not used the context before allocates in it
 * fault limit    a request that a limit refuses
 * fault ended    the context is reset, and served again
 * fault denied   the driver says it once and takes it back: nothing fails
 *
 * Prints what is wrong; "ok" and status 0 when nothing is. */
#include "device_work.h"

#include "hostcudart.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

#define FAULT CUDA_ERROR_ILLEGAL_ADDRESS

enum { BLOCKS = 64, UNTOLD_MOST = 16 };

static CUcontext first, second;
static CUstream stream;
static CUdeviceptr blocks[BLOCKS], managed, elsewhere;
static void *pinned;

static void allocate_all(size_t bytes)
{
    for (int i = 0; i < BLOCKS; i++)
        MUST(cuMemAlloc(&blocks[i], bytes));
    MUST(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemHostAlloc(&pinned, MIB, 0));
}

static void start_fault(void)
{
    CUlibrary library;
    CUkernel kernel;

    MUST(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "fault"));
    MUST(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* Until the device has come to the fault, without a call that the library sees. */
static void await_fault(void)
{
    CUresult result;

    do
        result = cuStreamQuery(stream);
    while (result == CUDA_ERROR_NOT_READY);
    CHECK(result == FAULT);
}

/* What the context answers once the library knows. */
static void all_fails(void)
{
    CUdeviceptr block;
    void *host;

    CHECK(cuMemFreeHost(pinned) == FAULT);
    CHECK(cuMemFree(managed) == FAULT);
    CHECK(cuMemAlloc(&block, MIB) == FAULT);
    CHECK(cuMemAllocManaged(&block, MIB, CU_MEM_ATTACH_GLOBAL) == FAULT);
    CHECK(cuMemHostAlloc(&host, MIB, 0) == FAULT);
    CHECK(cudaMalloc(&host, MIB) == cudaErrorIllegalAddress);
    CHECK(cuMemFree(blocks[BLOCKS - 1]) == FAULT);
    CHECK(cuMemFree(blocks[BLOCKS - 1] + 512) == CUDA_ERROR_INVALID_VALUE);
}

static void another_is_served(void)
{
    CUcontext popped;
    CUdeviceptr block;

    MUST(cuCtxPushCurrent(second));
    MUST(cuMemAlloc(&block, MIB));
    MUST(cuMemFree(block));
    MUST(cuMemFree(elsewhere));
    CHECK(cuMemFree(blocks[BLOCKS - 1]) == FAULT);
    MUST(cuCtxPopCurrent(&popped));
}

/* ---- the scenes ---- */

static void frees(void)
{
    int untold = 0;

    allocate_all(MIB);
    start_fault();
    await_fault();
    while (untold < BLOCKS && cuMemFree(blocks[untold]) == CUDA_SUCCESS)
        untold++;
    CHECK(untold <= UNTOLD_MOST);
    for (int i = untold; i < BLOCKS; i++)
        CHECK(cuMemFree(blocks[i]) == FAULT);
    all_fails();
    another_is_served();
}

static void large(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, 64 * MIB));
    start_fault();
    await_fault();
    CHECK(cuMemFree(block) == FAULT);
    CHECK(cuMemFree(block) == FAULT);
}

static void fence(void)
{
    unsigned *flag = flag_new();
    bool served = getenv("SERVED");
    CUdeviceptr block;

    allocate_all(8 * MIB);
    stop_at(stream, flag);
    if (served)
        for (int i = 0; i < BLOCKS - 1; i++)
            MUST(cuMemFree(blocks[i]));
    start_fault();
    flag_raise(flag);
    await_fault();
    (void)cuMemAlloc(&block, 900 * MIB); /* has to look whether anything is ready */
    all_fails();
}

static void wait(void)
{
    allocate_all(MIB);
    start_fault();
    CHECK(cuCtxSynchronize() == FAULT);
    all_fails();
    another_is_served();
}

static void *allocate_there(void *data)
{
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(first));
    CHECK(cuMemAlloc(&block, MIB) == FAULT);
    return data;
}

static void thread(void)
{
    pthread_t other;

    allocate_all(MIB);
    start_fault();
    await_fault();
    CHECK(pthread_create(&other, NULL, allocate_there, NULL) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cuMemFree(blocks[i]) == FAULT);
    all_fails();
}

/* Under RMM_LIMIT=256MiB. */
static void limit(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, MIB));
    start_fault();
    await_fault();
    CHECK(cuMemAlloc(&block, 512 * MIB) == FAULT);
    CHECK(cuMemAllocManaged(&block, 512 * MIB, CU_MEM_ATTACH_HOST) == FAULT);
}

static void ended(void)
{
    unsigned long long calls;
    CUdeviceptr block;

    allocate_all(MIB);
    start_fault();
    CHECK(cuCtxSynchronize() == FAULT);
    all_fails();
    MUST(cuDevicePrimaryCtxReset(0));
    MUST(cuDevicePrimaryCtxRetain(&first, 0));
    MUST(cuCtxSetCurrent(first));
    for (int i = 0; i < BLOCKS; i++) {
        MUST(cuMemAlloc(&block, MIB));
        MUST(cuMemFree(block));
    }
    calls = hostcuda_call_count("cuMemAlloc_v2");
    MUST(cuMemAlloc(&block, MIB));
    MUST(cuMemFree(block));
    CHECK(!getenv("POOLED") || hostcuda_call_count("cuMemAlloc_v2") == calls);
}

static void denied(void)
{
    unsigned long long calls;

    allocate_all(8 * MIB);
    CHECK(hostcuda_fault_add("cuCtxRecordEvent:count=1:code=700") == 0);
    for (int i = 0; i < BLOCKS; i++)
        MUST(cuMemFree(blocks[i]));
    hostcuda_fault_clear();
    calls = hostcuda_call_count("cuMemAlloc_v2");
    MUST(cuCtxSynchronize());
    MUST(cuMemAlloc(&blocks[0], 8 * MIB));
    MUST(cuMemFree(blocks[0]));
    CHECK(!getenv("POOLED") || hostcuda_call_count("cuMemAlloc_v2") <= calls + 2);
}

static const struct scene {
    const char *name;
    void (*play)(void);
} scenes[] = {{"frees", frees},   {"large", large}, {"fence", fence}, {"wait", wait},
              {"thread", thread}, {"limit", limit}, {"ended", ended}, {"denied", denied}};

int main(int argc, char **argv)
{
    const struct scene *scene = NULL;

    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]) && argc == 2; i++)
        if (!strcmp(argv[1], scenes[i].name))
            scene = &scenes[i];
    if (!scene)
        return 2;
    watchdog(argv[1], ENOUGH_S);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&second, 0, 0));
    MUST(cuMemAlloc(&elsewhere, MIB));
    MUST(cuDevicePrimaryCtxRetain(&first, 0));
    MUST(cuCtxSetCurrent(first));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gpu_work_load();
    scene->play();
    puts("ok");
    return 0;
}
