/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves over a driver of this test's: what they take and give back, what they charge, and what is
 * left when their context has ended. */
#include "unit.h"

#include "base/request.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/own_stream.h"
#include "fake_leaf.h"
#include "free_sentinel.h"
#include "host_memory.h"
#include "ledger/account.h"
#include "resource/leaf/async.h"
#include "resource/report.h"
#include "resource/segment.h"
#include "resource/unfinished.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB    ((size_t)1 << 20)
#define GIB    ((size_t)1 << 30)
#define CTX    ((CUcontext)(uintptr_t)0x1000)
#define STREAM ((CUstream)(uintptr_t)0x2000)

enum { BLOCKS_MAX = 1 << 14, POOLS_MAX = 8, POOL_STEP = 32 << 20, DEVICE_MIB = 1024 };

/* ---- a clock that runs fast while somebody waits ---- */

static _Atomic uint64_t clock_ahead_ns, clock_step_ns; /* each look at it takes a step */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);

    clock_ahead_ns += clock_step_ns;
    now->tv_sec += (time_t)(clock_ahead_ns / 1000000000);
    return result;
}

/* ---- the driver ---- */

struct fake_pool {
    bool is_live, is_destroyed;
    CUmemPoolProps properties;
    cuuint64_t threshold;
    size_t reserved_bytes, used_bytes;
};

struct fake_block {
    CUdeviceptr address;
    size_t size_bytes;
    struct fake_pool *pool; /* NULL: an allocation of the context's */
};

static struct {
    pthread_mutex_t lock; /* protects what follows */
    struct fake_pool pools[POOLS_MAX];
    struct fake_block blocks[BLOCKS_MAX];
    size_t block_count;
    CUdeviceptr next_address;
    bool pools_grow_always; /* what is idle is in pieces that are too small */
    size_t lingering_bytes; /* given back in order, and taken until somebody waits for the stream */
    unsigned waits;         /* for the stream */
    bool context_is_gone;
    bool is_stuck;              /* nothing that is given to the stream is ever done */
    struct rs_mr *ends_in_call; /* in the next allocation of a pool's */
    void (*in_call)(void);
    bool has_pools, is_pageable;
    int version;
    /* When not CUDA_SUCCESS; destroy: of pools. */
    CUresult allocate_answer, free_answer, wait_answer, destroy_answer;
    _Atomic unsigned sentinel_frees;               /* each waits for all work */
    _Atomic unsigned asked, wrong_calls, unwaited; /* unwaited: pool allocations not complete yet */
} device;

static __thread CUstreamCaptureMode mode;

static void device_start(void)
{
    memset(&device, 0, sizeof(device));
    pthread_mutex_init(&device.lock, NULL);
    device.next_address = (CUdeviceptr)1 << 40;
    device.has_pools = true;
    device.is_pageable = true;
    device.version = 13000;
}

static size_t device_used(void)
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
                                                                       : 1;
    return CUDA_SUCCESS;
}

static CUresult fake_version(int *version)
{
    *version = device.version;
    return CUDA_SUCCESS;
}

static void drive(void)
{
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
}

/* ---- one leaf in one context ---- */

struct site {
    struct rs_account device_account, account;
    struct rs_own_stream own_stream;
    struct rs_sentinel sentinel;
    struct rs_environment environment;
    struct rs_mr *mr;
};

static void make(struct site *site, const struct rs_mr_descriptor *descriptor,
                 const char *const *options)
{
    int error;

    memset(site, 0, sizeof(*site));
    site->account.device = &site->device_account;
    site->environment = (struct rs_environment){
        .context = CTX,
        .own_stream = &site->own_stream,
        .account = &site->account,
        .total_bytes = DEVICE_MIB * MIB,
        .free_bytes = DEVICE_MIB * MIB,
        .sentinel = &site->sentinel,
        .first_on_device = true,
        .frees_are_ready = true,
    };
    site->mr = make_resource_at(&site->environment, descriptor, NULL, options, &error);
    assert_non_null(site->mr);
}

static size_t held(const struct site *site)
{
    return rs_account_held_bytes(&site->device_account);
}

static struct fake_pool *pool_of(const struct site *site)
{
    return (struct fake_pool *)rs_async_pool(site->mr);
}

