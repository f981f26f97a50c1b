/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and the primary context that the runtime works in. */
#include "runtime/runtime.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define DEVICES_MAX 64

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[DEVICES_MAX]; /* NULL: not retained */
static CUcontext resets[DEVICES_MAX];    /* was retained, until cudaDeviceReset */
static __thread int thread_device;

/* The device's primary context, retained once for the process. */
static cudaError_t retain(int device, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (!primaries[device])
        result = rt_driver.cuDevicePrimaryCtxRetain(&primaries[device], device);
    *out = primaries[device];
    pthread_mutex_unlock(&mutex);
    return (cudaError_t)result;
}

/* True if the context is a primary that cudaDeviceReset took away. */
static bool was_reset(CUcontext ctx)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < DEVICES_MAX && !found; i++)
        found = resets[i] == ctx && !primaries[i];
    pthread_mutex_unlock(&mutex);
    return found;
}

static cudaError_t enter(int device)
{
    CUcontext ctx;
    cudaError_t error = retain(device, &ctx);
    return error ? error : (cudaError_t)rt_driver.cuCtxSetCurrent(ctx);
}

cudaError_t rt_begin(void)
{
    CUcontext current = NULL;
    cudaError_t error = rt_driver_open();
    if (!error)
        error = (cudaError_t)rt_driver.cuCtxGetCurrent(&current);
    if (error || (current && !was_reset(current)))
        return error;
    return enter(thread_device);
}

RT_API cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = rt_driver_open();
    return rt_end(error ? error : (cudaError_t)rt_driver.cuDeviceGetCount(count));
}

/* As the runtime does since version 12: this initialises the device. */
RT_API cudaError_t cudaSetDevice(int device)
{
    int count = 0;
    cudaError_t error = rt_driver_open();
    if (!error)
        error = (cudaError_t)rt_driver.cuDeviceGetCount(&count);
    if (!error && (device < 0 || device >= count || device >= DEVICES_MAX))
        error = cudaErrorInvalidDevice;
    if (!error)
        error = enter(device);
    if (!error)
        thread_device = device;
    return rt_end(error);
}

RT_API cudaError_t cudaGetDevice(int *device)
{
    if (!device)
        return rt_end(cudaErrorInvalidValue);
    CUcontext current = NULL;
    cudaError_t error = rt_driver_open();
    if (!error)
        rt_driver.cuCtxGetCurrent(&current);
    *device = thread_device;
    if (!error && current && !was_reset(current))
        error = (cudaError_t)rt_driver.cuCtxGetDevice(device);
    return rt_end(error);
}

RT_API cudaError_t cudaDeviceReset(void)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error)
        return error;
    pthread_mutex_lock(&mutex);
    if (primaries[device])
        resets[device] = primaries[device];
    primaries[device] = NULL;
    error = (cudaError_t)rt_driver.cuDevicePrimaryCtxReset(device);
    pthread_mutex_unlock(&mutex);
    return rt_end(error);
}

RT_API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return RT_CALL(rt_driver.cuCtxGetStreamPriorityRange(least, greatest));
}

RT_API cudaError_t cudaDeviceSynchronize(void)
{
    return RT_CALL(rt_driver.cuCtxSynchronize());
}

RT_API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = rt_driver_open();
    return rt_end(error ? error
                        : (cudaError_t)rt_driver.cuDeviceGetAttribute(
                              value, (CUdevice_attribute)attribute, device));
}

RT_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t error = rt_driver_open();
    if (!error && !properties)
        error = cudaErrorInvalidValue;
    if (error)
        return rt_end(error);
    memset(properties, 0, sizeof(*properties));
    CUresult result = rt_driver.cuDeviceGetName(properties->name, sizeof(properties->name), device);
    if (!result)
        result = rt_driver.cuDeviceTotalMem(&properties->totalGlobalMem, device);
    if (!result)
        result = rt_driver.cuDeviceGetUuid(&properties->uuid, device);
    const struct {
        int *value;
        CUdevice_attribute attribute;
    } wanted[] = {
        {&properties->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {&properties->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&properties->multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        {&properties->warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
        {&properties->maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {&properties->managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
        {&properties->concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
        {&properties->unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
        {&properties->memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    };
    for (size_t i = 0; !result && i < sizeof(wanted) / sizeof(wanted[0]); i++)
        result = rt_driver.cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, device);
    return rt_end((cudaError_t)result);
}

RT_API cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return rt_end(cudaErrorInvalidValue);
    *version = 13000;
    return cudaSuccess;
}

RT_API cudaError_t cudaDriverGetVersion(int *version)
{
    cudaError_t error = rt_driver_open();
    if (error == cudaErrorInsufficientDriver && version) {
        *version = 0; /* no driver is no error here */
        return cudaSuccess;
    }
    return rt_end(error ? error : (cudaError_t)rt_driver.cuDriverGetVersion(version));
}

RT_API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t error = rt_driver_open();
    return rt_end(error ? error : (cudaError_t)rt_driver.cuDeviceCanAccessPeer(can, device, peer));
}

/* The peer's context, and the thread's own current again. */
static cudaError_t context_of_peer(int peer, CUcontext *ctx)
{
    int count;
    cudaError_t error = (cudaError_t)rt_driver.cuDeviceGetCount(&count);
    if (!error && (peer < 0 || peer >= count))
        error = cudaErrorInvalidDevice;
    return error ? error : retain(peer, ctx);
}

RT_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    CUcontext ctx = NULL;
    cudaError_t error = rt_begin();
    if (!error)
        error = context_of_peer(peer, &ctx);
    return rt_end(error ? error : (cudaError_t)rt_driver.cuCtxEnablePeerAccess(ctx, flags));
}

RT_API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext ctx = NULL;
    cudaError_t error = rt_begin();
    if (!error)
        error = context_of_peer(peer, &ctx);
    return rt_end(error ? error : (cudaError_t)rt_driver.cuCtxDisablePeerAccess(ctx));
}

RT_API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **address,
                                                    unsigned int version, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status)
{
    if (!symbol || !address)
        return rt_end(cudaErrorInvalidValue);
    cudaError_t error = rt_driver_open();
    if (error)
        return rt_end(error);
    *address = rt_driver_find(symbol, (int)version, flags);
    if (status)
        *status = *address ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
