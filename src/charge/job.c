/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/job.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/request.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "ledger/account.h"
#include "shared/commands.h"
#include "shared/job_limit.h"

#include <stdatomic.h>

enum {
    WAIT_NS = 1000 * 1000 * 1000, /* for others, unless earlier waits were in vain */
    IN_VAIN_MOST = 6,             /* then the wait is 1/64 of that */
    SLICE_NS = 10 * 1000 * 1000,  /* after which the others are asked anew */
    SLICES_IN_VAIN = 4,           /* in which nobody has anything idle, or gives something */
    NAP_NS = 500 * 1000,          /* least time from one question to the next */
    /* Freed blocks that no seal has covered yet are not said to be idle: up to 4 MiB in each of a
     * few shards. */
    UNSAID_BYTES = 16 << 20,
};

static const unsigned device_memories = 1u << RS_MEMORY_DEVICE | 1u << RS_MEMORY_MANAGED;

static struct rs_job_share *share_of(int device)
{
    struct rs_account *account = rs_limit_account(device);

    return account ? atomic_load_explicit(&account->job, memory_order_acquire) : NULL;
}

/* ---- the process that is asked ---- */

/* First as much as is lacking, where chunks allow it, then all that is free, then initial sizes,
 * which were set aside for the program: only when they can be enough. */
static void give(int device, const struct rs_job_share *share)
{
    size_t lacking = rs_job_share_wanted(share), spare = rs_charge_spare_bytes(device), idle = 0;

    if (lacking > 0 && rs_context_trim_some(device, lacking) < lacking)
        (void)rs_charge_trim_pools(device, spare - rs_min(spare, lacking), NULL);
    if (rs_job_share_wanted(share) > 0) {
        (void)rs_context_trim_all(device, 0);
        (void)rs_charge_trim_pools(device, 0, NULL);
    }
    lacking = rs_job_share_wanted(share);
    if (lacking > 0 && rs_context_idle_bytes_at_once(device, &idle) && idle >= lacking)
        (void)rs_context_trim_all(device, device_memories);
}

/* Idle bytes that did not go back although they are lacking lie beside live ones: nobody need wait
 * for them.  Those that the GPU still uses may come. */
static bool are_stuck(int device, const struct rs_job_share *share)
{
    return rs_job_share_wanted(share) > 0 && rs_context_make_ready(device, 0) == RS_READY_NOTHING;
}

static void look_at(int device, struct rs_job_share *share)
{
    bool is_asked = rs_job_share_is_asked(share);
    size_t idle = 0;

    if (is_asked)
        give(device, share);
    if (is_asked && are_stuck(device, share))
        rs_job_share_set_idle(share, 0);
    else if (rs_context_idle_bytes_at_once(device, &idle))
        rs_job_share_set_idle(share, idle + rs_charge_spare_bytes(device));
    if (is_asked)
        rs_job_share_answer(share);
}

/* As in a request: another process's need must not have this one wait for its GPU.  A tool's
 * callback from a driver call may come back here. */
void rs_job_look(void)
{
    static __thread bool looking;

    if (looking || !rs_mode_serving()) /* a raw clone()'s child has no copy of the word's memory */
        return;
    atomic_fetch_and(rs_attention, ~RS_ATTENTION_JOB);
    if (!rs_driver_ready(false))
        return;
    looking = rs_job_giving = true;
    rs_request_begin();
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        struct rs_job_share *share = share_of(device);
        if (share)
            look_at(device, share);
    }
    rs_request_end();
    looking = rs_job_giving = false;
}

/* ---- the process that asks ---- */

static _Atomic unsigned in_vain; /* the latest waits that nothing came of */

/* The deadline of the request in which this thread last waited in vain: a request that is repeated
 * does so once. */
static __thread uint64_t in_vain_until_ns;

/* False where the others' idle bytes cannot serve the request: these have too few, or something
 * else refuses. */
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

/* True when the request fits.  What was idle may be another's whose turn it was, and idle again
 * soon: while some comes back at all, it is waited for. */
static bool ask_until(struct rs_job_share *share, size_t bytes, uint64_t until_ns)
{
    uint64_t now_ns = rs_clock_ns();
    unsigned in_vain_for = 0;

    do {
        uint32_t releases = rs_job_share_releases(share);
        rs_job_share_ask(share);
        rs_job_share_wait(share, releases, rs_min(SLICE_NS, until_ns - now_ns));
        if (rs_job_share_missing(share, bytes) == 0)
            return true;
        rs_nap(NAP_NS);
        now_ns = rs_clock_ns();
        in_vain_for =
            rs_job_share_others_idle(share) > 0 || rs_job_share_releases(share) != releases
                ? 0
                : in_vain_for + 1;
    } while (now_ns < until_ns && in_vain_for < SLICES_IN_VAIN);
    return false;
}

static void note_wait(bool gained)
{
    if (gained) {
        atomic_store(&in_vain, 0);
        return;
    }
    in_vain_until_ns = rs_request_deadline_ns();
    if (atomic_load(&in_vain) < IN_VAIN_MOST)
        atomic_fetch_add(&in_vain, 1);
}

/* What this process itself had idle it has given back by now, so that two processes that ask each
 * other do not wait for each other. */
bool rs_job_ask(int device, const struct rs_refusal *refusal)
{
    struct rs_job_share *share = share_of(device);
    size_t bytes = rs_footprint_most(refusal->size_bytes), before;
    uint64_t wait_ns = rs_min(WAIT_NS >> atomic_load(&in_vain), rs_request_patience_ns());
    bool gained;

    if (!share || bytes == 0 || refusal->asked_bytes > 0 || wait_ns == 0 ||
        in_vain_until_ns == rs_request_deadline_ns() ||
        !may_help(rs_limit_account(device), share, bytes))
        return false;
    rs_job_share_set_idle(share, 0);
    before = rs_job_share_others(share);
    rs_job_share_want(share, bytes);
    gained = ask_until(share, bytes, rs_clock_ns() + wait_ns);
    gained = gained || rs_job_share_others(share) < before;
    rs_job_share_want_no_more(share, bytes, gained);
    note_wait(gained);
    return gained;
}
