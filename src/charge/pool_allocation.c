/* SPDX-License-Identifier: Apache-2.0 */
/* A stream-ordered allocation is charged for the most that its pool may grow by, until the driver
 * has said how much the pool holds after the allocation. */
#include "base/check.h"
#include "base/request.h"
#include "charge/record.h"
#include "config/variables.h"
#include "context/exclusion.h"
#include "driver/driver.h"
#include "shim/wiring.h"

#include <stdatomic.h>

static struct {
    size_t unit;          /* bytes; a driver's pool grows by whole units; 0: none seen yet */
    size_t flying;        /* bytes charged by calls under way for growths of pools */
} growth[RS_DEVICES_MAX]; /* under the lock */

enum {
    BLOCK_BYTES = 2 << 20, /* the least growth of a pool */
    UNIT_MOST = 64 << 20,  /* a larger growth was for a large request */
    TURNS_MOST = 4,
    CLAIMS_MAX = 8, /* readings for one claim */
};

static bool is_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return rs_driver.cuStreamIsCapturing &&
           rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The most bytes that the pool may grow by for this request.  Under the lock. */
static size_t most_growth(const struct rs_pool_charge *charge)
{
    size_t unit = rs_max(growth[charge->device].unit, BLOCK_BYTES), whole;

    return __builtin_add_overflow(charge->bytes, unit - 1, &whole) ? charge->bytes
                                                                   : whole / unit * unit;
}

/* Claims the request's bytes of the pool's free memory.  False when the pool has less free than
 * other calls under way have not claimed.  Where an allocation was settled while the driver was
 * asked, it may have used memory that the driver said was free: it is asked again.  In later turns
 * that memory was fragmented. */
static bool claim(struct rs_pool_charge *charge)
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
        told = rs_pool_read(pool, true, &used) && rs_round_up(used, BLOCK_BYTES, &used);
        rs_mutex_lock(&rs_charge_lock);
        raced = told && pool->settled != settled;
        if (!told || raced || held < used || held - used < pool->claimed_bytes ||
            held - used - pool->claimed_bytes < bytes)
            continue;
        pool->claimed_bytes += bytes; /* until the call is over, the pool is charged for no less */
        charge->claimed = bytes;
        rs_account_begin_return(rs_limit_account(charge->device), bytes);
    }
    rs_mutex_unlock(&rs_charge_lock);
    return charge->claimed > 0;
}

static bool take(struct rs_pool_charge *charge)
{
    size_t bytes;
    bool taken;

    rs_mutex_lock(&rs_charge_lock);
    bytes = most_growth(charge);
    taken = rs_account_take(rs_limit_account(charge->device), 0, bytes, RS_MEMORY_DEVICE);
    if (taken) {
        charge->charged = bytes;
        growth[charge->device].flying += bytes;
    }
    rs_mutex_unlock(&rs_charge_lock);
    return taken;
}

/* Memory that other threads freed is read first; the pool's free memory serves next; then every
 * stack and pool gives its free memory back. */
static bool make_room(struct rs_pool_charge *charge)
{
    const struct rs_account *account = rs_limit_account(charge->device);
    struct rs_refusal refusal = {.size_bytes = charge->bytes};

    if (take(charge) || claim(charge))
        return true;
    rs_charge_follow_pools(charge->device);
    do {
        refusal.releases = rs_account_releases(account);
        if (take(charge) || claim(charge))
            return true;
    } while (rs_wiring.reclaim(charge->device, &refusal, true));
    return false;
}

/* Names the pool, and reserves the record of the allocation.  False when host memory is out.  A
 * pool of host memory is not counted. */
static bool set_pool(struct rs_pool_charge *charge, CUmemoryPool handle)
{
    struct rs_pool_record *pool;
    bool done;

    rs_mutex_lock(&rs_charge_lock);
    pool = rs_pool_find_or_add(handle, charge->device);
    if (pool && !pool->host)
        charge->record = rs_charged_reserve(RS_KEYS_ADDRESSES);
    done = pool && (pool->host || charge->record);
    if (charge->record) {
        charge->pool = pool;
        charge->device = pool->device;
        pool->calls++;
    }
    rs_mutex_unlock(&rs_charge_lock);
    return done;
}

/* Charges for the allocation.  False when the limit leaves no room, or host memory is out. */
static bool begin(struct rs_pool_charge *charge, CUmemoryPool pool)
{
    if (!pool && (!rs_driver.cuDeviceGetMemPool ||
                  rs_driver.cuDeviceGetMemPool(&pool, charge->device) != CUDA_SUCCESS))
        return true; /* the driver's own error */
    if (!set_pool(charge, pool))
        return false;
    if (!charge->pool)
        return true;
    rs_limit_resolve(charge->device); /* the pool's device may not be the stream's */
    if (make_room(charge))
        return true;
    rs_mutex_lock(&rs_charge_lock);
    rs_charged_drop(charge->record);
    rs_pool_let_go(charge->pool);
    rs_mutex_unlock(&rs_charge_lock);
    return false;
}

bool rs_charge_async_begin(struct rs_pool_charge *charge, const struct rs_charge_owner *owner,
                           CUmemoryPool pool, CUstream stream, size_t size_bytes)
{
    CUstreamCaptureMode mode;
    bool begun = true, in_graph; /* the stream captures: the memory is the graph's */

    *charge = (struct rs_pool_charge){.device = owner->device,
                                      .next = {.device = RS_NO_DEVICE},
                                      .bytes = size_bytes,
                                      .turn = charge->turn};
    if (!rs_limit_account(owner->device))
        return true;
    mode = rs_capture_relax();
    rs_limit_resolve(charge->device);
    rs_context_publish_stacks();
    in_graph = is_capturing(stream);
    if (rs_limit_follows())
        begun =
            in_graph ? rs_charge_graph_node(charge->device, charge->bytes) : begin(charge, pool);
    if (!in_graph)
        charge->next = (struct rs_charge_try){
            charge->device,
            {size_bytes, rs_account_releases(rs_limit_account(charge->device)), charge->charged,
             RS_MEMORY_DEVICE}};
    rs_capture_restore(mode);
    return begun;
}

