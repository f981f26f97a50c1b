/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory as programs use it: by host and kernels in turn, prefetched, advised, attached.
 * Prints what must be the same with and without the library.
 *
 *   managed SCENE */
#define __CUDA_API_VERSION_INTERNAL
#include "../samples/sample.h"
#include "hostcuda.h"
#include "hostcudart.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 60, BLOCKS = 16, WORDS = 5000 };

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

static CUdeviceptr allocate(size_t bytes)
{
    void *block = NULL;

    MUST(cudaMallocManaged(&block, bytes, cudaMemAttachGlobal));
    hostcuda_note_free(block); /* the runtime may have told of it; twice is told once */
    hostcuda_note_allocate(block, bytes);
    return (CUdeviceptr)(uintptr_t)block;
}

static void release(CUdeviceptr block)
{
    hostcuda_note_free((void *)(uintptr_t)block);
    MUST(cudaFree((void *)(uintptr_t)block));
}

static unsigned *words(CUdeviceptr block)
{
    return (unsigned *)(uintptr_t)block;
}

/* The host writes, kernels add, the host reads; frees while kernels still work. */
static void use(void)
{
    unsigned wrong = 0, *wrong_words;
    cudaStream_t stream;

    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaHostAlloc((void **)&wrong_words, 4, 0));
    *wrong_words = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr mine = allocate(4 * WORDS), gone = allocate(4 * WORDS + round), next;

        for (unsigned i = 0; i < WORDS; i++)
            words(mine)[i] = round + i;
        MUST(hostcudaAddOne((void *)(uintptr_t)mine, WORDS, stream));
        MUST(hostcudaSpinUs(200, stream));
        MUST(hostcudaFill32((void *)(uintptr_t)gone, WORDS, round, stream));
        MUST(hostcudaCheckPattern((void *)(uintptr_t)gone, WORDS, round, wrong_words, stream));
        release(gone); /* a kernel writes it yet, ... */
        next = allocate(4 * WORDS);
        for (unsigned i = 0; i < WORDS; i++)
            words(next)[i] = ~i; /* ... and the host asks no stream */
        MUST(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < WORDS; i++)
            wrong += (words(mine)[i] != round + i + 1) + (words(next)[i] != ~i);
        release(mine);
        release(next);
    }
    printf("%u wrong for the host, %u for kernels\n", wrong, *wrong_words);
    MUST(cudaFreeHost(wrong_words));
    MUST(cudaStreamDestroy(stream));
}

/* ---- advice ---- */

static void say_advice(const char *name, CUdeviceptr block, size_t bytes)
{
    int read_mostly, preferred, accesses[2];

    MUST(cuMemRangeGetAttribute(&read_mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, block, bytes));
    MUST(cuMemRangeGetAttribute(&preferred, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, block,
                                bytes));
    MUST(cuMemRangeGetAttribute(accesses, 8, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, block, bytes));
    printf("%s: read mostly %d, preferred location %d, accessed by %d %d\n", name, read_mostly,
           preferred, accesses[0], accesses[1]);
}

static bool is_advised(CUdeviceptr block, size_t bytes)
{
    int read_mostly, preferred, accesses[1];

    MUST(cuMemRangeGetAttribute(&read_mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, block, bytes));
    MUST(cuMemRangeGetAttribute(&preferred, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, block,
                                bytes));
    MUST(cuMemRangeGetAttribute(accesses, 4, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, block, bytes));
    return read_mostly || preferred != CU_DEVICE_INVALID || accesses[0] != CU_DEVICE_INVALID;
}

