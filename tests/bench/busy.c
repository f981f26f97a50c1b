/* SPDX-License-Identifier: Apache-2.0 */
/* Deallocations while a kernel runs on a stream that nobody else waits for. */
#include "spin.h"

#include "sample.h"

enum { FREES_MAX = 64, BUSY_US = 20000 };

void bench_busy(const struct bench_memory *memory, size_t bytes, unsigned count)
{
    uint64_t samples_ns[FREES_MAX];
    struct bench_spin spin = bench_spin_open();
    void *block, *next;
    unsigned idle = 0;
    cudaStream_t stream;

    CHECK(count && count <= FREES_MAX);
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(memory->allocate(&block, bytes, NULL));
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin;
        int failed;
        bench_spin_launch(&spin, stream, BUSY_US);
        /* After 20 ms of nothing the first call of any kind is slow; an allocation does not wait.
         */
        MUST(memory->allocate(&next, bytes, NULL));
        begin = bench_now_ns();
        failed = memory->deallocate(block, bytes, NULL);
        samples_ns[i] = bench_now_ns() - begin;
        MUST(failed);
        idle += cudaStreamQuery(stream) == cudaSuccess; /* the free waited, or came too late */
        MUST(cudaStreamSynchronize(stream));
        block = next;
    }
    MUST(memory->deallocate(block, bytes, NULL));
    MUST(cudaStreamDestroy(stream));
    bench_spin_close(&spin);
    printf("busy/%zu %llu ns count=%u idle_after=%u\n", bytes,
           (unsigned long long)bench_median(samples_ns, count), count, idle);
}
