/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered pools: each is charged for the bytes that the driver says the pool holds, cached
 * or not.  Pools are read only while a limit or statistics are set, since a reading costs a part of
 * an allocation. */
#include "charge/pool.h"

#include "base/arithmetic.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "shim/wiring.h"

#include <stdlib.h>

struct rs_mutex rs_charge_pools_lock = RS_MUTEX_INIT(RS_RANK_RECORDS);
RS_RESET_IN_CHILD(charge_pool, rs_charge_pools_lock);

static struct rs_pool_record *pools; /* this and the next two: under the lock */
static uint64_t pools_made;
static pthread_cond_t calls_done = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(calls_done, calls_done);

_Atomic uint64_t rs_charge_unseen;

enum { ROUNDING_BYTES = 512 }; /* the driver rounds an allocation in a pool up to it */

static enum rs_path path_of(const struct rs_pool_record *pool)
{
    return pool->handle ? RS_PATH_STREAM_ORDERED : RS_PATH_GRAPH;
}

/* ---- the table; under the lock ---- */

static struct rs_pool_record *find(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = pools;

    while (pool && (pool->handle != handle || pool->destroyed || pool->going ||
                    (!handle && pool->device != device)))
        pool = pool->next;
    return pool;
}

struct rs_pool_record *rs_charge_pool_find_or_add(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = find(handle, device);

    if (pool)
        return pool;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->next = pools;
    pool->number = ++pools_made;
    pool->handle = handle;
    pool->device = device;
    pools = pool;
    return pool;
}

/* The device's account changes from the pool's old size and charged_bytes, for a growth that the
 * pool may have made, to the pool's new size. */
static void set_held(struct rs_pool_record *pool, size_t held_bytes, size_t charged_bytes)
{
    rs_account_settle(rs_limit_account(pool->device),
                      (struct rs_amount){pool->held_bytes, pool->held_bytes + charged_bytes, 0},
                      (struct rs_amount){held_bytes, held_bytes, 0}, RS_MEMORY_DEVICE);
    rs_limit_note_path(pool->device, path_of(pool), pool->held_bytes, held_bytes);
    pool->held_bytes = held_bytes;
}

