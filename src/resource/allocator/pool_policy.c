/* SPDX-License-Identifier: Apache-2.0 */
/* Which block of a pool a request may take, and when the pool holds more than it should. */
#include "resource/allocator/pool_inside.h"

/* Held bytes may exceed live ones by a SLACK-th, and reach the initial size. */
enum { SLACK = 32 };

/* A request is small below the larger of two shares, of the initial size and of the largest request
 * so far.  It stays away from an initial size when that request was huge, and a share of it at
 * least. */
enum { INITIAL_DIVISOR = 192, LARGEST_DIVISOR = 8, HUGE_DIVISOR = 32 };

/* After RS_POOL_RETURNS chunks one is given back early in that many allocations.  The second half
 * of those is for chunks that are too small. */
enum { ALLOCATIONS_PER_RETURN = 2048 };

/* So many allocations after a growth was refused memory is short. */
enum { SHORT_ALLOCATIONS = 4096 };

/* What the pool may hold when this request has been served before fragmentation is to blame. */
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
    uint64_t allowed = RS_POOL_RETURNS + pool->allocations / ALLOCATIONS_PER_RETURN;

    return allowed > pool->early_returns ? allowed - pool->early_returns : 0;
}

void rs_pool_note_shortage(struct rs_pool *pool, size_t bytes)
{
    if (bytes <= pool->largest_bytes)
        pool->short_until = pool->allocations + SHORT_ALLOCATIONS;
}

/* Where memory is short a chunk that a small rest of pins is missed: no block is cut for a request
 * that does not nearly fill it.  Another chunk, of just its size, is taken for it as long as free
 * ones can be given back; when all that was refused any block is cut.  So after a while most have a
 * chunk of their own, as with the driver alone.  An initial size cannot be given back in parts. */
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

/* True when another chunk is better for a small request than to pin one that a large one could
 * have.  With an initial size such chunks may be a share of what is held beyond it, which is to
 * stay whole; else they are within the allowance. */
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

/* Of kinds that are not parted the huge ones. */
static bool chooses_cuts(const struct rs_pool *pool, const struct rs_block_request *request)
{
    return request->group == RS_BLOCKS_LARGE ||
           (request->rounded_bytes >= RS_POOL_HUGE_BYTES && pool->growth != RS_POOL_GROWTH_RMM);
}

/* What a large request may cut.  What is large is passed by for the sake of the largest requests,
 * so the largest so far may cut any block.  Others may cut one half as large again as themselves,
 * and one whose rest is half as large again as the largest: just as large was too little for
 * programs whose lengths grow.  Any, where a growth instead would be asked for in vain, or by
 * returns that are better kept. */
void rs_pool_limit_cuts(const struct rs_pool *pool, struct rs_block_request *request)
{
    size_t bytes = request->rounded_bytes, largest_bytes = pool->largest_bytes;

    request->most_bytes = SIZE_MAX;
    if (!chooses_cuts(pool, request) || bytes >= largest_bytes ||
        rs_pool_returns_left(pool) < RS_POOL_RETURNS / 2 || bytes >= pool->step_limit_bytes)
        return;
    request->most_bytes = bytes + bytes / 2;
    request->ample_bytes = bytes + largest_bytes + largest_bytes / 2;
}
