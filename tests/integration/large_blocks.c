/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of other sizes in the memory of freed ones, which small live blocks keep apart; kernels
 * write and check every byte.  Then what is left when the context ends, in three ways.
 *
 *   large_blocks */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#include "../samples/kernels.h"
#include "../samples/sample.h"

#define MIB ((size_t)1 << 20)

extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

enum { BLOCKS_MAX = 20, WALLS = 10 };

static CUdevice device;
static CUfunction fill, check;
static CUdeviceptr counter;

static void launch(CUfunction function, CUdeviceptr address, size_t size_bytes, unsigned value)
{
    unsigned long long at = address, n = size_bytes / 4, v = value, to = counter;
    void *arguments[] = {&at, &n, &v, &to};

    MUST(cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
}

static void take(CUdeviceptr *blocks, size_t count, size_t size_bytes, unsigned value)
{
    for (size_t i = 0; i < count; i++) {
        CUdeviceptr base;
        CUcontext owner, current;
        size_t bytes;
        MUST(cuMemAlloc(&blocks[i], size_bytes));
        launch(fill, blocks[i], size_bytes, value + (unsigned)i);
        MUST(cuMemGetAddressRange(&base, &bytes, blocks[i] + size_bytes / 2));
        MUST(cuCtxGetCurrent(&current));
        MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, blocks[i] + 5));
        if (base != blocks[i] || bytes != size_bytes || owner != current)
            printf("a block of %zu is not itself\n", size_bytes);
    }
}

static void check_and_give(const CUdeviceptr *blocks, size_t count, size_t size_bytes,
                           unsigned value)
{
    unsigned wrong = 0;

    for (size_t i = 0; i < count; i++)
        launch(check, blocks[i], size_bytes, value + (unsigned)i);
    for (size_t i = 0; i < count; i++)
        MUST(cuMemFree(blocks[i * 7 % count])); /* without a wait of ours */
    MUST(cuMemcpyDtoH(&wrong, counter, sizeof(wrong)));
    printf("%zu blocks of %zu MiB: %u wrong words\n", count, size_bytes / MIB, wrong);
}

static void load(void)
{
    CUmodule module;

    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&fill, module, "fill32"));
    MUST(cuModuleGetFunction(&check, module, "check_pattern"));
    MUST(cuMemAlloc(&counter, 8));
    MUST(cuMemsetD32(counter, 0, 2));
}

static void sizes(void)
{
    CUdeviceptr blocks[BLOCKS_MAX], walls[WALLS];

    load();
    for (size_t i = 0; i < WALLS; i++) {
        take(&blocks[i], 1, 4 * MIB, 1000 + (unsigned)i);
        take(&walls[i], 1, 2 * MIB, 2000 + (unsigned)i);
    }
    check_and_give(blocks, 10, 4 * MIB, 1000);
    take(blocks, 20, 2 * MIB, 3000);
    check_and_give(blocks, 20, 2 * MIB, 3000);
    take(blocks, 5, 8 * MIB, 4000);
    check_and_give(blocks, 5, 8 * MIB, 4000);
    take(blocks, 10, 4 * MIB, 5000);
    check_and_give(blocks, 10, 4 * MIB, 5000);
    check_and_give(walls, WALLS, 2 * MIB, 2000);
}

static size_t free_memory(void)
{
    size_t free_bytes, total_bytes;

    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
}

/* Leaves live blocks behind. */
static void leave_blocks(void)
{
    CUdeviceptr blocks[3];

    load();
    take(blocks, 3, 6 * MIB, 1);
    MUST(cuMemFree(blocks[1]));
    MUST(cuCtxSynchronize());
}

int main(void)
{
    CUcontext observer, context;
    size_t before;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate_v2(&context, 0, device));
    sizes();
    MUST(cuCtxDestroy(context));

    MUST(cuCtxCreate_v2(&observer, 0, device));
    before = free_memory();
    MUST(cuCtxCreate_v2(&context, 0, device));
    leave_blocks();
    MUST(cuCtxDestroy(context));
    MUST(cuCtxSetCurrent(observer));
    printf("destroyed: %zd\n", (ssize_t)(before - free_memory()));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    leave_blocks();
    MUST(cuDevicePrimaryCtxReset(device));
    MUST(cuCtxSetCurrent(observer));
    printf("reset: %zd\n", (ssize_t)(before - free_memory()));
    (void)cuDevicePrimaryCtxRelease(device);
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    leave_blocks();
    MUST(cuDevicePrimaryCtxRelease(device));
    MUST(cuCtxSetCurrent(observer));
    printf("released: %zd\n", (ssize_t)(before - free_memory()));
    return 0;
}
