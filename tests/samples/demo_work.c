/* SPDX-License-Identifier: Apache-2.0 */
/* What scripts/demo and the README's picture show: a program on the CUDA driver API, linked with
 * libcuda, that knows nothing of rmmshim.
 *
 *   demo_work grow [PAUSE_MS]   doubles its batch until memory runs out, and goes on with the last
 *                               one that fitted
 *   demo_work steps             20 steps; each allocates ten blocks and frees them
 *   demo_work fail              takes memory until it is refused, and gives up: exit status 1
 *   demo_work leak              loses three of its blocks
 *   demo_work wait              holds memory until its standard input ends */
#include "sample.h"

#include <cuda.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCKS = 10, STEPS = 20, PARTS = 4, BATCH_MAX_MIB = 4096 };

static CUdeviceptr weights;
static unsigned pause_ms;

static void rest(void)
{
    usleep(1000 * pause_ms);
}

/* Forward takes a part of the batch's memory at a time, backward frees it.  False: it did not
 * fit. */
static bool train(size_t batch_mib)
{
    CUdeviceptr parts[PARTS];
    unsigned taken = 0;

    while (taken < PARTS && cuMemAlloc(&parts[taken], batch_mib * MIB / PARTS) == CUDA_SUCCESS) {
        taken++;
        rest();
    }
    for (unsigned i = taken; i > 0; i--) {
        MUST(cuMemFree(parts[i - 1]));
        rest();
    }
    return taken == PARTS;
}

static int grow(void)
{
    size_t batch = 128;
    unsigned steps = 0;

    while (batch < BATCH_MAX_MIB && train(2 * batch)) {
        batch *= 2;
        printf("  a batch of %zu MiB fits\n", batch);
    }
    if (batch < BATCH_MAX_MIB)
        printf("  a batch of %zu MiB is out of memory; going on with %zu MiB\n", 2 * batch, batch);
    while (steps < 3 && train(batch))
        steps++;
    printf("  %u steps done\n", steps);
    return steps == 3 ? 0 : 1;
}

static int steps(void)
{
    CUdeviceptr blocks[BLOCKS];

    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BLOCKS; i++)
            MUST(cuMemAlloc(&blocks[i], (size_t)(i + 1) * MIB));
        for (int i = 0; i < BLOCKS; i++)
            MUST(cuMemFree(blocks[i]));
    }
    printf("  %d steps, %d allocations\n", STEPS, STEPS * BLOCKS);
    return 0;
}

static int fail(void)
{
    CUdeviceptr block;
    unsigned blocks = 0;

    while (cuMemAlloc(&block, (size_t)100 * MIB) == CUDA_SUCCESS)
        blocks++;
    printf("  out of memory after %u blocks of 100 MiB\n", blocks);
    return 1;
}

static void __attribute__((noinline)) remember(CUdeviceptr *block)
{
    MUST(cuMemAlloc(block, 3 * MIB)); /* nobody frees these */
}

static int leak(void)
{
    CUdeviceptr block;

    for (volatile int i = 0; i < 3; i++) /* one place in the code */
        remember(&block);
    return steps();
}

static int wait_for_end(void)
{
    char byte;

    MUST(cuMemAlloc(&weights, (size_t)300 * MIB));
    printf("holding\n");
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*work)(void);
    } works[] = {
        {"grow", grow}, {"steps", steps}, {"fail", fail}, {"leak", leak}, {"wait", wait_for_end},
    };
    CUcontext context;
    CUdevice device;

    setvbuf(stdout, NULL, _IOLBF, 0);
    pause_ms = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    for (size_t i = 0; argc > 1 && i < sizeof(works) / sizeof(works[0]); i++) {
        if (strcmp(works[i].name, argv[1]) != 0)
            continue;
        MUST(cuInit(0));
        MUST(cuDeviceGet(&device, 0));
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        if (works[i].work == grow)
            MUST(cuMemAlloc(&weights, (size_t)512 * MIB));
        return works[i].work();
    }
    return 2;
}