static void end(struct site *site)
{
    assert_true(rs_mr_check(site->mr));
    rs_mr_destroy(site->mr, false);
    assert_int_equal(held(site), 0);
    assert_int_equal(device.wrong_calls, 0);
}

static struct rs_allocation take(struct site *site, size_t bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(site->mr, bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, bytes);
    assert_int_equal(allocation.address % RS_BLOCK_ALIGNMENT, 0);
    assert_true(rs_mr_check(site->mr));
    return allocation;
}

static void give(struct site *site, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(site->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(site->mr));
    if (site->mr->ops.deallocates_in_order(site->mr))
        (void)rs_mr_trim(site->mr, SIZE_MAX); /* settles */
}

static void refuse(struct site *site, size_t bytes, CUresult expected)
{
    static const struct rs_allocation untouched = {0xdeadbeef, 12345, (void *)0x77, NULL};
    struct rs_allocation allocation = untouched;

    assert_int_equal(rs_mr_allocate(site->mr, bytes, NULL, &allocation), expected);
    assert_memory_equal(&allocation, &untouched, sizeof(untouched));
    assert_true(rs_mr_check(site->mr));
}

static bool is_segment(CUdeviceptr address)
{
    struct rs_segment segment;

    return rs_segment_find(address, &segment);
}

/* ---- every leaf; `virtual` has a driver and a test of its own ---- */

static const struct rs_mr_descriptor *const leaves[] = {
    &rs_mr_descriptor_cuda,          &rs_mr_descriptor_managed, &rs_mr_descriptor_async,
    &rs_mr_descriptor_async_managed, &rs_mr_descriptor_pinned,  &rs_mr_descriptor_system,
    &rs_mr_descriptor_simulated,
};

#define EACH_LEAF(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(leaves); i++)

static int setup(void **state)
{
    (void)state;
    device_start();
    return 0;
}

FIXTURE(setup, NULL);

TEST(the_table_has_no_other_leaf)
{
    size_t count = 0;

    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        count += rs_mr_descriptors[i]->upstream_count == 0 &&
                 rs_mr_descriptors[i] != &rs_mr_descriptor_virtual;
    assert_int_equal(count, RS_ARRAY_LENGTH(leaves));
}

TEST(what_is_held_is_charged_and_known)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 1000, 33333, 3 << 20};

    EACH_LEAF(i)
    {
        struct rs_allocation live[RS_ARRAY_LENGTH(sizes)];
        struct site site;
        size_t bytes = 0;
        make(&site, leaves[i], NULL);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            live[j] = take(&site, sizes[j]);
            bytes += sizes[j];
            assert_true(site.device_account.held_bytes[leaves[i]->memory] >= bytes);
            assert_true(leaves[i] == &rs_mr_descriptor_simulated ||
                        is_segment(live[j].address + sizes[j] - 1));
            for (size_t k = 0; k < j; k++)
                assert_true(live[k].address + sizes[k] <= live[j].address ||
                            live[j].address + sizes[j] <= live[k].address);
        }
        host_left = 0; /* frees need no memory */
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            give(&site, &live[j]);
            assert_false(is_segment(live[j].address));
        }
        host_left = -1;
        assert_int_equal(held(&site), rs_mr_idle_bytes(site.mr));
        (void)rs_mr_trim(site.mr, 0);
        assert_int_equal(held(&site), 0);
        end(&site);
        assert_int_equal(device.block_count, 0);
        assert_int_equal(device_used(), 0);
    }
}

TEST(refusals_come_back_and_are_not_charged)
{
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - 512, SIZE_MAX / 2,
                                  (size_t)1 << 50};

    EACH_LEAF(i)
    {
        struct site site;
        struct rs_allocation kept;
        size_t before;
        make(&site, leaves[i], NULL);
        kept = take(&site, 5000);
        before = held(&site);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(huge); j++)
            refuse(&site, huge[j], CUDA_ERROR_OUT_OF_MEMORY);
        device.allocate_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
        if (leaves[i] != &rs_mr_descriptor_system && leaves[i] != &rs_mr_descriptor_simulated)
            refuse(&site, 100, CUDA_ERROR_ILLEGAL_ADDRESS);
        device.allocate_answer = CUDA_SUCCESS;
        (void)rs_mr_trim(site.mr, 0);
        assert_true(held(&site) <= before);
        give(&site, &kept);
        end(&site);
    }
}

