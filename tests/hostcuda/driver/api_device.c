/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: what a device is. */
#include "driver/call.h"
#include "driver/config.h"
#include "driver/device.h"
#include "driver/lock.h"

#include <stdio.h>
#include <string.h>

HC_API CUresult cuDeviceGetCount(int *count)
{
    HC_ENTER(cuDeviceGetCount);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = hc_config.device_count;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    HC_ENTER(cuDeviceGet);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    HC_ENTER(cuDeviceGetName);
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "CUDA device in host memory");
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    char text[sizeof(uuid->bytes) + 1];

    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, sizeof(text), "hostcuda%08d", hc_config.first_uuid + device);
    memcpy(uuid->bytes, text, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    HC_ENTER(cuDeviceGetUuid);
    return get_uuid(uuid, device);
}

HC_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    HC_ENTER(cuDeviceGetUuid_v2);
    return get_uuid(uuid, device);
}

HC_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    HC_ENTER(cuDeviceTotalMem_v2);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = hc_config.memory_bytes;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    HC_ENTER(cuDeviceGetPCIBusId);
    if (!id || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned)device + 1);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    HC_ENTER(cuDeviceGetByPCIBusId);
    unsigned domain, bus;
    if (!device || !id)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x", &domain, &bus) != 2 || !hc_device_at((int)bus - 1))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}

/* As an H200 answers; what is not here answers 0, as an absent ability does. */
static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
};

HC_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    HC_ENTER(cuDeviceGetAttribute);
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = device + 1;
    if (attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
        *value = hc_config.pageable;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (attributes[i].attribute == attribute)
            *value = attributes[i].value;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
        *value = hc_config.concurrent_managed;
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    HC_ENTER(cuDeviceComputeCapability);
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}
