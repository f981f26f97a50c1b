/* SPDX-License-Identifier: Apache-2.0 */
/* Quarantine: freed blocks gather in open lists, one per shard, which an epoch or a full wait takes
 * as one batch.  The counts of the quarantine also cover blocks in no list, on their way upstream.
 */
#include "resource/reuse/reuse.h"

/* ---- how much there is ---- */

static size_t load(const _Atomic size_t *size)
{
    return atomic_load_explicit(size, memory_order_acquire);
}

static struct rs_reuse_quantity entered(const struct rs_reuse *reuse)
{
    struct rs_reuse_quantity sum = {load(&reuse->ordered_bytes), load(&reuse->ordered_count)};

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        sum.bytes += load(&reuse->shards[i].entered_bytes);
        sum.blocks += load(&reuse->shards[i].entered_count);
    }
    return sum;
}

bool rs_reuse_has_quarantine(const struct rs_reuse *reuse)
{
    size_t left = load(&reuse->left_count);

    return entered(reuse).blocks != left;
}

uint64_t rs_reuse_moves(const struct rs_reuse *reuse)
{
    return entered(reuse).blocks + load(&reuse->left_count) + load(&reuse->given);
}

struct rs_reuse_quantity rs_reuse_quarantined(const struct rs_reuse *reuse)
{
    struct rs_reuse_quantity sum = entered(reuse);
    size_t left_bytes = load(&reuse->left_bytes), left_count = load(&reuse->left_count);

    return (struct rs_reuse_quantity){sum.bytes > left_bytes ? sum.bytes - left_bytes : 0,
                                      sum.blocks > left_count ? sum.blocks - left_count : 0};
}

/* ---- batches ---- */

const struct rs_reuse_batch rs_reuse_no_batch;

void rs_reuse_batch_append(const struct rs_reuse *reuse, struct rs_reuse_batch *batch,
                           struct rs_reuse_batch *tail)
{
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++)
        rs_block_list_append(&batch->own[i], &tail->own[i]);
    rs_block_list_append(&batch->rest, &tail->rest);
}

/* ---- all of the open lists ---- */

size_t rs_reuse_gather(struct rs_reuse *reuse, struct rs_reuse_batch *batch)
{
    ptrdiff_t live = rs_ordered_live_bytes(&reuse->ordered);

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        RS_ASSERT(shard->published_bytes <= shard->open.bytes + shard->open_rest.bytes);
        if (batch) {
            rs_block_list_append(&batch->own[i], &shard->open);
            rs_block_list_append(&batch->rest, &shard->open_rest);
            atomic_fetch_sub_explicit(&reuse->open_bytes, shard->published_bytes,
                                      memory_order_relaxed);
            shard->published_bytes = 0;
        }
        live += shard->live_bytes;
        rs_spinlock_unlock(&shard->lock);
    }
    if (live <= 0)
        return 0;
    atomic_store_explicit(
        &reuse->peak_live_bytes,
        rs_max(atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed), (size_t)live),
        memory_order_relaxed);
    return (size_t)live;
}

void rs_reuse_put_back(struct rs_reuse *reuse, struct rs_reuse_batch *batch)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);

    RS_ASSERT(batch->rest.first || batch->rest.count == 0);
    rs_spinlock_lock(&shard->lock);
    rs_block_list_append(&shard->open_rest, &batch->rest);
    rs_spinlock_unlock(&shard->lock);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        if (!batch->own[i].first)
            continue;
        rs_spinlock_lock(&reuse->shards[i].lock);
        rs_block_list_append(&reuse->shards[i].open, &batch->own[i]);
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
}

/* The open bytes of the shard that all threads see are no more than it has.  Under its lock. */
static void publish_less(struct rs_reuse *reuse, struct rs_reuse_shard *shard)
{
    size_t open_bytes = shard->open.bytes + shard->open_rest.bytes;
    size_t less_bytes = shard->published_bytes - rs_min(shard->published_bytes, open_bytes);

    shard->published_bytes -= less_bytes;
    atomic_fetch_sub_explicit(&reuse->open_bytes, less_bytes, memory_order_relaxed);
}

/* The lock is only tried, as in each free (rs_reuse_seal_and_retire_in_passing). */
bool rs_reuse_take_back(struct rs_reuse *reuse, struct rs_block_record *record)
{
    size_t size_bytes = 0;

    if (!rs_mutex_try_lock(&reuse->lock))
        return false;
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse) && size_bytes == 0; i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        if (rs_block_list_remove(&shard->open, record) ||
            rs_block_list_remove(&shard->open_rest, record)) {
            size_bytes = record->upstream_bytes;
            shard->live_bytes += (ptrdiff_t)size_bytes;
            record->stream = 0;
            publish_less(reuse, shard);
        }
        rs_spinlock_unlock(&shard->lock);
    }
    if (size_bytes > 0)
        rs_reuse_count_left(reuse, size_bytes, 1);
    rs_mutex_unlock(&reuse->lock);
    return size_bytes > 0;
}

size_t rs_reuse_open_count(struct rs_reuse *reuse)
{
    size_t count = rs_ordered_open_count(&reuse->ordered);

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        count += reuse->shards[i].open.count + reuse->shards[i].open_rest.count;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return count;
}
