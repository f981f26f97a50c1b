/* SPDX-License-Identifier: Apache-2.0 */
/* A working set larger than the device: blocks of 1 MiB, all used by kernels, all checked.  Then
 * fewer blocks, which fit.  Says where each lot lies, as the driver sees it.
 *
 * usage: spill BLOCKS FEWER */
#include "hostcuda.h"
#include "hostcudart.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS_MAX = 1024, BYTES = 1 << 20, WORDS = BYTES / 4, ROUNDS = 1 };

static unsigned *blocks[BLOCKS_MAX], *wrong;

static unsigned allocate(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (cudaMalloc((void **)&blocks[i], BYTES) != cudaSuccess) {
            printf("out of memory at block %u\n", i);
            (void)cudaGetLastError();
            return i;
        }
    return count;
}

static void use(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        hostcudaFill32(blocks[i], WORDS, 1000 * i, NULL);
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < count; i++)
            hostcudaAddOne(blocks[i], WORDS, NULL);
    for (unsigned i = 0; i < count; i++)
        hostcudaCheckPattern(blocks[i], WORDS, 1000 * i + ROUNDS, wrong, NULL);
    printf("%u blocks: synchronised %d, wrong %u\n", count, cudaDeviceSynchronize(), *wrong);
}

static void say_where(unsigned count)
{
    unsigned kinds[4] = {0};

    for (unsigned i = 0; i < count; i++) {
        struct cudaPointerAttributes attributes = {.type = cudaMemoryTypeUnregistered};
        (void)cudaPointerGetAttributes(&attributes, blocks[i]);
        kinds[attributes.type]++;
    }
    printf("device %u, managed %u, host %u\n", kinds[cudaMemoryTypeDevice],
           kinds[cudaMemoryTypeManaged], kinds[cudaMemoryTypeHost]);
}

static void give_all(unsigned count)
{
    unsigned refused = 0;

    for (unsigned i = 0; i < count; i++)
        refused += cudaFree(blocks[i]) != cudaSuccess;
    cudaDeviceSynchronize(); /* what was freed is ready: a fallback waits for it no longer than 20
                                ms */
    printf("%u frees refused\n", refused);
}

int main(int argc, char **argv)
{
    unsigned many = argc > 2 ? (unsigned)atoi(argv[1]) : 0;
    unsigned fewer = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    unsigned long long to_device = 0, to_host = 0;

    if (many == 0 || many > BLOCKS_MAX || fewer > many)
        return 2;
    cudaMallocHost((void **)&wrong, sizeof(*wrong));
    *wrong = 0;
    many = allocate(many);
    say_where(many);
    use(many);
    give_all(many);
    fewer = allocate(fewer);
    say_where(fewer);
    use(fewer);
    give_all(fewer);
    cudaFreeHost(wrong);
    hostcuda_migrations(&to_device, &to_host);
    printf("moved %llu to the device, %llu to the host, prefetches %llu\n", to_device, to_host,
           hostcuda_call_count("cuMemPrefetchAsync_v2") +
               hostcuda_call_count("cuMemPrefetchAsync"));
    return 0;
}
