/* SPDX-License-Identifier: Apache-2.0 */
/* What the workloads share.  A workload takes memory through `struct bench_memory`, so that the
 * same loop measures the driver, whatever is preloaded, and RMM's memory resources in-process. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Both return 0, or what went wrong; memory without streams does not look at them. */
typedef int bench_allocate(void **block, size_t bytes, cudaStream_t stream);
typedef int bench_deallocate(void *block, size_t bytes, cudaStream_t stream);

struct bench_memory {
    const char *name;
    bench_allocate *allocate;
    bench_deallocate *deallocate;
    int (*open)(size_t pool_bytes); /* may be NULL; pool_bytes: what a pool begins with */
    void (*close)(void);            /* may be NULL */
};

/* Those of this program, ended by a NULL. */
extern const struct bench_memory *const bench_memories[];

/* Workloads.  Each prints a line for each figure; bench.c says what they measure. */
void bench_pairs(const struct bench_memory *memory, size_t bytes, uint64_t budget_ns);
void bench_threads(const struct bench_memory *memory, unsigned count, size_t bytes,
                   uint64_t budget_ns, bool own_streams);
void bench_random_rmm(const struct bench_memory *memory, unsigned allocations, unsigned max_mib,
                      uint64_t budget_ns);
void bench_random_log(const struct bench_memory *memory, size_t max_bytes, size_t live_bytes,
                      uint64_t budget_ns);
void bench_busy(const struct bench_memory *memory, size_t bytes, unsigned kernels);
void bench_streams(const struct bench_memory *memory, unsigned stream_count, unsigned kernels);

/* bytes: 0 for a mixture. */
void bench_tails(const struct bench_memory *memory, size_t bytes, unsigned pairs);

void bench_fence(void);

/* A driver function by its name, as a runtime finds it. */
void *bench_driver_function(const char *name);

static inline uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sorts them. */
uint64_t bench_median(uint64_t *numbers, unsigned count);

#ifdef __cplusplus
}
#endif
