/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger/account.h"

#include "base/arithmetic.h"
#include "base/check.h"

/* A context's account is part of its device's, and a device's of none. */
__attribute__((unused)) static bool has_sound_device(const struct rs_account *account)
{
    return !account || !account->device || !account->device->device;
}

/* What others hold is in it too, so it never falls below 0. */
static void take_away(_Atomic size_t *counter, size_t bytes)
{
    size_t before = atomic_fetch_sub_explicit(counter, bytes, memory_order_relaxed);

    /* Else given back twice, or never taken.  A size that no memory has wraps around, and back. */
    RS_ASSERT_SLOW(before >= bytes || bytes > SIZE_MAX / 2);
    (void)before;
}

static void raise_peak(_Atomic size_t *peak, size_t value)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);

    while (value > seen && !atomic_compare_exchange_weak_explicit(
                               peak, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

static struct rs_job_share *job_of(const struct rs_account *device)
{
    return atomic_load_explicit(&device->job, memory_order_acquire);
}

/* Releases by this thread, of all devices.  rs_account_releases leaves them out: a refused
 * request releases its own charge, and that must not make the refusal look stale. */
static __thread uint64_t own_releases;

/* Bytes are charged, or, as a negative number, charged no longer, whatever the limit says. */
static void change_charged(struct rs_account *account, size_t bytes)
{
    struct rs_job_share *job = job_of(account);

    atomic_fetch_add_explicit(&account->charged_bytes, bytes, memory_order_relaxed);
    if (RS_LIKELY(!job))
        return;
    rs_job_share_add(job, bytes);
    own_releases += bytes > SIZE_MAX / 2; /* the job's number of releases has grown, too */
}

static bool refuse(struct rs_account *account)
{
    atomic_fetch_add_explicit(&account->refusals, 1, memory_order_relaxed);
    return false;
}

/* Adds the bytes unless that exceeds the process's own limit, even for a moment. */
static bool charge_own(struct rs_account *account, size_t bytes)
{
    size_t charged = atomic_load_explicit(&account->charged_bytes, memory_order_relaxed), limit;

    do {
        limit = atomic_load_explicit(&account->limit_bytes, memory_order_relaxed);
        if (limit && (charged > limit || bytes > limit - charged))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&account->charged_bytes, &charged,
                                                    charged + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* The bytes are announced to the job while the process's own limit is asked.  So neither counts
 * bytes that the other refuses: nobody is refused for what nobody got. */
static bool charge(struct rs_account *account, size_t bytes, struct rs_account_wait *wait)
{
    struct rs_job_share *job = job_of(account);
    enum rs_job_answer answer;
    bool charged;

    if (RS_LIKELY(!job))
        return charge_own(account, bytes) || refuse(account);
    answer = rs_job_share_announce(job, bytes);
    wait->is_contested = answer == RS_JOB_CONTESTED;
    if (answer != RS_JOB_FITS)
        return !wait->is_contested && refuse(account);
    charged = charge_own(account, bytes);
    rs_job_share_settle(job, bytes, charged);
    return charged || refuse(account);
}

/* Raises the peaks to the granted bytes.  Bytes that calls under way have asked for are left
 * out: the driver may refuse them. */
static void raise_peaks(struct rs_account *account)
{
    size_t asked = atomic_load_explicit(&account->asked_bytes, memory_order_relaxed);
    size_t charged = atomic_load_explicit(&account->charged_bytes, memory_order_relaxed);
    size_t held =
        atomic_load_explicit(&account->held_bytes[RS_MEMORY_DEVICE], memory_order_relaxed);
    size_t granted = charged > asked ? charged - asked : 0;

    raise_peak(&account->peak_charged_bytes, granted);
    if (!account->device)
        raise_peak(&account->recent_peak_bytes, granted);
    raise_peak(&account->peak_bytes, held > asked ? held - asked : 0);
}

size_t rs_account_recent_peak(struct rs_account *device)
{
    RS_ASSERT(!device->device);
    raise_peaks(device);
    return atomic_load_explicit(&device->recent_peak_bytes, memory_order_relaxed);
}

/* A request that is granted meanwhile raises the peak again, to what is charged then. */
size_t rs_account_restart_peak(struct rs_account *device)
{
    size_t was;

    RS_ASSERT(!device->device);
    was = atomic_exchange(&device->recent_peak_bytes, 0);
    raise_peaks(device);
    return was;
}

static void note_release(struct rs_account *account)
{
    if (account->device)
        return;
    atomic_fetch_add_explicit(&account->releases, 1, memory_order_release);
    own_releases++;
}

static void subtract(struct rs_account *account, size_t bytes, size_t charge_bytes,
                     enum rs_memory memory)
{
    RS_ASSERT(memory < RS_MEMORIES);
    take_away(&account->held_bytes[memory], bytes);
    if (memory != RS_MEMORY_HOST)
        change_charged(account, 0 - charge_bytes);
    if (bytes | charge_bytes)
        note_release(account);
}

static bool grow_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                    enum rs_memory memory, struct rs_account_wait *wait)
{
    struct rs_account *device = account && account->device ? account->device : account;

    RS_ASSERT(memory < RS_MEMORIES && has_sound_device(account));
    if (!account)
        return true;
    if (memory != RS_MEMORY_HOST) {
        if (!charge(device, charge_bytes, wait))
            return false;
        if (account != device)
            atomic_fetch_add_explicit(&account->charged_bytes, charge_bytes, memory_order_relaxed);
    }
    for (; account; account = account->device)
        atomic_fetch_add_explicit(&account->held_bytes[memory], bytes, memory_order_relaxed);
    return true;
}

bool rs_account_try_grow(struct rs_account *account, size_t bytes, enum rs_memory memory,
                         struct rs_account_wait *wait)
{
    if (!grow_as(account, bytes, bytes, memory, wait))
        return false;
    for (; account; account = account->device)
        raise_peaks(account);
    return true;
}

static void answer(struct rs_account *account, size_t charge_bytes, enum rs_memory memory)
{
    if (memory != RS_MEMORY_HOST)
        take_away(&account->asked_bytes, charge_bytes);
}

void rs_account_taken(struct rs_account *account, size_t charge_bytes, enum rs_memory memory)
{
    for (; account; account = account->device) {
        answer(account, charge_bytes, memory);
        raise_peaks(account);
    }
}

bool rs_account_try_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                       enum rs_memory memory, struct rs_account_wait *wait)
{
    if (!grow_as(account, bytes, charge_bytes, memory, wait))
        return false;
    for (; account; account = account->device) {
        atomic_fetch_add_explicit(&account->driver_allocations, 1, memory_order_relaxed);
        if (memory != RS_MEMORY_HOST)
            atomic_fetch_add_explicit(&account->asked_bytes, charge_bytes, memory_order_relaxed);
    }
    return true;
}

bool rs_account_wait(struct rs_account *account, struct rs_account_wait *wait)
{
    struct rs_account *device = account && account->device ? account->device : account;

    if (!wait->is_contested)
        return false;                    /* counted by the try */
    RS_ASSERT(device && job_of(device)); /* nobody else contests */
    return rs_job_contest_wait(&wait->contest) || refuse(device);
}

bool rs_account_take_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory)
{
    struct rs_account_wait wait = {.is_contested = false};

    do
        if (rs_account_try_as(account, bytes, charge_bytes, memory, &wait))
            return true;
    while (rs_account_wait(account, &wait));
    return false;
}

bool rs_account_take(struct rs_account *account, size_t bytes, enum rs_memory memory)
{
    return rs_account_take_as(account, bytes, bytes, memory);
}

void rs_account_shrink(struct rs_account *account, size_t bytes, enum rs_memory memory)
{
    for (; account; account = account->device)
        subtract(account, bytes, bytes, memory);
}

void rs_account_give_many(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          uint64_t count, enum rs_memory memory)
{
    for (; account; account = account->device) {
        atomic_fetch_add_explicit(&account->driver_frees, count, memory_order_relaxed);
        subtract(account, bytes, charge_bytes, memory);
    }
}

void rs_account_give_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory)
{
    rs_account_give_many(account, bytes, charge_bytes, 1, memory);
}