TEST(a_free_that_fails_leaves_the_block)
{
    EACH_LEAF(i)
    {
        struct site site;
        struct rs_allocation kept;
        if (leaves[i] == &rs_mr_descriptor_system || leaves[i] == &rs_mr_descriptor_simulated)
            continue;
        make(&site, leaves[i], NULL);
        kept = take(&site, 5000);
        device.free_answer = CUDA_ERROR_LAUNCH_FAILED;
        assert_int_equal(rs_mr_deallocate(site.mr, &kept, NULL), CUDA_ERROR_LAUNCH_FAILED);
        assert_true(is_segment(kept.address));
        device.free_answer = CUDA_SUCCESS;
        give(&site, &kept);
        end(&site);
    }
}

static void use_with_little_host_memory(const struct rs_mr_descriptor *descriptor)
{
    struct rs_allocation live[40];
    size_t count = 0, refused = 0;
    struct site site;
    int error = 0;

    host_left = -1;
    make(&site, descriptor, NULL); /* what outlives the leaf is there */
    give(&site, (struct rs_allocation[]){take(&site, 100)});
    end(&site);
    for (long allowed = 0; allowed == 0 || host_refused > 0; allowed++) {
        assert_in_range(allowed, 0, 200);
        host_refused = 0;
        host_left = allowed;
        site.mr = make_resource_at(&site.environment, descriptor, NULL, NULL, &error);
        assert_true(site.mr || error == -ENOMEM || error == -EIO);
        for (count = 0; site.mr && count < RS_ARRAY_LENGTH(live); count++) {
            CUresult result = rs_mr_allocate(site.mr, 700, NULL, &live[count]);
            assert_true(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
            if (result != CUDA_SUCCESS)
                break;
        }
        host_left = 0;
        while (count > 0)
            give(&site, &live[--count]);
        if (site.mr)
            end(&site);
        host_left = -1;
        refused += host_refused;
        assert_int_equal(device.block_count, 0);
        for (size_t i = 0; i < POOLS_MAX; i++) {
            assert_false(device.pools[i].is_live);
            device.pools[i].is_destroyed = false;
        }
    }
    assert_true(refused > 0); /* else nothing was missing */
}

TEST(every_missing_host_allocation_is_survived)
{
    EACH_LEAF(i)
    use_with_little_host_memory(leaves[i]);
}

TEST(a_limit_is_checked_before_the_driver_is_asked)
{
    EACH_LEAF(i)
    {
        struct site site;
        unsigned asked;
        make(&site, leaves[i], NULL);
        atomic_store(&site.device_account.limit_bytes, 64 * MIB);
        asked = device.asked;
        if (leaves[i]->memory == RS_MEMORY_HOST) {
            give(&site, (struct rs_allocation[]){take(&site, 80 * MIB)}); /* not the device's */
        } else {
            refuse(&site, 65 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
            assert_int_equal(device.asked, asked);
            give(&site, (struct rs_allocation[]){take(&site, 64 * MIB)});
        }
        end(&site);
    }
}

/* ---- threads ---- */

enum { THREADS = 6, ROUNDS = 400 };

static void *take_and_give(void *data)
{
    struct site *site = data;
    uint64_t seed = 1 + (uintptr_t)&seed;
    struct rs_allocation live[8];
    bool is_live[8] = {false};

    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t at = test_random(&seed) % 8;
        if (is_live[at])
            assert_int_equal(rs_mr_deallocate(site->mr, &live[at], NULL), CUDA_SUCCESS);
        is_live[at] = rs_mr_allocate(site->mr, 1 + test_random(&seed) % (2 * MIB), NULL,
                                     &live[at]) == CUDA_SUCCESS;
        if (round % 64 == 0)
            (void)rs_mr_trim(site->mr, 0);
        assert_true(atomic_load(&site->device_account.charged_bytes) <= 256 * MIB);
    }
    for (size_t at = 0; at < 8; at++)
        if (is_live[at])
            assert_int_equal(rs_mr_deallocate(site->mr, &live[at], NULL), CUDA_SUCCESS);
    return NULL;
}

TEST(threads_agree_on_what_is_held)
{
    EACH_LEAF(i)
    {
        pthread_t threads[THREADS];
        struct site site;
        make(&site, leaves[i], NULL);
        atomic_store(&site.device_account.limit_bytes, 256 * MIB);
        for (unsigned j = 0; j < THREADS; j++)
            assert_int_equal(pthread_create(&threads[j], NULL, take_and_give, &site), 0);
        for (unsigned j = 0; j < THREADS; j++)
            pthread_join(threads[j], NULL);
        assert_int_equal(device.block_count, 0);
        (void)rs_mr_trim(site.mr, 0);
        assert_int_equal(held(&site), 0);
        end(&site);
    }
}

/* ---- the driver's pools ---- */

static const struct rs_mr_descriptor *const pooled[] = {&rs_mr_descriptor_async,
                                                        &rs_mr_descriptor_async_managed};

#define EACH_POOLED(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(pooled); i++)

TEST(line_47_initial_size_and_release_threshold)
{
    EACH_POOLED(i)
    {
        struct rs_environment second;
        struct site site;
        int error;
        make(&site, pooled[i], OPTIONS("initial_pool_size=100MiB"));
        assert_true(pool_of(&site)->threshold == UINT64_MAX);
        assert_true(pool_of(&site)->reserved_bytes >= 100 * MIB);
        assert_int_equal(held(&site), pool_of(&site)->reserved_bytes);
        (void)rs_mr_trim(site.mr, 0);
        assert_true(pool_of(&site)->reserved_bytes >= 100 * MIB);
        give(&site, (struct rs_allocation[]){take(&site, 100 * MIB)});
        second = site.environment;
        second.first_on_device = false; /* takes no initial pool */
        rs_mr_destroy(site.mr, false);
        site.mr =
            make_resource_at(&second, pooled[i], NULL, OPTIONS("initial_size=100MiB"), &error);
        assert_int_equal(held(&site), 0);
        end(&site);
        make(&site, pooled[i], OPTIONS("release_threshold=123456"));
        assert_int_equal(pool_of(&site)->threshold, 123456);
        end(&site);
    }
}

TEST(line_48_and_49_each_has_a_pool_of_its_own)
{
    struct site first, second;

    EACH_POOLED(i)
    {
        struct rs_allocation block;
        make(&first, pooled[i], NULL);
        make(&second, pooled[i], NULL);
        assert_ptr_not_equal(rs_async_pool(first.mr), rs_async_pool(second.mr));
        block = take(&second, MIB);
        end(&first);
        give(&second, &block);
        end(&second);
    }
}

TEST(line_52_managed_pools_are_managed)
{
    struct site site;

    make(&site, &rs_mr_descriptor_async_managed, NULL);
    assert_int_equal(pool_of(&site)->properties.allocType, CU_MEM_ALLOCATION_TYPE_MANAGED);
    take(&site, 100);
    assert_int_equal(atomic_load(&site.device_account.held_bytes[RS_MEMORY_DEVICE]), 0);
    assert_int_equal(atomic_load(&site.device_account.held_bytes[RS_MEMORY_MANAGED]), POOL_STEP);
    end(&site);
    make(&site, &rs_mr_descriptor_async, NULL);
    assert_int_equal(pool_of(&site)->properties.allocType, CU_MEM_ALLOCATION_TYPE_PINNED);
    end(&site);
}

TEST(handed_out_when_complete)
{
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    for (unsigned i = 0; i < 10; i++) {
        (void)take(&site, MIB);
        assert_int_equal(device.unwaited, 0);
    }
    device.wait_answer = CUDA_ERROR_LAUNCH_FAILED;
    refuse(&site, MIB, CUDA_ERROR_LAUNCH_FAILED);
    device.wait_answer = CUDA_SUCCESS;
    assert_int_equal(device.block_count, 10);
    end(&site);
    assert_int_equal(device.block_count, 0);
}

TEST(what_is_reserved_counts)
{
    struct rs_allocation one, two;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    one = take(&site, MIB);
    assert_int_equal(held(&site), POOL_STEP);
    assert_int_equal(rs_mr_idle_bytes(site.mr), POOL_STEP - MIB);
    two = take(&site, 40 * MIB);
    assert_int_equal(held(&site), 3 * POOL_STEP);
    give(&site, &one);
    give(&site, &two);
    assert_int_equal(held(&site), 3 * POOL_STEP);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 3 * POOL_STEP);
    assert_int_equal(rs_mr_trim(site.mr, 10 * MIB), 3 * POOL_STEP - 10 * MIB);
    assert_int_equal(held(&site), 10 * MIB);
    end(&site);
}