static void advise_all(CUdeviceptr block, size_t bytes)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};

    MUST(cuMemAdvise(block, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    MUST(cuMemAdvise_v2(block, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    MUST(cuMemAdvise(block, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
    MUST(cuMemAdvise_v2(block, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
}

/* What one block is advised of shows on no other, and not on who gets its memory next. */
static void advice(void)
{
    enum { BYTES = 70000 };
    CUdeviceptr blocks[BLOCKS];
    unsigned wrong = 0, left = 0;

    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(BYTES);
    for (int i = 0; i < BLOCKS; i += 2)
        advise_all(blocks[i], BYTES);
    for (int i = 0; i < BLOCKS; i++)
        wrong += is_advised(blocks[i] + 8192, 4096) != (i % 2 == 0);
    say_advice("advised", blocks[0], BYTES);
    SAY(cuMemAdvise(blocks[0], BYTES, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
    SAY(cuMemAdvise(blocks[0], BYTES, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0));
    say_advice("less", blocks[0], BYTES);
    SAY(cuMemAdvise(blocks[1], BYTES, (CUmem_advise)99, 0));
    SAY(cuMemAdvise(blocks[1], BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, 55));
    SAY(cuMemAdvise(blocks[1], 0, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    SAY(cuMemAdvise(blocks[1], BYTES + 100000, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    SAY(cuMemAdvise(blocks[1] + 65536, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    for (int i = 0; i < BLOCKS; i++)
        release(blocks[i]);
    SAY(cuMemAdvise(blocks[0], BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    SAY(cuStreamAttachMemAsync(NULL, blocks[0], 0, CU_MEM_ATTACH_GLOBAL));
    MUST(cudaDeviceSynchronize());
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr block = allocate(BYTES);
        left += is_advised(block, BYTES) || is_advised(block, 4096);
        advise_all(block, BYTES);
        release(block);
    }
    printf("%u wrong, %u with what others were advised of\n", wrong, left);
}

/* ---- what observers and other calls say ---- */

static void calls(void)
{
    CUdeviceptr block = allocate(5000), other = allocate(5000), hosts = 0, base = 0, device;
    CUcontext owner = NULL, current = NULL;
    CUipcMemHandle handle;
    unsigned is_managed = 7, type = 7;
    void *host = NULL;
    size_t bytes = 0;
    CUstream stream, bad = NULL;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("aligned %d\n", block % 512 == 0);
    SAY(cuMemGetAddressRange_v2(&base, &bytes, block + 77));
    printf("base %s, %zu bytes\n", base == block ? "right" : "WRONG", bytes);
    SAY(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    SAY(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, block + 5));
    SAY(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    MUST(cuCtxGetCurrent(&current));
    printf("managed %u, type %u, host pointer %s, owner %s\n", is_managed, type,
           host == (void *)(uintptr_t)(block + 5) ? "right" : "WRONG",
           owner == current ? "right" : "WRONG");

    SAY(cuMemPrefetchAsync(block, 5000, 0, stream));
    SAY(cuMemPrefetchAsync(block, 5000, CU_DEVICE_CPU, stream));
    SAY(cuMemPrefetchAsync(block, 5000, 9, stream));

    SAY(cuStreamAttachMemAsync(stream, block, 0, CU_MEM_ATTACH_GLOBAL));
    SAY(cuStreamAttachMemAsync(stream, block, 5000, CU_MEM_ATTACH_GLOBAL));
    SAY(cuStreamAttachMemAsync(stream, block, 0, CU_MEM_ATTACH_SINGLE));
    SAY(cuStreamAttachMemAsync(NULL, block, 0, CU_MEM_ATTACH_SINGLE));
    SAY(cuStreamAttachMemAsync(stream, block, 5000, CU_MEM_ATTACH_HOST));
    SAY(cuStreamAttachMemAsync(stream, block, 512, CU_MEM_ATTACH_GLOBAL));
    SAY(cuStreamAttachMemAsync(stream, block + 512, 0, CU_MEM_ATTACH_GLOBAL));
    SAY(cuStreamAttachMemAsync(stream, block, 0, 77));
    SAY(cuStreamAttachMemAsync_ptsz(bad, block, 0, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAlloc_v2(&device, 5000));
    SAY(cuStreamAttachMemAsync(stream, device, 0, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemFree_v2(device));

    SAY(cudaMallocManaged((void **)&hosts, 5000, cudaMemAttachHost));
    words(hosts)[3] = 3;
    printf("attached to the host: %u\n", words(hosts)[3]);
    SAY(cuStreamAttachMemAsync(stream, hosts, 0, CU_MEM_ATTACH_GLOBAL));
    SAY(cudaFree((void *)(uintptr_t)hosts));
    SAY(cudaMallocManaged((void **)&hosts, 5000, 4));
    SAY(cudaMallocManaged((void **)&hosts, 5000, 0));
    SAY(cudaMallocManaged((void **)&hosts, 0, cudaMemAttachGlobal));
    SAY(cuMemAllocManaged(&hosts, 0, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemAllocManaged(NULL, 100, CU_MEM_ATTACH_GLOBAL));

    SAY(cuIpcGetMemHandle(&handle, block));
    SAY(cuMemFreeAsync(block, stream));
    SAY(cuMemFreeAsync(block + 512, stream));
    SAY(cuMemFreeHost((void *)(uintptr_t)block));
    SAY(cuMemFree_v2(block + 512));
    words(block)[0] = 5;
    SAY(cuMemFree_v2(block));
    SAY(cuMemFree_v2(block));
    SAY(cuMemGetAddressRange_v2(&base, &bytes, block));
    SAY(cuMemFree_v2(other));
    MUST(cuStreamDestroy_v2(stream));
}

/* ---- contexts ---- */

static void contexts(void)
{
    CUdeviceptr blocks[BLOCKS], others[BLOCKS];
    CUcontext first, second;

    MUST(cuCtxGetCurrent(&first));
    for (int round = 0; round < 10; round++) {
        MUST(cuCtxCreate_v2(&second, 0, 0));
        for (int i = 0; i < BLOCKS; i++) {
            MUST(cuMemAllocManaged(&others[i], 100000, CU_MEM_ATTACH_GLOBAL));
            MUST(cuMemAdvise(others[i], 100000, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
        }
        MUST(cuCtxSetCurrent(first));
        for (int i = 0; i < BLOCKS; i++)
            blocks[i] = allocate(100000);
        for (int i = 0; i < BLOCKS / 2; i++)
            MUST(cuMemFree_v2(others[i])); /* of the context that is not current */
        MUST(cuCtxDestroy_v2(second));
        if (round == 0)
            SAY(cuMemFree_v2(others[BLOCKS - 1]));
        for (int i = 0; i < BLOCKS; i++) {
            words(blocks[i])[7] = (unsigned)i;
            release(blocks[i]);
        }
    }
    MUST(cudaDeviceReset());
    SAY(cuMemFree_v2(blocks[0]));
    blocks[0] = allocate(100000);
    words(blocks[0])[0] = 1;
    release(blocks[0]);
    printf("done\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"use", use}, {"advice", advice}, {"calls", calls}, {"contexts", contexts}};
    const char *wanted = argc == 2 ? argv[1] : "";

    MUST(cudaFree(NULL));
    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        if (strcmp(wanted, scenes[i].name) != 0)
            continue;
        scenes[i].run();
        if (hostcuda_race_count())
            printf("%llu races\n", hostcuda_race_count());
        return 0;
    }
    fprintf(stderr, "usage: managed SCENE\n");
    return 2;
}
