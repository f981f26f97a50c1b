/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/limit.h"

#include "base/arithmetic.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/published.h"
#include "base/request.h"
#include "driver/driver.h"
#include "shim/charge.h"
#include "shim/context.h"
#include "shim/life.h"

#include <stdatomic.h>

enum {
    SLICE_NS = 5 * 1000 * 1000, /* of a wait, for one stack */
    SAY_NS = 1000 * 1000 * 1000,
    LEAVING_NS = 50 * 1000 * 1000, /* for frees in the order of streams */
    NAP_NS = 50 * 1000,
};

struct device_limit {
    struct rs_account account;
    _Atomic size_t path_bytes[RS_PATHS];
    _Atomic uint64_t ordered_allocations; /* stream-ordered ones of the driver's, and what is */
    _Atomic size_t ordered_live_bytes, ordered_live_blocks; /* live of them, as asked for */
    _Atomic bool resolved; /* the setting has been read, or rs_limit_set came first */
};

static struct device_limit unpublished[RS_DEVICES_MAX], *devices = unpublished;

static _Atomic bool any_limit;

void rs_limit_begin(void)
{
    struct device_limit *published = NULL;

    if (rs_published_head())
        published = rs_published_allocate(sizeof(unpublished), _Alignof(struct device_limit));
    devices = published ? published : unpublished;
}

static bool is_known(int device)
{
    return device >= 0 && device < RS_DEVICES_MAX;
}

struct rs_account *rs_limit_account(int device)
{
    return is_known(device) ? &devices[device].account : NULL;
}

static void set(int device, size_t bytes)
{
    atomic_store(&devices[device].account.limit_bytes, bytes);
    if (bytes)
        atomic_store(&any_limit, true);
}

/* What is free, told by the current context; false where there is none of this device. */
static bool ask_free(CUdevice device, size_t *free_bytes)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUdevice current;
    size_t total;
    bool told = rs_driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device &&
                rs_driver.cuMemGetInfo_v2(free_bytes, &total) == CUDA_SUCCESS;

    rs_capture_restore(mode);
    return told;
}

void rs_limit_resolve(CUdevice device)
{
    const struct rs_size *size;
    size_t total = 0, free_bytes = 0, bytes;
    bool expected = false;

    if (!is_known(device) || atomic_load(&devices[device].resolved))
        return;
    size = rs_config_limit(&rs_config, device);
    if (size && size->kind != RS_SIZE_BYTES &&
        (!rs_driver.cuDeviceTotalMem_v2 ||
         rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS))
        return; /* no such device, or the driver is not ready: a later call tells */
    if (size && size->kind == RS_SIZE_OF_FREE && !ask_free(device, &free_bytes)) {
        set(device, rs_max(rs_size_resolve(*size, total, total), 1)); /* until it can be asked */
        return;
    }
    bytes = size ? rs_max(rs_size_resolve(*size, total, free_bytes), 1) : 0;
    if (atomic_compare_exchange_strong(&devices[device].resolved, &expected, true) && bytes)
        set(device, bytes);
}

size_t rs_limit_get(int device)
{
    if (!is_known(device) || !rs_life_serving())
        return 0;
    rs_limit_resolve(device);
    return atomic_load(&devices[device].account.limit_bytes);
}

bool rs_limit_is_known(int device)
{
    return rs_limit_get(device) > 0 || (is_known(device) && atomic_load(&devices[device].resolved));
}

bool rs_limit_set(int device, size_t bytes)
{
    if (!is_known(device) || rs_life() != RS_MODE_SERVE)
        return false;
    atomic_store(&devices[device].resolved, true);
    set(device, bytes);
    if (bytes && rs_driver_ready(false))
        rs_charge_begin_to_follow(device); /* nobody has asked what the driver's pools hold */
    return true;
}

bool rs_limit_follows(void)
{
    return rs_config.statistics != RS_STATISTICS_NONE || rs_config.any_limit ||
           atomic_load_explicit(&any_limit, memory_order_relaxed);
}

void rs_limit_follow(int device)
{
    if (rs_limit_follows() && rs_driver_ready(false))
        rs_charge_follow_pools(device);
}

/* ---- giving back ---- */

size_t rs_shim_trim(int device, size_t keep_bytes)
{
    if (!is_known(device) || rs_life() != RS_MODE_SERVE || !rs_driver_ready(false))
        return 0;
    return rs_context_trim(device, &keep_bytes);
}

