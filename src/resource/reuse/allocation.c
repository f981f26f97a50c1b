/* SPDX-License-Identifier: Apache-2.0 */
/* The path of an allocation through `reuse`: a block that the thread's shard keeps, a block freed
 * in the order of the same stream, or a block from upstream. */
#include "resource/reuse/reuse.h"

#include "base/request.h"
#include "driver/stream.h"

enum {
    HUGE_BYTES = 256 << 20, /* a program's work on a block of this size takes longer than a fence */
    /* Batches that one allocation sorts at most: thousands of blocks may be unsorted. */
    SORT_TURNS = 8,
};

/* Takes a kept block of this size and counts it as live, or returns NULL.  *more: the shard has
 * unsorted blocks, and one of them may do. */
RS_HOT_INLINE struct rs_block_record *take_kept(struct rs_reuse *reuse, size_t size_bytes,
                                                bool *more)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    struct rs_block_record *kept;

    rs_spinlock_lock(&shard->lock);
    kept = rs_kept_take(&shard->kept, size_bytes);
    *more = shard->ready.first;
    if (RS_LIKELY(kept)) {
        RS_ASSERT_SLOW(&reuse->shards[kept->home] == shard || kept->home < RS_REUSE_SHARDS);
        shard->live_bytes += (ptrdiff_t)size_bytes;
        if (RS_LIKELY(*more))
            rs_reuse_sort_one(shard);
        else
            rs_kept_prefetch(kept);
    }
    rs_spinlock_unlock(&shard->lock);
    return kept;
}

/* Fills in *out for a block.  Where it had another size, it is a new one to its record. */
RS_HOT_INLINE void hand_out(struct rs_block_record *block, size_t size_bytes,
                            unsigned long long key, struct rs_allocation *out)
{
    CUdeviceptr address = atomic_load_explicit(&block->address, memory_order_relaxed);

    if (RS_UNLIKELY(block->size_bytes != size_bytes))
        rs_block_hide(block);
    block->stream = key;
    *out = (struct rs_allocation){address, size_bytes, block, block};
}

/* Counts a block from upstream as live in the thread's shard, to which it will come back. */
static void count_live(struct rs_reuse *reuse, struct rs_block_record *block)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);

    block->home = shard->index;
    rs_spinlock_lock(&shard->lock);
    shard->live_bytes += (ptrdiff_t)block->upstream_bytes;
    rs_spinlock_unlock(&shard->lock);
}

/* An allocation in the order of a stream: a block freed in the same order needs no fence.  Sizes
 * are rounded up, so that more blocks have equal sizes. */
