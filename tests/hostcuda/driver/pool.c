/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and their entry points. */
#include "driver/pool.h"

#include "driver/call.h"
#include "driver/capture.h"
#include "driver/config.h"
#include "driver/device.h"
#include "driver/handle.h"
#include "driver/lock.h"

#include <stdlib.h>

static struct hc_pool *pools;

static struct hc_pool *pool_new(int device)
{
    struct hc_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->device = device;
    pool->reuse_flags = 7;
    pool->access = 1u << device;
    pool->next = pools;
    pools = pool;
    hc_handle_add(pool, HC_HANDLE_POOL);
    return pool;
}

struct hc_pool *hc_pool_default(int device)
{
    struct hc_device *at = hc_device_at(device);
    if (!at->default_pool) {
        at->default_pool = pool_new(device);
        if (!at->default_pool)
            abort();
        at->default_pool->is_default = true;
    }
    return at->default_pool;
}

struct hc_pool *hc_pool_current(int device)
{
    struct hc_device *at = hc_device_at(device);
    return at->current_pool ? at->current_pool : hc_pool_default(device);
}

CUresult hc_pool_of(CUmemoryPool handle, struct hc_pool **pool)
{
    if (!hc_handle_is(handle, HC_HANDLE_POOL))
        return CUDA_ERROR_INVALID_VALUE;
    *pool = (struct hc_pool *)handle;
    return CUDA_SUCCESS;
}

static void set_cached(struct hc_pool *pool, uint64_t bytes)
{
    struct hc_region *memory = &hc_device_at(pool->device)->memory;
    if (!pool->is_managed)
        memory->used_bytes += bytes - pool->cached_bytes;
    pool->cached_bytes = bytes;
}

bool hc_pool_trim_all(int device)
{
    bool found = false;
    for (struct hc_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device != device || pool->is_managed || !pool->cached_bytes)
            continue;
        set_cached(pool, 0);
        found = true;
    }
    return found;
}

static uint64_t reserved_bytes(const struct hc_pool *pool)
{
    return (pool->used_bytes + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES * HC_BLOCK_BYTES +
           pool->cached_bytes;
}

CUresult hc_pool_take(struct hc_pool *pool, size_t bytes, struct hc_alloc **out)
{
    /* What the pool holds serves first. */
    uint64_t blocks = ((uint64_t)bytes + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    uint64_t from_cache = pool->cached_bytes < blocks ? pool->cached_bytes : blocks;
    set_cached(pool, pool->cached_bytes - from_cache);
    struct hc_region *memory =
        pool->is_managed ? hc_managed_region() : &hc_device_at(pool->device)->memory;
    CUresult result =
        hc_memory_take(memory, NULL, pool->is_managed ? HC_MANAGED : HC_ASYNC, bytes, 0, out);
    if (result)
        return result;
    (*out)->pool = pool;
    (*out)->device = pool->device;
    pool->used_bytes += (*out)->reserved_bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    if (reserved_bytes(pool) > pool->reserved_high_bytes)
        pool->reserved_high_bytes = reserved_bytes(pool);
    return CUDA_SUCCESS;
}

static void pool_free(struct hc_pool *pool)
{
    struct hc_pool **link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void hc_pool_give(struct hc_alloc *alloc)
{
    struct hc_pool *pool = alloc->pool;
    pool->used_bytes -= alloc->reserved_bytes;
    if (pool->is_destroyed && !pool->used_bytes) {
        pool_free(pool);
        return;
    }
    uint64_t blocks = alloc->reserved_bytes / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    if (reserved_bytes(pool) + blocks <= pool->threshold_bytes)
        set_cached(pool, pool->cached_bytes + blocks);
}

HC_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    HC_ENTER(cuDeviceGetDefaultMemPool);
    HC_LOCKED();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUmemoryPool)hc_pool_default(device);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    HC_ENTER(cuDeviceGetMemPool);
    HC_LOCKED();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUmemoryPool)hc_pool_current(device);
    return CUDA_SUCCESS;
}

