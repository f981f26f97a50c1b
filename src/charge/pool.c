/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered pools: the driver knows what each holds, so an allocation charges what the pool
 * may grow by, and afterwards the pool is charged for what the driver says it holds.  Only while a
 * limit or statistics is set: the reading costs as much as a small part of the allocation. */
#include "base/arithmetic.h"
#include "base/lock.h"
#include "base/request.h"
#include "charge/record.h"
#include "config/config.h"
#include "config/life.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "ledger/footprint.h"
#include "shim/wiring.h"

#include <stdatomic.h>
#include <stdlib.h>

/* A driver's pool, or (graphs) what all graphs of a device hold. */
struct rs_pool_record {
    struct rs_pool_record *next; /* older */
    uint64_t number;             /* the later, the higher */
    CUmemoryPool handle;         /* NULL: of graphs */
    int device;
    bool host;                 /* of host memory: not counted */
    bool destroyed;            /* it lives until its last allocation is freed */
    bool going;                /* cuMemPoolDestroy is under way */
    size_t live_bytes;         /* of allocations, rounded */
    size_t asked_bytes, count; /* of these, as asked for, and how many */
    size_t vain_bytes;         /* leaving, and waited for in vain */
    _Atomic size_t held_bytes; /* charged; written under the lock, read without too */
    uint64_t tickets, applied; /* see follow */
    uint64_t settled;          /* goes up with each reading */
    size_t claimed_bytes;      /* of what it keeps, by calls under way */
    bool is_overcharged;       /* it held less than that when it was read last */
    unsigned calls;            /* of ours under way, which name it */
};

static struct rs_mutex lock = RS_MUTEX_INIT; /* protects what follows */
static struct rs_pool_record *pools;
static uint64_t pools_made;
static pthread_cond_t calls_done = PTHREAD_COND_INITIALIZER;

_Atomic uint64_t rs_charge_unseen;

static struct {
    _Atomic size_t unit;   /* what a driver's pool grows by whole ones of, as seen; 0: not yet */
    _Atomic size_t flying; /* charged by calls under way for what pools may grow by */
} growth[RS_DEVICES_MAX];

enum {
    BLOCK_BYTES = 2 << 20,
    UNIT_MOST = 64 << 20, /* a growth beyond that was for a large request */
    ROUNDING_BYTES = 512, /* of an allocation in a pool */
    TURNS_MOST = 4,
};

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

static struct rs_pool_record *find_or_add(CUmemoryPool handle, int device)
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

/* The device's account changes from charged_bytes (for the pool's old size and a growth that may
 * have been) to the pool's new size. */
