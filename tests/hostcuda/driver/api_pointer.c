/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: what is known of a pointer. */
#include "driver/call.h"
#include "driver/lock.h"
#include "driver/memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* IS_HW_DECOMPRESS_CAPABLE, which older headers lack. */
enum { HW_DECOMPRESS_CAPABLE = 21 };

static bool is_host(const struct hc_alloc *alloc)
{
    return alloc->kind == HC_PINNED || alloc->kind == HC_REGISTERED;
}

static bool is_seen_by_host(const struct hc_alloc *alloc)
{
    return is_host(alloc) || alloc->kind == HC_MANAGED;
}

/* Where the memory behind an allocation is mapped, which small ones share; elsewhere than in a
 * region each has a mapping of its own. */
static uintptr_t mapping_of(const struct hc_alloc *alloc, size_t *bytes)
{
    const struct hc_region *region = hc_memory_region_of(alloc->base);
    if (region)
        return hc_region_mapping(region, alloc, bytes);
    *bytes = alloc->size;
    return alloc->base;
}

/* What is behind a mapping has a number: here that of its first block of addresses. */
static unsigned long long physical_id(const struct hc_alloc *alloc)
{
    size_t bytes;
    return mapping_of(alloc, &bytes) / HC_BLOCK_BYTES;
}

/* An H200 gives tokens for all but the host's memory. */
static bool has_tokens(const struct hc_alloc *alloc)
{
    return !is_host(alloc) && alloc->kind != HC_IMPORTED;
}

/* Answers for one attribute of a live allocation. */
static CUresult answer(struct hc_alloc *alloc, CUpointer_attribute attribute, CUdeviceptr at,
                       void *out)
{
    size_t bytes;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = alloc->ctx ? hc_ctx_handle(alloc->ctx) : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = is_host(alloc) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_seen_by_host(alloc))
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* asking sets the other, says cuda.h */
        if (!has_tokens(alloc))
            return CUDA_ERROR_INVALID_VALUE;
        *(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *)out =
            (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){.p2pToken = alloc->id, .vaSpaceToken = 1};
        alloc->syncs_memops = true;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)out = alloc->syncs_memops;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)out = alloc->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)out = physical_id(alloc);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = alloc->kind == HC_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = alloc->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = alloc->kind == HC_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)out = alloc->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = alloc->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)out = mapping_of(alloc, &bytes);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        (void)mapping_of(alloc, out);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)out = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)out = alloc->handle_types;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)out = alloc->is_rdma_capable;
        return CUDA_SUCCESS;
    case HW_DECOMPRESS_CAPABLE:
        *(unsigned *)out = alloc->kind == HC_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)out = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)out = (CUmemoryPool)alloc->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

HC_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr)
{
    HC_ENTER(cuPointerGetAttribute);
    HC_LOCKED();
    struct hc_alloc *alloc = hc_memory_find(dptr);
    if (!data || !alloc)
        return CUDA_ERROR_INVALID_VALUE;
    return answer(alloc, attribute, dptr, data);
}

static size_t size_of(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case HW_DECOMPRESS_CAPABLE:
        return sizeof(int);
    default:
        return sizeof(uint64_t);
    }
}

/* What the other question answers of a pointer that the driver does not know, which is the
 * program's own then: zero for most, but an H200 gives the pointer back as the host's, says device
 * -2, and leaves what is there for where the range begins and how large it is. */
static void answer_unknown(CUpointer_attribute attribute, CUdeviceptr at, void *out)
{
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
        attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        return;
    memset(out, 0, size_of(attribute));
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)out = -2;
    else if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER)
        *(CUdeviceptr *)out = at;
}

/* Succeeds where the single question fails. */
HC_API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr dptr)
{
    HC_ENTER(cuPointerGetAttributes);
    HC_LOCKED();
    if (!count || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_alloc *alloc = hc_memory_find(dptr);
    for (unsigned i = 0; i < count; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (!alloc)
            answer_unknown(attributes[i], dptr, data[i]);
        else if (answer(alloc, attributes[i], dptr, data[i]))
            memset(data[i], 0, size_of(attributes[i]));
    }
    return CUDA_SUCCESS;
}

HC_API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                      CUdeviceptr dptr)
{
    HC_ENTER(cuPointerSetAttribute);
    HC_LOCKED();
    struct hc_alloc *alloc = hc_memory_find(dptr);
    if (value && alloc && alloc->kind == HC_MAPPED) /* whatever the attribute: so does an H200 */
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !alloc)
        return CUDA_ERROR_INVALID_VALUE;
    alloc->syncs_memops = *(const unsigned *)value != 0; /* every copy that may wait waits anyway */
    return CUDA_SUCCESS;
}

/* Whether a descriptor can be had for the range: of one allocation, or all of it mapped. */
static bool is_describable(CUdeviceptr at, size_t bytes)
{
    const struct hc_alloc *alloc = hc_memory_find(at);
    CUdeviceptr end = at + bytes;
    while (alloc && alloc->kind == HC_MAPPED && end > alloc->base + alloc->size)
        alloc = hc_memory_find(alloc->base + alloc->size);
    return alloc && (alloc->kind == HC_DEVICE || alloc->kind == HC_MAPPED) &&
           end <= alloc->base + alloc->reserved_bytes;
}

/* A descriptor for a page-aligned part of one allocation; nothing can be done with it here. */
HC_API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                              CUmemRangeHandleType type, unsigned long long flags)
{
    HC_ENTER(cuMemGetHandleForAddressRange);
    HC_LOCKED();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!handle || !size || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags ||
        dptr % page != 0 || size % page != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_describable(dptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = memfd_create("hostcuda range", MFD_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}
