/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered pools: each is charged for the bytes that the driver says the pool holds, cached
 * or not.  An allocation reads its pool only while rs_limit_follows() returns true, since each
 * reading is a driver call, which would make every allocation slower.  A free reads nothing; its
 * pool is read when the program next waits for its work (rs_charge_synchronised). */
#include "base/check.h"
#include "base/request.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/table.h"
#include "driver/driver.h"
#include "shim/wiring.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct rs_pool_record *pools; /* newest first; protected by rs_charge_lock */
static pthread_cond_t calls_done = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(calls_done, calls_done);

_Atomic uint64_t rs_charge_unseen;

/* The driver rounds an allocation in a pool up to a multiple of this. */
enum { ROUNDING_BYTES = 512 };

/* A driver's pool, or the memory that all graphs of a device hold. */
struct rs_pool_record {
    struct rs_pool_record *next; /* older */
    CUmemoryPool handle;         /* NULL: the device's graphs */
    int device;
    bool host;      /* a pool of host memory, which is not counted */
    bool destroyed; /* the driver has destroyed the pool; the record lives until its last allocation
                       is freed */
    bool going;     /* cuMemPoolDestroy is being called */
    size_t live_bytes;         /* the most that the driver may hold for the live allocations
                                  (rs_footprint_most) */
    size_t asked_bytes, count; /* of the live allocations: the bytes that the program asked for, and
                                  how many they are */
    size_t vain_bytes;         /* bytes of unexecuted frees for which a request has waited in vain
                                  (rs_charge_leaving_bytes) */
    size_t held_bytes;         /* the bytes for which the pool is charged */
    _Atomic uint64_t tickets;  /* the number of readings begun; changed without the lock */
    uint64_t applied;          /* the ticket of the latest reading that counts */
    uint64_t settled;          /* the number of readings ended */
    size_t claimed_bytes;      /* free memory of the pool that calls under way count on */
    bool is_overcharged;       /* at the latest reading the pool held less than it was charged for,
                                  and the charge stayed because of claimed_bytes */
    unsigned calls;            /* the number of calls of the library under way that use the pool */
};

/* What the driver said that the pool holds; not `told`: it gave no answer. */
struct reading {
    uint64_t ticket;
    bool told;
    size_t held_bytes;
};

/* ---- the table; under the lock ---- */

static struct rs_pool_record *find_pool(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = pools;

    while (pool && (pool->handle != handle || pool->destroyed || pool->going ||
                    (!handle && pool->device != device)))
        pool = pool->next;
    return pool;
}

static struct rs_pool_record *find_or_add_pool(CUmemoryPool handle, int device)
{
    struct rs_pool_record *pool = find_pool(handle, device);

    RS_ASSERT_HELD(&rs_charge_lock);
    if (pool)
        return pool;
    pool = malloc(sizeof(*pool));
    if (!pool)
        return NULL;
    *pool = (struct rs_pool_record){.next = pools, .handle = handle, .device = device};
    pools = pool;
    return pool;
}

/* Sets the bytes that are charged for the pool. charged_bytes: what was charged in advance for a
 * growth that the driver has now answered; the new charge replaces that too. */
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

/* Charges a destroyed pool for its live allocations, since the driver cannot be asked about it, and
 * drops its record when there are none.  Memory of frees that are not executed yet goes back by
 * itself. */
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

static bool read_pool(const struct rs_pool_record *pool, bool used, size_t *bytes)
{
    RS_RELAXED_GUARD();
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
    *bytes = (size_t)value;
    return result == CUDA_SUCCESS;
}

static struct reading begin_follow(struct rs_pool_record *pool)
{
    struct reading reading = {.ticket = atomic_fetch_add(&pool->tickets, 1) + 1};

    reading.told = read_pool(pool, false, &reading.held_bytes);
    return reading;
}

/* Sets the pool's charge by a reading, unless it is older than the last one that counted.  Several
 * threads may read a pool at the same time and then take the lock in another order; the reading
 * with the later ticket began later, and saw every allocation that the owner of the earlier ticket
 * had made. */
static void end_follow(struct rs_pool_record *pool, struct reading reading, size_t charged_bytes)
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
    /* While a call counts on free memory of the pool (claimed_bytes), the pool's charge does not
     * fall: the driver may have served this request from that memory, and may yet grow the pool for
     * that call. */
    set_held(pool, pool->claimed_bytes ? rs_max(held, charged) : held, charged_bytes);
}

