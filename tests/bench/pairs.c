/* SPDX-License-Identifier: Apache-2.0 */
/* Allocate and deallocate one block, again and again. */
#include "bench.h"

#include "sample.h"

enum { BATCH_MAX = 100, BATCHES_MAX = 4096, BATCH_NS = 500000 };

static uint64_t batch_ns(const struct bench_memory *memory, size_t bytes, unsigned pairs)
{
    uint64_t begin = bench_now_ns();
    int failed = 0;

    for (unsigned i = 0; i < pairs; i++) {
        void *block = NULL;
        failed |= memory->allocate(&block, bytes, NULL);
        failed |= memory->deallocate(block, bytes, NULL);
    }
    begin = bench_now_ns() - begin;
    MUST(failed);
    return begin;
}

/* Many pairs between two reads of the clock: what the clock costs (about 20 ns) matters for a pair
 * of 60.  Fewer where one takes long, so that there is more than one batch. */
void bench_pairs(const struct bench_memory *memory, size_t bytes, uint64_t budget_ns)
{
    static uint64_t samples_ns[BATCHES_MAX];
    uint64_t end = bench_now_ns() + budget_ns, pair_ns;
    unsigned count = 0, pairs = 1;

    pair_ns = batch_ns(memory, bytes, 1); /* the first one may have to fetch memory */
    if (pair_ns < BATCH_NS)
        pair_ns = batch_ns(memory, bytes, 10) / 10 + 1;
    if (pair_ns < BATCH_NS)
        pairs = (unsigned)(BATCH_NS / pair_ns);
    if (pairs > BATCH_MAX)
        pairs = BATCH_MAX;
    do
        samples_ns[count++] = batch_ns(memory, bytes, pairs);
    while (count < BATCHES_MAX && bench_now_ns() < end);
    printf("pairs/%zu %.2f ns count=%u", bytes, (double)bench_median(samples_ns, count) / pairs,
           count * pairs);
    printf(" least=%.2f\n", (double)samples_ns[0] / pairs);
}
