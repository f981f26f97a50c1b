/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads make random calls with handles of each other that may long be dead: the driver must
 * neither crash nor hang, and must work afterwards. Arguments: calls of each thread, threads, seed.
 */
#include "bugs/bug.h"

#include <pthread.h>
#include <stdatomic.h>

#define SLOTS       32
#define THREADS_MAX 64

static _Atomic(CUcontext) contexts[4];
static _Atomic(CUstream) streams[SLOTS];
static _Atomic(CUevent) events[SLOTS];
static _Atomic(CUdeviceptr) blocks[SLOTS];
static _Atomic(CUgraphExec) execs[SLOTS];
static CUcontext primary;
static CUfunction spin;
static atomic_uint launched_count;
static unsigned calls = 3000, thread_count = 8, seed = 1;

static unsigned next_random(unsigned *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void work_with_stream(unsigned *random, CUstream stream)
{
    unsigned slot = next_random(random) % SLOTS;
    CUdeviceptr block;
    CUevent event = events[slot];
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    size_t microseconds = 20;
    void *args[] = {&microseconds};
    switch (next_random(random) % 12) {
    case 0:
        cuStreamQuery(stream);
        break;
    case 1:
        cuStreamSynchronize(stream);
        break;
    case 2:
        cuEventRecord(event, stream);
        break;
    case 3:
        cuStreamWaitEvent(stream, event, 0);
        break;
    case 4:
        cuStreamBeginCapture(stream, (CUstreamCaptureMode)(next_random(random) % 3));
        break;
    case 5:
        if (!cuStreamEndCapture(stream, &graph) && !cuGraphInstantiate(&exec, graph, 0))
            atomic_store(&execs[slot], exec);
        if (graph)
            cuGraphDestroy(graph);
        break;
    case 6:
        cuGraphLaunch(execs[slot], stream);
        break;
    case 7:
        cuMemFreeAsync(atomic_exchange(&blocks[slot], 0), stream);
        break;
    case 8:
        if (!cuMemAllocAsync(&block, 4096, stream))
            atomic_store(&blocks[slot], block);
        break;
    case 9:
        cuStreamIsCapturing(stream, &status);
        break;
    default:
        launched_count += !cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
    }
}

static void work_with_handles(unsigned *random)
{
    unsigned slot = next_random(random) % SLOTS;
    CUstream stream;
    CUevent event;
    CUdeviceptr block;
    CUcontext ctx;
    size_t bytes;
    switch (next_random(random) % 14) {
    case 0:
        if (!cuStreamCreate(&stream, next_random(random) % 2))
            atomic_store(&streams[slot], stream);
        break;
    case 1:
        cuStreamDestroy(atomic_exchange(&streams[slot], NULL));
        break;
    case 2:
        if (!cuEventCreate(&event, 0))
            atomic_store(&events[slot], event);
        break;
    case 3:
        cuEventDestroy(events[slot]); /* and others may destroy it again */
        break;
    case 4:
        cuEventQuery(events[slot]);
        break;
    case 5:
        cuEventSynchronize(events[slot]);
        break;
    case 6:
        if (!cuMemAllocManaged(&block, 4096, CU_MEM_ATTACH_GLOBAL))
            atomic_store(&blocks[slot], block);
        break;
    case 7:
        cuMemFree(atomic_exchange(&blocks[slot], 0));
        break;
    case 8:
        cuMemGetAddressRange(&block, &bytes, blocks[slot]);
        break;
    case 9:
        cuCtxRecordEvent(primary, events[slot]);
        break;
    case 10:
        cuCtxSynchronize();
        break;
    case 11:
        /* The one before goes: contexts that nobody destroys would fill the device. */
        if (!cuCtxCreate(&ctx, NULL, 0, 0))
            cuCtxDestroy(atomic_exchange(&contexts[slot % 4], ctx));
        cuCtxSetCurrent(primary);
        break;
    case 12:
        cuCtxDestroy(contexts[slot % 4]);
        break;
    default:
        cuCtxSetCurrent(slot % 3 ? primary : contexts[slot % 4]);
        if (!cuMemAlloc(&block, 1 + slot * 100000))
            cuMemFree(block);
        cuCtxSetCurrent(primary);
    }
}

static void *work(void *argument)
{
    unsigned random = (unsigned)(uintptr_t)argument * 2654435761u + seed;
    cuCtxSetCurrent(primary);
    for (unsigned i = 0; i < calls; i++) {
        unsigned which = next_random(&random) % (SLOTS + 2);
        CUstream stream = which == SLOTS       ? NULL
                          : which == SLOTS + 1 ? CU_STREAM_PER_THREAD
                                               : streams[which];
        if (next_random(&random) % 2)
            work_with_stream(&random, stream);
        else
            work_with_handles(&random);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    CUmodule module;
    CUdeviceptr words;
    unsigned out = 0;
    calls = argc > 1 ? (unsigned)atoi(argv[1]) : calls;
    thread_count = argc > 2 ? (unsigned)atoi(argv[2]) % (THREADS_MAX + 1) : thread_count;
    seed = argc > 3 ? (unsigned)atoi(argv[3]) : seed;
    primary = begin();
    OK(cuModuleLoadData(&module, "hostcuda"));
    OK(cuModuleGetFunction(&spin, module, "spin_us"));
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_join(threads[i], NULL));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc(&words, 4096));
    fill32(NULL, words, 16, 5);
    OK(cuMemcpyDtoH(&out, words + 60, 4));
    OK(cuMemFree(words));
    printf("%u kernels launched\n", launched_count);
    return out != 5 || launched_count < calls / 20;
}