static void remove_record(struct rs_pool_record *pool)
{
    struct rs_pool_record **link = &pools;

    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

/* The driver cannot be asked about a destroyed pool.  The pool is charged for its live allocations;
 * memory of frees under way goes back by itself. */
static void follow_destroyed(struct rs_pool_record *pool)
{
    set_held(pool, rs_min(pool->held_bytes, pool->live_bytes), 0);
    if (pool->live_bytes == 0 && pool->calls == 0)
        remove_record(pool);
}

/* ---- readings of the driver; without the lock ---- */

bool rs_charge_pool_read(const struct rs_pool_record *pool, bool used, size_t *bytes)
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

/* Threads read a pool at the same time and may take the lock in another order.  The reading of a
 * later ticket began later, so it saw every allocation that an earlier ticket's owner made, and the
 * earlier reading is dropped. */
size_t rs_charge_pool_follow(struct rs_pool_record *pool, size_t charged_bytes)
{
    size_t held, before;
    uint64_t ticket;
    bool told;

    rs_mutex_lock(&rs_charge_pools_lock);
    ticket = ++pool->tickets;
    rs_mutex_unlock(&rs_charge_pools_lock);
    told = rs_charge_pool_read(pool, false, &held);
    rs_mutex_lock(&rs_charge_pools_lock);
    before = pool->held_bytes;
    pool->settled++;
    if (told && ticket > pool->applied && !pool->destroyed) {
        pool->applied = ticket;
        /* While a call counts on free memory of the pool, the pool is not charged for less: the
         * driver may serve this request from that memory, and grow the pool for the other call. */
        pool->is_overcharged = pool->claimed_bytes && held < before + charged_bytes;
        set_held(pool, pool->is_overcharged ? before + charged_bytes : held, charged_bytes);
    } else if (charged_bytes && pool->claimed_bytes && !pool->destroyed) {
        set_held(pool, before + charged_bytes, charged_bytes);
    } else if (charged_bytes) {
        rs_account_give(rs_limit_account(pool->device), 0, charged_bytes, RS_MEMORY_DEVICE);
    }
    rs_mutex_unlock(&rs_charge_pools_lock);
    return before;
}

/* The newest pool of a device whose number is below `number`.  Its record lives until
 * rs_charge_pool_let_go, for calls without the lock. */
static struct rs_pool_record *newest_before(int device, uint64_t number)
{
    struct rs_pool_record *pool;

    rs_mutex_lock(&rs_charge_pools_lock);
    for (pool = pools; pool; pool = pool->next)
        if (pool->number < number && pool->device == device && !pool->host && !pool->destroyed &&
            !pool->going)
            break;
    if (pool)
        pool->calls++;
    rs_mutex_unlock(&rs_charge_pools_lock);
    return pool;
}

void rs_charge_pool_let_go(struct rs_pool_record *pool)
{
    rs_mutex_lock(&rs_charge_pools_lock);
    if (--pool->calls == 0)
        pthread_cond_broadcast(&calls_done);
    if (pool->destroyed)
        follow_destroyed(pool);
    rs_mutex_unlock(&rs_charge_pools_lock);
}

typedef size_t visit_function(struct rs_pool_record *pool, void *data);

/* Returns the sum of visit() over every pool of the device.  A pool that is made meanwhile may be
 * left out. */
static size_t visit_pools(int device, visit_function *visit, void *data)
{
    uint64_t number = UINT64_MAX;
    struct rs_pool_record *pool;
    size_t bytes = 0;

    while ((pool = newest_before(device, number))) {
        number = pool->number;
        bytes += visit(pool, data);
        rs_charge_pool_let_go(pool);
    }
    return bytes;
}

static size_t follow_one(struct rs_pool_record *pool, void *data)
{
    (void)data;
    (void)rs_charge_pool_follow(pool, 0);
    return 0;
}

void rs_charge_follow_pools(int device)
{
    (void)visit_pools(device, follow_one, NULL);
}

struct trim {
    size_t keep_bytes, held_bytes;
};

static size_t trim(struct rs_pool_record *pool, struct trim *trim)
{
    CUstreamCaptureMode mode;
    size_t before = 0, after = 0;

    (void)rs_charge_pool_read(pool, false, &before);
    mode = rs_capture_relax();
    if (pool->handle && rs_driver.cuMemPoolTrimTo)
        (void)rs_driver.cuMemPoolTrimTo(pool->handle, trim->keep_bytes);
    else if (!pool->handle && rs_driver.cuDeviceGraphMemTrim)
        (void)rs_driver.cuDeviceGraphMemTrim(pool->device);
    rs_capture_restore(mode);
    (void)rs_charge_pool_read(pool, false, &after);
    trim->held_bytes += after;
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
    rs_mutex_lock(&rs_charge_pools_lock);
    for (int i = 0; i < 2; i++)
        if (usual[i])
            (void)rs_charge_pool_find_or_add(usual[i], device);
    rs_mutex_unlock(&rs_charge_pools_lock);
}

size_t rs_charge_spare_bytes(int device)
{
    size_t bytes = 0;

    rs_mutex_lock(&rs_charge_pools_lock);
    for (const struct rs_pool_record *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            bytes += pool->held_bytes - rs_min(pool->asked_bytes, pool->held_bytes);
    rs_mutex_unlock(&rs_charge_pools_lock);
    return bytes;
}

/* The driver counts an allocation as used until its free is executed in the order of its stream. */
static size_t leaving_bytes(const struct rs_pool_record *pool)
{
    size_t used, asked;

    if (!pool->handle || !rs_charge_pool_read(pool, true, &used))
        return 0;
    rs_mutex_lock(&rs_charge_pools_lock);
    asked = pool->asked_bytes + pool->count * ROUNDING_BYTES;
    rs_mutex_unlock(&rs_charge_pools_lock);
    return used - rs_min(asked, used);
}

/* Memory that was taken before the library counted, or by another process, never leaves: after one
 * wait in vain it is left out. */
static size_t leaving_of_one(struct rs_pool_record *pool, void *in_vain)
{
    size_t leaving = leaving_bytes(pool);

    rs_mutex_lock(&rs_charge_pools_lock);
    pool->vain_bytes = *(const bool *)in_vain ? leaving : rs_min(pool->vain_bytes, leaving);
    leaving -= pool->vain_bytes;
    rs_mutex_unlock(&rs_charge_pools_lock);
    return leaving;
}

size_t rs_charge_leaving_bytes(int device)
{
    return visit_pools(device, leaving_of_one, &(bool){false});
}

void rs_charge_leaving_in_vain(int device)
{
    (void)visit_pools(device, leaving_of_one, &(bool){true});
}

static size_t trim_one(struct rs_pool_record *pool, void *data)
{
    size_t returned_bytes = trim(pool, data);

    if (rs_limit_follows())
        (void)rs_charge_pool_follow(pool, 0);
    return returned_bytes;
}

size_t rs_charge_trim_pools(int device, size_t keep_bytes, size_t *held_bytes)
{
    struct trim trim = {keep_bytes, 0};
    size_t returned_bytes;

    add_usual_pools(device);
    returned_bytes = visit_pools(device, trim_one, &trim);
    if (held_bytes)
        *held_bytes = trim.held_bytes;
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
    rs_limit_note_stream_ordered(pool->device, size_bytes, true);
    rs_mutex_lock(&rs_charge_pools_lock);
    pool->live_bytes -= charged_bytes;
    pool->asked_bytes -= size_bytes;
    pool->count--;
    if (pool->destroyed)
        follow_destroyed(pool);
    else
        note_freed(pool->device);
    rs_mutex_unlock(&rs_charge_pools_lock);
}

/* ---- pools that come and go ---- */

void rs_charge_pool_made(CUmemoryPool handle, int device, bool is_host)
{
    struct rs_pool_record *pool;

    if (!rs_limit_account(device))
        return;
    rs_mutex_lock(&rs_charge_pools_lock);
    pool = rs_charge_pool_find_or_add(handle, device);
    if (pool)
        pool->host = is_host;
    rs_mutex_unlock(&rs_charge_pools_lock);
}

struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle)
{
    struct rs_pool_record *pool;

    if (!handle)
        return NULL;
    rs_mutex_lock(&rs_charge_pools_lock);
    pool = find(handle, 0);
    if (pool)
        pool->going = true; /* from now on no call of the library names it */
    while (pool && pool->calls)
        rs_condition_wait(&calls_done, &rs_charge_pools_lock);
    rs_mutex_unlock(&rs_charge_pools_lock);
    return pool;
}

void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result)
{
    if (!pool)
        return;
    rs_mutex_lock(&rs_charge_pools_lock);
    pool->going = false;
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        follow_destroyed(pool);
    }
    rs_mutex_unlock(&rs_charge_pools_lock);
}