/* Counts the end of a call of the library that used the pool (pool->calls).  The caller holds the
 * lock. */
static void let_go(struct rs_pool_record *pool)
{
    RS_ASSERT_HELD(&rs_charge_lock);
    if (--pool->calls == 0)
        pthread_cond_broadcast(&calls_done);
}

/* Returns the newest counted pool of the device, or the one that follows `before`; NULL after the
 * oldest one.  Counts a call in the pool that it returns, so that the pool's record stays, and ends
 * the call in `before`.  Pools that are made meanwhile are left out. */
static struct rs_pool_record *next_pool(int device, struct rs_pool_record *before)
{
    struct rs_pool_record *pool;

    RS_MUTEX_GUARD(&rs_charge_lock);
    pool = before ? before->next : pools;
    while (pool && (pool->device != device || pool->host || pool->destroyed || pool->going))
        pool = pool->next;
    if (pool)
        pool->calls++;
    if (before)
        let_go(before);
    return pool;
}

static void follow(struct rs_pool_record *pool)
{
    struct reading reading = begin_follow(pool);
    RS_MUTEX_GUARD(&rs_charge_lock);

    end_follow(pool, reading, 0);
}

void rs_charge_follow_pools(int device)
{
    struct rs_pool_record *pool = NULL;

    while ((pool = next_pool(device, pool)))
        follow(pool);
}

/* Trims a pool, and adds the bytes that it still holds to *held_bytes.  Returns the bytes that the
 * driver has got back. */
static size_t trim_pool(struct rs_pool_record *pool, size_t keep_bytes, size_t *held_bytes)
{
    size_t before = 0, after = 0;
    RS_RELAXED_GUARD();

    (void)read_pool(pool, false, &before);
    if (pool->handle && rs_driver.cuMemPoolTrimTo)
        (void)rs_driver.cuMemPoolTrimTo(pool->handle, keep_bytes);
    else if (!pool->handle && rs_driver.cuDeviceGraphMemTrim)
        (void)rs_driver.cuDeviceGraphMemTrim(pool->device);
    (void)read_pool(pool, false, &after);
    *held_bytes += after;
    return before - rs_min(after, before);
}

/* Adds the device's default pool and its current pool, which the program uses without naming them.
 */
static void add_usual_pools(int device)
{
    CUmemoryPool usual[2] = {NULL, NULL};

    if (!rs_driver.cuDeviceGetDefaultMemPool || !rs_driver.cuDeviceGetMemPool ||
        rs_driver.cuDeviceGetDefaultMemPool(&usual[0], device) != CUDA_SUCCESS ||
        rs_driver.cuDeviceGetMemPool(&usual[1], device) != CUDA_SUCCESS)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    for (int i = 0; i < 2; i++)
        if (usual[i])
            (void)find_or_add_pool(usual[i], device);
}

