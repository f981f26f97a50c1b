/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/reclaim.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/request.h"
#include "charge/charge.h"
#include "charge/job.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "shared/job_limit.h"

#include <stdatomic.h>

enum {
    DEVICE_MEMORIES = 1u << RS_MEMORY_DEVICE | 1u << RS_MEMORY_MANAGED,
    HOST_MEMORIES = 1u << RS_MEMORY_HOST,
};

enum {
    TRIM_NS = 1000 * 1000 * 1000,     /* longest wait of a trim that the program asks for */
    TRIM_SHORT_NS = 50 * 1000 * 1000, /* of one inside another call of the program */
    SLICE_NS = 5 * 1000 * 1000,       /* part of a wait that is spent on one stack */
    SAY_NS = 1000 * 1000 * 1000,
    LEAVING_NS = 50 * 1000 * 1000, /* longest wait for frees in the order of streams */
    NAP_NS = 50 * 1000,
    IDLE_NAP_NS = 1000 * 1000,        /* between two looks at whether a context is idle */
    SETTLE_NAP_NS = 10 * 1000 * 1000, /* between two looks at processes of the job that are gone */
};

size_t rs_trim(int device, size_t keep_bytes, bool *is_left)
{
    *is_left = false;
    if (!rs_limit_account(device) || !rs_driver_ready(false))
        return 0;
    return rs_context_trim(device, keep_bytes, rs_request_is_under_way() ? TRIM_SHORT_NS : TRIM_NS,
                           is_left);
}

/* True when another thread's memory may have caused the refusal: the thread has given memory back
 * since, is about to give it back, or has asked for memory that the driver may refuse. */
static bool is_stale(const struct rs_account *account, const struct rs_refusal *refusal,
                     uint64_t moves)
{
    unsigned memories = refusal->memory == RS_MEMORY_HOST ? HOST_MEMORIES : DEVICE_MEMORIES;

    return rs_account_releases(account) != refusal->releases ||
           rs_context_moves(memories) != moves || atomic_load(&account->returning_bytes) > 0 ||
           atomic_load(&account->asked_bytes) > refusal->asked_bytes;
}

/* False when the request is larger than all memory that is not live.  Memory that calls under way
 * have asked for is not live yet (this request may be one of them); memory that threads are giving
 * back is live no longer. */
static bool can_be_served(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t limit = rs_account_limit(account), total = limit;
    size_t others = rs_context_idle_bytes(device) + atomic_load(&account->asked_bytes) +
                    atomic_load(&account->returning_bytes) + rs_charge_spare_bytes(device);
    size_t held = limit ? atomic_load(&account->charged_bytes)
                        : atomic_load(&account->held_bytes[RS_MEMORY_DEVICE]);

    if (!limit && refusal->memory != RS_MEMORY_DEVICE)
        return true; /* the memory may also lie outside of the device */
    if (!limit && (!rs_driver.cuDeviceTotalMem_v2 ||
                   rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS))
        return true;
    return refusal->size_bytes <= total - rs_min(total, held - rs_min(others, held));
}

/* False when the request is larger than the device's free memory and all memory of this process
 * that may come back to it: then nobody need wait.  What other processes hold does not count.
 * Places are read in the order in which memory moves on its way back, the driver last, so that it
 * is counted in one of them at least. */
static bool has_room(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t total = 0, host_total = 0, room, asked;

    if (refusal->memory != RS_MEMORY_DEVICE) {
        rs_host_memory(&host_total, &room);
        return !rs_driver.cuDeviceTotalMem_v2 ||
               rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS ||
               refusal->size_bytes <= total + host_total;
    }
    asked = atomic_load(&account->asked_bytes);
    total = asked - rs_min(asked, refusal->asked_bytes) +
            rs_context_idle_bytes_of(device, 1u << RS_MEMORY_DEVICE) +
            rs_charge_spare_bytes(device) + rs_charge_leaving_bytes(device, false) +
            atomic_load(&account->returning_bytes);
    return !rs_limit_ask_free(device, &room) || refusal->size_bytes <= total + room;
}

/* True when host memory may be what lacks: of managed memory, and of what the driver takes for
 * itself (no size).  False for a request that a limit is in the way of. */