TEST(what_the_driver_takes_back_counts_no_more)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, OPTIONS("release_threshold=0"));
    block = take(&site, 40 * MIB);
    give(&site, &block);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 0);
    assert_int_equal(held(&site), 0);
    end(&site);
}

/* The driver may be late, too: its pool is trimmed to the threshold. */
TEST(what_is_above_the_threshold_goes_back_when_the_program_synchronises)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, OPTIONS("release_threshold=8MiB"));
    assert_true(site.mr->has_threshold);
    pool_of(&site)->threshold = UINT64_MAX;
    block = take(&site, 40 * MIB);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 2 * POOL_STEP - 8 * MIB);
    rs_mr_synchronise(site.mr,
                      RS_SYNCHRONISE_END_ALL); /* all of it is used, but a part of a step */
    assert_int_equal(held(&site), 40 * MIB);
    give(&site, &block);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(held(&site), 40 * MIB);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_END_SOME);
    assert_int_equal(held(&site), 8 * MIB);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 0);
    end(&site);
    make(&site, &rs_mr_descriptor_async, NULL);
    assert_false(site.mr->has_threshold);
    block = take(&site, 40 * MIB);
    give(&site, &block);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 0);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(held(&site), 2 * POOL_STEP);
    end(&site);
}

TEST(idle_memory_serves_below_the_limit)
{
    struct rs_allocation one, two;
    struct site site;
    unsigned asked;

    make(&site, &rs_mr_descriptor_async, NULL);
    atomic_store(&site.device_account.limit_bytes, 48 * MIB);
    one = take(&site, MIB);
    two = take(&site, 31 * MIB); /* with another step charged it would not fit */
    assert_int_equal(held(&site), POOL_STEP);
    asked = device.asked;
    refuse(&site, MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.asked, asked);
    give(&site, &one);
    give(&site, &two);
    end(&site);
}

