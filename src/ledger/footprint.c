/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger/footprint.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/hash_table.h"
#include "base/lock.h"

#include <stdlib.h>

enum { BLOCK_BITS = 21, SMALL_BYTES = 1 << 20 };

static const size_t block_bytes = (size_t)1 << BLOCK_BITS;

/* A driver block of 2 MiB with small allocations of one account.  Contexts do not share driver
 * blocks; on a driver where they do, each is charged for the block. */
struct shared_block {
    struct rs_account *account;
    struct shared_block *next; /* the record of another account for the same block */
    size_t allocations;
};

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(ledger_footprint, lock);
static struct rs_hash_table blocks; /* by address / 2 MiB; protected by the lock */

static bool is_small(size_t size_bytes)
{
    return size_bytes <= SMALL_BYTES;
}

size_t rs_footprint_most(size_t size_bytes)
{
    size_t rounded;

    return rs_round_up(size_bytes, block_bytes, &rounded) ? rounded : size_bytes;
}

static uint64_t block_of(CUdeviceptr address)
{
    return address >> BLOCK_BITS;
}

static struct shared_block *find(uint64_t number, const struct rs_account *account)
{
    struct shared_block *block = rs_hash_get(&blocks, number);

    RS_ASSERT_HELD(&lock);
    while (block && block->account != account)
        block = block->next;
    return block;
}

/* Counts one more allocation in the block.  Returns the bytes newly charged, or SIZE_MAX when
 * out of host memory, or for block 0, which is no key of the table: no driver has memory there. */
static size_t enter(uint64_t number, struct rs_account *account)
{
    struct shared_block *block = find(number, account);

    if (number == 0)
        return SIZE_MAX;
    if (block) {
        block->allocations++;
        return 0;
    }
    block = calloc(1, sizeof(*block));
    if (!block)
        return SIZE_MAX;
    *block = (struct shared_block){account, rs_hash_get(&blocks, number), 1};
    if (rs_hash_put(&blocks, number, block))
        return block_bytes;
    free(block);
    return SIZE_MAX;
}

/* Removes one record from the list of its block. */
static void unlink_block(uint64_t number, struct shared_block *block)
{
    struct shared_block *first = rs_hash_get(&blocks, number), **link;

    if (first == block && !block->next) {
        (void)rs_hash_take(&blocks, number);
    } else if (first == block) {
        (void)rs_hash_put(&blocks, number, block->next); /* replaces: needs no memory */
    } else {
        for (link = &first->next; *link != block; link = &(*link)->next)
            RS_ASSERT(*link); /* it is not in the list of its place */
        *link = block->next;
    }
    free(block);
}

/* Counts one allocation less in the block.  Returns the bytes no longer charged. */
static size_t leave(uint64_t number, const struct rs_account *account)
{
    struct shared_block *block = find(number, account);

    RS_ASSERT(!block || block->allocations > 0);
    if (!block || --block->allocations > 0)
        return 0;
    unlink_block(number, block);
    return block_bytes;
}

bool rs_footprint_take(struct rs_account *account, size_t size_bytes, enum rs_memory memory)
{
    return rs_account_take_as(account, size_bytes, rs_footprint_most(size_bytes), memory);
}

void rs_footprint_untake(struct rs_account *account, size_t size_bytes, enum rs_memory memory)
{
    rs_account_untake_as(account, size_bytes, rs_footprint_most(size_bytes), memory);
}

bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes)
{
    uint64_t first = block_of(address), last = block_of(address + size_bytes - 1);
    size_t bytes, more = 0;

    *charged_bytes = rs_footprint_most(size_bytes);
    if (!account || memory == RS_MEMORY_HOST || !is_small(size_bytes)) {
        rs_account_taken(account, *charged_bytes, memory);
        return true;
    }
    rs_mutex_lock(&lock);
    bytes = enter(first, account);
    if (bytes != SIZE_MAX && last != first) {
        more = enter(last, account);
        if (more == SIZE_MAX)
            (void)leave(first, account);
    }
    rs_mutex_unlock(&lock);
    if (bytes == SIZE_MAX || more == SIZE_MAX)
        return false;
    RS_ASSERT(last - first <= 1); /* a small one lies in two blocks at most */
    *charged_bytes = bytes + more;
    rs_account_recharge(account, rs_footprint_most(size_bytes), *charged_bytes);
    rs_account_taken(account, rs_footprint_most(size_bytes), memory);
    return true;
}

size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory)
{
    uint64_t first = block_of(address), last = block_of(address + size_bytes - 1);
    size_t bytes = rs_footprint_most(size_bytes);

    if (account && memory != RS_MEMORY_HOST && is_small(size_bytes)) {
        rs_mutex_lock(&lock);
        bytes = leave(first, account);
        if (last != first)
            bytes += leave(last, account);
        rs_mutex_unlock(&lock);
    }
    return bytes;
}

/* ---- memory whose address is not known ---- */

enum { UNIT_BITS = 12, CLASSES = (SMALL_BYTES >> UNIT_BITS) + 1 };

/* The small allocations of a device whose addresses are not known.  A driver block holds a whole
 * number of equal ones: five of 368 KiB (facts_h200.txt, footprint.levels_256).  So each is
 * counted as its share of a block, 1/5 of 2 MiB there.  A freed one leaves a hole until a
 * smaller one fills it; a block returns to the driver when nothing is in it. */
