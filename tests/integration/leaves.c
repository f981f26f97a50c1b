/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that end with memory in them, over and over: what they held must be there for the next.
 * leaves reset|destroy.  Prints what does not depend on where memory comes from.
 * leaves ipc: whether a block can be shared, as its attribute says and as the driver does.
 * leaves alone ROUNDS: one block at a time, with work under way at its free. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 80 /* more than the library keeps ended contexts */, BLOCKS = 6 };

#define NEED(call)                                                                                 \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                             \
            printf("%s: %d\n", #call, (int)result_);                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Most of the device in a few blocks, one of them freed. */
static void fill(CUdeviceptr *block)
{
    size_t free_bytes, total_bytes;

    NEED(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    for (unsigned i = 0; i < BLOCKS; i++) {
        NEED(cuMemAlloc_v2(&block[i], total_bytes / 8));
        NEED(cuMemsetD8_v2(block[i], 7, 4096));
    }
    NEED(cuMemFree_v2(block[0]));
}

static CUcontext begin(int is_reset)
{
    CUcontext context;

    if (is_reset) {
        NEED(cuDevicePrimaryCtxRetain(&context, 0));
        NEED(cuCtxSetCurrent(context));
    } else {
        NEED(cuCtxCreate_v2(&context, 0, 0));
    }
    return context;
}

static int share(void)
{
    CUipcMemHandle handle;
    CUmemoryPool pool = NULL;
    CUdeviceptr block;
    unsigned capable = 77;

    begin(1);
    NEED(cuMemAlloc_v2(&block, 4 << 20));
    NEED(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
    NEED(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    printf("capable %u, of a pool %d, handle %d\n", capable, pool != NULL,
           (int)cuIpcGetMemHandle(&handle, block));
    return 0;
}

/* Of 1 to 7 MiB: no size twice, so that nothing freed serves the next request as it is. */
static int alone(unsigned rounds)
{
    unsigned refused = 0, seed = 1;
    CUdeviceptr block;

    begin(1);
    for (unsigned round = 0; round < rounds; round++) {
        size_t bytes;
        seed = seed * 1664525 + 1013904223;
        bytes = (1 << 20) + seed % (6u << 20);
        if (cuMemAlloc_v2(&block, bytes) != CUDA_SUCCESS) {
            refused++;
            continue;
        }
        NEED(cuMemsetD8Async(block, 7, bytes, NULL));
        NEED(cuMemFree_v2(block));
    }
    printf("%u rounds, %u refused\n", rounds, refused);
    return 0;
}

int main(int argc, char **argv)
{
    int is_reset = argc > 1 && !strcmp(argv[1], "reset");
    CUdeviceptr block[BLOCKS] = {0};

    NEED(cuInit(0));
    if (argc > 1 && !strcmp(argv[1], "ipc"))
        return share();
    if (argc > 2 && !strcmp(argv[1], "alone"))
        return alone((unsigned)atoi(argv[2]));
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUcontext context = begin(is_reset);
        if (round > 0 && round % 8 == 0)
            printf("a free of what ended: %d\n", (int)cuMemFree_v2(block[1]));
        fill(block);
        if (is_reset)
            NEED(cuDevicePrimaryCtxReset_v2(0));
        else
            NEED(cuCtxDestroy_v2(context));
    }
    printf("%d rounds\n", ROUNDS);
    return 0;
}
