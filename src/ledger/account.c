/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger/account.h"

#include "base/check.h"
#include "base/lock.h"

#include <stdlib.h>

enum { BLOCK_BITS = 21, SMALL_BYTES = 1 << 20 };

static const size_t block_bytes = (size_t)1 << BLOCK_BITS;

/* The number of releases by this thread, on all devices. rs_account_releases leaves them out: a
 * refused request releases its own charge, and that must not make its refusal look stale. */
static __thread uint64_t own_releases;

/* DEVICE_OF is the account of the device to which an account belongs.  DEVICE_IF is the same, but
 * NULL for a NULL account. */
#define DEVICE_OF(account) ((account)->device ? (account)->device : (account))
#define DEVICE_IF(account) ((account) ? DEVICE_OF(account) : NULL)

static struct rs_job_share *job_of(const struct rs_account *device)
{
    return atomic_load_explicit(&device->job, memory_order_acquire);
}

void rs_account_begin(struct rs_account *account, struct rs_account *device)
{
    /* `device` is a device's account, which is no part of another. */
    RS_ASSERT(!device || !device->device);
    *account = (struct rs_account){.device = device};
    rs_mutex_init(&account->mutex, RS_RANK_LEDGER);
}

/* ---- changes; under the device's mutex ---- */

/* Changes one holder's part of a counter.  The counter is the sum of the parts of all holders, so
 * no holder's change makes it negative. */
static void change_counter(_Atomic size_t *counter, size_t from, size_t to)
{
    /* If the counter were smaller, bytes would have been given back twice, or never taken.  A
     * request that is larger than any memory wraps the counter around, and its refusal wraps it
     * back. */
    RS_ASSERT_SLOW(to >= from || from - to > SIZE_MAX / 2 || rs_counter_get(counter) >= from - to);
    rs_counter_add(counter, to - from);
}

/* Peaks leave out the bytes for which the driver has not answered yet, since it may refuse them. */
static void raise_charged_peaks(struct rs_account *device)
{
    size_t asked = rs_counter_get(&device->asked_bytes);
    size_t charged = rs_counter_get(&device->charged_bytes);
    size_t granted = charged - rs_min(asked, charged);

    if (granted > rs_counter_get(&device->peak_charged_bytes))
        atomic_store(&device->peak_charged_bytes, granted);
    if (granted > rs_counter_get(&device->recent_peak_bytes))
        atomic_store(&device->recent_peak_bytes, granted);
}

/* The asked bytes rise before the charged ones and fall after them, so at each moment they cover
 * all charged bytes that the driver has not granted.  A thread without the mutex (charge/reclaim.c)
 * reads the asked bytes first; then only bytes that were charged since can look granted to it. */
static void count_amount(struct rs_account *account, struct rs_amount from, struct rs_amount to,
                         enum rs_memory memory)
{
    struct rs_account *device = DEVICE_OF(account);

    RS_ASSERT_HELD(&device->mutex);
    if (to.asked_bytes > from.asked_bytes)
        change_counter(&device->asked_bytes, from.asked_bytes, to.asked_bytes);
    for (; account; account = account->device) {
        change_counter(&account->held_bytes[memory], from.held_bytes, to.held_bytes);
        change_counter(&account->charged_bytes, from.charged_bytes, to.charged_bytes);
    }
    if (to.asked_bytes < from.asked_bytes)
        change_counter(&device->asked_bytes, from.asked_bytes, to.asked_bytes);
    raise_charged_peaks(device);
    if (to.held_bytes < from.held_bytes || to.charged_bytes < from.charged_bytes) {
        atomic_fetch_add_explicit(&device->releases, 1, memory_order_release);
        own_releases++;
    }
}

/* Charges the amount.  Returns false, and counts a refusal, when the process's own limit or that of
 * its job leaves no room.  The own limit is checked first, so that a request that exceeds the own
 * limit takes no room in the job from other processes. */
static bool take_amount(struct rs_account *account, struct rs_amount amount, enum rs_memory memory)
{
    struct rs_account *device = DEVICE_OF(account);
    struct rs_job_share *job = job_of(device);
    size_t limit = atomic_load_explicit(&device->limit_bytes, memory_order_relaxed);
    size_t charged = rs_counter_get(&device->charged_bytes), bytes = amount.charged_bytes;

    if (memory != RS_MEMORY_HOST && ((limit && (charged > limit || bytes > limit - charged)) ||
                                     (RS_UNLIKELY(job) && !rs_job_share_take(job, bytes)))) {
        atomic_fetch_add_explicit(&device->refusals, 1, memory_order_relaxed);
        return false;
    }
    count_amount(account, (struct rs_amount){0, 0, 0}, amount, memory);
    return true;
}

