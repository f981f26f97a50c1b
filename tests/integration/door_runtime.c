/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime of a few functions that counts its calls: what reaches it was not served at once
 * by the runtime door.  DOOR_VERSION is the version it claims to be (13000).  Writes its counts
 * when it is unloaded or the process ends, to the file DOOR_COUNTS. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

static __thread cudaError_t last_error;
static unsigned mallocs, frees;

static CUresult (*mem_alloc)(CUdeviceptr *, size_t);
static CUresult (*mem_free)(CUdeviceptr);
static CUresult (*mem_alloc_managed)(CUdeviceptr *, size_t, unsigned);
static CUresult (*ctx_get_current)(CUcontext *);
static CUresult (*ctx_set_current)(CUcontext);
static CUresult (*primary_retain)(CUcontext *, CUdevice);

static CUresult start(void)
{
    static CUcontext primary;
    CUcontext current = NULL;

    if (!primary) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        CUresult (*init)(unsigned), result;
        if (!driver)
            return CUDA_ERROR_NO_DEVICE;
        *(void **)&init = dlsym(driver, "cuInit");
        *(void **)&mem_alloc = dlsym(driver, "cuMemAlloc_v2");
        *(void **)&mem_free = dlsym(driver, "cuMemFree_v2");
        *(void **)&mem_alloc_managed = dlsym(driver, "cuMemAllocManaged");
        *(void **)&ctx_get_current = dlsym(driver, "cuCtxGetCurrent");
        *(void **)&ctx_set_current = dlsym(driver, "cuCtxSetCurrent");
        *(void **)&primary_retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
        result = init(0);
        if (result == CUDA_SUCCESS)
            result = primary_retain(&primary, 0);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (ctx_get_current(&current) == CUDA_SUCCESS && !current)
        return ctx_set_current(primary);
    return CUDA_SUCCESS;
}

static cudaError_t record(CUresult result)
{
    if (result != CUDA_SUCCESS)
        last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

PUBLIC cudaError_t cudaMalloc(void **address, size_t bytes)
{
    CUdeviceptr block = 0;
    CUresult result;

    mallocs++;
    if (!address)
        return record(CUDA_ERROR_INVALID_VALUE);
    result = start();
    if (result == CUDA_SUCCESS && bytes)
        result = mem_alloc(&block, bytes);
    if (result == CUDA_SUCCESS)
        *address = (void *)block;
    return record(result);
}

PUBLIC cudaError_t cudaFree(void *address)
{
    CUresult result;

    frees++;
    result = start();
    if (result == CUDA_SUCCESS)
        result = mem_free((CUdeviceptr)address);
    return record(result);
}

PUBLIC cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned flags)
{
    CUdeviceptr block = 0;
    CUresult result = start();

    if (result == CUDA_SUCCESS)
        result = mem_alloc_managed(&block, bytes, flags);
    if (result == CUDA_SUCCESS)
        *address = (void *)block;
    return record(result);
}

PUBLIC cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

/* It knows one device, and nothing of pointers. */
PUBLIC cudaError_t cudaSetDevice(int device)
{
    return record(device == 0 ? start() : CUDA_ERROR_INVALID_DEVICE);
}

PUBLIC cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                            const void *pointer)
{
    (void)attributes;
    (void)pointer;
    return record(CUDA_ERROR_NOT_SUPPORTED);
}

PUBLIC cudaError_t cudaRuntimeGetVersion(int *version)
{
    const char *text = getenv("DOOR_VERSION");

    *version = text ? atoi(text) : 13000;
    return cudaSuccess;
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("DOOR_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "runtime %u mallocs %u frees\n", mallocs, frees);
    fclose(file);
}