size_t rs_charge_spare_bytes(int device)
{
    size_t bytes = 0;
    RS_MUTEX_GUARD(&rs_charge_lock);

    for (const struct rs_pool_record *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            bytes += pool->held_bytes - rs_min(pool->asked_bytes, pool->held_bytes);
    return bytes;
}

/* The driver counts an allocation as used until its free is executed in the order of its stream.
 * Memory that was taken from the pool by another process, or before the library began to count,
 * looks as if it were leaving, but never leaves.  So it is left out after one wait in vain. */
size_t rs_charge_leaving_bytes(int device, bool in_vain)
{
    struct rs_pool_record *pool = NULL;
    size_t bytes = 0, used, leaving;

    while ((pool = next_pool(device, pool))) {
        bool told = pool->handle && read_pool(pool, true, &used);
        RS_MUTEX_GUARD(&rs_charge_lock);
        leaving = told ? used - rs_min(used, pool->asked_bytes + pool->count * ROUNDING_BYTES) : 0;
        pool->vain_bytes = in_vain ? leaving : rs_min(pool->vain_bytes, leaving);
        bytes += leaving - pool->vain_bytes;
    }
    return bytes;
}

size_t rs_charge_trim_pools(int device, size_t keep_bytes, size_t *held_bytes)
{
    struct rs_pool_record *pool = NULL;
    size_t returned_bytes = 0, held = 0;

    add_usual_pools(device);
    while ((pool = next_pool(device, pool))) {
        returned_bytes += trim_pool(pool, keep_bytes, &held);
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

static void note_pool_freed(int device)
{
    atomic_fetch_or_explicit(&rs_charge_unseen, 1ull << device, memory_order_release);
}

/* The device of a pool that still holds free memory stays in rs_charge_unseen: the pool may give
 * that memory back at a later wait, when more frees have been executed. */
void rs_charge_synchronised_slowly(void)
{
    uint64_t devices = atomic_exchange_explicit(&rs_charge_unseen, 0, memory_order_acquire);

    if (!rs_mode_serving())
        return;
    for (; devices; devices &= devices - 1) {
        int device = __builtin_ctzll(devices);
        rs_charge_follow_pools(device);
        if (rs_charge_spare_bytes(device) > 0)
            note_pool_freed(device);
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
        note_pool_freed(pool->device);
}

/* ---- pools that come and go ---- */

void rs_charge_pool_made(CUmemoryPool handle, int device, bool is_host)
{
    struct rs_pool_record *pool;

    if (!rs_limit_account(device))
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    pool = find_or_add_pool(handle, device);
    if (pool)
        pool->host = is_host;
}

struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle)
{
    struct rs_pool_record *pool;

    if (!handle)
        return NULL;
    RS_MUTEX_GUARD(&rs_charge_lock);
    pool = find_pool(handle, 0);
    if (pool)
        pool->going = true; /* from now on no call of the library uses the pool */
    while (pool && pool->calls)
        rs_condition_wait(&calls_done, &rs_charge_lock);
    return pool;
}

void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result)
{
    if (!pool)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    pool->going = false;
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        follow_destroyed(pool);
    }
}

/* ---- an allocation is first charged for the most by which its pool may grow, and then for what
 * the driver says that the pool holds ---- */

static struct {
    size_t unit;   /* in bytes: driver pools grow by whole units; 0: no growth was seen yet */
    size_t flying; /* bytes that calls under way have charged in advance for growths of pools */
} growth[RS_DEVICES_MAX]; /* under the lock */

enum {
    BLOCK_BYTES = 2 << 20, /* the least by which a pool grows */
    /* A first growth by more than this was for a large request, and does not tell the unit. */
    UNIT_MOST = 64 << 20,
    TURNS_MOST = 4,
    CLAIMS_MAX = 8, /* the most readings for one claim */
};

/* Returns the most bytes by which the pool may grow for this request.  The caller holds the lock.
 */
static size_t most_growth(const struct rs_charge *charge)
{
    size_t unit = rs_max(growth[charge->device].unit, BLOCK_BYTES), whole;

    return __builtin_add_overflow(charge->bytes, unit - 1, &whole) ? charge->bytes
                                                                   : whole / unit * unit;
}

/* Claims the request's bytes of the pool's free memory.  False when the pool has too little of it
 * beyond what other calls under way have claimed.  If another allocation was settled while the
 * driver was asked, it may have used the memory that the driver called free, so the driver is asked
 * again.  In later turns of an allocation (after rs_charge_async_undo) it claims nothing: the pool
 * grew in the first turn, so its free memory was too fragmented. */
static bool claim_free(struct rs_charge *charge)
{
    struct rs_pool_record *pool = charge->pool;
    size_t held, used, bytes = rs_footprint_most(charge->bytes);
    bool raced = charge->turn == 0, told;
    uint64_t settled;

    rs_mutex_lock(&rs_charge_lock);
    for (int i = 0; i < CLAIMS_MAX && raced; i++) {
        settled = pool->settled;
        held = pool->held_bytes;
        rs_mutex_unlock(&rs_charge_lock);
        told = read_pool(pool, true, &used) && rs_round_up(used, BLOCK_BYTES, &used);
        rs_mutex_lock(&rs_charge_lock);
        raced = told && pool->settled != settled;
        if (!told || raced || held < used || held - used < pool->claimed_bytes ||
            held - used - pool->claimed_bytes < bytes)
            continue;
        /* While this claim lasts, the pool's charge does not fall (end_follow). */
        pool->claimed_bytes += bytes;
        charge->claimed = bytes;
        rs_account_begin_return(rs_limit_account(charge->device), bytes);
    }
    rs_mutex_unlock(&rs_charge_lock);
    return charge->claimed > 0;
}

static bool take_growth(struct rs_charge *charge)
{
    RS_MUTEX_GUARD(&rs_charge_lock);
    size_t bytes = most_growth(charge);

    if (!rs_account_take(rs_limit_account(charge->device), 0, bytes, RS_MEMORY_DEVICE))
        return false;
    charge->charged = bytes;
    growth[charge->device].flying += bytes;
    return true;
}

/* Charges in advance for the growth of the pool, or claims free memory of the pool.  If the limit
 * leaves no room for either, first reads what the pools hold by now, since other threads may have
 * freed memory, and then has every stack and pool give its free memory back.  Returns false when
 * nothing more comes back. */
static bool make_room_in_pool(struct rs_charge *charge)
{
    const struct rs_account *account = rs_limit_account(charge->device);
    struct rs_refusal refusal = {.size_bytes = charge->bytes};

    if (take_growth(charge) || claim_free(charge))
        return true;
    rs_charge_follow_pools(charge->device);
    do {
        refusal.releases = rs_account_releases(account);
        if (take_growth(charge) || claim_free(charge))
            return true;
    } while (rs_wiring.reclaim(charge->device, &refusal, true));
    return false;
}

/* Sets charge->pool and makes the record of the allocation.  A pool of host memory is not counted:
 * charge->pool stays NULL.  Returns false when out of host memory. */
static bool set_pool(struct rs_charge *charge, CUmemoryPool handle)
{
    RS_MUTEX_GUARD(&rs_charge_lock);
    struct rs_pool_record *pool = find_or_add_pool(handle, charge->device);

    if (pool && pool->host)
        return true;
    charge->record = pool ? rs_charged_new(RS_KEYS_ADDRESSES) : NULL;
    if (!charge->record)
        return false;
    charge->pool = pool;
    charge->device = pool->device;
    pool->calls++;
    return true;
}

static bool begin_counted(struct rs_charge *charge, CUmemoryPool pool)
{
    if (!pool && (!rs_driver.cuDeviceGetMemPool ||
                  rs_driver.cuDeviceGetMemPool(&pool, charge->device) != CUDA_SUCCESS))
        return true; /* the program gets the driver's own error */
    if (!set_pool(charge, pool))
        return false;
    if (!charge->pool)
        return true;
    rs_limit_resolve(charge->device); /* the pool's device may not be the stream's */
    if (make_room_in_pool(charge))
        return true;
    free(charge->record);
    RS_MUTEX_GUARD(&rs_charge_lock);
    let_go(charge->pool);
    return false;
}

bool rs_charge_async_begin(struct rs_charge *charge, const struct rs_charge_owner *owner,
                           CUmemoryPool pool, CUstream stream, size_t size_bytes)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* in_graph: the stream captures, so the memory belongs to the graph that is captured. */
    bool begun = true, in_graph;

    *charge = (struct rs_charge){.device = owner->device,
                                 .reclaims_on = RS_NO_DEVICE,
                                 .bytes = size_bytes,
                                 .turn = charge->turn};
    if (!rs_limit_account(owner->device))
        return true;
    RS_RELAXED_GUARD();
    rs_limit_resolve(charge->device);
    rs_context_publish_stacks();
    in_graph = rs_driver.cuStreamIsCapturing &&
               rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
               status != CU_STREAM_CAPTURE_STATUS_NONE;
    if (rs_limit_follows())
        begun = in_graph ? rs_charge_graph_node(charge->device, charge->bytes)
                         : begin_counted(charge, pool);
    if (in_graph)
        return begun;
    charge->reclaims_on = charge->device;
    charge->refusal =
        (struct rs_refusal){size_bytes, rs_account_releases(rs_limit_account(charge->device)),
                            charge->charged, RS_MEMORY_DEVICE};
    return begun;
}