static void settle_amount(struct rs_account *account, struct rs_amount from, struct rs_amount to,
                          enum rs_memory memory)
{
    struct rs_account *device = DEVICE_OF(account);
    struct rs_job_share *job = job_of(device);
    size_t more = to.charged_bytes - from.charged_bytes;

    count_amount(account, from, to, memory);
    if (RS_LIKELY(!job) || more == 0)
        return;
    own_releases += rs_job_share_add(job, more);
}

/* Returns the amount to count: of host memory only the held bytes, which are never charged. */
static struct rs_amount amount_of(struct rs_amount amount, enum rs_memory memory)
{
    RS_ASSERT(memory < RS_MEMORIES);
    return memory == RS_MEMORY_HOST ? (struct rs_amount){amount.held_bytes, 0, 0} : amount;
}

bool rs_account_take(struct rs_account *account, size_t bytes, size_t charge_bytes,
                     enum rs_memory memory)
{
    if (!account)
        return true;
    RS_MUTEX_GUARD(&DEVICE_OF(account)->mutex);
    return take_amount(
        account, amount_of((struct rs_amount){bytes, charge_bytes, charge_bytes}, memory), memory);
}

void rs_account_settle(struct rs_account *account, struct rs_amount from, struct rs_amount to,
                       enum rs_memory memory)
{
    if (!account)
        return;
    RS_MUTEX_GUARD(&DEVICE_OF(account)->mutex);
    settle_amount(account, amount_of(from, memory), amount_of(to, memory), memory);
}

/* The whole charge is taken off together with the held bytes of the first kind of memory; the other
 * kinds then have no charge left. */
void rs_account_lose(struct rs_account *account)
{
    RS_MUTEX_GUARD(&DEVICE_OF(account)->mutex);

    for (int memory = 0; memory < RS_MEMORIES; memory++)
        settle_amount(account,
                      (struct rs_amount){rs_counter_get(&account->held_bytes[memory]),
                                         rs_counter_get(&account->charged_bytes), 0},
                      (struct rs_amount){0, 0, 0}, memory);
    rs_hash_clear(&account->blocks);
    free(account->packed);
    account->packed = NULL;
}

/* ---- small allocations by address ---- */

size_t rs_footprint_most(size_t size_bytes)
{
    size_t rounded;

    return rs_round_up(size_bytes, block_bytes, &rounded) ? rounded : size_bytes;
}

static size_t number_in(const struct rs_account *account, uint64_t block)
{
    return (uintptr_t)rs_hash_get(&account->blocks, block);
}

/* Counts one more allocation in the block. Returns the bytes by which the charge grows: those of
 * the block if it was empty, else 0. Returns SIZE_MAX when out of host memory, and for block 0,
 * which cannot be a key of the table (no driver has memory there). */
static size_t enter_block(struct rs_account *account, uint64_t block)
{
    size_t number = number_in(account, block);

    if (block == 0 || !rs_hash_put(&account->blocks, block, (void *)(uintptr_t)(number + 1)))
        return SIZE_MAX;
    return number ? 0 : block_bytes;
}

/* Counts one allocation less in the block.  Returns the bytes that are no longer charged: those of
 * the block if it is empty now, else 0. */
static size_t leave_block(struct rs_account *account, uint64_t block)
{
    size_t number = number_in(account, block);

    if (number > 1)
        /* Cannot fail, since it replaces a value. */
        (void)rs_hash_put(&account->blocks, block, (void *)(uintptr_t)(number - 1));
    else
        (void)rs_hash_take(&account->blocks, block);
    return number == 1 ? block_bytes : 0;
}

static bool shares_blocks(const struct rs_account *account, size_t size_bytes,
                          enum rs_memory memory)
{
    return account && memory != RS_MEMORY_HOST && size_bytes <= SMALL_BYTES;
}

/* Counts an allocation in the one or two blocks in which it lies.  Returns the bytes by which the
 * charge grows; SIZE_MAX, with nothing counted, when enter_block fails. */