void rs_account_give(struct rs_account *account, size_t bytes, enum rs_memory memory)
{
    rs_account_give_as(account, bytes, bytes, memory);
}

void rs_account_untake_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          enum rs_memory memory)
{
    for (; account; account = account->device) {
        atomic_fetch_sub_explicit(&account->driver_allocations, 1, memory_order_relaxed);
        answer(account, charge_bytes, memory);
        subtract(account, bytes, charge_bytes, memory);
    }
}

void rs_account_untake(struct rs_account *account, size_t bytes, enum rs_memory memory)
{
    rs_account_untake_as(account, bytes, bytes, memory);
}

void rs_account_recharge(struct rs_account *account, size_t from_bytes, size_t to_bytes)
{
    for (; account; account = account->device) {
        change_charged(account, to_bytes - from_bytes);
        raise_peaks(account);
        if (to_bytes < from_bytes)
            note_release(account);
    }
}

void rs_account_follow(struct rs_account *account, size_t from_held_bytes, size_t to_held_bytes,
                       size_t from_bytes)
{
    RS_ASSERT(!account->device); /* a device's: nothing is added to another */
    atomic_fetch_add_explicit(&account->held_bytes[RS_MEMORY_DEVICE],
                              to_held_bytes - from_held_bytes, memory_order_relaxed);
    rs_account_recharge(account, from_bytes, to_held_bytes);
}

