/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "shared/commands.h"
#include "shared/job_layout.h"
#include "shared/memory_file.h"

#include <string.h>

__thread bool rs_job_giving;

/* ---- devices ---- */

/* Enters the device in the share's job unless it is entered already. Returns true when the table
 * has no room for it. missed_bytes is counted under the mutex, so that no other member can take the
 * same room. */
static bool lacks_room(struct rs_job_share *share)
{
    struct rs_job_entry *entry;

    if (atomic_load(&share->entry) || !job_lock(share->job, true))
        return false;
    entry = job_take_entry(share->job, job_get(&share->member->owner), share->uuid);
    if (entry)
        atomic_store(&entry->taken_bytes, share->missed_bytes);
    atomic_store(&share->entry, entry);
    job_unlock(share->job);
    return !entry;
}

void rs_job_share_enter(struct rs_job_share *share)
{
    static bool said; /* each request tries again */

    for (; share; share = share->next)
        if (lacks_room(share)) {
            (void)rs_job_limit_reap(share->job);
            if (lacks_room(share) && rs_log_once(&said))
                rs_log("RMM_LIMIT_JOB: too many processes share the limit, so requests for memory "
                       "of a device fail until some of them end (a process counts 1, and 1 more "
                       "for each device that it uses; the most is %d)",
                       RS_JOB_ENTRIES);
        }
}

static struct rs_job_entry *entry_of(const struct rs_job_share *share)
{
    return atomic_load_explicit(&share->entry, memory_order_acquire);
}

/* Goes through the shares of all jobs in which the device has been entered. */
#define FOR_EACH_JOB(at, share)                                                                    \
    for (__typeof__(share) at = (share); at; at = at->next)                                        \
        if (entry_of(at))

/* ---- bytes ---- */

static void unlock_until(const struct rs_job_share *share, const struct rs_job_share *end)
{
    for (; share != end; share = share->next)
        job_unlock(share->job);
}

/* Locks the mutexes of all jobs; returns false when the owner of one is stuck. No thread waits for
 * a mutex while it holds another one, so no two threads can wait for each other. */
static bool lock_all(const struct rs_job_share *share)
{
    struct job_patience patience = {0};

    for (unsigned turn = 0;; turn++) {
        const struct rs_job_share *at = share;
        while (at && job_try_lock(at->job))
            at = at->next;
        if (!at)
            return true;
        unlock_until(share, at);
        if (turn >= JOB_TRIES && job_is_stuck(at->job, &patience))
            return false;
        rs_pause(turn);
    }
}

static uint64_t counted_of(const struct rs_job_entry *entry)
{
    return job_get(&entry->taken_bytes) + job_get(&entry->kept_bytes);
}

static uint64_t idle_of(const struct rs_job_entry *entry)
{
    return rs_min(job_get(&entry->idle_bytes), job_get(&entry->taken_bytes));
}

/* Returns a sum over all members that have the device, except `but` (NULL: no exception). While the
 * caller holds the mutex, other members can only lower the sum, or add bytes that the driver has
 * already granted to them. */
static uint64_t sum_of_members(const struct rs_job_share *share, const struct rs_job_entry *but,
                               uint64_t (*bytes_of)(const struct rs_job_entry *entry))
{
    uint64_t bytes = 0;

    FOR_EACH_SHARER(entry, share)
    if (entry != but)
        bytes += bytes_of(entry);
    return bytes;
}

/* Adds `bytes` to all counted bytes except those reserved for this member. Returns by how much the
 * sum exceeds the limit, or 0. */
static size_t missing_in(const struct rs_job_share *share, size_t bytes)
{
    uint64_t total = sum_of_members(share, NULL, counted_of);
    uint64_t all = total - rs_min(job_get(&entry_of(share)->kept_bytes), total) + bytes;

    return all > share->limit_bytes ? (size_t)(all - share->limit_bytes) : 0;
}

static bool is_old(const struct rs_job_entry *entry, uint64_t now)
{
    return now - job_get(&entry->asked_ms) >= RS_JOB_LIMIT_KEPT_MS;
}

/* Drops what is reserved for members that have not asked for a while: they are stopped, or no
 * longer want the bytes. */
static void forget_kept(const struct rs_job_share *share)
{
    uint64_t now = job_now_ms();

    FOR_EACH_SHARER(entry, share)
    if (is_old(entry, now))
        job_set(&entry->kept_bytes, 0);
}

/* Returns, of the members that have asked lately and want more than is reserved for them, the one
 * that has waited longest; NULL when there is none. */
static struct rs_job_entry *oldest(const struct rs_job_share *share)
{
    struct rs_job_entry *found = NULL;
    uint64_t now = job_now_ms();

