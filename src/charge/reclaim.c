/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaims memory before a request is refused: has unused memory given back, and waits for memory
 * that the GPU still uses.  Also gives idle memory to other processes of the job, and asks them for
 * theirs. */
#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/request.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "shared/commands.h"
#include "shared/job_limit.h"

#include <stdatomic.h>
#include <stdio.h>

enum {
    DEVICE_MEMORIES = 1u << RS_MEMORY_DEVICE | 1u << RS_MEMORY_MANAGED,
    HOST_MEMORIES = 1u << RS_MEMORY_HOST,
};

enum {
    TRIM_NS = 1000 * 1000 * 1000, /* longest wait of a trim that the program asks for */
    TRIM_SHORT_NS =
        50 * 1000 * 1000,          /* longest wait of a trim inside another call of the program */
    SLICE_NS = 5 * 1000 * 1000,    /* the longest wait for one stack before the next one's turn */
    SAY_NS = 1000 * 1000 * 1000,   /* a longer wait for the GPU is logged, once per process */
    LEAVING_NS = 50 * 1000 * 1000, /* longest wait for frees in the order of streams */
    NAP_NS = 50 * 1000,
    IDLE_NAP_NS = 1000 * 1000, /* between two looks at whether a context is idle */
    /* Between two looks at processes of the job that have ended. */
    SETTLE_NAP_NS = 10 * 1000 * 1000,
};

enum {
    ASK_NS = 1000 * 1000 * 1000, /* longest wait for other processes; shorter after waits in vain */
    IN_VAIN_MOST = 6,            /* how often ASK_NS is halved at most */
    ASK_SLICE_NS = 10 * 1000 * 1000, /* the other processes are asked again after this time */
    /* A wait ends after this many consecutive slices in which no other process had idle bytes or
     * gave any back. */
    SLICES_IN_VAIN = 4,
    ASK_NAP_NS = 500 * 1000, /* the shortest time between two questions */
    /* Idle bytes that another process may have without having declared them: freed blocks that are
     * not sealed yet (resource/reuse), up to 4 MiB in each of a few shards. */
    UNSAID_BYTES = 16 << 20,
};

size_t rs_trim(int device, size_t keep_bytes, bool *is_left)
{
    *is_left = false;
    if (!rs_limit_account(device) || !rs_driver_ready(false))
        return 0;
    return rs_context_trim(device, keep_bytes, rs_request_is_under_way() ? TRIM_SHORT_NS : TRIM_NS,
                           is_left);
}

/* ---- idle memory of a job ---- */

static struct rs_job_share *job_share_of(int device)
{
    struct rs_account *account = rs_limit_account(device);

    return account ? atomic_load_explicit(&account->job, memory_order_acquire) : NULL;
}

/* Gives idle memory to other processes.  First gives only as much as they lack, if whole chunks add
 * up to that.  If they still lack some, gives all that is free.  Last come initial sizes, which the
 * program wanted set aside, and only if they can be enough. */
static void give_to_others(int device, const struct rs_job_share *share)
{
    size_t lacking = rs_job_share_wanted(share), spare = rs_charge_spare_bytes(device), idle = 0;

    if (lacking > 0 && rs_context_trim_some(device, lacking, 0) < lacking)
        (void)rs_charge_trim_pools(device, spare - rs_min(spare, lacking), NULL);
    if (rs_job_share_wanted(share) > 0) {
        (void)rs_context_trim_all(device, 0);
        (void)rs_charge_trim_pools(device, 0, NULL);
    }
    lacking = rs_job_share_wanted(share);
    if (lacking > 0 && rs_context_idle_bytes_at_once(device, &idle) && idle >= lacking)
        (void)rs_context_trim_all(device, DEVICE_MEMORIES);
}

/* True when other processes still lack memory but none of the remaining idle bytes can be given
 * back, since they lie beside live ones; then no process should wait for them.  False while the GPU
 * still uses freed memory, which may be given back later. */
static bool are_stuck(int device, const struct rs_job_share *share)
{
    return rs_job_share_wanted(share) > 0 && rs_context_make_ready(device, 0) == RS_READY_NOTHING;
}

