/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's own ways to memory. */
#include "bench.h"

#include "sample.h"

#include <cuda.h>

static int cuda_allocate(void **block, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return (int)cudaMalloc(block, bytes);
}

static int cuda_deallocate(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    (void)stream;
    return (int)cudaFree(block);
}

static int async_allocate(void **block, size_t bytes, cudaStream_t stream)
{
    return (int)cudaMallocAsync(block, bytes, stream);
}

static int async_deallocate(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    return (int)cudaFreeAsync(block, stream);
}

static int pinned_allocate(void **block, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return (int)cudaHostAlloc(block, bytes, cudaHostAllocDefault);
}

static int pinned_deallocate(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    (void)stream;
    return (int)cudaFreeHost(block);
}

/* The default pool keeps what it has: else it gives all of it back at each synchronisation. */
static CUmemoryPool default_pool(void)
{
    __typeof__(&cuDeviceGetDefaultMemPool) get = bench_driver_function("cuDeviceGetDefaultMemPool");
    CUmemoryPool pool;

    MUST(get(&pool, 0));
    return pool;
}

static int async_open(size_t pool_bytes)
{
    __typeof__(&cuMemPoolSetAttribute) set = bench_driver_function("cuMemPoolSetAttribute");
    uint64_t threshold = UINT64_MAX;

    (void)pool_bytes;
    return (int)set(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

static void async_close(void)
{
    __typeof__(&cuMemPoolTrimTo) trim = bench_driver_function("cuMemPoolTrimTo");

    MUST(cudaDeviceSynchronize());
    MUST(trim(default_pool(), 0));
}

static const struct bench_memory cuda_memory = {"cuda", cuda_allocate, cuda_deallocate, NULL, NULL};
static const struct bench_memory async_memory = {"async", async_allocate, async_deallocate,
                                                 async_open, async_close};
static const struct bench_memory pinned_memory = {"pinned", pinned_allocate, pinned_deallocate,
                                                  NULL, NULL};

const struct bench_memory *const bench_memories[] = {&cuda_memory, &async_memory, &pinned_memory,
                                                     NULL};
