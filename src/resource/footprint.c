/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/footprint.h"

#include "base/arithmetic.h"
#include "base/hash_table.h"
#include "base/lock.h"

#include <stdlib.h>

enum { BLOCK_BITS = 21, SMALL_BYTES = 1 << 20 };

static const size_t block_bytes = (size_t)1 << BLOCK_BITS;

/* A block that small allocations of one account lie in.  Contexts do not share blocks, and where a
 * driver's do, each is charged for it. */
struct shared_block {
    struct rs_account *account;
    struct shared_block *next; /* of another account at the same place */
    size_t allocations;
};

static struct rs_mutex lock = RS_MUTEX_INIT;
static struct rs_hash_table blocks; /* by number; under the lock */

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

    while (block && block->account != account)
        block = block->next;
    return block;
}

/* Bytes newly charged for it, or SIZE_MAX when out of host memory. */
static size_t enter(uint64_t number, struct rs_account *account)
{
    struct shared_block *block = find(number, account);

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

/* Takes one block out of its place's list, which stays where others are in it. */
static void unlink_block(uint64_t number, struct shared_block *block)
{
    struct shared_block *first = rs_hash_get(&blocks, number), **link;

    if (first == block && !block->next) {
        (void)rs_hash_take(&blocks, number);
    } else if (first == block) {
        (void)rs_hash_put(&blocks, number, block->next); /* the key is there: needs no memory */
    } else {
        for (link = &first->next; *link != block; link = &(*link)->next)
            ;
        *link = block->next;
    }
    free(block);
}

/* Bytes no longer charged. */
static size_t leave(uint64_t number, const struct rs_account *account)
{
    struct shared_block *block = find(number, account);

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
                         enum rs_memory memory)
{
    uint64_t first = block_of(address), last = block_of(address + size_bytes - 1);
    size_t bytes, more = 0;

    if (!account || memory == RS_MEMORY_HOST || !is_small(size_bytes)) {
        rs_account_taken(account, rs_footprint_most(size_bytes), memory);
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
    rs_account_recharge(account, rs_footprint_most(size_bytes), bytes + more);
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

void rs_footprint_lose(struct rs_account *account)
{
    rs_mutex_lock(&lock);
    for (size_t slot = 0; slot < blocks.slot_count;) {
        struct shared_block *block = rs_hash_at(&blocks, slot);
        uint64_t number = blocks.slots[slot].key;

        while (block && block->account != account)
            block = block->next;
        if (block)
            unlink_block(number, block); /* another may have moved here: look again */
        else
            slot++;
    }
    rs_mutex_unlock(&lock);
}
