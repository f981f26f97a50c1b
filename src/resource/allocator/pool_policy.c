/* SPDX-License-Identifier: Apache-2.0 */
/* Which block of a pool a request may take, and when the pool holds more than it should. */
#include "resource/allocator/pool_inside.h"

/* The allowance: held bytes may exceed the peak of live bytes by 1/SLACK, and may always reach the
 * initial size. */
enum { SLACK = 32 };

/* A request is small below 1/INITIAL_DIVISOR of the initial size or 1/LARGEST_DIVISOR of the
 * largest request so far, whichever is larger.  It avoids the chunks of an initial size when that
 * largest request was huge, and at least 1/HUGE_DIVISOR of the initial size. */
enum { INITIAL_DIVISOR = 192, LARGEST_DIVISOR = 8, HUGE_DIVISOR = 32 };

/* After the first returns, one more chunk may be given back early per this many allocations. */
enum { ALLOCATIONS_PER_RETURN = 2048 };

/* Memory counts as short for this many allocations after a growth was refused. */
enum { SHORT_ALLOCATIONS = 4096 };

/* The bytes that the pool may hold once this request is served; past them fragmentation is to
 * blame. */
static size_t allowance(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t live_bytes =
        rs_max(pool->blocks.peak_live_bytes, pool->blocks.live_bytes + request->rounded_bytes);

    return rs_min(rs_max(pool->initial_bytes, live_bytes + live_bytes / SLACK),
                  pool->maximum_bytes);
}

bool rs_pool_is_past_allowance(const struct rs_pool *pool, const struct rs_block_request *request)
{
    return pool->growth != RS_POOL_GROWTH_RMM &&
           pool->charged_bytes + request->rounded_bytes > allowance(pool, request);
}

uint64_t rs_pool_returns_left(const struct rs_pool *pool)
{
    uint64_t allowed = rs_pool_first_returns(pool) + pool->allocations / ALLOCATIONS_PER_RETURN;

    return allowed > pool->early_returns ? allowed - pool->early_returns : 0;
}

void rs_pool_note_shortage(struct rs_pool *pool, size_t bytes)
{
    if (bytes <= pool->largest_bytes)
        pool->short_until = pool->allocations + SHORT_ALLOCATIONS;
}

/* While memory is short, no block is cut for a request that does not nearly fill it: the small rest
 * would pin a chunk that is missed.  Instead a chunk of just the request's size is taken, as long
 * as free chunks can be given back for it; when that fails too, any block is cut.  So after a while
 * most requests have a chunk of their own, as with the driver alone.  An initial size cannot be
 * given back in parts, so it is cut. */
void rs_pool_limit_cuts_when_short(const struct rs_pool *pool, struct rs_block_request *request)
{
    if (request->group <= RS_BLOCKS_SMALL ||
        (pool->initial_bytes > 0 && !rs_pool_can_grow(pool, request)))
        return;
    request->most_bytes =
        rs_pool_round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, SIZE_MAX);
    request->ample_bytes = SIZE_MAX;
}

void rs_pool_set_apart_bytes(struct rs_pool *pool)
{
    size_t of_initial_bytes = pool->initial_bytes / INITIAL_DIVISOR;
    size_t of_largest_bytes = pool->largest_bytes / LARGEST_DIVISOR;

    if (pool->growth == RS_POOL_GROWTH_RMM)
        return;
    if (of_initial_bytes < RS_POOL_SMALL_BYTES / 4)
        of_initial_bytes = 0;
    if (of_largest_bytes < RS_POOL_LARGE_BYTES)
        of_largest_bytes = 0;
    atomic_store_explicit(&pool->blocks.apart_bytes, rs_max(of_initial_bytes, of_largest_bytes),
                          memory_order_relaxed);
}

bool rs_pool_stays_away(const struct rs_pool *pool, const struct rs_block_request *request)
{
    if (!request->is_small || pool->largest_bytes < RS_POOL_HUGE_BYTES ||
        pool->largest_bytes < pool->initial_bytes / HUGE_DIVISOR ||
        !rs_pool_can_grow(pool, request))
        return false;
    return pool->initial_bytes > 0 ? pool->away_bytes + request->rounded_bytes <=
                                         pool->held_bytes / RS_POOL_AWAY_DIVISOR
                                   : !rs_pool_is_past_allowance(pool, request);
}

/* Large requests are limited; where chunks are not parted by size group, only huge ones are. */
static bool chooses_cuts(const struct rs_pool *pool, const struct rs_block_request *request)
{
    return request->group == RS_BLOCKS_LARGE ||
           (request->rounded_bytes >= RS_POOL_HUGE_BYTES && pool->growth != RS_POOL_GROWTH_RMM);
}

/* Large blocks are spared for the sake of the largest requests, so the largest request so far may
 * cut any block.  Smaller ones may cut a block up to half as large again as themselves, or one
 * whose rest is half as large again as the largest request: an equal rest was too small for
 * programs with growing sequence lengths.  Any block may be cut where upstream would refuse a
 * growth, or where the growth would need returns that are better kept. */
void rs_pool_limit_cuts(const struct rs_pool *pool, struct rs_block_request *request)
{
    size_t bytes = request->rounded_bytes, largest_bytes = pool->largest_bytes;

    request->most_bytes = SIZE_MAX;
    if (!chooses_cuts(pool, request) || bytes >= largest_bytes ||
        rs_pool_returns_left(pool) < rs_pool_first_returns(pool) / 2 ||
        bytes >= pool->step_limit_bytes)
        return;
    request->most_bytes = bytes + bytes / 2;
    request->ample_bytes = bytes + largest_bytes + largest_bytes / 2;
}