HC_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    HC_ENTER(cuDeviceSetMemPool);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result)
        return result;
    if (!hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    hc_device_at(device)->current_pool = pool;
    return CUDA_SUCCESS;
}

/* The pools of a location, since 13.0: device memory only. */
static CUresult check_location(const CUmemLocation *location, CUmemAllocationType type)
{
    if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return hc_device_at(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

HC_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                       CUmemAllocationType type)
{
    HC_ENTER(cuMemGetDefaultMemPool);
    HC_LOCKED();
    CUresult result = out ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *out = (CUmemoryPool)hc_pool_default(location->id);
    return result;
}

HC_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    HC_ENTER(cuMemGetMemPool);
    HC_LOCKED();
    CUresult result = out ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *out = (CUmemoryPool)hc_pool_current(location->id);
    return result;
}

/* As in the headers of 13.0, with which managed pools came. */
enum { TYPE_MANAGED = 2 };

static bool is_pool_type(CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_PINNED ||
           ((int)type == TYPE_MANAGED && hc_config.driver_version >= 13000);
}

HC_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    HC_ENTER(cuMemPoolCreate);
    HC_LOCKED();
    if (!out || !props || !is_pool_type(props->allocType) ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !hc_device_at(props->location.id))
        return CUDA_ERROR_INVALID_VALUE;
    if (props->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct hc_pool *pool = pool_new(props->location.id);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->is_managed = (int)props->allocType == TYPE_MANAGED;
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    HC_ENTER(cuMemPoolDestroy);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result)
        return result;
    if (pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    if (hc_device_at(pool->device)->current_pool == pool)
        hc_device_at(pool->device)->current_pool = NULL;
    hc_handle_remove(pool);
    set_cached(pool, 0);
    pool->threshold_bytes = 0;
    pool->is_destroyed = true;
    if (!pool->used_bytes)
        pool_free(pool);
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
    HC_ENTER(cuMemPoolTrimTo);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (!result)
        result = hc_capture_check_unsafe();
    if (result)
        return result;
    uint64_t used = reserved_bytes(pool) - pool->cached_bytes;
    uint64_t keep = keep_bytes > used ? keep_bytes - used : 0;
    if (keep < pool->cached_bytes)
        set_cached(pool, keep / HC_BLOCK_BYTES * HC_BLOCK_BYTES);
    return CUDA_SUCCESS;
}

static unsigned reuse_bit(CUmemPool_attribute attribute)
{
    return 1u << (attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
}

HC_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void *value)
{
    HC_ENTER(cuMemPoolSetAttribute);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result || !value)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse_flags &= ~reuse_bit(attribute);
        pool->reuse_flags |= *(int *)value ? reuse_bit(attribute) : 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold_bytes = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE; /* it can only be reset */
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high_bytes = pool->used_bytes;
        else
            pool->reserved_high_bytes = reserved_bytes(pool);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

HC_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void *value)
{
    HC_ENTER(cuMemPoolGetAttribute);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (!result)
        result = hc_capture_check_unsafe();
    if (result || !value)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = (pool->reuse_flags & reuse_bit(attribute)) != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = reserved_bytes(pool);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high_bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

HC_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    HC_ENTER(cuMemPoolSetAccess);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    for (size_t i = 0; !result && i < count; i++) {
        if (!map || map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !hc_device_at(map[i].location.id))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            pool->access |= 1u << map[i].location.id;
        else if (map[i].location.id == pool->device)
            result = CUDA_ERROR_INVALID_VALUE; /* its own device always has access */
        else
            pool->access &= ~(1u << map[i].location.id);
    }
    return result;
}

HC_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                   CUmemLocation *location)
{
    HC_ENTER(cuMemPoolGetAccess);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result || !flags || !location || !hc_device_at(location->id))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *flags = pool->access & 1u << location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
