/* SPDX-License-Identifier: Apache-2.0 */
/* Many devices, streams and threads over small pools that fence what they reuse: the race detector
 * must be silent; with "bug", one block in a thousand is reused without the fence, and it must
 * speak. Arguments: fixed or bug, operations, threads, streams. */
#include "bugs/bug.h"

#include <pthread.h>

#define BLOCKS      64
#define BLOCK_BYTES 4096
#define DEVICES_MAX 8
#define STREAMS_MAX 256

/* Blocks of one device: free ones, and those that wait for a fence. */
struct pool {
    pthread_mutex_t mutex;
    CUcontext ctx;
    CUdeviceptr memory;
    unsigned char free[BLOCKS], waiting[BLOCKS], fenced[BLOCKS];
    unsigned free_count, waiting_count, fenced_count;
    CUevent fence;
};

static struct pool pools[DEVICES_MAX];
static CUstream streams[STREAMS_MAX];
static int device_count;
static unsigned stream_count, thread_count;
static unsigned long long operations;
static bool has_bug;
static CUfunction fill, add;

static unsigned next_random(unsigned *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void retire(struct pool *pool)
{
    if (pool->fenced_count && cuEventQuery(pool->fence) == CUDA_SUCCESS) {
        memcpy(pool->free + pool->free_count, pool->fenced, pool->fenced_count);
        pool->free_count += pool->fenced_count;
        pool->fenced_count = 0;
    }
    if (!pool->fenced_count && pool->waiting_count) {
        memcpy(pool->fenced, pool->waiting, pool->waiting_count);
        pool->fenced_count = pool->waiting_count;
        pool->waiting_count = 0;
        OK(cuCtxRecordEvent(pool->ctx, pool->fence));
    }
}

static CUdeviceptr take(struct pool *pool, unsigned *block)
{
    pthread_mutex_lock(&pool->mutex);
    if (!pool->free_count)
        retire(pool);
    while (!pool->free_count) {
        if (pool->fenced_count)
            OK(cuEventSynchronize(pool->fence));
        retire(pool);
    }
    *block = pool->free[--pool->free_count];
    CUdeviceptr address = hand_out(pool->memory + *block * BLOCK_BYTES, BLOCK_BYTES);
    pthread_mutex_unlock(&pool->mutex);
    return address;
}

static void give(struct pool *pool, unsigned block, bool at_once)
{
    pthread_mutex_lock(&pool->mutex);
    take_back(pool->memory + block * BLOCK_BYTES);
    if (at_once)
        pool->free[pool->free_count++] = (unsigned char)block;
    else
        pool->waiting[pool->waiting_count++] = (unsigned char)block;
    pthread_mutex_unlock(&pool->mutex);
}

static void *work(void *argument)
{
    unsigned random = (unsigned)(uintptr_t)argument * 2654435761u + 1;
    for (unsigned long long i = 0; i < operations / thread_count; i += 2) {
        unsigned device = next_random(&random) % (unsigned)device_count;
        unsigned stream = next_random(&random) % (stream_count / (unsigned)device_count);
        struct pool *pool = &pools[device];
        CUstream on = streams[stream * (unsigned)device_count + device];
        OK(cuCtxSetCurrent(pool->ctx));
        unsigned block, value = random;
        size_t count = 16;
        CUdeviceptr words = take(pool, &block);
        void *fill_args[] = {&words, &count, &value}, *add_args[] = {&words, &count};
        OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, on, fill_args, NULL));
        OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, on, add_args, NULL));
        give(pool, block, has_bug && next_random(&random) % 1000 == 0);
    }
    return NULL;
}

static void open_pool(int device)
{
    struct pool *pool = &pools[device];
    pthread_mutex_init(&pool->mutex, NULL);
    OK(cuDevicePrimaryCtxRetain(&pool->ctx, device));
    OK(cuCtxSetCurrent(pool->ctx));
    OK(cuMemAlloc(&pool->memory, BLOCKS * BLOCK_BYTES));
    OK(cuEventCreate(&pool->fence, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < BLOCKS; i++)
        pool->free[pool->free_count++] = (unsigned char)i;
}

int main(int argc, char **argv)
{
    has_bug = argc > 1 && !strcmp(argv[1], "bug");
    operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
    thread_count = argc > 3 ? (unsigned)atoi(argv[3]) : 16;
    stream_count = argc > 4 ? (unsigned)atoi(argv[4]) : 64;
    CUmodule module;
    pthread_t threads[256];
    OK(cuInit(0));
    OK(cuDeviceGetCount(&device_count));
    if (stream_count < (unsigned)device_count || stream_count > STREAMS_MAX || thread_count > 256)
        return 2;
    for (int i = 0; i < device_count; i++)
        open_pool(i);
    OK(cuModuleLoadData(&module, "hostcuda"));
    OK(cuModuleGetFunction(&fill, module, "fill32"));
    OK(cuModuleGetFunction(&add, module, "add_one"));
    for (unsigned i = 0; i < stream_count; i++) {
        OK(cuCtxSetCurrent(pools[i % (unsigned)device_count].ctx));
        OK(cuStreamCreate(&streams[i], i % 3 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    }
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_join(threads[i], NULL));
    printf("%llu kernels, %llu reports\n", hostcuda_call_count("cuLaunchKernel"),
           hostcuda_race_count());
    return caught(has_bug, "reuse before earlier work is ordered");
}
