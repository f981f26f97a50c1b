/* SPDX-License-Identifier: Apache-2.0 */
/* Deallocations while a kernel runs on a stream that nobody else waits for. */
#include "spin.h"

#include "sample.h"

enum { KERNELS_MAX = 64, BLOCKS = 16, BUSY_US = 20000 };

/* Frees the blocks, and times those whose free begins while the kernel runs; where a free waits for
 * the kernel that is the first one. */
static unsigned free_all(const struct bench_memory *memory, size_t bytes, cudaStream_t stream,
                         void *const *blocks, uint64_t *samples_ns)
{
    unsigned count = 0;

    for (unsigned i = 0; i < BLOCKS; i++) {
        bool busy = cudaStreamQuery(stream) == cudaErrorNotReady;
        uint64_t begin = bench_now_ns();
        int failed = memory->deallocate(blocks[i], bytes, NULL);
        uint64_t ns = bench_now_ns() - begin;
        MUST(failed);
        if (busy)
            samples_ns[count++] = ns;
    }
    return count;
}

void bench_busy(const struct bench_memory *memory, size_t bytes, unsigned kernels)
{
    uint64_t samples_ns[KERNELS_MAX * BLOCKS];
    struct bench_spin spin = bench_spin_open();
    unsigned count = 0, idle = 0;
    cudaStream_t stream;

    CHECK(kernels && kernels <= KERNELS_MAX);
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned i = 0; i < kernels; i++) {
        void *blocks[BLOCKS];
        for (unsigned j = 0; j < BLOCKS; j++)
            MUST(memory->allocate(&blocks[j], bytes, NULL));
        bench_spin_launch(&spin, stream, BUSY_US);
        count += free_all(memory, bytes, stream, blocks, samples_ns + count);
        idle += cudaStreamQuery(stream) == cudaSuccess; /* a free waited, or came too late */
        MUST(cudaStreamSynchronize(stream));
    }
    MUST(cudaStreamDestroy(stream));
    bench_spin_close(&spin);
    CHECK(count);
    printf("busy/%zu %llu ns count=%u idle_after=%u\n", bytes,
           (unsigned long long)bench_median(samples_ns, count), count, idle);
}