static size_t common_divisor(size_t first, size_t second)
{
    while (second) {
        size_t rest = first % second;
        first = second;
        second = rest;
    }
    return first;
}

/* A driver's pool grows by whole units of its own (32 MiB on an H200), so the next request is
 * charged for whole units.  A growth that is seen may be several units: of one large request, or of
 * several threads. */
static void learn_unit(int device, size_t grown_bytes)
{
    size_t seen = growth[device].unit;
    size_t unit = seen || grown_bytes <= UNIT_MOST ? common_divisor(grown_bytes, seen) : seen;

    if (unit % BLOCK_BYTES == 0)
        growth[device].unit = unit;
}

/* True when the pool grew past the limit, and by more than calls under way were charged for. */
static bool is_excess(const struct rs_pool_charge *charge, size_t grown_bytes)
{
    const struct rs_account *account = rs_limit_account(charge->device);
    size_t flying = growth[charge->device].flying, limit;

    learn_unit(charge->device, grown_bytes);
    if (grown_bytes <= flying)
        return false;
    limit = rs_account_limit(account);
    return limit && atomic_load(&account->charged_bytes) > limit + flying - charge->charged;
}

static void enter_record(const struct rs_pool_charge *charge, CUdeviceptr address)
{
    struct rs_charged *record = charge->record;

    record->path = RS_PATH_STREAM_ORDERED;
    record->device = charge->device;
    record->pool = charge->pool;
    record->size_bytes = charge->bytes;
    record->share.charged_bytes = rs_footprint_most(charge->bytes);
    charge->pool->live_bytes += record->share.charged_bytes;
    charge->pool->asked_bytes += record->size_bytes;
    charge->pool->count++;
    rs_limit_note_stream_ordered(record->device, record->size_bytes, false);
    rs_charged_enter(record, address);
}

/* The calls' last claim on the pool's free memory is gone: the pool is charged for less again. */
static void follow_less(struct rs_pool_record *pool)
{
    struct rs_pool_reading reading;

    rs_mutex_unlock(&rs_charge_lock);
    reading = rs_pool_begin_follow(pool);
    rs_mutex_lock(&rs_charge_lock);
    rs_pool_follow(pool, reading, 0);
}

bool rs_charge_async_end(struct rs_pool_charge *charge, CUresult result, CUdeviceptr address)
{
    struct rs_pool_record *pool = charge->pool;
    struct rs_pool_reading reading;
    size_t before;
    bool excess;

    if (!pool)
        return false;
    reading = rs_pool_begin_follow(pool);
    rs_mutex_lock(&rs_charge_lock);
    before = pool->held_bytes;
    rs_pool_follow(pool, reading, charge->charged); /* the claim stands: not charged for less */
    excess = result == CUDA_SUCCESS && pool->held_bytes > before &&
             is_excess(charge, pool->held_bytes - before);
    growth[charge->device].flying -= charge->charged;
    if (result == CUDA_SUCCESS && !excess && address) /* without one no free could name it */
        enter_record(charge, address);
    else
        rs_charged_drop(charge->record);
    pool->claimed_bytes -= charge->claimed;
    if (pool->is_overcharged && !pool->claimed_bytes)
        follow_less(pool);
    rs_account_end_return(rs_limit_account(charge->device), charge->claimed);
    rs_pool_let_go(pool);
    rs_mutex_unlock(&rs_charge_lock);
    return excess;
}

/* In relaxed capture mode: another thread may have begun a global capture since the allocation.
 * Then the driver would refuse this free, the block would be lost, and the refusal would spoil the
 * capture (facts_h200.txt: free_async 900 end 901). */
bool rs_charge_async_undo(struct rs_pool_charge *charge, CUdeviceptr address, CUstream stream)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    if (rs_driver.cuMemFreeAsync)
        (void)rs_driver.cuMemFreeAsync(address, stream);
    rs_capture_restore(mode);
    return ++charge->turn < TURNS_MOST;
}

/* ---- graphs ---- */

bool rs_charge_graph_node(int device, size_t size_bytes)
{
    struct rs_account *account = rs_limit_account(device);
    struct rs_pool_reading reading;
    struct rs_pool_record *pool;
    struct rs_refusal refusal = {.size_bytes = size_bytes};
    bool has_room;

    if (!account || !rs_limit_follows())
        return true;
    rs_limit_resolve(device);
    rs_mutex_lock(&rs_charge_lock);
    pool = rs_pool_find_or_add(NULL, device); /* read from now on */
    rs_mutex_unlock(&rs_charge_lock);
    if (!pool)
        return false;
    reading = rs_pool_begin_follow(pool);
    rs_mutex_lock(&rs_charge_lock);
    rs_pool_follow(pool, reading, 0);
    rs_mutex_unlock(&rs_charge_lock);
    rs_request_begin();
    do {
        refusal.releases = rs_account_releases(account);
        has_room = rs_account_has_room(account, size_bytes);
    } while (!has_room && rs_wiring.reclaim(device, &refusal, true));
    rs_request_end();
    return has_room;
}