static bool may_be_of_host(int device, const struct rs_refusal *refusal)
{
    return (refusal->memory == RS_MEMORY_MANAGED || refusal->size_bytes == 0) &&
           (refusal->asked_bytes > 0 ||
            rs_account_has_room(rs_limit_account(device), refusal->size_bytes));
}

/* The kinds of memory whose initial sizes may make room for the request, a bit each. */
static unsigned initial_for(int device, const struct rs_refusal *refusal)
{
    bool is_device = refusal->memory == RS_MEMORY_DEVICE;

    return 1u << RS_MEMORY_DEVICE | HOST_MEMORIES |
           (is_device && !rs_account_has_limit(rs_limit_account(device)) ? 0
                                                                         : 1u << RS_MEMORY_MANAGED);
}

/* Has all unused memory given back; initial sizes only of the memories in initial_of.  True when
 * some was.  A pool of the driver may also have given memory back by itself, which is seen here.
 *
 * An allocation that is refused leaves what the driver could gather for it in its pool, up to the
 * release threshold (on an H100, of 23.8 GiB free, 23,776 MiB).  Such memory comes back at each try
 * and would have the request repeated for ever. */
static bool give_back(int device, unsigned initial_of)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t charged = atomic_load(&account->charged_bytes), held;
    bool returned = rs_context_trim_all(device, initial_of) > 0, of_pools;

    of_pools = rs_charge_trim_pools(device, 0, &held) > 0 ||
               atomic_load(&account->charged_bytes) < charged;
    return returned || (rs_request_note_pools(held) && of_pools);
}

/* give_back, and what lies in host memory where that may lack. */
static bool give_back_for(int device, const struct rs_refusal *refusal, unsigned initial_of)
{
    return give_back(device, initial_of & DEVICE_MEMORIES) ||
           (may_be_of_host(device, refusal) &&
            rs_context_trim_all(RS_VISIT_HOST, initial_of & HOST_MEMORIES) > 0);
}

static void say_full(int device)
{
    if (device == RS_VISIT_HOST)
        rs_log("host memory is full: waiting until the GPU is done with freed memory");
    else
        rs_log("device %d is full: waiting until the GPU is done with freed memory", device);
}

/* Waits for the oldest epochs of the device's stacks, or of those of host memory (RS_VISIT_HOST).
 * True when a block became ready. */
static bool wait_for_quarantine(int device)
{
    static bool said;
    uint64_t begin_ns = rs_clock_ns(), patience_ns = rs_request_patience_ns();
    enum rs_readiness readiness;

    do {
        readiness = rs_context_make_ready(device, rs_min(SLICE_NS, patience_ns));
        patience_ns = rs_request_patience_ns();
        if (rs_clock_ns() - begin_ns > SAY_NS && rs_log_once(&said))
            say_full(device);
    } while (readiness == RS_READY_PENDING && patience_ns > 0);
    return readiness == RS_READY_SOME;
}

/* Memory that only a waiting call of the driver gives back (pinned, managed) stays while its
 * context works: waits until some has gone back.  `device` may be RS_VISIT_HOST. */
static bool wait_for_idle(int device, unsigned initial_of)
{
    while (rs_request_forget_busy() && rs_request_patience_ns() > 0) {
        rs_nap(IDLE_NAP_NS);
        if (rs_context_trim_all(device, initial_of) > 0)
            return true;
    }
    return false;
}

/* Waits at most 50 ms for frees in the order of streams, of memory in pools of the driver.  True
 * when some were executed. */
static bool wait_for_leaving(int device)
{
    size_t before = rs_charge_leaving_bytes(device, false), leaving = before;
    uint64_t begin_ns = rs_clock_ns();

    while (leaving > 0 && leaving >= before && rs_clock_ns() - begin_ns < LEAVING_NS &&
           rs_request_patience_ns() > 0) {
        rs_nap(NAP_NS);
        leaving = rs_charge_leaving_bytes(device, false);
    }
    if (leaving > 0 && leaving >= before)
        (void)rs_charge_leaving_bytes(device, true);
    return leaving < before;
}

/* What processes of the job had that are gone is counted for a while yet.  True when some of it is
 * counted no longer. */