/* True when the refusal may be for what another thread had in hand: it has given something back
 * since, or is about to, or has asked for what the driver may refuse. */
static bool is_stale(const struct rs_account *account, const struct rs_refusal *refusal,
                     uint64_t moves)
{
    return rs_account_releases(account) != refusal->releases || rs_context_moves() != moves ||
           atomic_load(&account->returning_bytes) > 0 ||
           atomic_load(&account->asked_bytes) > refusal->asked_bytes;
}

/* False when a request is larger than all that is not live.  What calls under way have asked for is
 * not live yet (this request may be among them), and what threads have in hand is no longer. */
static bool can_be_served(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = &devices[device].account;
    size_t limit = atomic_load(&account->limit_bytes), total = limit;
    size_t others = rs_context_idle_bytes(device) + atomic_load(&account->asked_bytes) +
                    atomic_load(&account->returning_bytes) + rs_charge_spare_bytes(device);
    size_t held = limit ? atomic_load(&account->charged_bytes)
                        : atomic_load(&account->held_bytes[RS_MEMORY_DEVICE]);

    if (!limit && refusal->memory != RS_MEMORY_DEVICE)
        return true; /* the device's memory is not all that it may lie in */
    if (!limit && (!rs_driver.cuDeviceTotalMem_v2 ||
                   rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS))
        return true;
    return refusal->size_bytes <= total - rs_min(total, held - rs_min(others, held));
}

/* False when the request is larger than what the device has free with all that may go back to it.
 * Asked after what threads have in hand, so that nothing is missed on its way. */
static bool has_room(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = &devices[device].account;
    size_t total = 0, host_total = 0, room;

    if (refusal->memory != RS_MEMORY_DEVICE) {
        rs_host_memory(&host_total, &room);
        return !rs_driver.cuDeviceTotalMem_v2 ||
               rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS ||
               refusal->size_bytes <= total + host_total;
    }
    total = atomic_load(&account->returning_bytes) +
            rs_context_idle_bytes_of(device, 1u << RS_MEMORY_DEVICE) +
            rs_charge_spare_bytes(device);
    return !ask_free(device, &room) || refusal->size_bytes <= total + room;
}

/* Whose initial sizes may make room for the request. */
static unsigned initial_for(int device, const struct rs_refusal *refusal)
{
    bool is_device = refusal->memory == RS_MEMORY_DEVICE;

    return 1u << RS_MEMORY_DEVICE |
           (is_device && !rs_account_has_limit(&devices[device].account) ? 0
                                                                         : 1u << RS_MEMORY_MANAGED);
}

/* All that nobody uses goes back, but for the initial sizes of other memories than those.  True
 * when something did.  A pool of the driver's may also have given memory back by itself, which is
 * only seen now. */
static bool give_back(int device, unsigned initial_of)
{
    const struct rs_account *account = &devices[device].account;
    size_t charged = atomic_load(&account->charged_bytes);
    bool returned = rs_context_trim_all(device, initial_of) > 0;

    return rs_charge_trim_pools(device, 0) > 0 || returned ||
           atomic_load(&account->charged_bytes) < charged;
}

/* Waits for the oldest epochs of the device's stacks.  True when something became ready. */
static bool wait_for_quarantine(int device)
{
    static bool said;
    uint64_t begin_ns = rs_clock_ns(), patience_ns = rs_request_patience_ns();
    enum rs_readiness readiness;

    do {
        readiness = rs_context_make_ready(device, rs_min(SLICE_NS, patience_ns));
        patience_ns = rs_request_patience_ns();
        if (rs_clock_ns() - begin_ns > SAY_NS && rs_log_once(&said))
            rs_log("device %d is full: waiting for work that uses freed memory", device);
    } while (readiness == RS_READY_PENDING && patience_ns > 0);
    return readiness == RS_READY_SOME;
}

/* Waits a while for frees in the order of streams, of memory in pools of the driver's.  True when
 * some have come. */
static bool wait_for_leaving(int device)
{
    size_t before = rs_charge_leaving_bytes(device), leaving = before;
    uint64_t begin_ns = rs_clock_ns();

    while (leaving > 0 && leaving >= before && rs_clock_ns() - begin_ns < LEAVING_NS &&
           rs_request_patience_ns() > 0) {
        rs_nap(NAP_NS);
        leaving = rs_charge_leaving_bytes(device);
    }
    if (leaving > 0 && leaving >= before)
        rs_charge_leaving_in_vain(device);
    return leaving < before;
}

