/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: each serves some of the threads, and has the records of the blocks that they allocated.
 */
#include "resource/reuse/reuse.h"

unsigned rs_reuse_use_shard(struct rs_reuse *reuse)
{
    unsigned index = rs_thread_index() % RS_REUSE_SHARDS;
    unsigned used = atomic_load(&reuse->shards_used);

    while (used <= index && !atomic_compare_exchange_weak(&reuse->shards_used, &used, index + 1))
        ;
    RS_ASSERT(index < rs_reuse_shards_used(reuse));
    return index;
}

void rs_reuse_untake_record(struct rs_reuse *reuse, struct rs_freed *record, size_t size_bytes)
{
    struct rs_reuse_shard *home = &reuse->shards[record->home];

    RS_ASSERT(record->home < rs_reuse_shards_used(reuse) && !record->slot);
    rs_spinlock_lock(&home->lock);
    home->live_bytes -= (ptrdiff_t)size_bytes;
    rs_record_slab_give(&home->records, record);
    rs_spinlock_unlock(&home->lock);
}
