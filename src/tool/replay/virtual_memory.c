/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/virtual_memory.h"

#include "driver/driver.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 2 << 20 };

#define FIRST_ADDRESS ((CUdeviceptr)1 << 44)

struct replay_virtual_memory replay_virtual_memory;

struct memory {
    size_t size_bytes;
    bool is_released, is_mapped;
};

/* Where a piece of memory is mapped, by the unit that it begins in.  Addresses are never reserved
 * twice. */
static struct memory **mapped;
static size_t unit_count;
static CUdeviceptr next;

static size_t unit_of(CUdeviceptr address)
{
    return (size_t)((address - FIRST_ADDRESS) / UNIT_BYTES);
}

static CUresult reserve(CUdeviceptr *out, size_t size_bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags)
{
    (void)alignment;
    (void)hint;
    (void)flags;
    *out = next;
    next += (size_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr address, size_t size_bytes)
{
    (void)address;
    (void)size_bytes;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size_bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    struct replay_virtual_memory *all = &replay_virtual_memory;
    struct memory *memory;

    (void)properties;
    (void)flags;
    if (size_bytes > all->capacity_bytes - all->created_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = calloc(1, sizeof(*memory));
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->size_bytes = size_bytes;
    all->created_bytes += size_bytes;
    all->creations++;
    if (all->peak_bytes < all->created_bytes)
        all->peak_bytes = all->created_bytes;
    *out = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

static void drop(struct memory *memory)
{
    if (!memory->is_released || memory->is_mapped)
        return;
    replay_virtual_memory.created_bytes -= memory->size_bytes;
    replay_virtual_memory.releases++;
    free(memory);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    struct memory *memory = (struct memory *)(uintptr_t)handle;

    memory->is_released = true;
    drop(memory);
    return CUDA_SUCCESS;
}

static bool has_unit(size_t unit)
{
    size_t more = 2 * unit + 4096;
    struct memory **grown;

    if (unit < unit_count)
        return true;
    grown = reallocarray(mapped, more, sizeof(struct memory *));
    if (!grown)
        return false;
    memset((void *)(grown + unit_count), 0, (more - unit_count) * sizeof(struct memory *));
    mapped = grown;
    unit_count = more;
    return true;
}

static CUresult map(CUdeviceptr address, size_t size_bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct memory *memory = (struct memory *)(uintptr_t)handle;

    (void)size_bytes;
    (void)offset;
    (void)flags;
    if (!has_unit(unit_of(address)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->is_mapped = true;
    mapped[unit_of(address)] = memory;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t size_bytes)
{
    for (size_t i = unit_of(address); i < unit_count && i < unit_of(address + size_bytes); i++) {
        struct memory *memory = mapped[i];
        mapped[i] = NULL;
        if (!memory)
            continue;
        memory->is_mapped = false;
        drop(memory);
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr address, size_t size_bytes, const CUmemAccessDesc *access,
                           size_t count)
{
    (void)address;
    (void)size_bytes;
    (void)access;
    (void)count;
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *out, const CUmemAllocationProp *properties,
                            CUmemAllocationGranularity_flags flags)
{
    (void)properties;
    (void)flags;
    *out = UNIT_BYTES;
    return CUDA_SUCCESS;
}

static CUresult attribute_of(int *out, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *out = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

void replay_virtual_memory_install(size_t capacity_bytes)
{
    replay_virtual_memory = (struct replay_virtual_memory){.capacity_bytes = capacity_bytes};
    free((void *)mapped);
    mapped = NULL;
    unit_count = 0;
    next = FIRST_ADDRESS;
    rs_driver.cuDeviceGetAttribute = attribute_of;
    rs_driver.cuMemAddressFree = address_free;
    rs_driver.cuMemAddressReserve = reserve;
    rs_driver.cuMemCreate = create;
    rs_driver.cuMemGetAllocationGranularity = granularity;
    rs_driver.cuMemMap = map;
    rs_driver.cuMemRelease = release;
    rs_driver.cuMemSetAccess = set_access;
    rs_driver.cuMemUnmap = unmap;
}
