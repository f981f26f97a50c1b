/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered pools: each is charged for the bytes that the driver says the pool holds, cached
 * or not.  Pools are read only while a limit or statistics are set, since a reading costs a part of
 * an allocation. */
#include "base/check.h"
#include "charge/record.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "shim/wiring.h"

#include <stdlib.h>

static struct rs_pool_record *pools; /* newest first; under the lock */
static pthread_cond_t calls_done = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(calls_done, calls_done);

_Atomic uint64_t rs_charge_unseen;

enum { ROUNDING_BYTES = 512 }; /* the driver rounds an allocation in a pool up to it */

/* ---- the table; under the lock ---- */

static struct rs_pool_record *find(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = pools;

    while (pool && (pool->handle != handle || pool->destroyed || pool->going ||
                    (!handle && pool->device != device)))
        pool = pool->next;
    return pool;
}

struct rs_pool_record *rs_pool_find_or_add(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = find(handle, device);

    RS_ASSERT_HELD(&rs_charge_lock);
    if (pool)
        return pool;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->next = pools;
    pool->handle = handle;
    pool->device = device;
    pools = pool;
    return pool;
}

/* Of what the device's account has for the pool, charged_bytes are for a growth that the driver
 * has answered. */
static void set_held(struct rs_pool_record *pool, size_t held_bytes, size_t charged_bytes)
{
    size_t before = pool->held_bytes;

    rs_account_settle(rs_limit_account(pool->device),
                      (struct rs_amount){before, before + charged_bytes, charged_bytes},
                      (struct rs_amount){held_bytes, held_bytes, 0}, RS_MEMORY_DEVICE);
    rs_limit_note_path(pool->device, pool->handle ? RS_PATH_STREAM_ORDERED : RS_PATH_GRAPH, before,
                       held_bytes);
    pool->held_bytes = held_bytes;
}

/* The driver cannot be asked about a destroyed pool.  The pool is charged for its live allocations;
 * memory of frees under way goes back by itself. */