static size_t common_divisor(size_t first, size_t second)
{
    return second ? common_divisor(second, first % second) : first;
}

/* Learns the unit in which the driver's pools grow (32 MiB on an H200), since the next request is
 * charged for whole units.  One growth that is seen may be of several units, for one large request
 * or for requests of several threads, so the unit is a common divisor. */
static void learn_unit(int device, size_t grown_bytes)
{
    size_t seen = growth[device].unit;
    size_t unit = seen || grown_bytes <= UNIT_MOST ? common_divisor(grown_bytes, seen) : seen;

    if (unit % BLOCK_BYTES == 0)
        growth[device].unit = unit;
}

/* True when the pool grew past the limit, and by more than the calls under way have charged in
 * advance.  Also learns the unit of the growth. */
static bool is_excess(const struct rs_charge *charge, size_t grown_bytes)
{
    const struct rs_account *account = rs_limit_account(charge->device);
    size_t flying = growth[charge->device].flying, limit;

    learn_unit(charge->device, grown_bytes);
    if (grown_bytes <= flying)
        return false;
    limit = rs_account_limit(account);
    return limit != SIZE_MAX &&
           atomic_load(&account->charged_bytes) > limit + flying - charge->charged;
}

static void enter_record(const struct rs_charge *charge, CUdeviceptr address)
{
    struct rs_charged *record = charge->record;

    *record = (struct rs_charged){.keys = RS_KEYS_ADDRESSES,
                                  .path = RS_PATH_STREAM_ORDERED,
                                  .device = charge->device,
                                  .pool = charge->pool,
                                  .size_bytes = charge->bytes,
                                  .share.charged_bytes = rs_footprint_most(charge->bytes)};
    charge->pool->live_bytes += record->share.charged_bytes;
    charge->pool->asked_bytes += record->size_bytes;
    charge->pool->count++;
    rs_limit_note_stream_ordered(record->device, record->size_bytes, false);
    rs_charged_enter(record, address);
}

