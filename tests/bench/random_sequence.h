/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's benchmark of random allocations (RANDOM_ALLOCATIONS_BENCH), operation by operation, so that
 * figures compare: the same sizes, the same order, the same number of live blocks.
 *
 * Its numbers come from libstdc++'s default generator (minstd_rand0, seed 1) through libstdc++'s
 * uniform distribution.  2 COUNT times: a size is drawn, from 1 to the largest; if anything is
 * live, a coin, which allocates in 73 of 100 cases as long as fewer than COUNT were allocated and
 * the live bytes stay below 16000 MiB; with nothing live it allocates.  Otherwise, and when an
 * allocation fails, an index is drawn and that live block freed; the last one takes its place.
 * test_random_sequence.c holds it against digests made with libstdc++. */
#pragma once

#include "bench.h"

#include "sample.h"

enum { RANDOM_ALLOCATE_PERCENT = 73 };

#define RANDOM_LIVE_BYTES ((uint64_t)16000 << 20)

struct random_block {
    void *block;
    size_t bytes;
};

/* What a run came to; `digest` is only counted for a test. */
struct random_run {
    uint64_t operations, failures, live_peak, bytes_peak, digest;
    bool finished;
};

static inline uint64_t random_draw(uint32_t *state)
{
    *state = (uint32_t)((uint64_t)*state * 16807 % 2147483647);
    return *state - 1;
}

/* 0 .. most, most at least 1. */
static inline uint64_t random_uniform(uint32_t *state, uint64_t most)
{
    const uint64_t range = 2147483645; /* of a draw: 0 .. range */
    uint64_t drawn, high;

    if (most < range) {
        uint64_t scale = range / (most + 1), past = (most + 1) * scale;
        do
            drawn = random_draw(state);
        while (drawn >= past);
        return drawn / scale;
    }
    if (most == range)
        return random_draw(state);
    do {
        /* One recursion is enough below 2^60. */
        high = (range + 1) * random_uniform(state, most / (range + 1));
        drawn = high + random_draw(state);
    } while (drawn > most || drawn < high);
    return drawn;
}

/* FNV-1a over the number's eight bytes. */
static inline void random_digest(uint64_t *digest, uint64_t number)
{
    for (unsigned i = 0; i < 8; i++)
        *digest = (*digest ^ (number >> 8 * i & 255)) * 0x100000001b3u;
}

/* `blocks` has room for `allocations`.  Ends early, with `finished` false and everything freed,
 * when the time is up (the clock is read every 256 operations; 0: never).  Inline, so that the
 * digest costs nothing where it is not wanted. */
static inline __attribute__((always_inline)) struct random_run
random_run(bench_allocate *allocate, bench_deallocate *deallocate, struct random_block *blocks,
           uint64_t allocations, uint64_t max_bytes, uint64_t end_ns, bool with_digest)
{
    struct random_run run = {.digest = 0xcbf29ce484222325u};
    uint64_t live = 0, bytes = 0, made = 0;
    uint32_t state = 1;

    for (; run.operations < 2 * allocations; run.operations++) {
        uint64_t size = 1 + random_uniform(&state, max_bytes - 1);
        bool allocates = true;
        void *block = NULL;

        if (end_ns && run.operations % 256 == 0 && bench_now_ns() > end_ns)
            break;
        if (live)
            allocates = random_uniform(&state, 99) < RANDOM_ALLOCATE_PERCENT &&
                        made < allocations && bytes + size < RANDOM_LIVE_BYTES;
        if (allocates && allocate(&block, size, NULL)) {
            allocates = false;
            run.failures++;
        }
        if (allocates) {
            blocks[live++] = (struct random_block){block, size};
            made++;
            bytes += size;
            run.live_peak = live > run.live_peak ? live : run.live_peak;
            run.bytes_peak = bytes > run.bytes_peak ? bytes : run.bytes_peak;
            if (with_digest) {
                random_digest(&run.digest, 1);
                random_digest(&run.digest, size);
            }
        } else if (live) {
            uint64_t index = random_uniform(&state, allocations - 1) % live;
            struct random_block freed = blocks[index];
            blocks[index] = blocks[--live];
            bytes -= freed.bytes;
            MUST(deallocate(freed.block, freed.bytes, NULL));
            if (with_digest) {
                random_digest(&run.digest, 2);
                random_digest(&run.digest, index);
            }
        }
    }
    run.finished = run.operations == 2 * allocations && live == 0;
    while (live) {
        live--;
        MUST(deallocate(blocks[live].block, blocks[live].bytes, NULL));
    }
    return run;
}
