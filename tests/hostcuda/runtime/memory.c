/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, copies and fills. */
#include "runtime/runtime.h"

#include <string.h>

/* Gives the program what the driver has allocated. */
static cudaError_t hand_out(cudaError_t error, void **out, CUdeviceptr pointer, size_t bytes)
{
    if (!error) {
        rt_note_allocate((const void *)pointer, bytes);
        *out = (void *)pointer;
    }
    return rt_end(error);
}

static CUdeviceptr device_pointer(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* Size 0 never reaches the driver. */
RT_API cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t error = rt_begin();
    if (error || !out)
        return rt_end(error ? error : cudaErrorInvalidValue);
    if (!bytes) {
        *out = NULL;
        return cudaSuccess;
    }
    CUdeviceptr pointer = 0;
    error = (cudaError_t)RT_REQUEST(rt_driver.cuMemAlloc(&pointer, bytes));
    return hand_out(error, out, pointer, bytes);
}

RT_API cudaError_t cudaFree(void *pointer)
{
    cudaError_t error = rt_begin();
    if (error || !pointer)
        return rt_end(error);
    rt_note_free(pointer);
    return rt_end(
        (cudaError_t)rt_note_freed(pointer, rt_driver.cuMemFree(device_pointer(pointer))));
}

RT_API cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    CUdeviceptr pointer = 0;
    cudaError_t error = rt_begin();
    if (!error)
        error = (cudaError_t)RT_REQUEST(
            rt_driver.cuMemAllocPitch(out ? &pointer : NULL, pitch, width, height, 4));
    return hand_out(error, out, pointer, error ? 0 : *pitch * height);
}

RT_API cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned int flags)
{
    CUdeviceptr pointer = 0;
    cudaError_t error = rt_begin();
    if (!error)
        error = (cudaError_t)RT_REQUEST(
            rt_driver.cuMemAllocManaged(out ? &pointer : NULL, bytes, flags));
    return hand_out(error, out, pointer, bytes);
}

static cudaError_t host_alloc(void **out, size_t bytes, unsigned flags)
{
    cudaError_t error = rt_begin();
    if (error || !out)
        return rt_end(error ? error : cudaErrorInvalidValue);
    *out = NULL;
    if (!bytes)
        return cudaSuccess;
    void *pointer = NULL;
    error = (cudaError_t)RT_REQUEST(rt_driver.cuMemHostAlloc(&pointer, bytes, flags));
    return hand_out(error, out, device_pointer(pointer), bytes);
}

RT_API cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    return host_alloc(out, bytes, flags);
}

RT_API cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return host_alloc(out, bytes, 0);
}

RT_API cudaError_t cudaFreeHost(void *pointer)
{
    cudaError_t error = rt_begin();
    if (error || !pointer)
        return rt_end(error);
    rt_note_free(pointer);
    return rt_end((cudaError_t)rt_note_freed(pointer, rt_driver.cuMemFreeHost(pointer)));
}

RT_API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    return RT_CALL(rt_driver.cuMemHostRegister(pointer, bytes, flags));
}

RT_API cudaError_t cudaHostUnregister(void *pointer)
{
    return RT_CALL(rt_driver.cuMemHostUnregister(pointer));
}

RT_API cudaError_t cudaHostGetDevicePointer(void **device, void *pointer, unsigned int flags)
{
    return RT_CALL(rt_driver.cuMemHostGetDevicePointer((CUdeviceptr *)device, pointer, flags));
}

RT_API cudaError_t cudaHostGetFlags(unsigned int *flags, void *pointer)
{
    return RT_CALL(rt_driver.cuMemHostGetFlags(flags, pointer));
}

RT_API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return RT_CALL(rt_driver.cuMemGetInfo(free_bytes, total_bytes));
}

/* The stream that NULL stands for. */
static CUstream meant(int own, cudaStream_t stream)
{
    return !stream && own ? CU_STREAM_PER_THREAD : stream;
}

static cudaError_t malloc_async(int own, void **out, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = rt_begin();
    if (error || !out)
        return rt_end(error ? error : cudaErrorInvalidValue);
    CUdeviceptr pointer = 0;
    if (bytes)
        error = (cudaError_t)RT_REQUEST(rt_driver.cuMemAllocAsync[own](&pointer, bytes, stream));
    if (!error) {
        rt_note_allocate_on((void *)pointer, bytes, meant(own, stream));
        *out = (void *)pointer;
    }
    return rt_end(error);
}