void rs_account_begin_return(struct rs_account *account, size_t bytes)
{
    struct rs_account *device = account && account->device ? account->device : account;

    if (device)
        atomic_fetch_add(&device->returning_bytes, bytes);
}

void rs_account_end_return(struct rs_account *account, size_t bytes)
{
    rs_account_begin_return(account, 0 - bytes);
}

uint64_t rs_account_releases(const struct rs_account *account)
{
    const struct rs_account *device = account && account->device ? account->device : account;
    const struct rs_job_share *job;

    if (!device)
        return 0;
    job = job_of(device);
    return atomic_load_explicit(&device->releases, memory_order_acquire) +
           (job ? rs_job_share_releases(job) : 0) - own_releases;
}

void rs_account_freed(const struct rs_account *account, size_t bytes)
{
    const struct rs_account *device = account && account->device ? account->device : account;
    struct rs_job_share *job = device ? job_of(device) : NULL;

    if (RS_UNLIKELY(job))
        rs_job_share_freed(job, bytes);
}

size_t rs_account_limit(const struct rs_account *account)
{
    const struct rs_account *device = account->device ? account->device : account;
    size_t limit = atomic_load_explicit(&device->limit_bytes, memory_order_relaxed), others;
    const struct rs_job_share *job = job_of(device);

    if (RS_LIKELY(!job))
        return limit;
    others = rs_job_share_others(job);
    others = rs_max(job->limit_bytes - rs_min(others, job->limit_bytes), 1);
    return limit ? rs_min(limit, others) : others;
}

size_t rs_account_most(const struct rs_account *account)
{
    const struct rs_account *device = account && account->device ? account->device : account;
    const struct rs_job_share *job = device ? job_of(device) : NULL;
    size_t limit = device ? atomic_load_explicit(&device->limit_bytes, memory_order_relaxed) : 0;

    return rs_min(limit ? limit : SIZE_MAX, job ? job->limit_bytes : SIZE_MAX);
}

/* Returns the device's limit and its charged bytes; SIZE_MAX and 0 without a limit. */
static size_t limit_of(const struct rs_account *account, size_t *charged)
{
    const struct rs_account *device = account && account->device ? account->device : account;
    size_t limit = device ? rs_account_limit(device) : 0;

    *charged = limit ? atomic_load_explicit(&device->charged_bytes, memory_order_relaxed) : 0;
    return limit ? limit : SIZE_MAX;
}

size_t rs_account_room(const struct rs_account *account)
{
    size_t charged, limit = limit_of(account, &charged);

    return limit == SIZE_MAX ? SIZE_MAX : limit - rs_min(charged, limit);
}

bool rs_account_has_room(const struct rs_account *account, size_t bytes)
{
    size_t charged, limit = limit_of(account, &charged);

    return charged <= limit && bytes <= limit - charged;
}

bool rs_account_has_limit(const struct rs_account *account)
{
    const struct rs_account *device = account && account->device ? account->device : account;

    return device &&
           (atomic_load_explicit(&device->limit_bytes, memory_order_relaxed) > 0 || job_of(device));
}

size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories)
{
    size_t held = 0;

    for (int memory = 0; account && memory < RS_MEMORIES; memory++)
        if (memories & 1u << memory)
            held += atomic_load_explicit(&account->held_bytes[memory], memory_order_relaxed);
    return held;
}

size_t rs_account_held_bytes(const struct rs_account *account)
{
    return rs_account_held_bytes_of(account, ~0u);
}

void rs_account_lose(struct rs_account *account)
{
    size_t charged = atomic_exchange_explicit(&account->charged_bytes, 0, memory_order_relaxed);

    RS_ASSERT(has_sound_device(account));
    for (int memory = 0; memory < RS_MEMORIES; memory++) {
        size_t held =
            atomic_exchange_explicit(&account->held_bytes[memory], 0, memory_order_relaxed);
        if (account->device)
            atomic_fetch_sub_explicit(&account->device->held_bytes[memory], held,
                                      memory_order_relaxed);
    }
    if (account->device) {
        change_charged(account->device, 0 - charged);
        note_release(account->device);
    }
}
