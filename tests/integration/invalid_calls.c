/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that the driver refuses as invalid, each for more memory than a limit of 64 MiB leaves: the
 * program gets the driver's error, and not out of memory.  Prints a line for each, which are the
 * same without the library; at last that nothing is charged for them. */
#include "sample.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static CUdeviceptr block;
static CUstream stream;
static CUgraph graph;
static CUgraphNode node;
static CUmemGenericAllocationHandle handle;
static CUarray array;
static CUmipmappedArray mipmapped;
static CUmemoryPool pool;
static size_t pitch;
static void *host;

static void tell(const char *what, CUresult result)
{
    printf("%s: %d\n", what, (int)result);
}

#define TELL(call) tell(#call, call)

enum { BYTES = 128 << 20 };

static void plain(void)
{
    TELL(cuMemAlloc(NULL, BYTES));
    TELL(cuMemAlloc(&block, 0));
    TELL(cuMemAllocPitch(NULL, &pitch, 1 << 20, 128, 4));
    TELL(cuMemAllocPitch(&block, NULL, 1 << 20, 128, 4));
    TELL(cuMemAllocPitch(&block, &pitch, 1 << 20, 128, 3));
    TELL(cuMemAllocPitch(&block, &pitch, 0, 128, 4));
    TELL(cuMemAllocManaged(NULL, BYTES, CU_MEM_ATTACH_GLOBAL));
    TELL(cuMemAllocManaged(&block, BYTES, 0));
    TELL(cuMemAllocManaged(&block, BYTES, 3));
    TELL(cuMemAllocManaged(&block, BYTES, 0x100));
    TELL(cuMemAllocManaged(&block, 0, CU_MEM_ATTACH_GLOBAL));
    TELL(cuMemHostAlloc(NULL, BYTES, 0));
    TELL(cuMemHostAlloc(&host, BYTES, 0x80));
    TELL(cuMemAllocHost(NULL, BYTES));
}

static void ordered(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUstream gone;

    MUST(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamDestroy(gone));
    TELL(cuMemAllocAsync(NULL, BYTES, stream));
    TELL(cuMemAllocAsync(&block, 0, stream));
    TELL(cuMemAllocAsync(&block, BYTES, gone));
    TELL(cuMemAllocFromPoolAsync(NULL, BYTES, pool, stream));
    TELL(cuMemAllocFromPoolAsync(&block, BYTES, NULL, stream));
    TELL(cuMemAllocFromPoolAsync(&block, BYTES, pool, gone));
    memset(&params, 0, sizeof(params));
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = BYTES;
    TELL(cuGraphAddMemAllocNode(NULL, graph, NULL, 0, &params));
    TELL(cuGraphAddMemAllocNode(&node, NULL, NULL, 0, &params));
    TELL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, NULL));
}

static void virtual(void)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    TELL(cuMemCreate(NULL, BYTES, &prop, 0));
    TELL(cuMemCreate(&handle, BYTES, NULL, 0));
    TELL(cuMemCreate(&handle, BYTES, &prop, 1));
    TELL(cuMemCreate(&handle, BYTES + 1, &prop, 0));
    TELL(cuMemCreate(&handle, 0, &prop, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    TELL(cuMemCreate(&handle, BYTES, &prop, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.id = 7;
    TELL(cuMemCreate(&handle, BYTES, &prop, 0));
    prop.location.id = -1;
    TELL(cuMemCreate(&handle, BYTES, &prop, 0));
}

static void arrays(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 8192, .Height = 8192, .Format = CU_AD_FORMAT_FLOAT};
    CUDA_ARRAY3D_DESCRIPTOR deep = {.Width = 8192, .Height = 8192, .Format = CU_AD_FORMAT_FLOAT};

    TELL(cuArrayCreate(&array, NULL));
    TELL(cuArrayCreate(&array, &flat)); /* no channels */
    TELL(cuArray3DCreate(&array, NULL));
    TELL(cuArray3DCreate(&array, &deep));
    TELL(cuMipmappedArrayCreate(&mipmapped, NULL, 2));
    TELL(cuMipmappedArrayCreate(&mipmapped, &deep, 2));
    flat.NumChannels = deep.NumChannels = 3;
    TELL(cuArrayCreate(&array, &flat));
    TELL(cuArray3DCreate(&array, &deep));
    flat.NumChannels = deep.NumChannels = 1;
    TELL(cuArrayCreate(NULL, &flat));
    TELL(cuArray3DCreate(NULL, &deep));
    TELL(cuMipmappedArrayCreate(NULL, &deep, 2));
}

int main(void)
{
    MUST(cuInit(0));
    {
        CUcontext context;
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
        MUST(cuCtxSetCurrent(context));
    }
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    plain();
    ordered();
    virtual();
    arrays();
    TELL(cuMemAllocManaged(&block, 60 * MIB, CU_MEM_ATTACH_HOST));
    MUST(cuMemFree(block));
    return 0;
}
