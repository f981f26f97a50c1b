/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_device.h"

#include "unit.h"

#include "driver/driver.h"
#include "driver/fence.h"

#include <string.h>
#include <time.h>

#define SECOND_NS 1000000000ull

/* ---- a clock that runs fast while somebody waits, or stands ---- */

_Atomic uint64_t clock_ahead_ns, clock_step_ns;
_Atomic bool clock_stands;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    static _Atomic uint64_t last_ns; /* several threads look at the clock */
    int result = __real_clock_gettime(clock, now);
    uint64_t ns = (uint64_t)now->tv_sec * SECOND_NS + (uint64_t)now->tv_nsec;

    if (clock_stands) {
        ns = last_ns;
    } else if (clock_step_ns != 0) { /* by steps alone */
        clock_ahead_ns += clock_step_ns;
        last_ns += clock_step_ns;
        ns = last_ns;
    } else {
        ns += clock_ahead_ns;
        last_ns = ns;
    }
    now->tv_sec = (time_t)(ns / SECOND_NS);
    now->tv_nsec = (long)(ns % SECOND_NS);
    return result;
}

/* ---- the driver ---- */

struct leaf_device device;
static __thread CUstreamCaptureMode mode;

size_t device_used(void)
{
    size_t used = device.lingering_bytes;

    for (size_t i = 0; i < POOLS_MAX; i++)
        used += device.pools[i].reserved_bytes;
    for (size_t i = 0; i < device.block_count; i++)
        used += device.blocks[i].pool ? 0 : device.blocks[i].size_bytes;
    return used;
}

static size_t round_to(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static CUresult add_block(CUdeviceptr *address, size_t bytes, struct fake_pool *pool)
{
    assert_true(device.block_count < BLOCKS_MAX);
    *address = device.next_address;
    device.next_address += round_to(bytes, 512) + 512;
    device.blocks[device.block_count++] = (struct fake_block){*address, bytes, pool};
    return CUDA_SUCCESS;
}

/* What a driver refuses while a stream captures, spoiling the capture: all that takes and gives
 * back memory, waits for a stream, or asks a pool (facts_h200.txt; nothing asked cuMemPoolDestroy).
 */
static void must_be_relaxed(void)
{
    device.wrong_calls += mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode before = mode;

    mode = *other;
    *other = before;
    return CUDA_SUCCESS;
}

static CUresult allocate_plain(CUdeviceptr *address, size_t bytes)
{
    CUresult result;

    must_be_relaxed();
    pthread_mutex_lock(&device.lock);
    device.asked++;
    result = device.allocate_answer;
    if (result == CUDA_SUCCESS)
        result = bytes > DEVICE_MIB * MIB - device_used() ? CUDA_ERROR_OUT_OF_MEMORY
                                                          : add_block(address, bytes, NULL);
    pthread_mutex_unlock(&device.lock);
    return result;
}

static CUresult fake_mem_alloc(CUdeviceptr *address, size_t bytes)
{
    return allocate_plain(address, bytes);
}

static CUresult fake_alloc_managed(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    device.wrong_calls += flags != CU_MEM_ATTACH_GLOBAL;
    return allocate_plain(address, bytes);
}

static CUresult fake_host_alloc(void **host, size_t bytes, unsigned flags)
{
    CUdeviceptr address = 0;
    CUresult result = allocate_plain(&address, bytes);

    (void)flags;
    *host = result == CUDA_SUCCESS ? (void *)(uintptr_t)address : *host;
    return result;
}

static void leave_pool(struct fake_pool *pool, size_t bytes)
{
    pool->used_bytes -= bytes;
    if (pool->is_destroyed)
        pool->reserved_bytes = pool->used_bytes;
    else if (pool->reserved_bytes > pool->threshold)
        pool->reserved_bytes = pool->used_bytes;
}

static CUresult remove_block(CUdeviceptr address, bool in_order)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    must_be_relaxed();
    pthread_mutex_lock(&device.lock);
    for (size_t i = device.block_count; i-- > 0;) {
        struct fake_block *block = &device.blocks[i];
        if (block->address != address)
            continue;
        result = device.free_answer;
        if (result == CUDA_SUCCESS) {
            if (!block->pool && in_order)
                device.lingering_bytes += block->size_bytes;
            if (block->pool)
                leave_pool(block->pool, round_to(block->size_bytes, 512));
            *block = device.blocks[--device.block_count];
        }
        break;
    }
    device.wrong_calls += result == CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&device.lock);
    return result;
}

static CUresult fake_mem_free(CUdeviceptr address)
{
    pthread_mutex_lock(&device.lock);
    for (size_t i = 0; i < device.block_count; i++)
        device.sentinel_frees += device.blocks[i].address == address && !device.blocks[i].pool &&
                                 device.blocks[i].size_bytes == RS_SENTINEL_BYTES;
    pthread_mutex_unlock(&device.lock);
    return remove_block(address, false);
}

static CUresult fake_free_host(void *host)
{
    return remove_block((CUdeviceptr)(uintptr_t)host, false);
}

static CUresult fake_free_async(CUdeviceptr address, CUstream stream)
{
    device.wrong_calls += stream != STREAM || device.context_is_gone;
    return remove_block(address, true);
}

