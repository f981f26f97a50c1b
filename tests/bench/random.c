/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations and deallocations of random sizes. */
#include "random_sequence.h"

/* One run, however short: RMM's benchmark times whole runs too, generator included. */
void bench_random_rmm(const struct bench_memory *memory, unsigned allocations, unsigned max_mib,
                      uint64_t budget_ns)
{
    struct random_block *blocks = calloc(allocations, sizeof(blocks[0]));
    struct random_run run;
    uint64_t begin, took;

    CHECK(blocks && allocations > 1 && max_mib);
    begin = bench_now_ns();
    run = random_run(memory->allocate, memory->deallocate, blocks, allocations,
                     (uint64_t)max_mib << 20, begin + budget_ns, false);
    took = bench_now_ns() - begin;
    CHECK(run.operations);
    printf("random_rmm/%u/%u %.2f ns operations=%llu finished=%d failures=%llu live_peak=%llu\n",
           allocations, max_mib, (double)took / (double)run.operations,
           (unsigned long long)run.operations, run.finished, (unsigned long long)run.failures,
           (unsigned long long)run.live_peak);
    free(blocks);
}

enum { SLOTS = 1024, BATCH = 1024, WARM_BATCHES = 16, BATCHES_MAX = 1 << 16 };

static struct {
    struct random_block slots[SLOTS];
    struct sequence sequence;
    size_t live_bytes;
} mixed;

/* A slot at random: what is in it is freed, or else something is put there. */
static int operations(const struct bench_memory *memory, unsigned log2_max, size_t live_max)
{
    int failed = 0;

    for (unsigned i = 0; i < BATCH; i++) {
        struct random_block *slot = &mixed.slots[sequence_below(&mixed.sequence, SLOTS)];
        size_t bytes = sequence_size(&mixed.sequence, log2_max);

        if (slot->bytes) {
            failed |= memory->deallocate(slot->block, slot->bytes, NULL);
            mixed.live_bytes -= slot->bytes;
            slot->bytes = 0;
        } else if (mixed.live_bytes + bytes <= live_max) {
            failed |= memory->allocate(&slot->block, bytes, NULL);
            slot->bytes = bytes;
            mixed.live_bytes += bytes;
        }
    }
    return failed;
}

void bench_random_log(const struct bench_memory *memory, size_t max_bytes, size_t live_bytes,
                      uint64_t budget_ns)
{
    static uint64_t samples_ns[BATCHES_MAX];
    unsigned log2_max = 0, count = 0;
    uint64_t end = bench_now_ns() + budget_ns;

    while ((size_t)2 << log2_max <= max_bytes)
        log2_max++;
    CHECK(log2_max);
    mixed.sequence.state = 7;
    for (unsigned i = 0; i < WARM_BATCHES && (i == 0 || bench_now_ns() < end); i++)
        MUST(operations(memory, log2_max, live_bytes));
    do {
        uint64_t begin = bench_now_ns();
        int failed = operations(memory, log2_max, live_bytes);
        samples_ns[count++] = bench_now_ns() - begin;
        MUST(failed);
    } while (count < BATCHES_MAX && bench_now_ns() < end);
    for (unsigned i = 0; i < SLOTS; i++) {
        if (mixed.slots[i].bytes)
            MUST(memory->deallocate(mixed.slots[i].block, mixed.slots[i].bytes, NULL));
        mixed.slots[i].bytes = 0;
    }
    mixed.live_bytes = 0;
    printf("random_log/%zu %.2f ns count=%u\n", max_bytes,
           (double)bench_median(samples_ns, count) / BATCH, count * BATCH);
}