bool rs_charge_async_end(struct rs_charge *charge, CUresult result, CUdeviceptr address)
{
    struct rs_pool_record *pool = charge->pool;
    struct reading reading;
    size_t before;
    bool excess;

    if (!pool)
        return false;
    reading = begin_follow(pool);
    RS_MUTEX_GUARD(&rs_charge_lock);
    before = pool->held_bytes;
    /* claimed_bytes still has this call's claim, so the pool's charge does not fall here. */
    end_follow(pool, reading, charge->charged);
    excess = result == CUDA_SUCCESS && pool->held_bytes > before &&
             is_excess(charge, pool->held_bytes - before);
    growth[charge->device].flying -= charge->charged;
    /* Without an address no free could name the allocation. */
    if (result == CUDA_SUCCESS && !excess && address)
        enter_record(charge, address);
    else
        free(charge->record);
    pool->claimed_bytes -= charge->claimed;
    /* Once no call has a claim on the pool's free memory, the pool's charge may fall again. */
    if (pool->is_overcharged && !pool->claimed_bytes) {
        rs_mutex_unlock(&rs_charge_lock);
        follow(pool);
        rs_mutex_lock(&rs_charge_lock);
    }
    rs_account_end_return(rs_limit_account(charge->device), charge->claimed);
    let_go(pool);
    return excess;
}

/* Frees in relaxed capture mode, since another thread may have begun a global capture after the
 * allocation.  In the default mode the driver would refuse the free, the block would be lost, and
 * the capture would be invalidated (facts_h200.txt: free_async 900 end 901). */
bool rs_charge_async_undo(struct rs_charge *charge, CUdeviceptr address, CUstream stream)
{
    RS_RELAXED_GUARD();

    if (rs_driver.cuMemFreeAsync)
        (void)rs_driver.cuMemFreeAsync(address, stream);
    return ++charge->turn < TURNS_MOST;
}

/* ---- graphs ---- */

bool rs_charge_graph_node(int device, size_t size_bytes)
{
    struct rs_account *account = rs_limit_account(device);
    struct rs_pool_record *pool;
    struct rs_refusal refusal = {.size_bytes = size_bytes};
    bool has_room;

    if (!account || !rs_limit_follows())
        return true;
    rs_limit_resolve(device);
    rs_mutex_lock(&rs_charge_lock);
    /* This is the record of the device's graphs, whose memory is read from now on. */
    pool = find_or_add_pool(NULL, device);
    rs_mutex_unlock(&rs_charge_lock);
    if (!pool)
        return false;
    follow(pool);
    rs_request_begin();
    do {
        refusal.releases = rs_account_releases(account);
        has_room = rs_account_has_room(account, size_bytes);
    } while (!has_room && rs_wiring.reclaim(device, &refusal, true));
    rs_request_end();
    return has_room;
}
