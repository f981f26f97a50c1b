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
#include <unistd.h>

/* As in the headers of 13.0, with which these came. */
enum { TYPE_MANAGED = 2, LOCATION_NONE = 0, LOCATION_HOST = 2, LOCATION_HOST_NUMA_CURRENT = 4 };

static struct hc_pool *pools;
static struct hc_pool *host_default, *managed_default[HC_DEVICES_MAX + 1]; /* last: of no device */

struct hc_pool *hc_pool_new(int device)
{
    struct hc_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->device = device;
    pool->reuse_flags = 7;
    pool->access = 1u << device;
    pool->shared_fd = -1;
    pool->next = pools;
    pools = pool;
    hc_handle_add(pool, HC_HANDLE_POOL);
    return pool;
}

struct hc_pool *hc_pool_default(int device)
{
    struct hc_device *at = hc_device_at(device);
    if (!at->default_pool) {
        at->default_pool = hc_pool_new(device);
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
    if (!pool->is_managed && !pool->is_host)
        memory->used_bytes += bytes - pool->cached_bytes;
    pool->cached_bytes = bytes;
}

bool hc_pool_trim_all(int device)
{
    bool found = false;
    for (struct hc_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device != device || pool->is_managed || pool->is_host || !pool->cached_bytes)
            continue;
        set_cached(pool, 0);
        found = true;
    }
    return found;
}