struct rs_footprint_packed {
    size_t live_bytes, live_count, hole_bytes;
    unsigned holes[CLASSES]; /* number of holes, by size in units of 4 KiB */
};

static size_t share_of(size_t size_bytes)
{
    return block_bytes / (block_bytes / rs_max(size_bytes, 1));
}

static size_t class_of(size_t size_bytes)
{
    return share_of(size_bytes) >> UNIT_BITS;
}

static size_t bytes_of(size_t class)
{
    return class << UNIT_BITS;
}

static void add_hole(struct rs_footprint_packed *packed, size_t class)
{
    RS_ASSERT(class < CLASSES);
    if (class == 0)
        return;
    packed->holes[class]++;
    packed->hole_bytes += bytes_of(class);
}

/* Fills the smallest hole that is large enough; the rest of it stays a hole. */
static void take_hole(struct rs_footprint_packed *packed, size_t class)
{
    size_t found = class;

    while (found < CLASSES && packed->holes[found] == 0)
        found++;
    if (found == CLASSES)
        return;
    RS_ASSERT(packed->hole_bytes >= bytes_of(found));
    packed->holes[found]--;
    packed->hole_bytes -= bytes_of(found);
    add_hole(packed, found - class);
}

static void pack(struct rs_footprint_packed *packed, size_t size_bytes)
{
    take_hole(packed, class_of(size_bytes));
    packed->live_bytes += share_of(size_bytes);
    packed->live_count++;
}

static void unpack(struct rs_footprint_packed *packed, size_t size_bytes)
{
    RS_ASSERT(packed->live_count > 0 && packed->live_bytes >= share_of(size_bytes));
    packed->live_bytes -= share_of(size_bytes);
    if (--packed->live_count == 0)
        *packed = (struct rs_footprint_packed){.live_count = 0};
    else
        add_hole(packed, class_of(size_bytes));
}

/* Returns the most bytes that the driver takes for them: every block has at least one
 * allocation. */
static size_t packed_bytes(const struct rs_footprint_packed *packed)
{
    return rs_min(rs_footprint_most(packed->live_bytes + packed->hole_bytes),
                  packed->live_count * block_bytes);
}

/* True when the allocation is counted among the small ones.  The caller holds the lock. */
static bool is_packed(struct rs_account *account, size_t size_bytes)
{
    if (is_small(size_bytes) && !account->packed)
        account->packed = calloc(1, sizeof(*account->packed));
    return is_small(size_bytes) && account->packed;
}

static bool try_to_pack(struct rs_account *account, size_t size_bytes,
                        struct rs_footprint_share *share, struct rs_account_wait *wait)
{
    struct rs_footprint_packed after;
    bool taken;

    rs_mutex_lock(&lock);
    share->is_packed = is_packed(account, size_bytes);
    share->charged_bytes = rs_footprint_most(size_bytes);
    if (share->is_packed) {
        after = *account->packed;
        pack(&after, size_bytes);
        RS_ASSERT(packed_bytes(&after) >= packed_bytes(account->packed));
        share->charged_bytes = packed_bytes(&after) - packed_bytes(account->packed);
    }
    taken = rs_account_try_as(account, size_bytes, share->charged_bytes, RS_MEMORY_DEVICE, wait);
    if (taken && share->is_packed)
        *account->packed = after;
    rs_mutex_unlock(&lock);
    return taken;
}

bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share)
{
    struct rs_account_wait wait = {.is_contested = false};

    do
        if (try_to_pack(account, size_bytes, share, &wait))
            return true;
    while (rs_account_wait(account, &wait));
    return false;
}

/* Takes the allocation out.  Returns the bytes no longer charged, which may differ from the
 * bytes charged for it: other allocations came and went between. */
static size_t remove_share(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share)
{
    size_t before_bytes;

    if (!share->is_packed)
        return share->charged_bytes;
    RS_ASSERT_HELD(&lock);
    before_bytes = packed_bytes(account->packed);
    unpack(account->packed, size_bytes);
    return before_bytes - packed_bytes(account->packed);
}

size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share)
{
    size_t less_bytes;

    rs_mutex_lock(&lock);
    less_bytes = remove_share(account, size_bytes, share);
    rs_account_give_as(account, size_bytes, less_bytes, RS_MEMORY_DEVICE);
    rs_mutex_unlock(&lock);
    return less_bytes;
}

size_t rs_footprint_unpack_refused(struct rs_account *account, size_t size_bytes,
                                   const struct rs_footprint_share *share)
{
    size_t less_bytes;

    rs_mutex_lock(&lock);
    less_bytes = remove_share(account, size_bytes, share);
    rs_account_untake_as(account, size_bytes, share->charged_bytes, RS_MEMORY_DEVICE);
    rs_account_recharge(account, less_bytes, share->charged_bytes);
    rs_mutex_unlock(&lock);
    return less_bytes;
}

void rs_footprint_lose(struct rs_account *account)
{
    rs_mutex_lock(&lock);
    for (size_t slot = 0; slot < blocks.slot_count;) {
        struct shared_block *block = rs_hash_at(&blocks, slot);
        uint64_t number = blocks.slots[slot].key;

        while (block && block->account != account)
            block = block->next;
        if (block)
            unlink_block(number, block); /* look again: another key may be in this slot now */
        else
            slot++;
    }
    rs_mutex_unlock(&lock);
}