static void follow_destroyed(struct rs_pool_record *pool)
{
    struct rs_pool_record **link = &pools;

    RS_ASSERT(pool->calls == 0); /* rs_charge_pool_destroy_begin has waited for them */
    set_held(pool, rs_min(pool->held_bytes, pool->live_bytes), 0);
    if (pool->live_bytes > 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

/* ---- readings of the driver; without the lock ---- */

bool rs_pool_read(const struct rs_pool_record *pool, bool used, size_t *bytes)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    cuuint64_t value = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (pool->handle && rs_driver.cuMemPoolGetAttribute)
        result = rs_driver.cuMemPoolGetAttribute(
            pool->handle,
            used ? CU_MEMPOOL_ATTR_USED_MEM_CURRENT : CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    else if (!pool->handle && rs_driver.cuDeviceGetGraphMemAttribute)
        result = rs_driver.cuDeviceGetGraphMemAttribute(
            pool->device,
            used ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
            &value);
    rs_capture_restore(mode);
    *bytes = (size_t)value;
    return result == CUDA_SUCCESS;
}

struct rs_pool_reading rs_pool_begin_follow(struct rs_pool_record *pool)
{
    struct rs_pool_reading reading = {.ticket = atomic_fetch_add(&pool->tickets, 1) + 1};

    reading.told = rs_pool_read(pool, false, &reading.held_bytes);
    return reading;
}

/* Threads read a pool at the same time and may take the lock in another order.  The reading of a
 * later ticket began later, so it saw every allocation that an earlier ticket's owner made, and the
 * earlier reading is dropped. */
void rs_pool_follow(struct rs_pool_record *pool, struct rs_pool_reading reading,
                    size_t charged_bytes)
{
    size_t held = pool->held_bytes, charged = held + charged_bytes;

    RS_ASSERT_HELD(&rs_charge_lock);
    RS_ASSERT(!pool->destroyed);
    pool->settled++;
    if (reading.told && reading.ticket > pool->applied) {
        pool->applied = reading.ticket;
        held = reading.held_bytes;
        pool->is_overcharged = pool->claimed_bytes && held < charged;
    }
    /* While a call counts on free memory of the pool, the pool is not charged for less: the driver
     * may serve this request from that memory, and grow the pool for the other call. */
    set_held(pool, pool->claimed_bytes ? rs_max(held, charged) : held, charged_bytes);
}

/* The newest pool of the device, or the next older one, with a call of its own, without which a
 * record may be gone; `before`'s ends.  A pool that is made meanwhile is left out. */
static struct rs_pool_record *next_pool(int device, struct rs_pool_record *before)
{
    struct rs_pool_record *pool;

    rs_mutex_lock(&rs_charge_lock);
    pool = before ? before->next : pools;
    while (pool && (pool->device != device || pool->host || pool->destroyed || pool->going))
        pool = pool->next;
    if (pool)
        pool->calls++;
    if (before)
        rs_pool_let_go(before);
    rs_mutex_unlock(&rs_charge_lock);
    return pool;
}

void rs_pool_let_go(struct rs_pool_record *pool)
{
    RS_ASSERT_HELD(&rs_charge_lock);
    if (--pool->calls == 0)
        pthread_cond_broadcast(&calls_done);
}

static void follow(struct rs_pool_record *pool)
{
    struct rs_pool_reading reading = rs_pool_begin_follow(pool);

    rs_mutex_lock(&rs_charge_lock);
    rs_pool_follow(pool, reading, 0);
    rs_mutex_unlock(&rs_charge_lock);
}

void rs_charge_follow_pools(int device)
{
    struct rs_pool_record *pool = NULL;

    while ((pool = next_pool(device, pool)))
        follow(pool);
}

/* Returns the bytes that the driver has back. */
static size_t trim(struct rs_pool_record *pool, size_t keep_bytes, size_t *held_bytes)
{
    size_t before = 0, after = 0;
    CUstreamCaptureMode mode;

    (void)rs_pool_read(pool, false, &before);
    mode = rs_capture_relax();
    if (pool->handle && rs_driver.cuMemPoolTrimTo)
        (void)rs_driver.cuMemPoolTrimTo(pool->handle, keep_bytes);
    else if (!pool->handle && rs_driver.cuDeviceGraphMemTrim)
        (void)rs_driver.cuDeviceGraphMemTrim(pool->device);
    rs_capture_restore(mode);
    (void)rs_pool_read(pool, false, &after);
    *held_bytes += after;
    return before - rs_min(after, before);
}

/* The device's default pool and current pool, which the program uses without naming them. */
static void add_usual_pools(int device)
{
    CUmemoryPool usual[2] = {NULL, NULL};

    if (!rs_driver.cuDeviceGetDefaultMemPool || !rs_driver.cuDeviceGetMemPool ||
        rs_driver.cuDeviceGetDefaultMemPool(&usual[0], device) != CUDA_SUCCESS ||
        rs_driver.cuDeviceGetMemPool(&usual[1], device) != CUDA_SUCCESS)
        return;
    rs_mutex_lock(&rs_charge_lock);
    for (int i = 0; i < 2; i++)
        if (usual[i])
            (void)rs_pool_find_or_add(usual[i], device);
    rs_mutex_unlock(&rs_charge_lock);
}

size_t rs_charge_spare_bytes(int device)
{
    size_t bytes = 0;

    rs_mutex_lock(&rs_charge_lock);
    for (const struct rs_pool_record *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            bytes += pool->held_bytes - rs_min(pool->asked_bytes, pool->held_bytes);
    rs_mutex_unlock(&rs_charge_lock);
    return bytes;
}

/* The driver counts an allocation as used until its free is executed in the order of its stream.
 * Memory that was taken before the library counted, or by another process, never leaves: after one
 * wait in vain it is left out. */
size_t rs_charge_leaving_bytes(int device, bool in_vain)
{
    struct rs_pool_record *pool = NULL;
    size_t bytes = 0, used, leaving;

    while ((pool = next_pool(device, pool))) {
        bool told = pool->handle && rs_pool_read(pool, true, &used);
        rs_mutex_lock(&rs_charge_lock);
        leaving = told ? used - rs_min(used, pool->asked_bytes + pool->count * ROUNDING_BYTES) : 0;
        pool->vain_bytes = in_vain ? leaving : rs_min(pool->vain_bytes, leaving);
        bytes += leaving - pool->vain_bytes;
        rs_mutex_unlock(&rs_charge_lock);
    }
    return bytes;
}

size_t rs_charge_trim_pools(int device, size_t keep_bytes, size_t *held_bytes)
{
    struct rs_pool_record *pool = NULL;
    size_t returned_bytes = 0, held = 0;

    add_usual_pools(device);
    while ((pool = next_pool(device, pool))) {
        returned_bytes += trim(pool, keep_bytes, &held);
        if (rs_limit_follows())
            follow(pool);
    }
    if (held_bytes)
        *held_bytes = held;
    return returned_bytes;
}

void rs_charge_begin_to_follow(int device)
{
    add_usual_pools(device);
    rs_charge_follow_pools(device);
}

static void note_freed(int device)
{
    atomic_fetch_or_explicit(&rs_charge_unseen, 1ull << device, memory_order_release);
}

/* A pool that still holds free memory may give it back at a later wait, when more frees have been
 * executed: its device stays in rs_charge_unseen. */
void rs_charge_synchronised_slowly(void)
{
    uint64_t devices = atomic_exchange_explicit(&rs_charge_unseen, 0, memory_order_acquire);

    if (!rs_mode_serving())
        return;
    for (; devices; devices &= devices - 1) {
        int device = __builtin_ctzll(devices);
        rs_charge_follow_pools(device);
        if (rs_charge_spare_bytes(device) > 0)
            note_freed(device);
    }
}

void rs_charge_pool_freed(struct rs_pool_record *pool, size_t size_bytes, size_t charged_bytes)
{
    RS_ASSERT_HELD(&rs_charge_lock);
    rs_limit_note_stream_ordered(pool->device, size_bytes, true);
    pool->live_bytes -= charged_bytes;
    pool->asked_bytes -= size_bytes;
    pool->count--;
    if (pool->destroyed)
        follow_destroyed(pool);
    else
        note_freed(pool->device);
}

/* ---- pools that come and go ---- */

void rs_charge_pool_made(CUmemoryPool handle, int device, bool is_host)
{
    struct rs_pool_record *pool;

    if (!rs_limit_account(device))
        return;
    rs_mutex_lock(&rs_charge_lock);
    pool = rs_pool_find_or_add(handle, device);
    if (pool)
        pool->host = is_host;
    rs_mutex_unlock(&rs_charge_lock);
}

struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle)
{
    struct rs_pool_record *pool;

    if (!handle)
        return NULL;
    rs_mutex_lock(&rs_charge_lock);
    pool = find(handle, 0);
    if (pool)
        pool->going = true; /* from now on no call of the library names it */
    while (pool && pool->calls)
        rs_condition_wait(&calls_done, &rs_charge_lock);
    rs_mutex_unlock(&rs_charge_lock);
    return pool;
}

void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result)
{
    if (!pool)
        return;
    rs_mutex_lock(&rs_charge_lock);
    pool->going = false;
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        follow_destroyed(pool);
    }
    rs_mutex_unlock(&rs_charge_lock);
}