/* What is idle, quarantined and in hand is counted one place after the other while other threads
 * move it, so no sum is believed while they do.  Initial sizes were set aside for the program: they
 * go last, and only where that can be enough. */
static bool reclaim(int device, const struct rs_refusal *refusal, bool may_wait)
{
    const struct rs_account *account = &devices[device].account;
    uint64_t moves = rs_context_moves();
    bool served;

    rs_request_note_hopeless(false);
    if (give_back(device, 0) || (is_stale(account, refusal, moves) && rs_request_may_repeat()))
        return true;
    served = can_be_served(device, refusal);
    rs_request_note_hopeless(!served || !has_room(device, refusal));
    if (!served)
        return false;
    if (!rs_request_is_hopeless() && give_back(device, initial_for(device, refusal)))
        return true;
    return (may_wait && (wait_for_quarantine(device) || wait_for_leaving(device))) ||
           (refusal->size_bytes > 0 && rs_request_may_look_again()) ||
           (is_stale(account, refusal, moves) && rs_request_may_repeat()); /* by now */
}

bool rs_limit_reclaim(int device, const struct rs_refusal *refusal, bool may_wait)
{
    static __thread bool reclaiming; /* a free of ours may come back through a tool's callback */
    bool again;

    if (reclaiming || !is_known(device) || !rs_driver_ready(false))
        return false;
    reclaiming = true;
    rs_request_begin();
    again = reclaim(device, refusal, may_wait);
    rs_request_note_refused(!again);
    rs_request_end();
    reclaiming = false;
    return again;
}

/* ---- what the program is told ---- */

void rs_limit_observe(int device, size_t idle_bytes, size_t *free_bytes, size_t *total_bytes)
{
    size_t limit = rs_limit_get(device), charged, live;

    if (!limit)
        return;
    if (total_bytes)
        *total_bytes = rs_min(*total_bytes, limit);
    if (!free_bytes)
        return;
    rs_charge_follow_pools(device);
    charged = atomic_load(&devices[device].account.charged_bytes);
    live = charged - rs_min(idle_bytes, charged);
    *free_bytes = rs_min(*free_bytes, limit - rs_min(live, limit));
}

/* ---- the report ---- */

void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes)
{
    if (is_known(device))
        atomic_fetch_add_explicit(&devices[device].path_bytes[path], to_bytes - from_bytes,
                                  memory_order_relaxed);
}

void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed)
{
    if (!is_known(device))
        return;
    atomic_fetch_add_explicit(&devices[device].ordered_allocations, !freed, memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_bytes, freed ? -bytes : bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_blocks, freed ? -(size_t)1 : 1,
                              memory_order_relaxed);
}

void rs_limit_report(int device, struct rs_report *report, bool also_unused)
{
    static const char *const names[RS_PATHS] = {"driver", "managed",        "arrays",
                                                "vmm",    "stream_ordered", "graphs"};
    struct device_limit *of = is_known(device) ? &devices[device] : NULL;
    struct rs_account *account = of ? &of->account : NULL;
    struct rs_term served[] = {
        {RS_REPORT_PLACE(account->charged_bytes), 1, 0, 1},
        {RS_REPORT_PLACE(of->path_bytes[0]), RS_PATHS, sizeof(of->path_bytes[0]), -1},
    };

    if (!of || (!atomic_load(&account->limit_bytes) && !atomic_load(&account->peak_charged_bytes) &&
                !(also_unused && atomic_load(&of->resolved))))
        return;
#define ADD(name, kind, unit, field)                                                               \
    rs_report_add_field(report, "account", name, RS_COUNTER_##kind, RS_UNIT_##unit, field)
    ADD("limit", LIVE, BYTES, account->limit_bytes);
    ADD("charged", LIVE, BYTES, account->charged_bytes);
    ADD("charged_peak", PEAK, BYTES, account->peak_charged_bytes);
    ADD("refusals", TOTAL, COUNT, account->refusals);
    rs_report_add_sum(report, "account", "served", RS_COUNTER_LIVE, RS_UNIT_BYTES, served, 2);
    for (int path = 0; path < RS_PATHS; path++)
        ADD(names[path], LIVE, BYTES, of->path_bytes[path]);
    ADD("stream_ordered_live", LIVE, BYTES, of->ordered_live_bytes);
    ADD("stream_ordered_blocks", LIVE, COUNT, of->ordered_live_blocks);
    ADD("stream_ordered_allocations", TOTAL, COUNT, of->ordered_allocations);
#undef ADD
}