static uint64_t reserved_bytes(const struct hc_pool *pool)
{
    return (pool->used_bytes + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES * HC_BLOCK_BYTES +
           pool->cached_bytes + pool->tail_bytes;
}

static uint64_t up_to(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

static uint64_t behind_small(const struct hc_pool *pool, uint64_t step)
{
    return up_to(pool->small_bytes, step) - pool->small_bytes;
}

/* Allocations of half a step share steps, a larger one has whole ones of its own.  Counts one more,
 * or one fewer. */
static void count_tail(struct hc_pool *pool, size_t bytes, bool more)
{
    uint64_t blocks = up_to(bytes, HC_BLOCK_BYTES), step = hc_config.pool_step_bytes, tail;
    if (!step || pool->is_managed || pool->is_host)
        return;
    tail = up_to(blocks, step) - blocks;
    if (blocks <= step / 2) {
        tail = behind_small(pool, step);
        pool->small_bytes += more ? blocks : -blocks;
        tail = behind_small(pool, step) - tail;
        more = true; /* the difference has its own sign */
    }
    tail = more ? tail : -tail;
    hc_device_at(pool->device)->memory.used_bytes += tail;
    pool->tail_bytes += tail;
}

/* A refused allocation leaves what it could map in the pool, up to the release threshold, as on an
 * H100: of 23.8 GiB free, 23,776 MiB. */
static void keep_what_fits(struct hc_pool *pool)
{
    const struct hc_region *memory = &hc_device_at(pool->device)->memory;
    uint64_t reserved = reserved_bytes(pool), most = memory->capacity_bytes - memory->used_bytes;
    if (pool->is_managed || pool->is_host || pool->threshold_bytes <= reserved)
        return;
    if (most > pool->threshold_bytes - reserved)
        most = pool->threshold_bytes - reserved;
    set_cached(pool, pool->cached_bytes + most / HC_BLOCK_BYTES * HC_BLOCK_BYTES);
}

CUresult hc_pool_take(struct hc_pool *pool, size_t bytes, struct hc_alloc **out)
{
    if (pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE; /* it may not be used for this, says cuda.h */
    /* What the pool holds serves first. */
    uint64_t blocks = ((uint64_t)bytes + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    uint64_t from_cache = pool->cached_bytes < blocks ? pool->cached_bytes : blocks;
    struct hc_region *memory = pool->is_managed ? hc_managed_region()
                               : pool->is_host  ? hc_pinned_region()
                                                : &hc_device_at(pool->device)->memory;
    enum hc_kind kind = pool->is_managed ? HC_MANAGED : pool->is_host ? HC_PINNED : HC_ASYNC;
    set_cached(pool, pool->cached_bytes - from_cache);
    count_tail(pool, bytes, true);
    CUresult result = hc_memory_take(memory, NULL, kind, bytes, 0, out);
    if (result) {
        count_tail(pool, bytes, false);
        keep_what_fits(pool);
        return result;
    }
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
    if (pool->shared_fd >= 0)
        close(pool->shared_fd);
    free(pool);
}

void hc_pool_give(struct hc_alloc *alloc)
{
    struct hc_pool *pool = alloc->pool;
    pool->used_bytes -= alloc->reserved_bytes;
    if (pool->is_imported)
        hc_pool_unimport(alloc);
    else
        count_tail(pool, alloc->reserved_bytes, false);
    if (pool->is_exported)
        hc_pool_check_freed(alloc);
    if (pool->is_destroyed && !pool->used_bytes) {
        pool_free(pool);
        return;
    }
    uint64_t blocks = alloc->reserved_bytes / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    if (!pool->is_imported && reserved_bytes(pool) + blocks <= pool->threshold_bytes)
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
    if (pool->device != device || pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    hc_device_at(device)->current_pool = pool;
    return CUDA_SUCCESS;
}

/* Device memory on a device; since 13.0 host memory, and managed memory wherever it prefers to be.
 */
static CUresult check_kind(const CUmemLocation *location, int type)
{
    bool is_new = hc_config.driver_version >= 13000;
    int where = (int)location->type;
    if (where == CU_MEM_LOCATION_TYPE_DEVICE && !hc_device_at(location->id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (type == CU_MEM_ALLOCATION_TYPE_PINNED)
        return where == CU_MEM_LOCATION_TYPE_DEVICE ||
                       (is_new && where >= LOCATION_HOST && where <= LOCATION_HOST_NUMA_CURRENT)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    return type == TYPE_MANAGED && is_new && where >= LOCATION_NONE &&
                   where <= LOCATION_HOST_NUMA_CURRENT
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static struct hc_pool *new_of_kind(const CUmemLocation *location, int type)
{
    bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct hc_pool *pool = hc_pool_new(on_device ? location->id : 0);
    if (!pool)
        return NULL;
    pool->is_managed = type == TYPE_MANAGED;
    pool->is_host = !on_device && !pool->is_managed;
    return pool;
}

static struct hc_pool **slot_of(const CUmemLocation *location, int type)
{
    if (type != TYPE_MANAGED)
        return &host_default;
    return &managed_default[location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id
                                                                          : HC_DEVICES_MAX];
}

static CUresult default_of_kind(CUmemoryPool *out, const CUmemLocation *location, int type)
{
    CUresult result = out && location ? check_kind(location, type) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (type != TYPE_MANAGED && location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *out = (CUmemoryPool)hc_pool_default(location->id);
        return CUDA_SUCCESS;
    }
    struct hc_pool **slot = slot_of(location, type);
    if (!*slot)
        *slot = new_of_kind(location, type);
    if (!*slot)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*slot)->is_default = true;
    *out = (CUmemoryPool)*slot;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                       CUmemAllocationType type)
{
    HC_ENTER(cuMemGetDefaultMemPool);
    HC_LOCKED();
    return default_of_kind(out, location, (int)type);
}

HC_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    HC_ENTER(cuMemGetMemPool);
    HC_LOCKED();
    CUresult result = default_of_kind(out, location, (int)type);
    if (!result && type == CU_MEM_ALLOCATION_TYPE_PINNED &&
        location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        *out = (CUmemoryPool)hc_pool_current(location->id);
    return result;
}

HC_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    HC_ENTER(cuMemPoolCreate);
    HC_LOCKED();
    if (!out || !props || check_kind(&props->location, (int)props->allocType))
        return CUDA_ERROR_INVALID_VALUE;
    if (props->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct hc_pool *pool = new_of_kind(&props->location, (int)props->allocType);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (props->handleTypes && !hc_pool_share(pool)) {
        hc_pool_destroy(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

void hc_pool_destroy(struct hc_pool *pool)
{
    if (hc_device_at(pool->device)->current_pool == pool)
        hc_device_at(pool->device)->current_pool = NULL;
    hc_handle_remove(pool);
    set_cached(pool, 0);
    pool->threshold_bytes = 0;
    pool->is_destroyed = true;
    if (!pool->used_bytes)
        pool_free(pool);
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
    hc_pool_destroy(pool);
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
