/* SPDX-License-Identifier: Apache-2.0 */
/* Three devices: memory of each, freed from another, and pinned memory with every set of flags.
 * Prints what must be the same with and without the library. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { DEVICES = 3, BLOCKS = 20, FLAG_SETS = 8, SIZE = 100000 };

static void device_memory(void)
{
    char *blocks[DEVICES][BLOCKS];
    char *host = NULL;

    cudaMallocHost((void **)&host, SIZE);
    for (int device = 0; device < DEVICES; device++) {
        cudaSetDevice(device);
        for (int i = 0; i < BLOCKS; i++) {
            cudaError_t error = cudaMalloc((void **)&blocks[device][i], SIZE + (size_t)i);
            if (error != cudaSuccess)
                printf("device %d, block %d: %d\n", device, i, error);
            cudaMemset(blocks[device][i], 16 * device + i % 16, SIZE);
        }
        cudaDeviceSynchronize(); /* the copies below are another device's work */
    }
    for (int device = 0; device < DEVICES; device++) {
        struct cudaPointerAttributes attributes;
        unsigned wrong = 0;

        cudaSetDevice((device + 1) % DEVICES); /* memory and its free know their device */
        for (int i = 0; i < BLOCKS; i++) {
            memset(host, 0, SIZE);
            cudaMemcpy(host, blocks[device][i], SIZE, cudaMemcpyDefault);
            for (int at = 0; at < SIZE; at++)
                wrong += (unsigned char)host[at] != 16 * device + i % 16;
        }
        cudaPointerGetAttributes(&attributes, blocks[device][0]);
        printf("device %d: %u wrong bytes, attributes say device %d\n", device, wrong,
               attributes.device);
        for (int i = 0; i < BLOCKS; i++)
            printf("%d", cudaFree(blocks[device][i]));
        printf(" freed, again %d\n", cudaFree(blocks[device][0]));
        (void)cudaGetLastError();
    }
    printf("host %d, as device memory %d\n", cudaFreeHost(host), cudaFree(host));
    (void)cudaGetLastError();
}

static void pinned_memory(void)
{
    void *blocks[FLAG_SETS][2];

    cudaSetDevice(0);
    for (unsigned flags = 0; flags < FLAG_SETS; flags++) {
        for (int i = 0; i < 2; i++) {
            unsigned seen = 99;
            cudaError_t error = cudaHostAlloc(&blocks[flags][i], SIZE, flags);
            cudaError_t asked = cudaHostGetFlags(&seen, (char *)blocks[flags][i]);
            memset(blocks[flags][i], (int)flags, SIZE);
            printf("flags %u: %d, %d, they are %u\n", flags, error, asked, seen);
        }
    }
    for (unsigned flags = 0; flags < FLAG_SETS; flags++) {
        unsigned wrong = 0;
        for (int at = 0; at < SIZE; at++)
            wrong += ((unsigned char *)blocks[flags][0])[at] != flags;
        printf("%u wrong bytes\n", wrong);
        printf("  interior %d\n", cudaFreeHost((char *)blocks[flags][0] + 512));
        printf("  as device memory %d\n", cudaFree(blocks[flags][0]));
        printf("  freed %d\n", cudaFreeHost(blocks[flags][0]));
        printf("  the other %d\n", cudaFreeHost(blocks[flags][1]));
        printf("  again %d\n", cudaFreeHost(blocks[flags][0]));
        (void)cudaGetLastError();
    }
    printf("size 0: %d\n", cudaHostAlloc(&blocks[0][0], 0, 0));
    printf("huge: %d\n", cudaHostAlloc(&blocks[0][0], (size_t)1 << 60, 0));
    printf("NULL: %d\n", cudaFreeHost(NULL));
}

int main(void)
{
    device_memory();
    pinned_memory();
    return 0;
}