static bool allocate_in_order(struct rs_reuse *reuse, size_t *size_bytes, CUstream stream,
                              unsigned long long *key, struct rs_allocation *out)
{
    size_t asked_bytes = *size_bytes, rounded_bytes;
    struct rs_block_record *block;

    if (!rs_round_up(asked_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return false;
    *size_bytes = rounded_bytes;
    if (reuse->mode == RS_REUSE_WAIT || !rs_stream_key(stream, reuse->environment->context, key))
        return false;
    block = rs_ordered_take(&reuse->ordered, rounded_bytes, *key);
    if (!block)
        return false;
    rs_reuse_count_left(reuse, block->upstream_bytes, 1);
    hand_out(block, asked_bytes, *key, out);
    return true;
}

/* Makes all blocks ready that can be, before a huge block is cut: the memory left free around it
 * should be one piece, and blocks freed late would leave it in several.  Where all freed blocks
 * have this very size, the request can have one of them. */
static void ready_for_huge(struct rs_reuse *reuse, size_t size_bytes)
{
    struct rs_reuse_quantity freed = rs_reuse_quarantined(reuse);

    if (size_bytes < rs_reuse_held_bytes(reuse) / RS_REUSE_SCARCE_DIVISOR ||
        freed.bytes == freed.blocks * size_bytes)
        return;
    rs_request_begin();
    (void)rs_reuse_seal(reuse);
    (void)rs_reuse_retire(reuse);
    rs_request_end();
}

/* A block from upstream must be usable on all streams, as it will be handed to others later. */
static CUresult allocate_from_upstream(struct rs_reuse *reuse, size_t size_bytes,
                                       enum rs_effort effort, struct rs_allocation *out)
{
    enum rs_effort first = rs_effort_is_held(effort) ? RS_EFFORT_HELD_ANY : RS_EFFORT_HELD;
    CUresult result;

    if (RS_UNLIKELY(size_bytes >= HUGE_BYTES))
        ready_for_huge(reuse, size_bytes);
    result = rs_mr_allocate_with(reuse->base.upstream[0], size_bytes, NULL, first, out);
    return result == CUDA_ERROR_NOT_READY ? rs_reuse_allocate_slowly(reuse, size_bytes, effort, out)
                                          : result;
}

__attribute__((noinline)) static CUresult
allocate_new(struct rs_reuse *reuse, size_t size_bytes, size_t upstream_bytes,
             unsigned long long key, enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_allocation upstream;
    struct rs_block_record *record;
    CUresult result = allocate_from_upstream(reuse, upstream_bytes, effort, &upstream);

    if (result != CUDA_SUCCESS)
        return result;
    record = rs_block_record_take();
    if (RS_UNLIKELY(!record)) {
        /* The program has not seen the block. */
        (void)rs_mr_deallocate(reuse->base.upstream[0], &upstream, NULL);
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    }
    record->address = upstream.address;
    record->upstream_bytes = upstream.size_bytes;
    record->upstream_token = upstream.token;
    record->slot = 0;
    count_live(reuse, record);
    hand_out(record, size_bytes, key, out);
    return CUDA_SUCCESS;
}

/* Sorts ready blocks until one of this size is found, and takes it; NULL when there is none. */
__attribute__((noinline)) static struct rs_block_record *sort_and_take(struct rs_reuse *reuse,
                                                                       size_t size_bytes)
{
    struct rs_block_record *kept;
    unsigned turns = SORT_TURNS;
    bool more;

    do {
        rs_reuse_sort_ready(reuse);
        kept = take_kept(reuse, size_bytes, &more);
    } while (!kept && more && --turns > 0);
    return kept;
}

/* Takes a kept block or one from upstream, for an allocation on the stream with this key. */
RS_HOT_INLINE CUresult allocate_any(struct rs_reuse *reuse, size_t size_bytes,
                                    size_t upstream_bytes, unsigned long long key,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    bool more;
    struct rs_block_record *kept = take_kept(reuse, upstream_bytes, &more);

    if (RS_UNLIKELY(!kept)) {
        if (more)
            kept = sort_and_take(reuse, upstream_bytes);
        if (!kept)
            return allocate_new(reuse, size_bytes, upstream_bytes, key, effort, out);
    }
    hand_out(kept, size_bytes, key, out);
    return CUDA_SUCCESS;
}

static bool is_something_kept(struct rs_reuse *reuse, size_t size_bytes)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    bool kept;

    rs_spinlock_lock(&shard->lock);
    kept = shard->kept.bytes[rs_kept_class(size_bytes)] >= size_bytes;
    rs_spinlock_unlock(&shard->lock);
    return kept;
}

/* True when an allocation queries the fences before it takes a block.  A block so large that no
 * processor cache holds it may be any block: the fences are queried only where no other is free. */
static bool asks_first(struct rs_reuse *reuse, size_t size_bytes)
{
    return size_bytes >= rs_reuse_eager_bytes(reuse) &&
           (size_bytes < RS_REUSE_SEAL_BYTES ||
            (rs_mr_idle_bytes_best(reuse->base.upstream[0]) < size_bytes &&
             !is_something_kept(reuse, size_bytes)));
}

/* An allocation in the order of a stream, of a size that queries fences first, or with an effort
 * other than the full one.  A block from held memory is for all streams. */
__attribute__((noinline)) static CUresult allocate_unusual(struct rs_reuse *reuse,
                                                           size_t size_bytes, CUstream stream,
                                                           enum rs_effort effort,
                                                           struct rs_allocation *out)
{
    size_t upstream_bytes = size_bytes;
    unsigned long long key = 0;

    if (rs_effort_is_held(effort))
        return allocate_any(reuse, size_bytes, size_bytes, key, effort, out);
    if (asks_first(reuse, size_bytes)) {
        rs_request_begin();
        (void)rs_reuse_retire(reuse);
        rs_request_end();
    }
    if (stream && allocate_in_order(reuse, &upstream_bytes, stream, &key, out))
        return CUDA_SUCCESS;
    return allocate_any(reuse, size_bytes, upstream_bytes, key, effort, out);
}

RS_HOT CUresult rs_reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_reuse *reuse = rs_reuse_of(mr);

    RS_ASSERT_SLOW(size_bytes > 0);
    if (RS_UNLIKELY((uintptr_t)stream |
                    (effort | (unsigned)(size_bytes >= rs_reuse_eager_bytes(reuse)))))
        return allocate_unusual(reuse, size_bytes, stream, effort, out);
    return allocate_any(reuse, size_bytes, size_bytes, 0, RS_EFFORT_FULL, out);
}