static void look_at_share(int device, struct rs_job_share *share)
{
    bool is_asked = rs_job_share_is_asked(share);
    size_t idle = 0;

    if (is_asked)
        give_to_others(device, share);
    if (is_asked && are_stuck(device, share))
        rs_job_share_set_idle(share, 0);
    else if (rs_context_idle_bytes_at_once(device, &idle))
        rs_job_share_set_idle(share, idle + rs_charge_spare_bytes(device));
    if (is_asked)
        rs_job_share_answer(share);
}

/* Runs inside a request, in which no driver call waits without bound: this process must not wait
 * for its GPU because another process needs memory.  A profiler's callback from one of the driver
 * calls here may call this function again; that inner call sees rs_job_giving and returns. */
void rs_job_look(void)
{
    /* Where stacks do not serve, as in a child of a raw clone(), rs_attention may be unmapped. */
    if (rs_job_giving || !rs_mode_serving())
        return;
    atomic_fetch_and(rs_attention, ~RS_ATTENTION_JOB);
    if (!rs_driver_ready(false))
        return;
    rs_job_giving = true;
    rs_request_begin();
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        struct rs_job_share *share = job_share_of(device);
        if (share)
            look_at_share(device, share);
    }
    rs_request_end();
    rs_job_giving = false;
}

static _Atomic unsigned in_vain; /* the number of consecutive waits in vain */

/* The deadline of the request in which this thread last waited in vain.  The same deadline means
 * that the request is being repeated, and a request waits for other processes only once. */
static __thread uint64_t in_vain_until_ns;

/* False when the idle bytes of other processes cannot serve the request: they are too few, or
 * something other than the job's limit refuses it. */
static bool may_help(const struct rs_account *account, const struct rs_job_share *share,
                     size_t bytes)
{
    size_t limit = atomic_load(&account->limit_bytes), missing, idle;

    if (limit && bytes > limit - rs_min(limit, atomic_load(&account->charged_bytes)))
        return false;
    missing = rs_job_share_missing(share, bytes);
    idle = rs_job_share_others_idle(share);
    return missing > 0 && idle > 0 && missing <= idle + UNSAID_BYTES;
}

/* Asks other processes, and waits.  Returns true when the request fits.  Returns false at until_ns,
 * or when no idle bytes come back any more.  Bytes that came back may go to a process that asked
 * earlier and soon be idle again, so it goes on asking as long as any come back. */
static bool ask_until(struct rs_job_share *share, size_t bytes, uint64_t until_ns)
{
    uint64_t now_ns = rs_clock_ns();
    unsigned in_vain_for = 0;

    do {
        uint32_t releases = rs_job_share_releases(share);
        rs_job_share_ask(share);
        rs_job_share_wait(share, releases, rs_min(ASK_SLICE_NS, until_ns - now_ns));
        if (rs_job_share_missing(share, bytes) == 0)
            return true;
        rs_nap(ASK_NAP_NS);
        now_ns = rs_clock_ns();
        in_vain_for =
            rs_job_share_others_idle(share) > 0 || rs_job_share_releases(share) != releases
                ? 0
                : in_vain_for + 1;
    } while (now_ns < until_ns && in_vain_for < SLICES_IN_VAIN);
    return false;
}

/* Asks other processes for idle memory.  Returns true when some came back, so that the request may
 * fit now.  This process has already given back its own idle memory, so two processes that ask each
 * other do not wait for each other. */
static bool ask_others(int device, const struct rs_refusal *refusal)
{
    struct rs_job_share *share = job_share_of(device);
    size_t bytes = rs_footprint_most(refusal->size_bytes), before;
    uint64_t wait_ns = rs_min(ASK_NS >> atomic_load(&in_vain), rs_request_patience_ns());
    bool gained;

    if (!share || bytes == 0 || refusal->asked_bytes > 0 || wait_ns == 0 ||
        in_vain_until_ns == rs_request.deadline_ns ||
        !may_help(rs_limit_account(device), share, bytes))
        return false;
    rs_job_share_set_idle(share, 0);
    before = rs_job_share_others(share);
    rs_job_share_want(share, bytes);
    gained = ask_until(share, bytes, rs_clock_ns() + wait_ns);
    gained = gained || rs_job_share_others(share) < before;
    rs_job_share_want_no_more(share, bytes, gained);
    if (gained) {
        atomic_store(&in_vain, 0);
        return true;
    }
    in_vain_until_ns = rs_request.deadline_ns;
    if (atomic_load(&in_vain) < IN_VAIN_MOST)
        atomic_fetch_add(&in_vain, 1);
    return false;
}

