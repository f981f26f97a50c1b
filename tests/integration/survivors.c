/* SPDX-License-Identifier: Apache-2.0 */
/* Phases of large blocks, of another size each, that fill the device nearly, and of each phase one
 * block that lives on: ten of 1 GB, twenty of 512 MB, five of 2 GB.  Prints how many each phase
 * got.
 *
 *   survivors GB|GiB SURVIVOR_BYTES ORDER...      each in a context of its own
 *
 * Order 0 is the plain one: a phase allocates its blocks, frees them, then comes what lives on.  In
 * every other the phases, the frees and the moment at which that is allocated are at random. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../samples/sample.h"

#define MB  ((size_t)1000000)
#define MIB ((size_t)1 << 20)

enum { PHASES = 3, BLOCKS_MAX = 20 };

static const struct phase {
    size_t count, size_bytes;
} decimal[PHASES] = {{10, 1000 * MB}, {20, 512 * MB}, {5, 2000 * MB}},
  binary[PHASES] = {{10, 1024 * MIB}, {20, 512 * MIB}, {5, 2048 * MIB}};

struct blocks {
    CUdeviceptr at[BLOCKS_MAX];
    size_t count;
};

static size_t below(struct sequence *order, size_t bound)
{
    return (size_t)(sequence_next(order) % bound);
}

static void take(struct blocks *blocks, size_t size_bytes)
{
    CUresult result = cuMemAlloc(&blocks->at[blocks->count], size_bytes);

    if (result == CUDA_SUCCESS)
        blocks->count++;
    else if (result != CUDA_ERROR_OUT_OF_MEMORY)
        MUST(result);
}

static void give(struct blocks *blocks, size_t index)
{
    MUST(cuMemFree(blocks->at[index]));
    blocks->at[index] = blocks->at[--blocks->count];
}

/* The survivor is allocated before step `when`: allocations first, then frees; or behind all. */
static void play(const struct phase *phase, struct blocks *survivors, size_t survivor_bytes,
                 size_t when, struct sequence *order)
{
    struct blocks blocks = {.count = 0};
    size_t served;

    for (size_t i = 0; i < phase->count; i++) {
        if (i == when)
            take(survivors, survivor_bytes);
        take(&blocks, phase->size_bytes);
    }
    served = blocks.count;
    for (size_t i = phase->count; blocks.count > 0; i++) {
        if (i == when)
            take(survivors, survivor_bytes);
        give(&blocks, order ? below(order, blocks.count) : 0);
    }
    if (when >= phase->count + served)
        take(survivors, survivor_bytes);
    printf("%zu of %zu of %zu bytes\n", served, phase->count, phase->size_bytes);
}

static void play_in_order(const struct phase *phases, size_t survivor_bytes, struct sequence *order)
{
    struct phase left[PHASES];
    struct blocks survivors = {.count = 0};

    for (size_t i = 0; i < PHASES; i++)
        left[i] = phases[i];
    for (size_t i = 0; i < PHASES; i++) {
        size_t next = i + (order ? below(order, PHASES - i) : 0);
        struct phase phase = left[next];
        size_t when = order ? below(order, 2 * phase.count + 1) : 2 * phase.count;
        left[next] = left[i];
        play(&phase, &survivors, survivor_bytes, when, order);
    }
    printf("%zu live on\n", survivors.count);
}

int main(int argc, char **argv)
{
    struct sequence order;
    CUcontext context;
    CUdevice device;

    if (argc < 4)
        return 2;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    for (int i = 3; i < argc; i++) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        order.state = strtoull(argv[i], NULL, 10);
        printf("order %s\n", argv[i]);
        play_in_order(strcmp(argv[1], "GiB") ? decimal : binary, strtoull(argv[2], NULL, 10),
                      order.state ? &order : NULL);
        MUST(cuDevicePrimaryCtxRelease(device));
    }
    return 0;
}
