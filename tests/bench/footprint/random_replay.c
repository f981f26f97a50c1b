/* SPDX-License-Identifier: Apache-2.0 */
/* random_replay [OPTION]... EXPRESSION: random sequences on a fake device (fake_device.h).  Shares
 * of its memory are filled and emptied in turn, by one thread or by one each, with blocks of sizes
 * of which each octave is as likely.
 *
 *   -d MIB      the device's memory           -l US    how far the GPU is behind
 *   -n SHARES   -m MIB  one share's bytes     -t       each share has a thread of its own
 *   -b KIB      the smallest block            -o OCTAVES
 *   -k STEPS    of one sequence               -s SEEDS, that is sequences
 *
 * Prints how many allocations there were, how many were refused, how many of those the driver alone
 * would have refused (it maps pages and never fragments), how many calls the driver got, and the
 * most that was live and taken from the driver at once, added up over all sequences. */
#include "fake_device.h"
#include "fake_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARES_MAX = 64, BLOCKS_MAX = 1 << 16, OPERATION_NS = 10 * 1000 };

struct share {
    struct rs_allocation blocks[BLOCKS_MAX];
    size_t count, live_bytes;
    uint64_t seed; /* of the share's own thread */
};

static struct share shares[SHARES_MAX];
static struct rs_mr *mr;

static struct {
    unsigned long long device_mib, lag_us, shares, share_mib, smallest_kib, octaves, steps, seeds;
    bool with_threads;
} options = {120, 0, 2, 48, 4, 12, 5000, 8, false};

static struct {
    size_t live_bytes, peak_live_bytes;
    size_t taken_bytes; /* what the driver alone would have taken */
} now;

static struct {
    unsigned long long allocations, refusals, refused_by_driver, calls, live_bytes, reserved_bytes;
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
    size_t octave_bytes = (size_t)(options.smallest_kib << 10)
                          << next_random(seed) % options.octaves;

    return octave_bytes + next_random(seed) % octave_bytes;
}

static void free_one(struct share *share, size_t index)
{
    struct rs_allocation *block = &share->blocks[index];

    fake_device_operate(OPERATION_NS);
    share->live_bytes -= block->size_bytes;
    now.live_bytes -= block->size_bytes;
    now.taken_bytes -= fake_device_taken_bytes(block->size_bytes);
    if (rs_mr_deallocate(mr, block, NULL) != CUDA_SUCCESS)
        abort();
    *block = share->blocks[--share->count];
}

static void allocate_one(struct share *share, size_t size_bytes)
{
    size_t taken_bytes = fake_device_taken_bytes(size_bytes);
    struct rs_allocation *block = &share->blocks[share->count];

    fake_device_operate(OPERATION_NS);
    sums.allocations++;
    if (rs_mr_allocate(mr, size_bytes, NULL, block) != CUDA_SUCCESS) {
        sums.refusals++;
        sums.refused_by_driver += now.taken_bytes + taken_bytes > fake_device.capacity_bytes;
        return;
    }
    share->count++;
    share->live_bytes += size_bytes;
    now.live_bytes += size_bytes;
    now.taken_bytes += taken_bytes;
    if (now.peak_live_bytes < now.live_bytes)
        now.peak_live_bytes = now.live_bytes;
}

static void step(struct share *share, uint64_t *seed)
{
    size_t size_bytes = random_size(seed);

    while (share->live_bytes + size_bytes > options.share_mib << 20 || share->count == BLOCKS_MAX)
        free_one(share, next_random(seed) % share->count);
    allocate_one(share, size_bytes);
}

static void empty(struct share *share)
{
    while (share->count > 0)
        free_one(share, share->count - 1);
}

static void play_share(unsigned index)
{
    for (unsigned long long i = 0; i < options.steps / options.shares; i++)
        step(&shares[index], &shares[index].seed);
    empty(&shares[index]);
}

static bool play(const char *expression, uint64_t seed)
{
    fake_device_install(options.lag_us * 1000, options.device_mib << 20);
    mr = fake_device_stack(expression, true);
    if (!mr)
        return false;
    memset(&now, 0, sizeof(now));
    if (options.with_threads) {
        for (unsigned i = 0; i < options.shares; i++)
            shares[i].seed = seed + i;
        fake_threads_run((unsigned)options.shares, play_share);
    } else {
        for (unsigned long long i = 0; i < options.steps; i++)
            step(&shares[next_random(&seed) % options.shares], &seed);
        for (size_t i = 0; i < options.shares; i++)
            empty(&shares[i]);
    }
    sums.live_bytes += now.peak_live_bytes;
    sums.reserved_bytes += fake_device_peak_bytes();
    sums.calls += fake_device.allocations + fake_device.frees;
    mr->ops.destroy(mr, false);
    return true;
}

static bool read_options(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "d:l:n:m:b:o:k:s:t")) != -1) {
        unsigned long long value = option == 't' || option == '?' ? 0 : strtoull(optarg, NULL, 10);
        switch (option) {
        case 'd':
            options.device_mib = value;
            break;
        case 'l':
            options.lag_us = value;
            break;
        case 'n':
            options.shares = value;
            break;
        case 'm':
            options.share_mib = value;
            break;
        case 'b':
            options.smallest_kib = value;
            break;
        case 'o':
            options.octaves = value;
            break;
        case 'k':
            options.steps = value;
            break;
        case 's':
            options.seeds = value;
            break;
        case 't':
            options.with_threads = true;
            break;
        default:
            return false;
        }
    }
    return optind == argc - 1 && options.shares > 0 && options.shares <= SHARES_MAX &&
           options.octaves > 0 &&
           options.smallest_kib << options.octaves <= options.share_mib << 10;
}

int main(int argc, char **argv)
{
    if (!read_options(argc, argv)) {
        fprintf(stderr, "usage: random_replay [-d MIB] [-l US] [-n SHARES] [-m MIB] [-t] [-b KIB] "
                        "[-o OCTAVES] [-k STEPS] [-s SEEDS] EXPRESSION\n");
        return 1;
    }
    for (uint64_t seed = 1; seed <= options.seeds; seed++)
        if (!play(argv[optind], seed * 0x9E3779B97F4A7C15u))
            return 1;
    printf("allocations %llu refused %llu by the driver %llu calls %llu live %llu reserved %llu\n",
           sums.allocations, sums.refusals, sums.refused_by_driver, sums.calls, sums.live_bytes,
           sums.reserved_bytes);
    return 0;
}