/* ---- what this process can give back ---- */

/* True when the request may succeed if it is just repeated, since memory of another thread may have
 * caused the refusal.  That thread has given memory back since, is about to, or has been charged
 * for memory that the driver may refuse it. */
static bool is_stale(const struct rs_account *account, const struct rs_refusal *refusal,
                     uint64_t moves)
{
    unsigned memories = refusal->memory == RS_MEMORY_HOST ? HOST_MEMORIES : DEVICE_MEMORIES;

    return rs_account_releases(account) != refusal->releases ||
           rs_context_moves(memories) != moves || atomic_load(&account->returning_bytes) > 0 ||
           atomic_load(&account->asked_bytes) > refusal->asked_bytes;
}

/* False when the request is larger than all memory that is not live.  Memory that threads are
 * giving back does not count as live, nor does memory for which calls are under way (this request
 * may be one of them). */
static bool is_possible(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t limit = rs_account_limit(account), total = limit;
    size_t others = rs_context_idle_bytes_of(device, ~0u) + atomic_load(&account->asked_bytes) +
                    atomic_load(&account->returning_bytes) + rs_charge_spare_bytes(device);
    bool has_limit = limit != SIZE_MAX;
    size_t held = has_limit ? atomic_load(&account->charged_bytes)
                            : atomic_load(&account->held_bytes[RS_MEMORY_DEVICE]);

    if (!has_limit && refusal->memory != RS_MEMORY_DEVICE)
        return true; /* the memory may also lie outside the device */
    if (!has_limit && rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
        return true;
    return refusal->size_bytes <= total - rs_min(total, held - rs_min(others, held));
}

/* False when a wait would be useless, since the request is larger than the device's free memory and
 * all memory of this process that may come back.  (For managed memory: larger than all memory of
 * the device and the host.) Memory of other processes does not count.  The sum reads the places of
 * memory in the order in which memory passes through them on its way back, the driver last, so that
 * moving memory is counted at least once. */
static bool room_may_come(int device, const struct rs_refusal *refusal)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t total = 0, host_total = 0, room, asked;

    if (refusal->memory != RS_MEMORY_DEVICE) {
        rs_host_memory(&host_total, &room);
        return rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS ||
               refusal->size_bytes <= total + host_total;
    }
    asked = atomic_load(&account->asked_bytes);
    total = asked - rs_min(asked, refusal->asked_bytes) +
            rs_context_idle_bytes_of(device, 1u << RS_MEMORY_DEVICE) +
            rs_charge_spare_bytes(device) + rs_charge_leaving_bytes(device, false) +
            atomic_load(&account->returning_bytes);
    return !rs_limit_ask_free(device, &room) || refusal->size_bytes <= total + room;
}

/* True when missing host memory may be the cause of the refusal: for managed memory, or for memory
 * that the driver takes for itself (size 0).  False when a limit refused. */
static bool may_be_of_host(int device, const struct rs_refusal *refusal)
{
    return (refusal->memory == RS_MEMORY_MANAGED || refusal->size_bytes == 0) &&
           (refusal->asked_bytes > 0 ||
            rs_account_has_room(rs_limit_account(device), refusal->size_bytes));
}

/* Returns the kinds of memory whose initial sizes may make room for the request, a bit each. */
static unsigned initial_for(int device, const struct rs_refusal *refusal)
{
    bool is_device = refusal->memory == RS_MEMORY_DEVICE;

    return 1u << RS_MEMORY_DEVICE | HOST_MEMORIES |
           (is_device && rs_account_most(rs_limit_account(device)) == SIZE_MAX
                ? 0
                : 1u << RS_MEMORY_MANAGED);
}

/* Has all unused memory of the device given back, and initial sizes of the kinds of memory in
 * initial_of.  Returns true when some was given back, or when a pool of the driver was seen to hold
 * less than it was charged for, as it had given memory back by itself.
 *
 * When the driver refuses an allocation from a pool, the memory that it had already gathered for
 * that allocation stays in the pool, up to the release threshold (on an H100 with 23.8 GiB free,
 * 23,776 MiB).  That memory is there again after each attempt.  It must not count as given back, or
 * the request would be repeated for ever (rs_request_note_pools). */
