/* SPDX-License-Identifier: Apache-2.0 */
/* Does memory keep streams from running side by side?  As in RMM's MULTI_STREAM_ALLOCATIONS_BENCH:
 * for each kernel in turn a small block is allocated on the next stream, the kernel launched there,
 * and the block freed at once; after all of them the device is waited for.  What does not wait
 * takes, with S streams, one Sth of the time that it takes with one. */
#include "spin.h"

#include "sample.h"

enum { STREAMS_MAX = 16, KERNEL_US = 200, BYTES = 8, REPEATS = 9 };

static uint64_t round_ns(const struct bench_memory *memory, const struct bench_spin *spin,
                         const cudaStream_t *streams, unsigned stream_count, unsigned kernels)
{
    uint64_t begin = bench_now_ns();

    for (unsigned i = 0; i < kernels; i++) {
        cudaStream_t stream = streams[i % stream_count];
        void *block;
        MUST(memory->allocate(&block, BYTES, stream));
        bench_spin_launch(spin, stream, KERNEL_US);
        MUST(memory->deallocate(block, BYTES, stream));
    }
    MUST(cudaDeviceSynchronize());
    return bench_now_ns() - begin;
}

void bench_streams(const struct bench_memory *memory, unsigned stream_count, unsigned kernels)
{
    cudaStream_t streams[STREAMS_MAX];
    uint64_t samples_ns[REPEATS];
    struct bench_spin spin = bench_spin_open();

    CHECK(stream_count >= 1 && stream_count <= STREAMS_MAX && kernels);
    for (unsigned i = 0; i < stream_count; i++)
        MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    (void)round_ns(memory, &spin, streams, stream_count, kernels);
    for (unsigned i = 0; i < REPEATS; i++)
        samples_ns[i] = round_ns(memory, &spin, streams, stream_count, kernels);
    for (unsigned i = 0; i < stream_count; i++)
        MUST(cudaStreamDestroy(streams[i]));
    bench_spin_close(&spin);
    printf("streams/%u/%u %llu ns count=%u\n", stream_count, kernels,
           (unsigned long long)bench_median(samples_ns, REPEATS), REPEATS);
}
