/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management and its entry points. Each memory handle is a file in memory, mapped
 * for real, so that two mappings of one handle show the same bytes. */
#include "driver/vmm.h"

#include "driver/call.h"
#include "driver/device.h"
#include "driver/handle.h"
#include "driver/lock.h"
#include "driver/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HIGH_DESCRIPTOR = 4096 };

/* A driver keeps no descriptor for each memory, so these lie beyond what the program may open
 * (RLIMIT_NOFILE). */
int hc_file_keep(int fd, size_t bytes)
{
    struct rlimit before, most;
    if (getrlimit(RLIMIT_NOFILE, &before))
        return -1;
    most = before;
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    int made = fd < 0 ? memfd_create("hostcuda-vmm", MFD_CLOEXEC) : fd;
    if (fd < 0 && made >= 0 && ftruncate(made, (off_t)bytes)) {
        close(made);
        made = -1;
    }
    int kept = made < 0 ? -1 : fcntl(made, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (made >= 0 && kept < 0) /* the hard limit is lower, too */
        kept = dup(made);
    if (fd < 0 && made >= 0)
        close(made);
    setrlimit(RLIMIT_NOFILE, &before);
    return kept;
}

/* Memory without an address; lives as long as handles and mappings refer to it. */
struct memory {
    int fd;
    size_t bytes;
    int device; /* -1: of the host, or imported: charged to nobody */
    unsigned handle_count, map_count;
    CUmemAllocationProp prop;
};

struct mapping {
    struct hc_alloc *alloc;
    struct memory *memory;
    unsigned char access[HC_DEVICES_MAX];
    struct mapping *next;
};

struct reservation {
    uintptr_t base;
    size_t bytes;
    struct mapping *mappings;
    struct reservation *next;
};

static struct reservation *reservations;

static bool is_block_multiple(uint64_t value)
{
    return value && value % HC_BLOCK_BYTES == 0;
}

static struct reservation *reservation_of(uintptr_t address)
{
    struct reservation *reservation = reservations;
    while (reservation && address - reservation->base >= reservation->bytes)
        reservation = reservation->next;
    return reservation;
}

static struct mapping *mapping_of(uintptr_t address)
{
    const struct reservation *reservation = reservation_of(address);
    struct mapping *mapping = reservation ? reservation->mappings : NULL;
    while (mapping && address - mapping->alloc->base >= mapping->alloc->size)
        mapping = mapping->next;
    return mapping;
}

bool hc_vmm_is_allowed(uintptr_t address, size_t bytes, int device, bool write)
{
    uintptr_t end = address + bytes;
    if (!reservation_of(address))
        return true;
    while (address < end) {
        const struct mapping *mapping = mapping_of(address);
        if (!mapping || !(mapping->access[device] & CU_MEM_ACCESS_FLAGS_PROT_READ))
            return false;
        if (write && mapping->access[device] != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return false;
        address = mapping->alloc->base + mapping->alloc->size;
    }
    return true;
}

HC_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option)
{
    HC_ENTER(cuMemGetAllocationGranularity);
    (void)option;
    if (!granularity || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = HC_BLOCK_BYTES;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags)
{
    HC_ENTER(cuMemAddressReserve);
    HC_LOCKED();
    (void)hint;
    if (!out || flags || !is_block_multiple(bytes) || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    size_t align = alignment > HC_BLOCK_BYTES ? alignment : HC_BLOCK_BYTES;
    struct reservation *reservation = calloc(1, sizeof(*reservation));
    char *raw =
        mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!reservation || raw == MAP_FAILED) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uintptr_t base = ((uintptr_t)raw + align - 1) / align * align;
    if (base != (uintptr_t)raw)
        munmap(raw, base - (uintptr_t)raw);
    munmap((char *)base + bytes, (uintptr_t)raw + align - base);
    reservation->base = base;
    reservation->bytes = bytes;
    reservation->next = reservations;
    reservations = reservation;
    *out = base;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemAddressFree(CUdeviceptr dptr, size_t bytes)
{
    HC_ENTER(cuMemAddressFree);
    HC_LOCKED();
    struct reservation **link = &reservations;
    while (*link && (*link)->base != dptr)
        link = &(*link)->next;
    struct reservation *reservation = *link;
    if (!reservation || reservation->bytes != bytes || reservation->mappings)
        return CUDA_ERROR_INVALID_VALUE;
    *link = reservation->next;
    munmap((void *)reservation->base, bytes);
    free(reservation);
    return CUDA_SUCCESS;
}

static void memory_release(struct memory *memory)
{
    if (memory->handle_count || memory->map_count)
        return;
    if (memory->device >= 0)
        hc_device_at(memory->device)->memory.used_bytes -= memory->bytes;
    close(memory->fd);
    free(memory);
}

static CUresult memory_new(int fd, size_t bytes, int device, const CUmemAllocationProp *prop,
                           CUmemGenericAllocationHandle *out)
{
    struct memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct memory){
        .fd = fd, .bytes = bytes, .device = device, .handle_count = 1, .prop = *prop};
    hc_handle_add(memory, HC_HANDLE_MEMORY);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static struct memory *memory_of(CUmemGenericAllocationHandle handle)
{
    void *pointer = (void *)(uintptr_t)handle;
    return hc_handle_is(pointer, HC_HANDLE_MEMORY) ? pointer : NULL;
}

static bool charge(int device, size_t bytes)
{
    struct hc_region *memory = &hc_device_at(device)->memory;
    if (memory->used_bytes > memory->capacity_bytes ||
        bytes > memory->capacity_bytes - memory->used_bytes)
        return false;
    memory->used_bytes += bytes;
    return true;
}

HC_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    HC_ENTER(cuMemCreate);
    HC_LOCKED();
    if (!out || !prop || flags || !is_block_multiple(bytes) ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (is_device && !hc_device_at(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!is_device && prop->location.type != CU_MEM_LOCATION_TYPE_HOST &&
        prop->location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return CUDA_ERROR_INVALID_VALUE;
    int device = is_device ? prop->location.id : -1;
    if (is_device && !charge(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = hc_file_keep(-1, bytes);
    if (fd >= 0)
        return memory_new(fd, bytes, device, prop, out);
    if (is_device)
        hc_device_at(device)->memory.used_bytes -= bytes;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

HC_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    HC_ENTER(cuMemRelease);
    HC_LOCKED();
    struct memory *memory = memory_of(handle);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (!--memory->handle_count)
        hc_handle_remove(memory);
    memory_release(memory);
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    HC_ENTER(cuMemRetainAllocationHandle);
    HC_LOCKED();
    struct mapping *mapping = mapping_of((uintptr_t)address);
    if (!out || !mapping)
        return CUDA_ERROR_INVALID_VALUE;
    if (!mapping->memory->handle_count++)
        hc_handle_add(mapping->memory, HC_HANDLE_MEMORY);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)mapping->memory;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle)
{
    HC_ENTER(cuMemGetAllocationPropertiesFromHandle);
    HC_LOCKED();
    const struct memory *memory = memory_of(handle);
    if (!prop || !memory)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = memory->prop;
    return CUDA_SUCCESS;
}

static bool overlaps_mapping(const struct reservation *reservation, uintptr_t base, size_t bytes)
{
    for (const struct mapping *mapping = reservation->mappings; mapping; mapping = mapping->next) {
        if (base < mapping->alloc->base + mapping->alloc->size &&
            mapping->alloc->base < base + bytes)
            return true;
    }
    return false;
}

HC_API CUresult cuMemMap(CUdeviceptr dptr, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    HC_ENTER(cuMemMap);
    HC_LOCKED();
    struct memory *memory = memory_of(handle);
    struct reservation *reservation = reservation_of(dptr);
    if (!memory || !reservation || offset || flags || !is_block_multiple(bytes) ||
        dptr % HC_BLOCK_BYTES || bytes > reservation->base + reservation->bytes - dptr ||
        overlaps_mapping(reservation, dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > memory->bytes)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    struct hc_alloc *alloc = calloc(1, sizeof(*alloc));
    if (!mapping || !alloc ||
        mmap((void *)dptr, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) == MAP_FAILED) {
        free(mapping);
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *alloc = (struct hc_alloc){.base = dptr,
                               .size = bytes,
                               .reserved_bytes = bytes,
                               .kind = HC_MAPPED,
                               .is_rdma_capable = memory->prop.allocFlags.gpuDirectRDMACapable,
                               .handle_types = (unsigned)memory->prop.requestedHandleTypes,
                               .device = memory->device < 0 ? 0 : memory->device};
    hc_memory_note(alloc, NULL);
    hc_race_driver_allocates(dptr, bytes);
    mapping->alloc = alloc;
    mapping->memory = memory;
    mapping->next = reservation->mappings;
    reservation->mappings = mapping;
    memory->map_count++;
    return CUDA_SUCCESS;
}

static void unmap(struct mapping **link)
{
    struct mapping *mapping = *link;
    *link = mapping->next;
    void *base = (void *)mapping->alloc->base;
    mmap(base, mapping->alloc->size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    hc_memory_release(mapping->alloc, HC_RACE_FREE);
    mapping->memory->map_count--;
    memory_release(mapping->memory);
    free(mapping);
}

/* Bytes of the range that whole mappings cover. */
static size_t covered(const struct reservation *reservation, uintptr_t base, size_t bytes)
{
    size_t sum = 0;
    for (const struct mapping *mapping = reservation->mappings; mapping; mapping = mapping->next) {
        const struct hc_alloc *alloc = mapping->alloc;
        if (alloc->base >= base && alloc->base + alloc->size <= base + bytes)
            sum += alloc->size;
    }
    return sum;
}

/* True if a mapping lies in the range with a part of it only. */
static bool cuts_mapping(const struct reservation *reservation, uintptr_t base, size_t bytes)
{
    for (const struct mapping *mapping = reservation->mappings; mapping; mapping = mapping->next) {
        uintptr_t begin = mapping->alloc->base, end = begin + mapping->alloc->size;
        if (begin < base + bytes && base < end && (begin < base || end > base + bytes))
            return true;
    }
    return false;
}

/* What is not mapped in the range is passed over. */
HC_API CUresult cuMemUnmap(CUdeviceptr dptr, size_t bytes)
{
    HC_ENTER(cuMemUnmap);
    HC_LOCKED();
    struct reservation *reservation = reservation_of(dptr);
    if (!reservation || !is_block_multiple(bytes) || dptr % HC_BLOCK_BYTES ||
        bytes > reservation->base + reservation->bytes - dptr ||
        cuts_mapping(reservation, dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping **link = &reservation->mappings; *link;) {
        const struct hc_alloc *alloc = (*link)->alloc;
        if (alloc->base >= dptr && alloc->base + alloc->size <= dptr + bytes)
            unmap(link);
        else
            link = &(*link)->next;
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(struct mapping *mapping, const CUmemAccessDesc *desc)
{
    bool is_host = desc->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                   desc->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!is_host && !hc_device_at(desc->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!is_host)
        mapping->access[desc->location.id] = (unsigned char)desc->flags;
    return CUDA_SUCCESS;
}

/* The host's page protection: readable and writable for whoever may; the device's own rule is
 * checked when work runs. */
static void protect(const struct mapping *mapping)
{
    bool is_used = false;
    for (int i = 0; i < HC_DEVICES_MAX; i++)
        is_used |= mapping->access[i] != 0;
    mprotect((void *)mapping->alloc->base, mapping->alloc->size,
             is_used ? PROT_READ | PROT_WRITE : PROT_NONE);
}

HC_API CUresult cuMemSetAccess(CUdeviceptr dptr, size_t bytes, const CUmemAccessDesc *descs,
                               size_t count)
{
    HC_ENTER(cuMemSetAccess);
    HC_LOCKED();
    const struct reservation *reservation = reservation_of(dptr);
    if (!reservation || !descs || !count || !bytes || covered(reservation, dptr, bytes) != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping *mapping = reservation->mappings; mapping; mapping = mapping->next) {
        const struct hc_alloc *alloc = mapping->alloc;
        if (alloc->base < dptr || alloc->base + alloc->size > dptr + bytes)
            continue;
        for (size_t i = 0; i < count; i++) {
            CUresult result = set_access(mapping, &descs[i]);
            if (result)
                return result;
        }
        protect(mapping);
    }
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                               CUdeviceptr dptr)
{
    HC_ENTER(cuMemGetAccess);
    HC_LOCKED();
    const struct mapping *mapping = mapping_of(dptr);
    if (!flags || !location || !mapping || !hc_device_at(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping->access[location->id];
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags)
{
    HC_ENTER(cuMemExportToShareableHandle);
    HC_LOCKED();
    const struct memory *memory = memory_of(handle);
    if (!out || !memory || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!(memory->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = dup(memory->fd);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                               CUmemAllocationHandleType type)
{
    HC_ENTER(cuMemImportFromShareableHandle);
    HC_LOCKED();
    struct stat status;
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = hc_file_keep((int)(uintptr_t)os_handle, 0);
    if (fd < 0 || fstat(fd, &status) || !is_block_multiple((uint64_t)status.st_size)) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return memory_new(fd, (size_t)status.st_size, -1, &prop, out);
}
