/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/block.h"

#include "base/thread.h"

#include <sys/mman.h>

RS_HOT_DATA _Atomic(struct rs_address_map *) rs_blocks;

enum { SLABS = 16, PAGE_BYTES = 64 << 10 };

/* The slabs of records.  A thread's index chooses the slab from which the thread takes records, so
 * that threads seldom contend for a lock.  A record goes back to the slab that made it.  Otherwise
 * a thread that only allocates would make new records for ever, while the slab of a thread that
 * only frees would fill with spare ones. */
static struct slab {
    _Alignas(2 * RS_CACHE_LINE) struct rs_spinlock lock; /* protects the slab */
    /* From `fresh` to `fresh_end`: the records of the newest page that were never taken. */
    struct rs_block_record *spare, *fresh, *fresh_end;
} slabs[SLABS] = {
    [0 ... SLABS - 1] = {.lock = RS_SPINLOCK_INIT(RS_RANK_TABLE)},
};

/* Makes a new record; the caller holds the slab's lock.  Pages come from mmap, so that no call
 * enters the program's malloc under that lock. */
static struct rs_block_record *make_record(struct slab *slab)
{
    void *page;

    if (slab->fresh == slab->fresh_end) {
        page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return NULL;
        slab->fresh = page;
        slab->fresh_end = slab->fresh + PAGE_BYTES / sizeof(*slab->fresh);
    }
    slab->fresh->slab = (unsigned char)(slab - slabs);
    return slab->fresh++;
}

struct rs_block_record *rs_block_record_take(void)
{
    struct slab *slab = &slabs[rs_thread_index() % SLABS];
    struct rs_block_record *block;

    rs_spinlock_lock(&slab->lock);
    block = slab->spare;
    if (RS_LIKELY(block))
        slab->spare = block->next;
    else
        block = make_record(slab);
    rs_spinlock_unlock(&slab->lock);
    RS_ASSERT_SLOW(!block || block->state == RS_BLOCK_HIDDEN);
    return block;
}

void rs_block_hide(struct rs_block_record *block)
{
    if (atomic_load_explicit(&block->state, memory_order_relaxed) == RS_BLOCK_HIDDEN)
        return;
    RS_ASSERT_SLOW(block->state == RS_BLOCK_TAKEN);
    /* This removes nothing if the block's context has ended: then the block is no longer in the
     * map, or a block of another context has its place. */
    (void)rs_address_map_remove(atomic_load(&rs_blocks),
                                atomic_load_explicit(&block->address, memory_order_relaxed), block);
    atomic_store_explicit(&block->state, RS_BLOCK_HIDDEN, memory_order_relaxed);
}

void rs_block_record_give(struct rs_block_record *block)
{
    struct slab *slab = &slabs[block->slab];

    rs_block_hide(block);
    rs_spinlock_lock(&slab->lock);
    RS_ASSERT_SLOW(block != slab->spare); /* the record was given back twice */
    block->next = slab->spare;
    slab->spare = block;
    rs_spinlock_unlock(&slab->lock);
}