static bool give_back_unused(int device, unsigned initial_of)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t charged = atomic_load(&account->charged_bytes), held;
    bool returned = rs_context_trim_all(device, initial_of) > 0, of_pools;

    of_pools = rs_charge_trim_pools(device, 0, &held) > 0 ||
               atomic_load(&account->charged_bytes) < charged;
    return returned || (rs_request_note_pools(held) && of_pools);
}

/* Does as give_back_unused.  If nothing came back, and missing host memory may be the cause, has
 * unused host memory given back.  Returns true when some memory was given back. */
static bool give_back_for(int device, const struct rs_refusal *refusal, unsigned initial_of)
{
    return give_back_unused(device, initial_of & DEVICE_MEMORIES) ||
           (may_be_of_host(device, refusal) &&
            rs_context_trim_all(RS_VISIT_HOST, initial_of & HOST_MEMORIES) > 0);
}

/* Waits for the oldest epochs of freed blocks in the stacks of the device, or in those of host
 * memory (RS_VISIT_HOST).  Returns true when a block became ready. */
static bool wait_for_quarantine(int device)
{
    static bool said;
    uint64_t begin_ns = rs_clock_ns(), patience_ns = rs_request_patience_ns();
    enum rs_readiness readiness;
    char name[32] = "host memory";

    if (device != RS_VISIT_HOST)
        snprintf(name, sizeof(name), "device %d", device);
    do {
        readiness = rs_context_make_ready(device, rs_min(SLICE_NS, patience_ns));
        patience_ns = rs_request_patience_ns();
        if (rs_clock_ns() - begin_ns > SAY_NS && rs_log_once(&said))
            rs_log("%s is full: an allocation waits for freed memory that the GPU still uses",
                   name);
    } while (readiness == RS_READY_PENDING && patience_ns > 0);
    return readiness == RS_READY_SOME;
}

/* Waits until contexts are idle, since pinned and managed memory is given back by a driver call
 * that waits for the context's work.  Returns true when some such memory was given back.  Returns
 * false when no context is known to be busy with work that may end, or when the request may wait no
 * longer.  `device` may be RS_VISIT_HOST. */
static bool wait_for_idle(int device, unsigned initial_of)
{
    while (rs_request_forget_busy() && rs_request_patience_ns() > 0) {
        rs_nap(IDLE_NAP_NS);
        if (rs_context_trim_all(device, initial_of) > 0)
            return true;
    }
    return false;
}

/* Waits at most 50 ms until the GPU has executed frees of memory in the driver's pools.  Returns
 * true when it has executed some. */
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

/* Waits until another thread has given back what it has in hand (returning_bytes).  On a busy
 * machine it may be off the processor for longer than rs_request_may_repeat goes on.  Returns true,
 * a few times for each request, when memory was released since the refusal. */
static bool wait_for_returning(const struct rs_account *account, const struct rs_refusal *refusal)
{
    uint64_t releases = rs_account_releases(account);

    while (atomic_load(&account->returning_bytes) > 0 && rs_account_releases(account) == releases &&
           rs_request_patience_ns() > 0)
        rs_nap(NAP_NS);
    return rs_account_releases(account) != refusal->releases && rs_request_may_look_again();
}

/* Returns true when the other processes' counted bytes became fewer.  The bytes of a dead process
 * of the job stay counted for a while; with may_wait, waits for their end. */
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

/* Does what rs_reclaim says, for device and managed memory.
 *
 * Other processes of the job are asked for idle memory only if this process's own cannot serve the
 * request, or did not come back in time.
 *
 * Other threads move memory while idle, quarantined and returning memory is summed one after the
 * other, so a sum that seems too small counts only if nothing moved meanwhile (is_stale).  Initial
 * sizes, which the program wanted set aside, go last, and only if they can be enough. */
static bool reclaim_device(int device, const struct rs_refusal *refusal, bool may_wait)
{
    const struct rs_account *account = rs_limit_account(device);
    uint64_t moves = rs_context_moves(DEVICE_MEMORIES);

    rs_request.is_hopeless = false;
    if (give_back_for(device, refusal, 0))
        return rs_request_patience_ns() > 0 || rs_request_may_look_again();
    if (is_stale(account, refusal, moves) && rs_request_may_repeat())
        return true;
    if (wait_for_job(account, may_wait))
        return true;
    rs_request.is_hopeless = !is_possible(device, refusal) || !room_may_come(device, refusal);
    if (rs_request.is_hopeless)
        return (may_wait && ask_others(device, refusal)) ||
               (is_stale(account, refusal, moves) && rs_request_may_repeat());
    if (give_back_for(device, refusal, initial_for(device, refusal)))
        return true;
    return (may_wait && (wait_for_quarantine(device) ||
                         (!rs_request.is_hopeless &&
                          wait_for_idle(device, initial_for(device, refusal) & DEVICE_MEMORIES)) ||
                         wait_for_leaving(device) || ask_others(device, refusal))) ||
           (refusal->size_bytes > 0 && rs_request_may_look_again()) ||
           /* Other threads have moved memory since. */
           (is_stale(account, refusal, moves) && rs_request_may_repeat());
}

