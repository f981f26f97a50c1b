/* SPDX-License-Identifier: Apache-2.0 */
/* Deallocations while a kernel runs on a stream that nobody else waits for. */
#include "bench.h"

#include "kernels.h"
#include "sample.h"

#include <cuda.h>

enum { FREES_MAX = 64, BUSY_US = 20000 };

void bench_busy(const struct bench_memory *memory, size_t bytes, unsigned count)
{
    __typeof__(&cuModuleLoadData) load = bench_driver_function("cuModuleLoadData");
    __typeof__(&cuModuleGetFunction) get = bench_driver_function("cuModuleGetFunction");
    __typeof__(&cuModuleUnload) unload = bench_driver_function("cuModuleUnload");
    __typeof__(&cuLaunchKernel) launch = bench_driver_function("cuLaunchKernel");
    __typeof__(&cuStreamQuery) query = bench_driver_function("cuStreamQuery");
    void *blocks[FREES_MAX];
    uint64_t samples_ns[FREES_MAX], us = BUSY_US;
    unsigned idle = 0;
    cudaStream_t stream;
    CUfunction spin;
    CUmodule module;

    CHECK(count && count <= FREES_MAX);
    MUST(load(&module, kernels_ptx));
    MUST(get(&spin, module, "spin_us"));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned i = 0; i < count; i++)
        MUST(memory->allocate(&blocks[i], bytes, NULL));
    /* Once before: the driver loads a kernel late, and may wait for that. */
    MUST(launch(spin, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us}, NULL));
    MUST(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin;
        int failed;
        MUST(launch(spin, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us}, NULL));
        begin = bench_now_ns();
        failed = memory->deallocate(blocks[i], bytes, NULL);
        samples_ns[i] = bench_now_ns() - begin;
        MUST(failed);
        idle += query((CUstream)stream) == CUDA_SUCCESS; /* the free waited, or came too late */
        MUST(cudaStreamSynchronize(stream));
    }
    MUST(cudaStreamDestroy(stream));
    MUST(unload(module));
    printf("busy/%zu %llu ns count=%u idle_after=%u\n", bytes,
           (unsigned long long)bench_median(samples_ns, count), count, idle);
}
