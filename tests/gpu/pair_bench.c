/* SPDX-License-Identifier: Apache-2.0 */
/* Time of a cudaMalloc and cudaFree pair on an idle device, by size, the same of pinned memory, and
 * of a cudaFree while a kernel runs.  Prints one line for each: name, median and least of many, in
 * nanoseconds.
 *
 *   pair_bench [PAIRS [PINNED_PAIRS]]   without rmmshim a pinned pair takes up to 0.2 s */
#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <time.h>

enum { PAIRS_MAX = 20000, BUSY_FREES = 5, BUSY_US = 50000 };

static uint64_t samples_ns[PAIRS_MAX];

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void report(const char *name, unsigned count)
{
    qsort(samples_ns, count, sizeof(samples_ns[0]), ascending);
    printf("%s median %llu least %llu ns, %u samples\n", name,
           (unsigned long long)samples_ns[count / 2], (unsigned long long)samples_ns[0], count);
}

static void pairs(const char *name, size_t bytes, unsigned count)
{
    void *p;

    for (unsigned i = 0; i < 20; i++) { /* warm */
        MUST(cudaMalloc(&p, bytes));
        MUST(cudaFree(p));
    }
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        cudaError_t made = cudaMalloc(&p, bytes), freed = cudaFree(p);
        samples_ns[i] = now_ns() - begin;
        MUST(made);
        MUST(freed);
    }
    report(name, count);
}

/* Pairs with as many reads of the clock as there are batches: what the clock itself costs (about
 * 20 ns) matters for a pair of 100. */
static void batches(const char *name, size_t bytes, unsigned count)
{
    enum { BATCH = 100 };
    void *p;

    for (unsigned i = 0; i < count / BATCH; i++) {
        uint64_t begin = now_ns();
        for (unsigned j = 0; j < BATCH; j++) {
            cudaMalloc(&p, bytes);
            cudaFree(p);
        }
        samples_ns[i] = (now_ns() - begin) / BATCH;
    }
    MUST(cudaGetLastError());
    report(name, count / BATCH);
}

static void pinned_pairs(const char *name, size_t bytes, unsigned count)
{
    void *p;

    MUST(cudaHostAlloc(&p, bytes, cudaHostAllocDefault)); /* warm */
    MUST(cudaFreeHost(p));
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        cudaError_t made = cudaHostAlloc(&p, bytes, cudaHostAllocDefault), freed = cudaFreeHost(p);
        samples_ns[i] = now_ns() - begin;
        MUST(made);
        MUST(freed);
    }
    report(name, count);
}

static void busy_frees(void)
{
    __typeof__(&cuModuleLoadData) module_load_data;
    __typeof__(&cuModuleGetFunction) module_get_function;
    __typeof__(&cuLaunchKernel) launch_kernel;
    enum cudaDriverEntryPointQueryResult found;
    CUmodule module;
    CUfunction spin;
    cudaStream_t stream;
    uint64_t us = BUSY_US;
    void *blocks[BUSY_FREES];

    MUST(cudaGetDriverEntryPointByVersion("cuModuleLoadData", (void **)&module_load_data, 11040,
                                          cudaEnableDefault, &found));
    MUST(cudaGetDriverEntryPointByVersion("cuModuleGetFunction", (void **)&module_get_function,
                                          11040, cudaEnableDefault, &found));
    MUST(cudaGetDriverEntryPointByVersion("cuLaunchKernel", (void **)&launch_kernel, 11040,
                                          cudaEnableDefault, &found));
    MUST(module_load_data(&module, kernels_ptx));
    MUST(module_get_function(&spin, module, "spin_us"));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned i = 0; i < BUSY_FREES; i++)
        MUST(cudaMalloc(&blocks[i], 1 << 20));
    MUST(launch_kernel(spin, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us}, NULL));
    MUST(cudaStreamSynchronize(stream)); /* loaded and warm */
    for (unsigned i = 0; i < BUSY_FREES; i++) {
        uint64_t begin;
        MUST(launch_kernel(spin, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us}, NULL));
        begin = now_ns();
        MUST(cudaFree(blocks[i]));
        samples_ns[i] = now_ns() - begin;
        MUST(cudaStreamSynchronize(stream));
    }
    report("busy_free", BUSY_FREES);
    MUST(cudaStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 2000;
    unsigned pinned_count = argc > 2 ? (unsigned)atoi(argv[2]) : 3;

    if (count < 200 || count > PAIRS_MAX || pinned_count < 1 || pinned_count > PAIRS_MAX) {
        fprintf(stderr, "usage: pair_bench [PAIRS from 200 to %d [PINNED_PAIRS]]\n", PAIRS_MAX);
        return 2;
    }
    MUST(cudaFree(NULL));
    pairs("256B", 256, count);
    pairs("64KiB", (size_t)64 << 10, count);
    pairs("1MiB", (size_t)1 << 20, count);
    pairs("16MiB", (size_t)16 << 20, count);
    pairs("256MiB", (size_t)256 << 20, count / 4);
    batches("256B_batch", 256, count);
    batches("1MiB_batch", (size_t)1 << 20, count);
    pinned_pairs("pinned_64MiB", (size_t)64 << 20, pinned_count);
    pinned_pairs("pinned_512MiB", (size_t)512 << 20, pinned_count);
    busy_frees();
    return 0;
}
