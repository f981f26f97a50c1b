/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: one upstream allocation each, and giving them back. */
#include "resource/allocator/pool_inside.h"

#include <stdlib.h>

size_t rs_pool_skipped_bytes(const struct rs_pool *pool, const struct rs_pool_chunk *chunk)
{
    size_t skipped = rs_lead_bytes(chunk->upstream.address, pool->alignment);

    return skipped < chunk->upstream.size_bytes ? skipped : 0;
}

void rs_pool_add_chunk(struct rs_pool *pool, struct rs_pool_chunk *chunk)
{
    size_t skipped = rs_pool_skipped_bytes(pool, chunk);

    RS_ASSERT(chunk->upstream.address % RS_BLOCK_ALIGNMENT == 0);
    if (chunk->upstream.address % pool->alignment != 0)
        pool->is_misaligned = true;
    chunk->first_block = (struct rs_block){
        .address = chunk->upstream.address + skipped,
        .size_bytes = chunk->upstream.size_bytes - skipped,
        .group = (uint8_t)chunk->group,
    };
    chunk->previous = NULL;
    chunk->next = pool->chunks;
    if (chunk->next)
        chunk->next->previous = chunk;
    pool->chunks = chunk;
    pool->chunk_count++;
    rs_counter_add(&pool->held_bytes, chunk->upstream.size_bytes);
    RS_ASSERT(pool->held_bytes <= pool->charged_bytes &&
              pool->charged_bytes <= pool->maximum_bytes);
    pool->away_bytes += chunk->is_away ? chunk->upstream.size_bytes : 0;
    pool->peak_held_bytes = rs_max(pool->peak_held_bytes, rs_counter_get(&pool->held_bytes));
    rs_blocks_insert_free(&pool->blocks, &chunk->first_block);
}

/* Takes a chunk out of the pool.  It stays charged against the maximum until upstream has it. */
static void remove_chunk(struct rs_pool *pool, struct rs_pool_chunk *chunk)
{
    RS_ASSERT(rs_pool_is_free_chunk(chunk) && pool->chunk_count > 0);
    RS_ASSERT(pool->held_bytes >= chunk->upstream.size_bytes);
    RS_ASSERT(!chunk->is_away || pool->away_bytes >= chunk->upstream.size_bytes);
    RS_ASSERT(chunk->previous ? chunk->previous->next == chunk : pool->chunks == chunk);
    rs_blocks_remove_free(&pool->blocks, &chunk->first_block);
    *(chunk->previous ? &chunk->previous->next : &pool->chunks) = chunk->next;
    if (chunk->next)
        chunk->next->previous = chunk->previous;
    pool->chunk_count--;
    rs_counter_subtract(&pool->held_bytes, chunk->upstream.size_bytes);
    pool->away_bytes -= chunk->is_away ? chunk->upstream.size_bytes : 0;
}

struct rs_pool_chunk *rs_pool_detach_free_chunks(struct rs_pool *pool, uint64_t most,
                                                 size_t keep_bytes, bool keep_initial)
{
    struct rs_pool_chunk *detached = NULL, *next;

    for (struct rs_pool_chunk *chunk = pool->chunks;
         chunk && most > 0 && pool->blocks.free_range_count; chunk = next) {
        next = chunk->next;
        if (!rs_pool_is_free_chunk(chunk) || (keep_initial && chunk->is_initial))
            continue;
        if (chunk->upstream.size_bytes <= keep_bytes) {
            keep_bytes -= chunk->upstream.size_bytes;
            continue;
        }
        remove_chunk(pool, chunk);
        chunk->next = detached;
        detached = chunk;
        most--;
    }
    return detached;
}

void rs_pool_end_upstream_call(struct rs_pool *pool)
{
    RS_ASSERT(pool->upstream_calls > 0);
    pool->upstream_calls--;
    pthread_cond_broadcast(&pool->settled);
}

size_t rs_pool_return_chunks(struct rs_pool *pool, struct rs_pool_chunk *chunk)
{
    size_t returned_bytes = 0;

    for (const struct rs_pool_chunk *each = chunk; each; each = each->next)
        rs_account_begin_return(pool->environment->account, each->upstream.size_bytes);
    while (chunk) {
        struct rs_pool_chunk *next = chunk->next;
        CUresult result;

        pool->upstream_calls++;
        rs_mutex_unlock(&pool->lock);
        result = rs_mr_deallocate(pool->base.upstream[0], &chunk->upstream, NULL);
        rs_mutex_lock(&pool->lock);
        rs_pool_end_upstream_call(pool);
        if (result != CUDA_SUCCESS)
            rs_pool_add_chunk(pool, chunk); /* still ours */
        rs_account_end_return(pool->environment->account, chunk->upstream.size_bytes);
        if (result == CUDA_SUCCESS) {
            RS_ASSERT(pool->charged_bytes - pool->held_bytes >= chunk->upstream.size_bytes);
            pool->charged_bytes -= chunk->upstream.size_bytes;
            pool->missing_bytes += chunk->is_initial ? chunk->upstream.size_bytes : 0;
            returned_bytes += chunk->upstream.size_bytes;
            pool->chunk_returns++;
            pool->step_limit_bytes = SIZE_MAX;
            free(chunk);
        }
        chunk = next;
    }
    return returned_bytes;
}

size_t rs_pool_return_free_chunks(struct rs_pool *pool, size_t keep_bytes, bool keep_initial)
{
    return rs_pool_return_chunks(
        pool, rs_pool_detach_free_chunks(pool, UINT64_MAX, keep_bytes, keep_initial));
}