static size_t enter_both(struct rs_account *account, CUdeviceptr address, size_t size_bytes)
{
    uint64_t first = address >> BLOCK_BITS, last = (address + size_bytes - 1) >> BLOCK_BITS;
    size_t bytes = enter_block(account, first), more = 0;

    RS_ASSERT(last - first <= 1);
    if (bytes != SIZE_MAX && last != first)
        more = enter_block(account, last);
    if (more == SIZE_MAX)
        (void)leave_block(account, first);
    return bytes == SIZE_MAX || more == SIZE_MAX ? SIZE_MAX : bytes + more;
}

bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes)
{
    size_t most = rs_footprint_most(size_bytes);

    *charged_bytes = most;
    if (!shares_blocks(account, size_bytes, memory)) {
        rs_account_taken(account, size_bytes, most, memory);
        return true;
    }
    RS_MUTEX_GUARD(&DEVICE_OF(account)->mutex);
    *charged_bytes = enter_both(account, address, size_bytes);
    if (*charged_bytes == SIZE_MAX)
        return false;
    settle_amount(account, (struct rs_amount){size_bytes, most, most},
                  (struct rs_amount){size_bytes, *charged_bytes, 0}, memory);
    return true;
}

size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory)
{
    uint64_t first = address >> BLOCK_BITS, last = (address + size_bytes - 1) >> BLOCK_BITS;

    if (!shares_blocks(account, size_bytes, memory))
        return rs_footprint_most(size_bytes);
    RS_MUTEX_GUARD(&DEVICE_OF(account)->mutex);
    return leave_block(account, first) + (last != first ? leave_block(account, last) : 0);
}

/* ---- memory whose address is not known ---- */

enum { UNIT_BITS = 12, CLASSES = (SMALL_BYTES >> UNIT_BITS) + 1 };

/* The small allocations of a device that have no known address.  A driver block holds a whole
 * number of allocations of equal size, for example five of 368 KiB (facts_h200.txt,
 * footprint.levels_256).  So each allocation is counted as its share of a block, in this example
 * 1/5 of 2 MiB.  A freed allocation leaves a hole until one that is no larger fills it; a block
 * goes back to the driver when no allocation is left in it. */
struct rs_packed {
    size_t live_bytes, live_count, hole_bytes;
    unsigned holes[CLASSES]; /* number of holes, by size in units of 4 KiB */
};

static size_t share_of_block(size_t size_bytes)
{
    return block_bytes / (block_bytes / rs_max(size_bytes, 1));
}

static size_t hole_class_of(size_t size_bytes)
{
    return share_of_block(size_bytes) >> UNIT_BITS;
}

static void add_hole(struct rs_packed *packed, size_t class)
{
    RS_ASSERT(class < CLASSES);
    if (class == 0)
        return;
    packed->holes[class]++;
    packed->hole_bytes += class << UNIT_BITS;
}

/* Fills the smallest hole that is large enough, if there is one; the rest of that hole stays a
 * hole. */
static void fill_hole(struct rs_packed *packed, size_t class)
{
    size_t found = class;

    while (found < CLASSES && packed->holes[found] == 0)
        found++;
    if (found == CLASSES)
        return;
    RS_ASSERT(packed->hole_bytes >= found << UNIT_BITS);
    packed->holes[found]--;
    packed->hole_bytes -= found << UNIT_BITS;
    add_hole(packed, found - class);
}

static void pack_small(struct rs_packed *packed, size_t size_bytes)
{
    fill_hole(packed, hole_class_of(size_bytes));
    packed->live_bytes += share_of_block(size_bytes);
    packed->live_count++;
}

static void unpack_small(struct rs_packed *packed, size_t size_bytes)
{
    RS_ASSERT(packed->live_count > 0 && packed->live_bytes >= share_of_block(size_bytes));
    packed->live_bytes -= share_of_block(size_bytes);
    if (--packed->live_count == 0)
        *packed = (struct rs_packed){.live_count = 0};
    else
        add_hole(packed, hole_class_of(size_bytes));
}

/* Returns the most bytes that the driver can have taken for these allocations: enough blocks for
 * them and all holes, but no more blocks than allocations, since no block is empty. */
static size_t packed_bytes(const struct rs_packed *packed)
{
    return rs_min(rs_footprint_most(packed->live_bytes + packed->hole_bytes),
                  packed->live_count * block_bytes);
}

/* True if an allocation of this size is small enough for device->packed, which is made if it is
 * missing.  False also when out of host memory.  The caller holds the mutex. */
static bool is_packed(struct rs_account *device, size_t size_bytes)
{
    if (size_bytes <= SMALL_BYTES && !device->packed)
        device->packed = calloc(1, sizeof(*device->packed));
    return size_bytes <= SMALL_BYTES && device->packed;
}

bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share)
{
    struct rs_packed after;
    struct rs_amount amount;
    bool taken;

    RS_ASSERT(!account->device);
    RS_MUTEX_GUARD(&account->mutex);
    share->is_packed = is_packed(account, size_bytes);
    share->charged_bytes = rs_footprint_most(size_bytes);
    if (share->is_packed) {
        after = *account->packed;
        pack_small(&after, size_bytes);
        RS_ASSERT(packed_bytes(&after) >= packed_bytes(account->packed));
        share->charged_bytes = packed_bytes(&after) - packed_bytes(account->packed);
    }
    amount = (struct rs_amount){size_bytes, share->charged_bytes, share->charged_bytes};
    taken = take_amount(account, amount, RS_MEMORY_DEVICE);
    if (taken && share->is_packed)
        *account->packed = after;
    return taken;
}

size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share, bool refused)
{
    size_t less_bytes = share->charged_bytes;
    RS_MUTEX_GUARD(&account->mutex);

    if (share->is_packed) {
        less_bytes = packed_bytes(account->packed);
        unpack_small(account->packed, size_bytes);
        less_bytes -= packed_bytes(account->packed);
    }
    settle_amount(account,
                  (struct rs_amount){size_bytes, less_bytes, refused ? share->charged_bytes : 0},
                  (struct rs_amount){0, 0, 0}, RS_MEMORY_DEVICE);
    return less_bytes;
}

/* ---- read without the mutex ---- */

void rs_account_begin_return(struct rs_account *account, size_t bytes)
{
    struct rs_account *device = DEVICE_IF(account);

    if (device)
        atomic_fetch_add(&device->returning_bytes, bytes);
}

void rs_account_end_return(struct rs_account *account, size_t bytes)
{
    rs_account_begin_return(account, 0 - bytes);
}

uint64_t rs_account_releases(const struct rs_account *account)
{
    const struct rs_account *device = DEVICE_IF(account);
    const struct rs_job_share *job = device ? job_of(device) : NULL;

    if (!device)
        return 0;
    return atomic_load_explicit(&device->releases, memory_order_acquire) +
           (job ? rs_job_share_releases(job) : 0) - own_releases;
}

void rs_account_freed(const struct rs_account *account, size_t bytes)
{
    const struct rs_account *device = DEVICE_IF(account);
    struct rs_job_share *job = device ? job_of(device) : NULL;

    if (RS_UNLIKELY(job))
        rs_job_share_freed(job, bytes);
}

size_t rs_account_most(const struct rs_account *account)
{
    const struct rs_account *device = DEVICE_IF(account);
    const struct rs_job_share *job = device ? job_of(device) : NULL;
    size_t limit = device ? atomic_load_explicit(&device->limit_bytes, memory_order_relaxed) : 0;

    return rs_min(limit ? limit : SIZE_MAX, job ? job->limit_bytes : SIZE_MAX);
}

size_t rs_account_limit(const struct rs_account *account)
{
    const struct rs_account *device = DEVICE_IF(account);
    const struct rs_job_share *job = device ? job_of(device) : NULL;
    size_t others = RS_UNLIKELY(job) ? rs_job_share_others(job) : 0, most = rs_account_most(device);

    return others ? rs_min(most, rs_max(job->limit_bytes - rs_min(others, job->limit_bytes), 1))
                  : most;
}

size_t rs_account_room(const struct rs_account *account)
{
    size_t limit = rs_account_limit(account);

    return limit == SIZE_MAX
               ? SIZE_MAX
               : limit - rs_min(rs_counter_get(&DEVICE_OF(account)->charged_bytes), limit);
}

bool rs_account_has_room(const struct rs_account *account, size_t bytes)
{
    size_t limit = rs_account_limit(account);

    return limit == SIZE_MAX ||
           (bytes <= limit && rs_counter_get(&DEVICE_OF(account)->charged_bytes) <= limit - bytes);
}

size_t rs_account_restart_peak(struct rs_account *device)
{
    size_t was;
    RS_MUTEX_GUARD(&device->mutex);

    RS_ASSERT(!device->device);
    was = atomic_exchange(&device->recent_peak_bytes, 0);
    raise_charged_peaks(device);
    return was;
}

size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories)
{
    size_t held = 0;

    memories &= account ? (1u << RS_MEMORIES) - 1 : 0;
    for (; memories; memories &= memories - 1)
        held += rs_counter_get(&account->held_bytes[__builtin_ctz(memories)]);
    return held;
}
