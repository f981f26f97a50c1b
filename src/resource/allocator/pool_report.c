/* SPDX-License-Identifier: Apache-2.0 */
/* A pool's report, its state for tests, and the check of its invariants. */
#include "resource/allocator/pool.h"
#include "resource/allocator/pool_inside.h"
#include "resource/report.h"

void rs_pool_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_pool *pool = rs_pool_of(mr);
    const char *name = mr->descriptor->name;
    struct rs_term free_bytes[] = {RS_TERM(pool->held_bytes, 1),
                                   RS_TERM(pool->blocks.live_bytes, -1)};

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add_field(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    if (!rs_mutex_lock_bounded(&pool->lock, name))
        return;
    ADD("held", LIVE, BYTES, pool->held_bytes);
    ADD("held_peak", PEAK, BYTES, pool->peak_held_bytes);
    ADD("live", LIVE, BYTES, pool->blocks.live_bytes);
    ADD("live_peak", PEAK, BYTES, pool->blocks.peak_live_bytes);
    rs_report_add_sum(report, name, "free", RS_COUNTER_LIVE, RS_UNIT_BYTES, free_bytes, 2);
    rs_report_add(report, name, "largest_free", RS_COUNTER_LARGEST, RS_UNIT_BYTES,
                  rs_blocks_largest_free_bytes(&pool->blocks));
    ADD("chunks", LIVE, COUNT, pool->chunk_count);
    ADD("growths", TOTAL, COUNT, pool->growths);
    ADD("chunk_returns", TOTAL, COUNT, pool->chunk_returns);
    ADD("allocations", TOTAL, COUNT, pool->allocations);
    ADD("failures", TOTAL, COUNT, pool->failures);
    rs_mutex_unlock(&pool->lock);
#undef ADD
}

void rs_pool_state(struct rs_mr *mr, struct rs_pool_state *state)
{
    struct rs_pool *pool = rs_pool_of(mr);

    rs_mutex_lock(&pool->lock);
    *state = (struct rs_pool_state){
        .held_bytes = pool->held_bytes,
        .peak_held_bytes = pool->peak_held_bytes,
        .live_bytes = pool->blocks.live_bytes,
        .peak_live_bytes = pool->blocks.peak_live_bytes,
        .largest_free_bytes = rs_blocks_largest_free_bytes(&pool->blocks),
        .chunk_count = pool->chunk_count,
        .index_height = rs_blocks_index_height(&pool->blocks),
    };
    rs_mutex_unlock(&pool->lock);
}

struct pool_sums {
    size_t held_bytes, live_bytes, chunks, free_chunks, free_blocks;
};

/* Checks one chunk from end to end: no gap, no overlap, no two free neighbours. */
static bool chunk_check(const struct rs_pool *pool, const struct rs_pool_chunk *chunk,
                        struct pool_sums *sums)
{
    CUdeviceptr address = chunk->upstream.address + rs_pool_skipped_bytes(pool, chunk);
    const struct rs_block *before = NULL;

    for (const struct rs_block *block = &chunk->first_block; block; block = block->after) {
        if (block->address != address || block->before != before || block->size_bytes == 0 ||
            address % RS_BLOCK_ALIGNMENT != 0)
            return false;
        if (before && before->is_free && block->is_free)
            return false;
        sums->free_blocks += block->is_free;
        sums->live_bytes += block->is_free ? 0 : block->size_bytes;
        address += block->size_bytes;
        before = block;
    }
    sums->held_bytes += chunk->upstream.size_bytes;
    sums->chunks++;
    sums->free_chunks += rs_pool_is_free_chunk(chunk);
    return address == chunk->upstream.address + chunk->upstream.size_bytes;
}

static bool check_locked(const struct rs_pool *pool)
{
    struct pool_sums sums = {0};
    size_t indexed_blocks;

    for (const struct rs_pool_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        if ((chunk->next && chunk->next->previous != chunk) || !chunk_check(pool, chunk, &sums))
            return false;
    /* The index holds free blocks only, and as many as the chunks have: so it holds all of them. */
    return rs_blocks_index_check(&pool->blocks, &indexed_blocks) &&
           indexed_blocks == sums.free_blocks && indexed_blocks == pool->blocks.free_block_count &&
           sums.held_bytes == pool->held_bytes && sums.live_bytes == pool->blocks.live_bytes &&
           sums.chunks == pool->chunk_count && sums.free_chunks == pool->blocks.free_range_count &&
           pool->charged_bytes >= pool->held_bytes && pool->charged_bytes <= pool->maximum_bytes &&
           (pool->upstream_calls > 0 || pool->charged_bytes == pool->held_bytes);
}

bool rs_pool_check(struct rs_mr *mr)
{
    struct rs_pool *pool = rs_pool_of(mr);
    bool good;

    rs_mutex_lock(&pool->lock);
    good = check_locked(pool);
    rs_mutex_unlock(&pool->lock);
    return good;
}
