/* SPDX-License-Identifier: Apache-2.0 */
/* A library that asks for memory, with whatever runtime it was linked with; or with DOOR_BY_HANDLE,
 * through one that it opens. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>

#ifdef DOOR_BY_HANDLE
#include "door_by_handle.h"
#else
#define door_open_runtime() ((void)0)
#endif

/* NULL where it is refused.  Calls from one place alone for each kind. */
__attribute__((visibility("default"))) void *hold(const char *how, size_t bytes);
/* 0 if all is well; for memory of the runtime and of the driver that is not the host's. */
__attribute__((visibility("default"))) int release(void *block);

static void *hold_by_driver(const char *how, size_t bytes)
{
    CUdeviceptr address = 0;
    size_t pitch;

    if (strcmp(how, "pitch") == 0)
        (void)cuMemAllocPitch(&address, &pitch, 1024, bytes / 1024, 4);
    else if (strcmp(how, "ordered") == 0)
        (void)cuMemAllocAsync(&address, bytes, NULL);
    else if (strcmp(how, "host") == 0)
        (void)cuMemHostAlloc((void **)&address, bytes, 0);
    else
        (void)cuMemAlloc(&address, bytes);
    return (void *)(uintptr_t)address;
}

void *hold(const char *how, size_t bytes)
{
    void *block = NULL;

    door_open_runtime();
    if (strcmp(how, "malloc") == 0)
        (void)cudaMalloc(&block, bytes);
    else if (strcmp(how, "managed") == 0)
        (void)cudaMallocManaged(&block, bytes, cudaMemAttachGlobal);
    else
        block = hold_by_driver(how, bytes);
    return block;
}

int release(void *block)
{
    return (int)cuMemFree((CUdeviceptr)(uintptr_t)block);
}
