/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's random benchmark (RANDOM_ALLOCATIONS_BENCH), step for step: the generator, libstdc++'s
 * uniform distribution and the mix of allocations and frees.  Golden hashes in the tests prove that
 * the steps are the same.
 *
 * Tests and benchmarks include it; there is no .c file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RANDOM_WORKLOAD_LIVE_MIB = 16000, RANDOM_WORKLOAD_ALLOCATE_PERCENT = 73 };

struct random_workload {
    size_t allocations_wanted; /* N */
    size_t max_bytes;
    uint64_t state; /* state of minstd_rand0 */
    size_t allocated_count, live_count, live_bytes;
    size_t step; /* steps done, of 2 N */
    size_t peak_count, peak_bytes;
    uint64_t hash;      /* FNV-1a over all steps */
    size_t *live_sizes; /* array of N sizes; the caller owns it */
};

struct random_step {
    bool is_allocation;
    size_t size_bytes; /* size of the block that is allocated or freed */
    /* Index of the block in the caller's array; on a free the last entry moves there. */
    size_t index;
};

static inline void random_workload_init(struct random_workload *workload, size_t allocations,
                                        size_t max_mib, size_t *live_sizes)
{
    *workload = (struct random_workload){
        .allocations_wanted = allocations,
        .max_bytes = max_mib << 20,
        .state = 1,
        .hash = 14695981039346656037u,
        .live_sizes = live_sizes,
    };
}

static inline uint64_t random_workload_draw(struct random_workload *workload)
{
    workload->state = workload->state * 16807 % 2147483647;
    return workload->state - 1;
}

/* libstdc++'s uniform_int_distribution over [low, high]. */
static inline uint64_t random_workload_uniform(struct random_workload *workload, uint64_t low,
                                               uint64_t high)
{
    const uint64_t generator_range = 2147483645;
    uint64_t range = high - low;
    uint64_t drawn;

    if (range < generator_range) {
        uint64_t bucket = generator_range / (range + 1);
        do
            drawn = random_workload_draw(workload);
        while (drawn >= bucket * (range + 1));
        return low + drawn / bucket;
    }
    if (range == generator_range)
        return low + random_workload_draw(workload);
    do {
        uint64_t upper = (generator_range + 1) *
                         random_workload_uniform(workload, 0, range / (generator_range + 1));
        drawn = upper + random_workload_draw(workload);
        if (drawn < upper)
            continue;
    } while (drawn > range);
    return low + drawn;
}

static inline void random_workload_hash(struct random_workload *workload, uint64_t word)
{
    for (unsigned byte = 0; byte < 8; byte++)
        workload->hash = (workload->hash ^ (word >> 8 * byte & 0xff)) * 1099511628211u;
}

static inline bool random_workload_wants_allocation(struct random_workload *workload,
                                                    size_t size_bytes)
{
    if (workload->live_count == 0)
        return true;
    return random_workload_uniform(workload, 0, 99) < RANDOM_WORKLOAD_ALLOCATE_PERCENT &&
           workload->allocated_count < workload->allocations_wanted &&
           workload->live_bytes + size_bytes < (size_t)RANDOM_WORKLOAD_LIVE_MIB << 20;
}

static inline void random_workload_allocate(struct random_workload *workload, size_t size_bytes,
                                            struct random_step *step)
{
    *step = (struct random_step){true, size_bytes, workload->live_count};
    workload->live_sizes[workload->live_count++] = size_bytes;
    workload->live_bytes += size_bytes;
    workload->allocated_count++;
    if (workload->live_count > workload->peak_count)
        workload->peak_count = workload->live_count;
    if (workload->live_bytes > workload->peak_bytes)
        workload->peak_bytes = workload->live_bytes;
    random_workload_hash(workload, 1);
    random_workload_hash(workload, size_bytes);
}

static inline void random_workload_free(struct random_workload *workload, struct random_step *step)
{
    size_t index = (size_t)random_workload_uniform(workload, 0, workload->allocations_wanted - 1) %
                   workload->live_count;

    *step = (struct random_step){false, workload->live_sizes[index], index};
    workload->live_bytes -= workload->live_sizes[index];
    workload->live_sizes[index] = workload->live_sizes[--workload->live_count];
    random_workload_hash(workload, 2);
    random_workload_hash(workload, index);
}

/* Computes the next step; false after the last one, when nothing is live.  No allocation may fail,
 * as the caller keeps an array as described at random_step. */
static inline bool random_workload_next(struct random_workload *workload, struct random_step *step)
{
    size_t size_bytes;

    if (workload->step++ == 2 * workload->allocations_wanted)
        return false;
    size_bytes = (size_t)random_workload_uniform(workload, 1, workload->max_bytes);
    if (random_workload_wants_allocation(workload, size_bytes))
        random_workload_allocate(workload, size_bytes, step);
    else
        random_workload_free(workload, step);
    return true;
}