/* False when the request is larger than the host's free memory together with all memory of the
 * stacks that may be given back to the host. */
static bool host_can_serve(const struct rs_refusal *refusal)
{
    size_t idle_bytes = rs_context_idle_bytes_of(RS_VISIT_HOST, HOST_MEMORIES), total, free_bytes;

    rs_host_memory(&total, &free_bytes);
    return refusal->size_bytes <= rs_min(total, free_bytes + idle_bytes);
}

/* Does what rs_reclaim says for host memory, which belongs to no device and is not limited: the
 * stacks of all devices give it back.  Unused device memory is given back too, since the GPU's page
 * tables for pinned memory lie in device memory, but no wait is made for it. */
static bool reclaim_host(int device, const struct rs_refusal *refusal, bool may_wait)
{
    const struct rs_account *account = rs_limit_account(device);
    uint64_t moves = rs_context_moves(HOST_MEMORIES);

    rs_request.is_hopeless = false;
    if (rs_context_trim_all(RS_VISIT_HOST, 0) > 0 || give_back_unused(device, 0) ||
        (is_stale(account, refusal, moves) && rs_request_may_repeat()))
        return true;
    rs_request.is_hopeless = !host_can_serve(refusal);
    return (!rs_request.is_hopeless &&
            (rs_context_trim_all(RS_VISIT_HOST, HOST_MEMORIES) > 0 ||
             give_back_unused(device, 1u << RS_MEMORY_DEVICE) ||
             (may_wait && (wait_for_quarantine(RS_VISIT_HOST) ||
                           wait_for_idle(RS_VISIT_HOST, HOST_MEMORIES))))) ||
           /* Other threads have moved memory since. */
           (is_stale(account, refusal, moves) && rs_request_may_repeat()) ||
           (!rs_request.is_hopeless && may_wait && wait_for_returning(account, refusal));
}

bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait)
{
    static __thread bool reclaiming; /* true inside a reclaim: a profiler's callback from a driver
                                        call of the reclaim may call it again */
    bool again;

    if (reclaiming || !rs_limit_account(device) || !rs_driver_ready(false))
        return false;
    reclaiming = true;
    rs_request_begin();
    again = refusal->memory == RS_MEMORY_HOST ? reclaim_host(device, refusal, may_wait)
                                              : reclaim_device(device, refusal, may_wait);
    rs_request.is_refused = !again;
    rs_request_end();
    reclaiming = false;
    return again;
}

/* ---- calls for which the driver takes memory of its own ---- */

/* Returns the given device, or for RS_AGAIN_CURRENT that of the current context.  Without a
 * current context it returns a negative number; for host memory, which belongs to no device, it
 * returns 0. */
static int device_meant(int device, size_t host_bytes)
{
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS))
        return host_bytes ? 0 : RS_AGAIN_CURRENT;
    return device;
}

bool rs_again(CUresult result, int device, size_t host_bytes, uint64_t *deadline_ns)
{
    struct rs_refusal refusal = {.size_bytes = host_bytes,
                                 .memory = host_bytes ? RS_MEMORY_HOST : RS_MEMORY_DEVICE};
    bool again;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_mode_serving())
        return false;
    device = device_meant(device, host_bytes);
    if (device < 0)
        return false;
    refusal.releases = rs_account_releases(rs_limit_account(device));
    rs_request_begin_until(*deadline_ns);
    again = rs_reclaim(device, &refusal, true);
    *deadline_ns = rs_request.deadline_ns;
    rs_request_end();
    return again;
}

RS_COLD CUresult rs_again_refused(int device, size_t host_bytes)
{
    if (rs_mode_serving())
        rs_limit_note_refused(device_meant(device, host_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
}