static CUresult fake_alloc_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool handle,
                                     CUstream stream)
{
    struct fake_pool *pool = (struct fake_pool *)handle;
    size_t rounded, idle, growth = 0;
    CUresult result;

    must_be_relaxed();
    if (bytes > (size_t)DEVICE_MIB * MIB)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (device.ends_in_call)
        device.in_call();
    rounded = round_to(bytes, 512);
    pthread_mutex_lock(&device.lock);
    device.wrong_calls += stream != STREAM || !pool->is_live || device.context_is_gone;
    device.asked++;
    idle = pool->reserved_bytes - pool->used_bytes;
    if (rounded > idle || device.pools_grow_always)
        growth = round_to(rounded, POOL_STEP);
    result = device.allocate_answer;
    if (result == CUDA_SUCCESS && growth > DEVICE_MIB * MIB - device_used())
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        pool->reserved_bytes += growth;
        pool->used_bytes += rounded;
        device.unwaited++;
        result = add_block(address, bytes, pool);
    }
    pthread_mutex_unlock(&device.lock);
    return result;
}

static CUresult fake_pool_create(CUmemoryPool *handle, const CUmemPoolProps *properties)
{
    for (size_t i = 0; i < POOLS_MAX; i++) {
        struct fake_pool *pool = &device.pools[i];
        if (pool->is_live || pool->is_destroyed)
            continue;
        *pool = (struct fake_pool){.is_live = true, .properties = *properties};
        *handle = (CUmemoryPool)pool;
        device.last_pool = pool;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_pool_destroy(CUmemoryPool handle)
{
    struct fake_pool *pool = (struct fake_pool *)handle;

    must_be_relaxed();
    device.wrong_calls += !pool->is_live;
    if (device.destroy_answer != CUDA_SUCCESS)
        return device.destroy_answer;
    pool->is_live = false;
    pool->is_destroyed = true;
    pool->reserved_bytes = pool->used_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    device.wrong_calls += attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    ((struct fake_pool *)handle)->threshold = *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

static CUresult fake_pool_get(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    const struct fake_pool *pool = (const struct fake_pool *)handle;

    must_be_relaxed();
    pthread_mutex_lock(&device.lock);
    device.wrong_calls += !pool->is_live;
    *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved_bytes
                           : attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->used_bytes
                                                                             : pool->threshold;
    pthread_mutex_unlock(&device.lock);
    return CUDA_SUCCESS;
}

static CUresult fake_pool_trim(CUmemoryPool handle, size_t keep_bytes)
{
    struct fake_pool *pool = (struct fake_pool *)handle;
    size_t least;

    must_be_relaxed();
    pthread_mutex_lock(&device.lock);
    least = pool->used_bytes > keep_bytes ? pool->used_bytes : keep_bytes;
    if (pool->reserved_bytes > least)
        pool->reserved_bytes = least;
    pthread_mutex_unlock(&device.lock);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    device.wrong_calls += flags != CU_STREAM_NON_BLOCKING;
    *stream = STREAM;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_wait(CUstream stream)
{
    must_be_relaxed();
    pthread_mutex_lock(&device.lock);
    device.wrong_calls += stream != STREAM || device.context_is_gone || device.is_stuck;
    device.unwaited = 0;
    device.lingering_bytes = 0;
    device.waits++;
    pthread_mutex_unlock(&device.lock);
    return device.wait_answer;
}

static CUresult fake_stream_query(CUstream stream)
{
    must_be_relaxed();
    device.wrong_calls += stream != STREAM || device.context_is_gone;
    if (!device.is_stuck)
        device.unwaited = 0;
    return device.is_stuck ? CUDA_ERROR_NOT_READY : device.wait_answer;
}

static CUresult fake_get_current(CUcontext *context)
{
    *context = device.context_is_gone ? NULL : CTX;
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, CUdevice_attribute attribute, CUdevice at)
{
    (void)at;
    *value = attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS   ? device.is_pageable
             : attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED ? device.has_pools
             : attribute == CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
                 ? device.shares_pools * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                 : 1;
    return CUDA_SUCCESS;
}

static CUresult fake_version(int *version)
{
    *version = device.version;
    return CUDA_SUCCESS;
}

int device_start(void **state)
{
    (void)state;
    memset(&device, 0, sizeof(device));
    pthread_mutex_init(&device.lock, NULL);
    device.next_address = (CUdeviceptr)1 << 40;
    device.has_pools = true;
    device.shares_pools = true;
    device.is_pageable = true;
    device.version = 13000;
    rs_driver.cuMemAlloc_v2 = fake_mem_alloc;
    rs_driver.cuMemAllocManaged = fake_alloc_managed;
    rs_driver.cuMemHostAlloc = fake_host_alloc;
    rs_driver.cuMemFree_v2 = fake_mem_free;
    rs_driver.cuMemFreeHost = fake_free_host;
    rs_driver.cuMemFreeAsync = fake_free_async;
    rs_driver.cuMemAllocFromPoolAsync = fake_alloc_from_pool;
    rs_driver.cuMemPoolCreate = fake_pool_create;
    rs_driver.cuMemPoolDestroy = fake_pool_destroy;
    rs_driver.cuMemPoolSetAttribute = fake_pool_set;
    rs_driver.cuMemPoolGetAttribute = fake_pool_get;
    rs_driver.cuMemPoolTrimTo = fake_pool_trim;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    rs_driver.cuStreamCreate = fake_stream_create;
    rs_driver.cuStreamSynchronize = fake_stream_wait;
    rs_driver.cuStreamQuery = fake_stream_query;
    rs_driver.cuCtxGetCurrent = fake_get_current;
    rs_driver.cuDeviceGetAttribute = fake_device_attribute;
    rs_driver.cuDriverGetVersion = fake_version;
    return 0;
}