/* The pool said that it had enough and grew all the same. */
TEST(growth_past_the_limit_is_undone)
{
    struct rs_allocation kept;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    kept = take(&site, MIB);
    atomic_store(&site.device_account.limit_bytes, POOL_STEP);
    device.pools_grow_always = true;
    refuse(&site, 4 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(pool_of(&site)->reserved_bytes <= POOL_STEP);
    assert_true(held(&site) <= POOL_STEP);
    assert_int_equal(device.block_count, 1);
    give(&site, &kept);
    end(&site);
}

TEST(only_what_is_idle_serves_without_asking)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    assert_int_equal(rs_mr_allocate_held(site.mr, MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    (void)take(&site, MIB);
    assert_int_equal(rs_mr_allocate_held(site.mr, MIB, NULL, &block), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_held(site.mr, 40 * MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    end(&site);
}

/* What is idle is in pieces that are too small.  The attempt is not repeated until something that
 * can make a larger piece was given back; a caller with no other way tries after every free. */
TEST(a_held_request_leaves_the_pool_as_it_is)
{
    EACH_POOLED(i)
    {
        struct rs_allocation small, large, block;
        struct site site;
        unsigned asked;
        make(&site, pooled[i], NULL);
        small = take(&site, MIB);
        large = take(&site, 8 * MIB);
        device.pools_grow_always = true;
        asked = device.asked;
        for (unsigned j = 0; j < 3; j++)
            assert_int_equal(rs_mr_allocate_held(site.mr, 4 * MIB, NULL, &block),
                             CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 1);
        assert_int_equal(pool_of(&site)->reserved_bytes, POOL_STEP);
        assert_int_equal(held(&site), POOL_STEP);
        assert_int_equal(device.block_count, 2);
        give(&site, &small);
        assert_int_equal(rs_mr_allocate_held(site.mr, 4 * MIB, NULL, &block), CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 1);
        assert_int_equal(rs_mr_allocate_any_held(site.mr, 4 * MIB, &block), CUDA_ERROR_NOT_READY);
        assert_int_equal(rs_mr_allocate_any_held(site.mr, 5 * MIB, &block), CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 2);
        device.pools_grow_always = false;
        assert_int_equal(rs_mr_allocate_held(site.mr, MIB, NULL, &block), CUDA_SUCCESS);
        give(&site, &large);
        assert_int_equal(rs_mr_allocate_held(site.mr, 4 * MIB, NULL, &block), CUDA_SUCCESS);
        assert_int_equal(held(&site), POOL_STEP);
        end(&site);
    }
}

/* A request that may grow is served as ever, and what its growth left serves the next. */
TEST(what_a_growth_leaves_serves_held_requests)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    device.pools_grow_always = true;
    assert_int_equal(rs_mr_allocate_held(site.mr, 4 * MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    (void)take(&site, 4 * MIB);
    assert_int_equal(held(&site), 2 * POOL_STEP);
    device.pools_grow_always = false;
    assert_int_equal(rs_mr_allocate_held(site.mr, 4 * MIB, NULL, &block), CUDA_SUCCESS);
    end(&site);
}

TEST(a_full_device_is_no_answer_to_a_held_request)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    device.allocate_answer = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(rs_mr_allocate_held(site.mr, MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    device.allocate_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(rs_mr_allocate_any_held(site.mr, 1000, &block), CUDA_ERROR_ILLEGAL_ADDRESS);
    device.allocate_answer = CUDA_SUCCESS;
    end(&site);
}

/* The stream of ours stands behind work of the program's that waits for this thread. */
TEST(no_request_waits_without_end)
{
    struct rs_allocation block;
    struct site site;
    uint64_t begin_ns;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, 40 * MIB);
    give(&site, &block);
    device.is_stuck = true;
    clock_step_ns = 1000000000;
    begin_ns = clock_ahead_ns;
    assert_int_equal(rs_mr_allocate_held(site.mr, MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    (void)rs_mr_trim(site.mr, 0);
    assert_in_range(clock_ahead_ns - begin_ns, 1, 6 * clock_step_ns);
    begin_ns = clock_ahead_ns;
    refuse(&site, MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_in_range(clock_ahead_ns - begin_ns, 15 * clock_step_ns, 18 * clock_step_ns);
    clock_step_ns = 0;
    device.is_stuck = false;
    assert_int_equal(device.block_count, 0); /* freed in the order of the stream */
    end(&site);
}

TEST(unsupported_is_a_bad_setting)
{
    struct rs_environment environment = {.total_bytes = GIB};
    char line[256];

    device.has_pools = false;
    assert_false(
        options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "memory pools"));
    assert_true(options_are_valid(&rs_mr_descriptor_async, NULL, NULL, line, sizeof(line)));
    device.has_pools = true;
    rs_driver.cuMemPoolCreate = NULL;
    assert_false(
        options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    drive();
    device.version = 12080;
    assert_true(options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    assert_false(
        options_are_valid(&rs_mr_descriptor_async_managed, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "13.0"));
    assert_false(options_are_valid(&rs_mr_descriptor_async, &environment,
                                   OPTIONS("initial_size=2GiB"), line, sizeof(line)));
}

/* ---- a context's end ---- */

static const struct rs_mr_descriptor *const detached[] = {
    &rs_mr_descriptor_async, &rs_mr_descriptor_async_managed, &rs_mr_descriptor_system};

#define EACH_LASTING(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(detached); i++)

TEST(memory_that_outlives_its_context_goes_back)
{
    EACH_LASTING(i)
    {
        struct rs_allocation block;
        struct site site;
        make(&site, detached[i], NULL);
        for (unsigned j = 0; j < 20; j++)
            block = take(&site, 3 * MIB);
        device.context_is_gone = true;
        rs_mr_context_ended(site.mr);
        assert_int_equal(held(&site), 0);
        assert_int_equal(device_used(), 0);
        assert_int_equal(device.block_count, 0);
        assert_false(is_segment(block.address));
        assert_int_equal(rs_mr_allocate(site.mr, 100, NULL, &block),
                         CUDA_ERROR_CONTEXT_IS_DESTROYED);
        rs_mr_destroy(site.mr, true);
        assert_int_equal(device.wrong_calls, 0);
        device_start();
    }
}

TEST(destroying_alone_gives_it_back_too)
{
    EACH_LASTING(i)
    {
        struct site site;
        make(&site, detached[i], NULL);
        for (unsigned j = 0; j < 20; j++)
            (void)take(&site, 3 * MIB);
        device.context_is_gone = true;
        rs_mr_destroy(site.mr, true);
        assert_int_equal(held(&site), 0);
        assert_int_equal(device.block_count, 0);
        assert_int_equal(device.wrong_calls, 0);
        device_start();
    }
}

static void end_context(void)
{
    rs_mr_context_ended(device.ends_in_call);
    device.ends_in_call = NULL;
}

/* Another thread ends the context while this one is in a call. */
TEST(the_last_one_out_gives_it_back)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, MIB);
    device.ends_in_call = site.mr;
    device.in_call = end_context;
    refuse(&site, MIB, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(device.block_count, 0);
    assert_int_equal(held(&site), 0);
    assert_int_equal(rs_mr_deallocate(site.mr, &block, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_trim(site.mr, 0), 0);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 0);
    rs_mr_destroy(site.mr, true);
    assert_int_equal(device.wrong_calls, 0);
}

/* With no context current the driver may refuse; then it is ours until it does not. */
TEST(what_cannot_go_back_then_goes_back_later)
{
    struct rs_allocation block;
    struct site site, next;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    block = take(&site, MIB);
    device.free_answer = CUDA_ERROR_INVALID_CONTEXT;
    device.context_is_gone = true;
    rs_mr_context_ended(site.mr);
    assert_int_equal(device.block_count, 2);
    assert_true(is_segment(block.address)); /* no free of the program's may reach it */
    device.free_answer = CUDA_SUCCESS;
    device.context_is_gone = false;
    make(&next, &rs_mr_descriptor_async, NULL);
    assert_int_equal(device.block_count, 0);
    assert_false(is_segment(block.address));
    rs_mr_destroy(site.mr, true);
    end(&next);
    assert_int_equal(device.wrong_calls, 0);
}

/* What it had reserved is the device's when the pool is gone, and nobody else knows of the pool. */
TEST(a_pool_that_cannot_end_then_ends_later)
{
    struct site site, next;

    make(&site, &rs_mr_descriptor_async, OPTIONS("initial_size=64MiB"));
    (void)take(&site, MIB);
    device.destroy_answer = CUDA_ERROR_UNKNOWN;
    device.context_is_gone = true;
    rs_mr_context_ended(site.mr);
    assert_int_equal(device.block_count, 0);
    assert_int_equal(device_used(), 64 * MIB);
    assert_int_equal(held(&site), 0);
    rs_unfinished_retry();
    assert_int_equal(device_used(), 64 * MIB);
    device.destroy_answer = CUDA_SUCCESS;
    device.context_is_gone = false;
    make(&next, &rs_mr_descriptor_async, NULL);
    assert_int_equal(device_used(), 0);
    rs_unfinished_retry(); /* once destroyed it is left alone */
    assert_int_equal(device.wrong_calls, 0);
    rs_mr_destroy(site.mr, true);
    end(&next);
    assert_int_equal(device.wrong_calls, 0);
}

/* RMM_FREE=immediate: nobody above has waited for the work that uses a block. */
TEST(a_free_that_is_not_clean_waits_first)
{
    EACH_LASTING(i)
    {
        struct rs_allocation block;
        struct site site;
        unsigned waits;
        make(&site, detached[i], NULL);
        block = take(&site, 3 * MIB);
        waits = device.sentinel_frees;
        give(&site, &block);
        assert_int_equal(device.sentinel_frees, waits);
        site.environment.frees_are_ready = false;
        block = take(&site, 3 * MIB);
        give(&site, &block);
        assert_int_equal(device.sentinel_frees, waits + 1);
        free_sentinel(&site.sentinel);
        site.environment.frees_are_ready = true;
        end(&site);
    }
}

/* The driver answers for the block until the stream has come to its free. */
TEST(a_free_that_waits_waits_for_its_stream_too)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, MIB);
    device.unwaited = 1; /* set to 0 when the stream is asked */
    give(&site, &block);
    assert_int_equal(device.unwaited, 1);
    block = take(&site, MIB);
    device.unwaited = 1;
    assert_int_equal(rs_mr_deallocate_at_once(site.mr, &block), CUDA_SUCCESS);
    assert_int_equal(device.unwaited, 0);
    assert_false(rs_mr_frees_at_once());
    end(&site);
}

/* ---- system and simulated ---- */

TEST(line_55_system_is_refused_where_unsupported)
{
    struct rs_environment environment = {.total_bytes = GIB};
    struct rs_allocation block;
    struct site site;
    char line[256];

    device.is_pageable = false;
    assert_false(
        options_are_valid(&rs_mr_descriptor_system, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "HMM"));
    device.is_pageable = true;
    make(&site, &rs_mr_descriptor_system, NULL);
    block = take(&site, 5 * MIB);
    assert_int_equal(block.address % (2 * MIB), 0);
    memset((void *)(uintptr_t)block.address, 7, 5 * MIB);
    assert_int_equal(atomic_load(&site.device_account.charged_bytes), 0);
    give(&site, &block);
    end(&site);
    assert_int_equal(device.asked, 0);
}

TEST(simulated_memory_has_a_size_and_reuses_addresses)
{
    struct rs_allocation block[5];
    struct site site;

    make(&site, &rs_mr_descriptor_simulated, OPTIONS("size=10MiB"));
    for (unsigned i = 0; i < 5; i++)
        block[i] = take(&site, 2 * MIB);
    refuse(&site, 1, CUDA_ERROR_OUT_OF_MEMORY);
    give(&site, &block[3]);
    give(&site, &block[1]);
    refuse(&site, 4 * MIB + 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(take(&site, MIB).address, block[1].address);
    assert_int_equal(take(&site, MIB).address, block[1].address + MIB);
    give(&site, &block[2]); /* merges with what lies after it */
    assert_int_equal(take(&site, 4 * MIB).address, block[2].address);
    end(&site);
    assert_int_equal(device.asked, 0);
    make(&site, &rs_mr_descriptor_simulated, NULL);
    (void)take(&site, 100 * GIB); /* no size: as large as an address space */
    end(&site);
}

/* ---- the way back to the driver ---- */

/* cuMemFree would wait for the GPU, which may wait for this thread. */
TEST(clean_memory_goes_back_in_order)
{
    struct rs_allocation a;
    struct site site;
    unsigned asked;

    drive();
    make(&site, &rs_mr_descriptor_cuda, NULL);
    a = take(&site, 600 * MIB);
    assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
    assert_int_equal(device.lingering_bytes, 600 * MIB); /* not by cuMemFree */
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 600 * MIB);
    asked = device.asked;
    a = take(&site, 600 * MIB); /* the device has no room for both */
    assert_int_equal(device.asked, asked + 1);
    assert_int_equal(device.waits, 1);
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    give(&site, &a);
    end(&site);
}

/* Its channel may be behind work that waits for this thread. */
TEST(a_busy_stream_is_waited_for_a_while_only)
{
    struct rs_allocation a;
    struct site site;

    drive();
    make(&site, &rs_mr_descriptor_cuda, NULL);
    site.device_account.limit_bytes = 1000 * MIB;
    a = take(&site, 600 * MIB);
    device.is_stuck = true;
    assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
    refuse(&site, 600 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.waits, 0);
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    device.is_stuck = false;
    a = take(&site, 600 * MIB);
    give(&site, &a);
    assert_int_equal(site.device_account.charged_bytes, 0);
    end(&site);
}

/* Of managed and pinned memory, and of what is not clean, the driver's free waits; without context
 * events nobody can say that it would not. */
TEST(no_request_waits_for_a_free)
{
    static const struct rs_mr_descriptor *const waiting[] = {
        &rs_mr_descriptor_cuda, &rs_mr_descriptor_managed, &rs_mr_descriptor_pinned};

    drive();
    for (size_t i = 0; i < RS_ARRAY_LENGTH(waiting); i++) {
        struct rs_allocation a;
        struct site site;
        make(&site, waiting[i], NULL);
        site.environment.frees_are_ready = waiting[i] != &rs_mr_descriptor_cuda;
        a = take(&site, MIB);
        rs_request_begin();
        assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_ERROR_NOT_READY);
        rs_request_end();
        assert_true(is_segment(a.address));
        assert_int_equal(held(&site), MIB);
        assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
        assert_int_equal(device.lingering_bytes, 0);
        end(&site);
    }
}

int unit_prepare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    drive();
    return 0;
}