static CUresult free_async(int own, void *pointer, cudaStream_t stream)
{
    rt_note_free_on(pointer, meant(own, stream));
    return rt_note_freed(pointer, rt_driver.cuMemFreeAsync[own](device_pointer(pointer), stream));
}

RT_PAIR(cudaMallocAsync, _ptsz, (void **out, size_t bytes, cudaStream_t stream),
        malloc_async(own, out, bytes, stream));
RT_PAIR(cudaFreeAsync, _ptsz, (void *pointer, cudaStream_t stream),
        !pointer ? cudaSuccess : RT_CALL(free_async(own, pointer, stream)));

static CUresult copy(int own, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_driver.cuMemcpyHtoD[own](device_pointer(to), from, bytes);
    case cudaMemcpyDeviceToHost:
        return rt_driver.cuMemcpyDtoH[own](to, device_pointer(from), bytes);
    case cudaMemcpyDeviceToDevice:
        return rt_driver.cuMemcpyDtoD[own](device_pointer(to), device_pointer(from), bytes);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return rt_driver.cuMemcpy[own](device_pointer(to), device_pointer(from), bytes);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult copy_async(int own, void *to, const void *from, size_t bytes,
                           enum cudaMemcpyKind kind, cudaStream_t stream)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_driver.cuMemcpyHtoDAsync[own](device_pointer(to), from, bytes, stream);
    case cudaMemcpyDeviceToHost:
        return rt_driver.cuMemcpyDtoHAsync[own](to, device_pointer(from), bytes, stream);
    case cudaMemcpyDeviceToDevice:
        return rt_driver.cuMemcpyDtoDAsync[own](device_pointer(to), device_pointer(from), bytes,
                                                stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return rt_driver.cuMemcpyAsync[own](device_pointer(to), device_pointer(from), bytes,
                                            stream);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

RT_PAIR(cudaMemcpy, _ptds, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind),
        RT_CALL(bytes ? copy(own, to, from, bytes, kind) : CUDA_SUCCESS));
RT_PAIR(cudaMemcpyAsync, _ptsz,
        (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
        RT_CALL(bytes ? copy_async(own, to, from, bytes, kind, stream) : CUDA_SUCCESS));
RT_PAIR(cudaMemset, _ptds, (void *to, int value, size_t bytes),
        RT_CALL(rt_driver.cuMemsetD8[own](device_pointer(to), (unsigned char)value, bytes)));
RT_PAIR(cudaMemsetAsync, _ptsz, (void *to, int value, size_t bytes, cudaStream_t stream),
        RT_CALL(rt_driver.cuMemsetD8Async[own](device_pointer(to), (unsigned char)value, bytes,
                                               stream)));

RT_API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                            const void *pointer)
{
    unsigned type = 0, is_managed = 0;
    int device = -1;
    CUdeviceptr device_at = 0;
    void *host_at = NULL;
    CUpointer_attribute wanted[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *data[] = {&type, &is_managed, &device, &device_at, &host_at};
    cudaError_t error = rt_begin();
    if (!error && !attributes)
        error = cudaErrorInvalidValue;
    if (!error)
        error =
            (cudaError_t)rt_driver.cuPointerGetAttributes(5, wanted, data, device_pointer(pointer));
    if (error)
        return rt_end(error);
    memset(attributes, 0, sizeof(*attributes));
    attributes->type = is_managed                     ? cudaMemoryTypeManaged
                       : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                       : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                                      : cudaMemoryTypeUnregistered;
    attributes->device = device;
    attributes->devicePointer = (void *)device_at;
    attributes->hostPointer = host_at;
    return cudaSuccess;
}

RT_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    return RT_CALL(rt_driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, device_pointer(pointer)));
}

RT_API cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned int flags)
{
    CUipcMemHandle driver_handle;
    memcpy(&driver_handle, &handle, sizeof(driver_handle));
    return RT_CALL(rt_driver.cuIpcOpenMemHandle((CUdeviceptr *)out, driver_handle, flags));
}

RT_API cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    return RT_CALL(rt_driver.cuIpcCloseMemHandle(device_pointer(pointer)));
}