static void set_held(struct rs_pool_record *pool, size_t held_bytes, size_t charged_bytes)
{
    rs_account_follow(rs_limit_account(pool->device), pool->held_bytes, held_bytes,
                      pool->held_bytes + charged_bytes);
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

/* A destroyed pool answers no questions: it holds what is live in it, and what its frees under way
 * hold goes back by itself. */
static void follow_destroyed(struct rs_pool_record *pool)
{
    set_held(pool, rs_min(pool->held_bytes, pool->live_bytes), 0);
    if (pool->live_bytes == 0 && pool->calls == 0)
        remove_record(pool);
}

/* ---- asking the driver; not under the lock ---- */

static bool read_bytes(const struct rs_pool_record *pool, bool used, size_t *bytes)
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

/* Charges the pool for what it holds now, in place of charged_bytes more.  Threads read at the same
 * time and may come here in another order: a later ticket's reading was begun later, so it has seen
 * all that an earlier ticket's owner did, and the earlier reading is dropped.  Returns what it
 * was charged for until now. */
static size_t follow(struct rs_pool_record *pool, size_t charged_bytes)
{
    size_t held, before;
    uint64_t ticket;
    bool told;

    rs_mutex_lock(&lock);
    ticket = ++pool->tickets;
    rs_mutex_unlock(&lock);
    told = read_bytes(pool, false, &held);
    rs_mutex_lock(&lock);
    before = pool->held_bytes;
    pool->settled++;
    if (told && ticket > pool->applied && !pool->destroyed) {
        pool->applied = ticket;
        /* While somebody counts on what the pool kept it is not charged for less: the driver may
         * serve this request from that, and grow for the other. */
        pool->is_overcharged = pool->claimed_bytes && held < before + charged_bytes;
        set_held(pool, pool->is_overcharged ? before + charged_bytes : held, charged_bytes);
    } else if (charged_bytes && pool->claimed_bytes && !pool->destroyed) {
        set_held(pool, before + charged_bytes, charged_bytes);
    } else if (charged_bytes) {
        rs_account_recharge(rs_limit_account(pool->device), charged_bytes, 0);
    }
    rs_mutex_unlock(&lock);
    return before;
}

/* The newest pool of a device that is older than that number.  Its record is kept until it is let
 * go, for calls without the lock. */
static struct rs_pool_record *newest_before(int device, uint64_t number)
{
    struct rs_pool_record *pool;

    rs_mutex_lock(&lock);
    for (pool = pools; pool; pool = pool->next)
        if (pool->number < number && pool->device == device && !pool->host && !pool->destroyed &&
            !pool->going)
            break;
    if (pool)
        pool->calls++;
    rs_mutex_unlock(&lock);
    return pool;
}

static void let_go(struct rs_pool_record *pool)
{
    rs_mutex_lock(&lock);
    if (--pool->calls == 0)
        pthread_cond_broadcast(&calls_done);
    if (pool->destroyed)
        follow_destroyed(pool);
    rs_mutex_unlock(&lock);
}

typedef size_t visit_function(struct rs_pool_record *pool, const void *data);

/* Of every pool of the device, however many; what is made meanwhile may be left out.  The sum. */
static size_t visit_pools(int device, visit_function *visit, const void *data)
{
    uint64_t number = UINT64_MAX;
    struct rs_pool_record *pool;
    size_t bytes = 0;

    while ((pool = newest_before(device, number))) {
        number = pool->number;
        bytes += visit(pool, data);
        let_go(pool);
    }
    return bytes;
}

static size_t follow_one(struct rs_pool_record *pool, const void *data)
{
    (void)data;
    (void)follow(pool, 0);
    return 0;
}

void rs_charge_follow_pools(int device)
{
    (void)visit_pools(device, follow_one, NULL);
}

static size_t trim(struct rs_pool_record *pool, size_t keep_bytes)
{
    CUstreamCaptureMode mode;
    size_t before = 0, after = 0;

    (void)read_bytes(pool, false, &before);
    mode = rs_capture_relax();
    if (pool->handle && rs_driver.cuMemPoolTrimTo)
        (void)rs_driver.cuMemPoolTrimTo(pool->handle, keep_bytes);
    else if (!pool->handle && rs_driver.cuDeviceGraphMemTrim)
        (void)rs_driver.cuDeviceGraphMemTrim(pool->device);
    rs_capture_restore(mode);
    (void)read_bytes(pool, false, &after);
    return before - rs_min(after, before);
}

/* The pools that the program would use without naming one, known to us or not. */
static void add_usual_pools(int device)
{
    CUmemoryPool usual[2] = {NULL, NULL};

    if (!rs_driver.cuDeviceGetDefaultMemPool || !rs_driver.cuDeviceGetMemPool ||
        rs_driver.cuDeviceGetDefaultMemPool(&usual[0], device) != CUDA_SUCCESS ||
        rs_driver.cuDeviceGetMemPool(&usual[1], device) != CUDA_SUCCESS)
        return;
    rs_mutex_lock(&lock);
    for (int i = 0; i < 2; i++)
        if (usual[i])
            (void)find_or_add(usual[i], device);
    rs_mutex_unlock(&lock);
}

size_t rs_charge_spare_bytes(int device)
{
    size_t bytes = 0;

    rs_mutex_lock(&lock);
    for (const struct rs_pool_record *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            bytes += pool->held_bytes - rs_min(pool->asked_bytes, pool->held_bytes);
    rs_mutex_unlock(&lock);
    return bytes;
}

/* The driver counts an allocation as used until its free has come in the stream's order. */
static size_t leaving_bytes(const struct rs_pool_record *pool)
{
    size_t used, asked;

    if (!pool->handle || !read_bytes(pool, true, &used))
        return 0;
    rs_mutex_lock(&lock);
    asked = pool->asked_bytes + pool->count * ROUNDING_BYTES;
    rs_mutex_unlock(&lock);
    return used - rs_min(asked, used);
}

/* Memory that was taken before we counted, or by another process, never leaves. */
static size_t leaving_of_one(struct rs_pool_record *pool, const void *in_vain)
{
    size_t leaving = leaving_bytes(pool);

    rs_mutex_lock(&lock);
    pool->vain_bytes = *(const bool *)in_vain ? leaving : rs_min(pool->vain_bytes, leaving);
    leaving -= pool->vain_bytes;
    rs_mutex_unlock(&lock);
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

static size_t trim_one(struct rs_pool_record *pool, const void *keep_bytes)
{
    size_t returned_bytes = trim(pool, *(const size_t *)keep_bytes);

    if (rs_limit_follows())
        (void)follow(pool, 0);
    return returned_bytes;
}

size_t rs_charge_trim_pools(int device, size_t keep_bytes)
{
    add_usual_pools(device);
    return visit_pools(device, trim_one, &keep_bytes);
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

/* What a pool keeps it may give back at a later synchronisation, when the free has come in the
 * order of its stream. */
void rs_charge_synchronised_slowly(void)
{
    uint64_t devices = atomic_exchange_explicit(&rs_charge_unseen, 0, memory_order_acquire);

    for (; devices && rs_life_serving(); devices &= devices - 1) {
        int device = __builtin_ctzll(devices);
        rs_charge_follow_pools(device);
        if (rs_charge_spare_bytes(device) > 0)
            note_freed(device);
    }
}

/* ---- allocations ---- */

static CUstream default_stream(CUstream stream, bool per_thread_default)
{
    return stream || !per_thread_default ? stream : CU_STREAM_PER_THREAD;
}

static bool is_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return rs_driver.cuStreamIsCapturing &&
           rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The device whose memory an allocation on the stream takes; -1 when that cannot be told. */
static int device_of(CUstream stream)
{
    CUcontext context = NULL;
    CUdevice device = -1;
    CUresult result;
    bool entered = false;

    if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
        rs_driver.cuStreamGetCtx && rs_driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS &&
        context)
        entered = rs_context_enter(context, &result);
    if (rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = -1;
    rs_context_leave(entered);
    return device;
}

/* What the pool may grow by for this request. */
static size_t most_growth(const struct rs_pool_charge *charge)
{
    size_t unit = rs_max(atomic_load(&growth[charge->device].unit), BLOCK_BYTES), whole;

    return __builtin_add_overflow(charge->bytes, unit - 1, &whole) ? charge->bytes
                                                                   : whole / unit * unit;
}

/* True when the pool keeps that much that nobody uses, and no other call under way was told so.  An
 * allocation that was settled while the driver was asked may have used what it said was free. */
static bool claim_once(struct rs_pool_charge *charge, bool *raced)
{
    struct rs_pool_record *pool = charge->pool;
    size_t held, used, bytes = rs_footprint_most(charge->bytes);
    uint64_t settled;
    bool claimed;

    rs_mutex_lock(&lock);
    settled = pool->settled;
    held = pool->held_bytes;
    rs_mutex_unlock(&lock);
    *raced = false;
    if (!read_bytes(pool, true, &used) || !rs_round_up(used, BLOCK_BYTES, &used))
        return false;
    rs_mutex_lock(&lock);
    *raced = pool->settled != settled;
    claimed = !*raced && held >= used && held - used >= pool->claimed_bytes &&
              held - used - pool->claimed_bytes >= bytes;
    if (claimed) { /* until it is over the pool is charged for no less, whatever goes back */
        pool->claimed_bytes += bytes;
        charge->claimed = bytes;
        rs_account_begin_return(rs_limit_account(charge->device), bytes);
    }
    rs_mutex_unlock(&lock);
    return claimed;
}

static void end_claim(struct rs_pool_charge *charge)
{
    struct rs_pool_record *pool = charge->pool;
    bool may_be_less;

    rs_mutex_lock(&lock);
    pool->claimed_bytes -= charge->claimed;
    may_be_less = pool->is_overcharged && !pool->claimed_bytes;
    rs_mutex_unlock(&lock);
    if (may_be_less)
        (void)follow(pool, 0);
    rs_account_end_return(rs_limit_account(charge->device), charge->claimed);
}

enum { CLAIMS_MAX = 8 };

static bool claim(struct rs_pool_charge *charge)
{
    bool raced = charge->turn == 0, claimed = false; /* it was in pieces the last time */

    for (int i = 0; i < CLAIMS_MAX && raced && !claimed; i++)
        claimed = claim_once(charge, &raced);
    return claimed;
}

static bool take(struct rs_pool_charge *charge)
{
    size_t bytes = most_growth(charge);

    if (!rs_account_take_as(rs_limit_account(charge->device), 0, bytes, RS_MEMORY_DEVICE))
        return false;
    charge->charged = bytes;
    atomic_fetch_add(&growth[charge->device].flying, bytes);
    return true;
}

/* What others freed meanwhile is seen first; what the pool keeps serves next; then all give back
 * what they keep. */
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

static bool set_pool(struct rs_pool_charge *charge, CUmemoryPool handle)
{
    bool counted = true;

    rs_mutex_lock(&lock);
    charge->pool = find_or_add(handle, charge->device);
    if (charge->pool && charge->pool->host) {
        charge->pool = NULL;
        counted = false;
    } else if (charge->pool) {
        charge->device = charge->pool->device;
        charge->pool->calls++;
    }
    rs_mutex_unlock(&lock);
    return charge->pool || !counted;
}

/* Charges for the allocation; false when there is no room. */
static bool begin(struct rs_pool_charge *charge, CUmemoryPool pool)
{
    if (!pool && (!rs_driver.cuDeviceGetMemPool ||
                  rs_driver.cuDeviceGetMemPool(&pool, charge->device) != CUDA_SUCCESS))
        return true; /* the driver's own error */
    if (!set_pool(charge, pool))
        return false;
    if (!charge->pool)
        return true;
    rs_limit_resolve(charge->device); /* the pool may be of another device than the stream */
    charge->record = rs_charged_reserve(RS_KEYS_ADDRESSES);
    if (charge->record && make_room(charge))
        return true;
    if (charge->record)
        rs_charged_drop(charge->record);
    let_go(charge->pool);
    return false;
}

static bool begin_async(struct rs_pool_charge *charge, CUmemoryPool pool, CUstream stream,
                        bool per_thread_default, size_t size_bytes)
{
    enum rs_mode life = rs_life();
    CUstreamCaptureMode mode;
    bool begun = true;

    *charge = (struct rs_pool_charge){.device = -1, .bytes = size_bytes, .turn = charge->turn};
    if (size_bytes == 0 || life != RS_MODE_SERVE || !rs_driver_ready(true))
        return life != RS_MODE_DENY || size_bytes == 0;
    stream = default_stream(stream, per_thread_default);
    mode = rs_capture_relax();
    charge->device = device_of(stream);
    if (rs_limit_account(charge->device)) {
        rs_limit_resolve(charge->device);
        charge->in_graph = is_capturing(stream);
        if (rs_limit_follows())
            begun = charge->in_graph ? rs_charge_graph_node(charge->device, charge->bytes)
                                     : begin(charge, pool);
    } else {
        charge->device = -1;
    }
    charge->releases = rs_account_releases(rs_limit_account(charge->device));
    rs_capture_restore(mode);
    return begun;
}

bool rs_charge_async_begin(struct rs_pool_charge *charge, CUmemoryPool pool, CUstream stream,
                           bool per_thread_default, size_t size_bytes)
{
    bool begun;

    rs_request_begin();
    begun = begin_async(charge, pool, stream, per_thread_default, size_bytes);
    if (!begun)
        rs_request_end();
    return begun;
}

bool rs_charge_async_again(struct rs_pool_charge *charge, CUresult result)
{
    struct rs_refusal refusal = {charge->bytes, charge->releases, charge->charged,
                                 RS_MEMORY_DEVICE};

    if (result != CUDA_ERROR_OUT_OF_MEMORY || charge->device < 0 || charge->in_graph)
        return false;
    charge->releases = rs_account_releases(rs_limit_account(charge->device));
    return rs_wiring.reclaim(charge->device, &refusal, true);
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
 * charged for such.  What is seen may be several, of one large request or of several threads'. */
static void learn_unit(int device, size_t grown_bytes)
{
    size_t seen = atomic_load(&growth[device].unit), unit;

    do {
        unit = seen || grown_bytes <= UNIT_MOST ? common_divisor(grown_bytes, seen) : seen;
        if (unit == seen || unit % BLOCK_BYTES)
            return;
    } while (!atomic_compare_exchange_weak(&growth[device].unit, &seen, unit));
}

/* True when the pool grew by more than calls under way were charged for, and past the limit. */
static bool is_excess(const struct rs_pool_charge *charge, size_t grown_bytes, size_t flying_bytes)
{
    const struct rs_account *account = rs_limit_account(charge->device);
    size_t limit = atomic_load(&account->limit_bytes);

    learn_unit(charge->device, grown_bytes);
    if (grown_bytes <= flying_bytes)
        return false;
    return limit && atomic_load(&account->charged_bytes) > limit + flying_bytes - charge->charged;
}

static void enter_record(const struct rs_pool_charge *charge, CUdeviceptr address)
{
    struct rs_charged *record = charge->record;

    record->path = RS_PATH_STREAM_ORDERED;
    record->device = charge->device;
    record->pool = charge->pool;
    record->size_bytes = charge->bytes;
    record->charged_bytes = rs_footprint_most(charge->bytes);
    rs_mutex_lock(&lock);
    charge->pool->live_bytes += record->charged_bytes;
    charge->pool->asked_bytes += record->size_bytes;
    charge->pool->count++;
    rs_mutex_unlock(&lock);
    rs_limit_note_stream_ordered(record->device, record->size_bytes, false);
    rs_charged_enter(record, address);
}

bool rs_charge_async_end(struct rs_pool_charge *charge, CUresult result, CUdeviceptr address)
{
    struct rs_pool_record *pool = charge->pool;
    size_t before, after, flying;
    bool excess;

    rs_request_end();
    if (!pool)
        return false;
    flying = atomic_load(&growth[charge->device].flying);
    before = follow(pool, charge->charged); /* the claim is still there: not charged for less */
    after = pool->held_bytes;
    excess = result == CUDA_SUCCESS && after > before && is_excess(charge, after - before, flying);
    atomic_fetch_sub(&growth[charge->device].flying, charge->charged);
    rs_account_taken(rs_limit_account(charge->device), charge->charged, RS_MEMORY_DEVICE);
    if (result == CUDA_SUCCESS && !excess)
        enter_record(charge, address);
    else
        rs_charged_drop(charge->record);
    end_claim(charge);
    let_go(pool);
    return excess;
}

/* Relaxed: the driver took the allocation, but would refuse this free, and the block would be lost,
 * if another thread began a global capture since, which the refusal spoils (facts_h200.txt:
 * free_async 900 end 901). */
bool rs_charge_async_undo(struct rs_pool_charge *charge, CUdeviceptr address, CUstream stream,
                          bool per_thread_default)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    if (rs_driver.cuMemFreeAsync)
        (void)rs_driver.cuMemFreeAsync(address, default_stream(stream, per_thread_default));
    rs_capture_restore(mode);
    return ++charge->turn < TURNS_MOST;
}

void rs_charge_pool_freed(struct rs_pool_record *pool, size_t size_bytes, size_t charged_bytes)
{
    rs_limit_note_stream_ordered(pool->device, size_bytes, true);
    rs_mutex_lock(&lock);
    pool->live_bytes -= charged_bytes;
    pool->asked_bytes -= size_bytes;
    pool->count--;
    if (pool->destroyed)
        follow_destroyed(pool);
    else
        note_freed(pool->device);
    rs_mutex_unlock(&lock);
}

/* ---- pools that come and go ---- */

/* The type says whether it is managed, which counts wherever it prefers to be; of other memory the
 * location.  Its id says something for a device alone (facts_h200.txt: pools.host_7). */
void rs_charge_pool_made(CUmemoryPool handle, CUmemAllocationType type,
                         const CUmemLocation *location)
{
    bool names_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct rs_pool_record *pool;
    CUdevice device = 0;

    if (names_device)
        device = location->id;
    else if (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = 0;
    if (rs_life() != RS_MODE_SERVE || !rs_limit_account(device))
        return;
    rs_mutex_lock(&lock);
    pool = find_or_add(handle, device);
    if (pool)
        pool->host = !names_device && type != CU_MEM_ALLOCATION_TYPE_MANAGED;
    rs_mutex_unlock(&lock);
}

struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle)
{
    struct rs_pool_record *pool;

    if (!handle || !rs_life_serving())
        return NULL;
    rs_mutex_lock(&lock);
    pool = find(handle, 0);
    if (pool)
        pool->going = true; /* no call of ours names it from now on */
    while (pool && pool->calls)
        rs_condition_wait(&calls_done, &lock);
    rs_mutex_unlock(&lock);
    return pool;
}

void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result)
{
    if (!pool)
        return;
    rs_mutex_lock(&lock);
    pool->going = false;
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        follow_destroyed(pool);
    }
    rs_mutex_unlock(&lock);
}

/* ---- graphs ---- */

bool rs_charge_graph_node(int device, size_t size_bytes)
{
    struct rs_pool_record *pool;
    struct rs_account *account = rs_limit_account(device);
    struct rs_refusal refusal = {.size_bytes = size_bytes};
    bool has_room;

    if (!account || rs_life() != RS_MODE_SERVE || !rs_limit_follows())
        return true;
    rs_limit_resolve(device);
    rs_mutex_lock(&lock);
    pool = find_or_add(NULL, device); /* followed from now on */
    rs_mutex_unlock(&lock);
    if (!pool)
        return false;
    (void)follow(pool, 0);
    rs_request_begin();
    do {
        refusal.releases = rs_account_releases(account);
        has_room = rs_account_has_room(account, size_bytes);
    } while (!has_room && rs_wiring.reclaim(device, &refusal, true));
    rs_request_end();
    return has_room;
}