static bool wait_for_job(const struct rs_account *account, bool may_wait)
{
    struct rs_job_share *job = atomic_load(&account->job);
    size_t before = job ? rs_job_share_others(job) : 0, now = before;

    while (job && rs_job_share_reap(job) && now >= before && may_wait &&
           rs_request_patience_ns() > 0) {
        rs_nap(SETTLE_NAP_NS);
        now = rs_job_share_others(job);
    }
    return job && rs_job_share_others(job) < before;
}

/* Idle memory of other processes of the job is asked for only when the request cannot be served
 * from this one's own, or that did not come.
 *
 * Idle, quarantined and returning memory is counted in one place after the other, while other
 * threads move it: no sum counts while they do.  Initial sizes were set aside for the program: they
 * go last, and only when they can be enough. */
static bool reclaim(int device, const struct rs_refusal *refusal, bool may_wait)
{
    const struct rs_account *account = rs_limit_account(device);
    uint64_t moves = rs_context_moves(DEVICE_MEMORIES);
    bool served;

    rs_request_note_hopeless(false);
    if (give_back_for(device, refusal, 0))
        return rs_request_patience_ns() > 0 || rs_request_may_look_again();
    if (is_stale(account, refusal, moves) && rs_request_may_repeat())
        return true;
    if (wait_for_job(account, may_wait))
        return true;
    served = can_be_served(device, refusal);
    if (!served && may_wait && rs_job_ask(device, refusal))
        return true;
    rs_request_note_hopeless(!served || !has_room(device, refusal));
    if (!served)
        return false;
    if (rs_request_is_hopeless())
        return (may_wait && rs_job_ask(device, refusal)) ||
               (is_stale(account, refusal, moves) && rs_request_may_repeat());
    if (give_back_for(device, refusal, initial_for(device, refusal)))
        return true;
    return (may_wait && (wait_for_quarantine(device) ||
                         (!rs_request_is_hopeless() &&
                          wait_for_idle(device, initial_for(device, refusal) & DEVICE_MEMORIES)) ||
                         wait_for_leaving(device) || rs_job_ask(device, refusal))) ||
           (refusal->size_bytes > 0 && rs_request_may_look_again()) ||
           (is_stale(account, refusal, moves) && rs_request_may_repeat()); /* since then */
}

/* False when the request is larger than the host's free memory and all that may come back to it. */
static bool host_can_serve(const struct rs_refusal *refusal)
{
    size_t idle_bytes = rs_context_idle_bytes_of(RS_VISIT_HOST, HOST_MEMORIES), total, free_bytes;

    rs_host_memory(&total, &free_bytes);
    return refusal->size_bytes <= rs_min(total, free_bytes + idle_bytes);
}

/* As reclaim, for host memory, which is of no device, and which no limit counts: the stacks of all
 * devices give it back.  Device memory goes back too, as the tables of mapped pages lie there, but
 * is not waited for. */
static bool reclaim_host(int device, const struct rs_refusal *refusal, bool may_wait)
{
    const struct rs_account *account = rs_limit_account(device);
    uint64_t moves = rs_context_moves(HOST_MEMORIES);
    bool served;

    rs_request_note_hopeless(false);
    if (rs_context_trim_all(RS_VISIT_HOST, 0) > 0 || give_back(device, 0) ||
        (is_stale(account, refusal, moves) && rs_request_may_repeat()))
        return true;
    served = host_can_serve(refusal);
    rs_request_note_hopeless(!served);
    if (!served)
        return false;
    return rs_context_trim_all(RS_VISIT_HOST, HOST_MEMORIES) > 0 ||
           give_back(device, 1u << RS_MEMORY_DEVICE) ||
           (may_wait &&
            (wait_for_quarantine(RS_VISIT_HOST) || wait_for_idle(RS_VISIT_HOST, HOST_MEMORIES))) ||
           (is_stale(account, refusal, moves) && rs_request_may_repeat()); /* since then */
}

bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait)
{
    static __thread bool
        reclaiming; /* a free of the library may come back through a tool's callback */
    bool again;

    if (reclaiming || !rs_limit_account(device) || !rs_driver_ready(false))
        return false;
    reclaiming = true;
    rs_request_begin();
    again = refusal->memory == RS_MEMORY_HOST ? reclaim_host(device, refusal, may_wait)
                                              : reclaim(device, refusal, may_wait);
    rs_request_note_refused(!again);
    rs_request_end();
    reclaiming = false;
    return again;
}
