/* SPDX-License-Identifier: Apache-2.0 */
/* full_device CAPACITY_MIB LAG_US EXPRESSION [SEEDS]: a device that is nearly full, and how often a
 * stack refuses what the driver would not.  Two programs' shares of 48 MiB are filled and emptied
 * in turn, blocks of 4 KiB to 16 MiB, each octave as likely, on a fake device
 * (tool/replay/device.h).
 *
 * Prints how many allocations there were, how many were refused, and how many of those the driver
 * alone would have refused: it maps pages and never fragments. */
#include "tool/replay/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHARES = 2,
    SHARE_BYTES = 48 << 20,
    SMALLEST_BYTES = 4 << 10,
    OCTAVES = 12,
    BLOCKS_MAX = 1 << 16,
    STEPS = 5000,
    OPERATION_NS = 10 * 1000,
};

struct share {
    struct rs_allocation blocks[BLOCKS_MAX];
    size_t count, live_bytes;
};

static struct share shares[SHARES];

static void say(void *data, const char *line)
{
    (void)data;
    fprintf(stderr, "%s\n", line);
}

static struct {
    size_t taken_bytes; /* what the driver alone would have taken */
    unsigned long long allocations, refusals, refused_by_driver;
} sums;

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static size_t random_size(uint64_t *seed)
{
    size_t octave_bytes = (size_t)SMALLEST_BYTES << next_random(seed) % OCTAVES;

    return octave_bytes + next_random(seed) % octave_bytes;
}

static void free_one(struct rs_mr *mr, struct share *share, size_t index)
{
    struct rs_allocation *block = &share->blocks[index];

    replay_device_operate(OPERATION_NS);
    share->live_bytes -= block->size_bytes;
    sums.taken_bytes -= replay_device_taken_bytes(block->size_bytes);
    if (rs_mr_deallocate(mr, block, NULL) != CUDA_SUCCESS)
        abort();
    *block = share->blocks[--share->count];
}

static void allocate_one(struct rs_mr *mr, struct share *share, size_t size_bytes)
{
    size_t taken_bytes = replay_device_taken_bytes(size_bytes);
    struct rs_allocation *block = &share->blocks[share->count];

    replay_device_operate(OPERATION_NS);
    sums.allocations++;
    if (rs_mr_allocate(mr, size_bytes, NULL, block) != CUDA_SUCCESS) {
        sums.refusals++;
        sums.refused_by_driver += sums.taken_bytes + taken_bytes > replay_device.capacity_bytes;
        return;
    }
    share->count++;
    share->live_bytes += size_bytes;
    sums.taken_bytes += taken_bytes;
}

static void step(struct rs_mr *mr, struct share *share, uint64_t *seed)
{
    size_t size_bytes = random_size(seed);

    while (share->live_bytes + size_bytes > SHARE_BYTES || share->count == BLOCKS_MAX)
        free_one(mr, share, next_random(seed) % share->count);
    allocate_one(mr, share, size_bytes);
}

static bool play(uint64_t lag_ns, size_t capacity_bytes, const char *expression, uint64_t seed)
{
    struct rs_diagnostics diagnostics = {.write = say};
    struct rs_mr *mr;

    replay_device_install(lag_ns, capacity_bytes);
    mr = replay_device_stack(expression, true, &diagnostics);
    if (!mr)
        return false;
    memset(&sums.taken_bytes, 0, sizeof(sums.taken_bytes));
    for (unsigned i = 0; i < STEPS; i++)
        step(mr, &shares[next_random(&seed) % SHARES], &seed);
    for (size_t i = 0; i < SHARES; i++)
        while (shares[i].count > 0)
            free_one(mr, &shares[i], shares[i].count - 1);
    mr->ops.destroy(mr, false);
    return true;
}

int main(int argc, char **argv)
{
    uint64_t lag_ns, seeds;
    size_t capacity_bytes;

    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: full_device CAPACITY_MIB LAG_US EXPRESSION [SEEDS]\n");
        return 1;
    }
    capacity_bytes = strtoull(argv[1], NULL, 10) << 20;
    lag_ns = strtoull(argv[2], NULL, 10) * 1000;
    seeds = argc > 4 ? strtoull(argv[4], NULL, 10) : 8;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        if (!play(lag_ns, capacity_bytes, argv[3], seed * 0x9E3779B97F4A7C15u))
            return 1;
    printf("allocations %llu refused %llu by the driver %llu\n", sums.allocations, sums.refusals,
           sums.refused_by_driver);
    return 0;
}