    FOR_EACH_SHARER(entry, share)
    if (job_get(&entry->kept_bytes) < job_get(&entry->wanted_bytes) && !is_old(entry, now) &&
        (!found || job_get(&entry->ticket) < job_get(&found->ticket)))
        found = entry;
    return found;
}

/* Reserves `bytes`, given back by a member, for waiting members. The caller holds the mutex. */
static void keep_for_waiting(const struct rs_job_share *share, uint64_t bytes)
{
    struct rs_job_entry *entry;

    while (bytes && (entry = oldest(share))) {
        uint64_t some = rs_min(bytes, job_get(&entry->wanted_bytes) - job_get(&entry->kept_bytes));
        job_add(&entry->kept_bytes, some);
        bytes -= some;
    }
}

static bool fits_share(const struct rs_job_share *share, size_t bytes)
{
    if (!entry_of(share) || bytes > share->limit_bytes)
        return false;
    if (missing_in(share, bytes) > 0)
        forget_kept(share);
    return missing_in(share, bytes) == 0;
}

static void count_taken(const struct rs_job_share *share, size_t bytes)
{
    struct rs_job_entry *entry = entry_of(share);

    RS_ASSERT(bytes <= share->limit_bytes);
    atomic_fetch_add(&entry->taken_bytes, bytes);
    job_add(&entry->kept_bytes, 0 - rs_min(job_get(&entry->kept_bytes), bytes));
}

bool rs_job_share_take(struct rs_job_share *share, size_t bytes)
{
    bool taken = true;

    rs_job_share_enter(share);
    if (!lock_all(share))
        return false;
    for (const struct rs_job_share *at = share; at && taken; at = at->next)
        taken = fits_share(at, bytes);
    for (const struct rs_job_share *at = share; at && taken; at = at->next)
        count_taken(at, bytes);
    unlock_until(share, NULL);
    if (taken) /* makes rs_job_look declare again how much is idle */
        atomic_fetch_or(rs_attention, RS_ATTENTION_JOB);
    return taken;
}

uint32_t rs_job_share_add(struct rs_job_share *share, size_t bytes)
{
    bool is_given = bytes > SIZE_MAX / 2;
    uint32_t releases = 0;

    RS_ASSERT(share->member && (!share->next || share->limit_bytes <= share->next->limit_bytes));
    for (struct rs_job_share *at = share; at; at = at->next)
        if (!entry_of(at))
            at->missed_bytes += bytes;
    FOR_EACH_JOB(at, share)
    {
        bool keeps = is_given && rs_job_giving && job_lock(at->job, false);
        atomic_fetch_add(&entry_of(at)->taken_bytes, bytes);
        if (keeps) {
            keep_for_waiting(at, 0 - bytes);
            job_unlock(at->job);
        }
        if (is_given) {
            atomic_fetch_add(&at->job->releases, 1);
            releases++;
        }
    }
    return releases;
}

bool rs_job_share_reap(const struct rs_job_share *share)
{
    bool waits = false;

    FOR_EACH_JOB(at, share)
    {
        if (!rs_job_limit_reap(at->job))
            continue;
        FOR_EACH_SHARER(entry, at)
        if (job_get(&entry->taken_bytes) && job_get(&entry->ended_ms))
            waits = true;
    }
    return waits;
}

static uint64_t others_in(const struct rs_job_share *share)
{
    return sum_of_members(share, entry_of(share), counted_of);
}

const struct rs_job_share *rs_job_share_tightest(const struct rs_job_share *share)
{
    const struct rs_job_share *tightest = share;

    FOR_EACH_JOB(at, share)
    if (at->limit_bytes - rs_min(others_in(at), at->limit_bytes) <
        tightest->limit_bytes - rs_min(others_in(tightest), tightest->limit_bytes))
        tightest = at;
    return tightest;
}

size_t rs_job_share_others(const struct rs_job_share *share)
{
    uint64_t most = 0;

    FOR_EACH_JOB(at, share)
    {
        uint64_t others = others_in(at), more = at->limit_bytes - share->limit_bytes;
        most = rs_max(most, others - rs_min(more, others));
    }
    return (size_t)most;
}

/* ---- idle bytes ---- */

void rs_job_share_set_idle(struct rs_job_share *share, size_t bytes)
{
    FOR_EACH_JOB(at, share)
    atomic_store(&entry_of(at)->idle_bytes, bytes);
}

void rs_job_share_freed(struct rs_job_share *share, size_t bytes)
{
    FOR_EACH_JOB(at, share)
    {
        atomic_fetch_add(&entry_of(at)->idle_bytes, bytes);
        if (atomic_load(&at->job->asked) != atomic_load(&at->seen_asked))
            atomic_fetch_or(rs_attention, RS_ATTENTION_JOB);
    }
}

/* With several jobs, returns the idle bytes of the job that has the fewest. */
size_t rs_job_share_others_idle(const struct rs_job_share *share)
{
    uint64_t least = SIZE_MAX;

    FOR_EACH_JOB(at, share)
    least = rs_min(least, sum_of_members(at, entry_of(at), idle_of));
    return least == SIZE_MAX ? 0 : (size_t)least;
}

size_t rs_job_share_missing(const struct rs_job_share *share, size_t bytes)
{
    size_t most = 0;

    FOR_EACH_JOB(at, share)
    most = rs_max(most, missing_in(at, bytes));
    return most;
}

static size_t wanted_in(const struct rs_job_share *share)
{
    uint64_t bytes = 0, all;

    FOR_EACH_SHARER(entry, share)
    {
        uint64_t wanted = job_get(&entry->wanted_bytes);
        bytes += wanted - rs_min(job_get(&entry->kept_bytes), wanted);
    }
    all = sum_of_members(share, NULL, counted_of) + bytes;
    return bytes && all > share->limit_bytes ? (size_t)(all - share->limit_bytes) : 0;
}

size_t rs_job_share_wanted(const struct rs_job_share *share)
{
    size_t most = 0;

    FOR_EACH_JOB(at, share)
    most = rs_max(most, wanted_in(at));
    return most;
}

void rs_job_share_want(struct rs_job_share *share, size_t bytes)
{
    RS_ASSERT(bytes > 0 && bytes <= SIZE_MAX / 2);
    FOR_EACH_JOB(at, share)
    {
        struct rs_job_entry *entry = entry_of(at);
        job_set(&entry->asked_ms, job_now_ms());
        if (atomic_fetch_add(&entry->wanted_bytes, bytes) == 0)
            job_set(&entry->ticket, atomic_fetch_add(&at->job->tickets, 1));
    }
}

/* Wakes the members that wait, so that they look again. */
static void wake(struct rs_job_limit *job)
{
    atomic_fetch_add(&job->releases, 1);
    rs_futex_wake(&job->releases);
}

static void pass_on_kept(const struct rs_job_share *share)
{
    struct rs_job_entry *entry = entry_of(share);
    uint64_t kept;

    if (job_get(&entry->kept_bytes) == 0 || !job_lock(share->job, false))
        return; /* without the mutex the bytes stay reserved until forget_kept drops them */
    kept = job_get(&entry->kept_bytes);
    job_set(&entry->kept_bytes, 0);
    keep_for_waiting(share, kept);
    job_unlock(share->job);
    wake(share->job);
}

void rs_job_share_want_no_more(struct rs_job_share *share, size_t bytes, bool are_there)
{
    FOR_EACH_JOB(at, share)
    if (atomic_fetch_sub(&entry_of(at)->wanted_bytes, bytes) == bytes && !are_there)
        pass_on_kept(at);
}

/* Raises a member's word of attention.  If its file of commands cannot be opened, the member sees
 * `asked` at its next free. */
static void raise_in(const struct rs_job_entry *entry)
{
    uint64_t fd = job_get(&entry->commands_fd), owner = job_get(&entry->owner);

    if (fd != 0 && owner != 0)
        rs_commands_raise((int)(owner >> 32), (int)(fd - 1), job_get(&entry->commands_inode));
}

void rs_job_share_ask(struct rs_job_share *share)
{
    FOR_EACH_JOB(at, share)
    {
        job_set(&entry_of(at)->asked_ms, job_now_ms());
        atomic_fetch_add(&at->job->asked, 1);
        FOR_EACH_SHARER(entry, at)
        if (entry != entry_of(at) && idle_of(entry) > 0)
            raise_in(entry);
    }
}

bool rs_job_share_is_asked(struct rs_job_share *share)
{
    bool is_asked = false;

    FOR_EACH_JOB(at, share)
    {
        uint32_t asked = atomic_load(&at->job->asked);
        is_asked = atomic_exchange(&at->seen_asked, asked) != asked || is_asked;
    }
    return is_asked;
}

void rs_job_share_answer(struct rs_job_share *share)
{
    FOR_EACH_JOB(at, share)
    wake(at->job);
}

uint32_t rs_job_share_releases(const struct rs_job_share *share)
{
    uint32_t sum = 0;

    FOR_EACH_JOB(at, share)
    sum += atomic_load(&at->job->releases);
    return sum;
}

/* Waits on `releases` of the outermost job, since all members of the inner jobs are members of the
 * outermost one too. */
void rs_job_share_wait(struct rs_job_share *share, uint32_t seen, uint64_t wait_ns)
{
    struct rs_job_share *last = NULL;
    uint32_t releases = 0;

    FOR_EACH_JOB(at, share)
    {
        last = at;
        releases = atomic_load(&at->job->releases);
    }
    if (last && rs_job_share_releases(share) == seen)
        rs_futex_wait(&last->job->releases, releases, wait_ns);
}
