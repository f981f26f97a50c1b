/* SPDX-License-Identifier: Apache-2.0 */
/* Growth: more memory for a pool from its upstream, and room for it. */
#include "resource/allocator/pool_inside.h"

#include "base/lock.h"
#include "base/request.h"

#include <stdlib.h>

/* A growth takes 1/STEP of the held bytes: little, as the part ahead of the request counts towards
 * the bytes that may be held beyond the live ones.  With an initial size the program asked for room
 * ahead, so a growth takes 1/LONG_STEP, in fewer calls. */
enum { STEP = 128, LONG_STEP = 16 };

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500 };

bool rs_pool_returned_early(struct rs_pool *pool)
{
    uint64_t left = rs_pool_returns_left(pool), before = pool->chunk_returns;
    struct rs_pool_chunk *chunks;
    size_t returned_bytes;

    if (left == 0 || pool->blocks.free_range_count == 0 ||
        !rs_mr_deallocates_in_order(pool->base.upstream[0]))
        return false;
    chunks = rs_pool_detach_free_chunks(pool, left, 0, true);
    if (!chunks)
        return false;
    returned_bytes = rs_pool_return_chunks(pool, chunks);
    pool->early_returns += rs_max(pool->chunk_returns - before, 1);
    return returned_bytes > 0;
}

/* The bytes that a chunk for this request alone must have. */
static size_t needed_bytes(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t slack_bytes = pool->is_misaligned ? pool->alignment - RS_BLOCK_ALIGNMENT : 0, needed;

    return __builtin_add_overflow(request->rounded_bytes, slack_bytes, &needed)
               ? request->rounded_bytes
               : needed;
}

/* The bytes to ask for when nothing stands in the way: a multiple of the request, so that a program
 * that goes on with blocks of this size leaves no rest in each chunk. */
static size_t growth_step(const struct rs_pool *pool, const struct rs_block_request *request,
                          size_t remaining_bytes)
{
    bool is_long = pool->initial_bytes > 0 || rs_pool_returns_left(pool) == 0;
    size_t step_bytes;

    if (pool->growth == RS_POOL_GROWTH_RMM)
        return rs_max(request->rounded_bytes,
                      pool->maximum_bytes == SIZE_MAX ? pool->held_bytes : remaining_bytes / 2);
    step_bytes = pool->held_bytes / (is_long ? LONG_STEP : STEP);
    if (request->stays_away && pool->initial_bytes > 0)
        step_bytes =
            rs_min(pool->away_bytes, pool->held_bytes / RS_POOL_AWAY_DIVISOR - pool->away_bytes);
    step_bytes = rs_max(request->rounded_bytes, step_bytes);
    step_bytes = rs_min(step_bytes, pool->step_limit_bytes);
    step_bytes -= step_bytes % request->rounded_bytes;
    return rs_min(rs_pool_round_up_or(step_bytes, RS_DRIVER_GRANULARITY, step_bytes),
                  pool->step_limit_bytes);
}

/* The bytes that make the pool hold its initial size again.  0 for a chunk of small requests that
 * spare the others, as the initial size serves all. */
static size_t missing_step(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t held_bytes = rs_min(pool->charged_bytes, pool->initial_bytes);

    if (request->stays_away)
        return 0;
    return rs_min(rs_min(pool->missing_bytes, pool->initial_bytes - held_bytes),
                  pool->step_limit_bytes);
}

/* The bytes to ask for after ask_bytes was refused.  RMM's rule takes the half; ours a multiple of
 * the request again, and of the driver's 2 MiB unit, below which no size in between can succeed. */
static size_t smaller_step(const struct rs_pool *pool, size_t ask_bytes, size_t least_bytes)
{
    size_t half_bytes = ask_bytes / 2;

    if (pool->growth == RS_POOL_GROWTH_GEOMETRIC)
        half_bytes = rs_round_down(half_bytes - half_bytes % least_bytes, RS_DRIVER_GRANULARITY);
    return rs_max(half_bytes, least_bytes);
}

/* After a refusal the next growth begins with the size that succeeded now, instead of asking the
 * driver for the refused sizes again, and doubles from there. */
static void learn_step(struct rs_pool *pool, size_t first_ask_bytes, size_t ask_bytes,
                       CUresult result)
{
    if (result != CUDA_SUCCESS)
        pool->step_limit_bytes = rs_min(pool->step_limit_bytes, ask_bytes);
    else if (ask_bytes < first_ask_bytes)
        pool->step_limit_bytes = ask_bytes;
    else if (ask_bytes >= pool->step_limit_bytes &&
             __builtin_mul_overflow(ask_bytes, (size_t)2, &pool->step_limit_bytes))
        pool->step_limit_bytes = SIZE_MAX;
}

/* Asks upstream for a chunk of ever fewer bytes, down to ask->least_bytes; *size_bytes: how many in
 * the end.  Called without the lock. */
static CUresult ask_upstream(struct rs_pool *pool, const struct rs_pool_ask *ask,
                             size_t *size_bytes, struct rs_allocation *out)
{
    *size_bytes = ask->most_bytes;
    for (;;) {
        bool is_ahead = ask->is_ahead || *size_bytes > ask->least_bytes;
        CUresult result;

        rs_request_note_hopeless(false);
        /* on the NULL stream, as chunks serve all streams */
        result = rs_mr_allocate_with(pool->base.upstream[0], *size_bytes, NULL,
                                     is_ahead ? RS_EFFORT_AHEAD : RS_EFFORT_FULL, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || *size_bytes == ask->least_bytes)
            return result;
        *size_bytes = smaller_step(pool, *size_bytes, ask->least_bytes);
    }
}

/* All host memory is taken before upstream is called, so no upstream call has to be undone.  The
 * record that the caller's split needs is put in reserve again. */
CUresult rs_pool_add_chunk_from_upstream(struct rs_pool *pool, const struct rs_pool_ask *ask)
{
    struct rs_pool_chunk *chunk = calloc(1, sizeof(*chunk));
    void *spare = chunk ? rs_record_slab_take(&pool->blocks.records) : NULL;
    size_t size_bytes;
    CUresult result;

    if (!spare) {
        free(chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    RS_ASSERT(ask->least_bytes > 0 && ask->least_bytes <= ask->most_bytes);
    RS_ASSERT(ask->most_bytes <= pool->maximum_bytes - pool->charged_bytes);
    pool->charged_bytes += ask->most_bytes;
    pool->upstream_calls++;
    rs_mutex_unlock(&pool->lock);
    result = ask_upstream(pool, ask, &size_bytes, &chunk->upstream);
    rs_mutex_lock(&pool->lock);
    rs_pool_end_upstream_call(pool);
    rs_record_slab_give(&pool->blocks.records, spare);
    RS_ASSERT(pool->charged_bytes - pool->held_bytes >= ask->most_bytes);
    RS_ASSERT(size_bytes >= ask->least_bytes && size_bytes <= ask->most_bytes);
    pool->charged_bytes -= ask->most_bytes;
    if (!ask->is_ahead && (result == CUDA_ERROR_OUT_OF_MEMORY || size_bytes < ask->most_bytes))
        rs_pool_note_shortage(pool, ask->least_bytes);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
        learn_step(pool, ask->most_bytes, size_bytes, result);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    pool->charged_bytes += size_bytes;
    chunk->group = ask->group;
    chunk->is_initial = ask->is_initial;
    rs_pool_add_chunk(pool, chunk);
    return CUDA_SUCCESS;
}

/* A chunk for requests that spare the others gets a group of its own (RS_BLOCKS_END) where groups
 * are not parted: in the common group nothing would tell it from the other chunks. */
static enum rs_block_group group_to_grow(const struct rs_block_request *request)
{
    return request->stays_away && request->group == RS_BLOCKS_COMMON ? RS_BLOCKS_END
                                                                     : request->group;
}

static void set_away(struct rs_pool *pool, struct rs_pool_chunk *chunk)
{
    RS_ASSERT(!chunk->is_away);
    chunk->is_away = true;
    pool->away_bytes += chunk->upstream.size_bytes;
}

/* The bytes that a growth asks for at first; remaining_bytes are left to the maximum.  Only one
 * growth at a time asks for more than its request: sixteen threads that find no block at once must
 * not take sixteen steps. */
static size_t bytes_to_ask(const struct rs_pool *pool, const struct rs_block_request *request,
                           enum rs_pool_how_much how_much, size_t remaining_bytes)
{
    if (how_much == RS_POOL_A_STEP &&
        (rs_pool_is_short(pool) || (request->stays_away && request->group == RS_BLOCKS_LARGE)))
        how_much = RS_POOL_A_LITTLE;
    if (how_much == RS_POOL_A_LITTLE)
        return rs_min(remaining_bytes,
                      rs_pool_round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, 0));
    if (how_much == RS_POOL_A_STEP && !pool->is_growing_ahead)
        return rs_min(remaining_bytes, rs_max(growth_step(pool, request, remaining_bytes),
                                              missing_step(pool, request)));
    return 0;
}

CUresult rs_pool_grow(struct rs_pool *pool, const struct rs_block_request *request,
                      enum rs_pool_how_much how_much, enum rs_effort effort)
{
    size_t remaining_bytes = pool->maximum_bytes - pool->charged_bytes;
    size_t least_bytes = rs_min(needed_bytes(pool, request), remaining_bytes);
    struct rs_pool_ask ask = {.least_bytes = least_bytes,
                              .group = group_to_grow(request),
                              .is_ahead = request->stays_away || rs_effort_is_ahead(effort)};
    bool leads;
    CUresult result;

    if (least_bytes < request->bytes) {
        rs_pool_note_shortage(pool, request->rounded_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY; /* the request is past the maximum */
    }
    ask.most_bytes = rs_max(least_bytes, bytes_to_ask(pool, request, how_much, remaining_bytes));
    RS_ASSERT(ask.most_bytes <= remaining_bytes);
    /* Beside a growth ahead another one is none, though it may round its request up. */
    leads = ask.most_bytes > least_bytes && !pool->is_growing_ahead;
    if (leads && !request->stays_away && ask.most_bytes <= pool->missing_bytes) {
        ask.is_initial = true;
        ask.group = RS_BLOCKS_COMMON;
    }
    if (leads) {
        pool->is_growing_ahead = true;
        pool->ahead_bytes = ask.most_bytes - least_bytes;
    }
    result = rs_pool_add_chunk_from_upstream(pool, &ask);
    RS_ASSERT(!ask.is_initial || pool->missing_bytes >= ask.most_bytes);
    if (result == CUDA_SUCCESS && ask.is_initial)
        pool->missing_bytes -= pool->chunks->upstream.size_bytes;
    if (leads) {
        RS_ASSERT(pool->is_growing_ahead);
        pool->is_growing_ahead = false;
        pool->ahead_bytes = 0;
    }
    if (result == CUDA_SUCCESS && request->stays_away)
        set_away(pool, pool->chunks);
    pool->growths += result == CUDA_SUCCESS;
    return result;
}

/* Waits for the end of another thread's upstream call, for a bounded time: that call may wait for
 * the GPU, and the GPU for this thread. */
static void wait_until_settled(struct rs_pool *pool, long milliseconds)
{
    uint64_t until_ns = rs_clock_ns() + (uint64_t)milliseconds * 1000000;

    (void)rs_condition_wait_until_ns(&pool->settled, &pool->lock, until_ns);
}

bool rs_pool_waited_for_growth(struct rs_pool *pool, const struct rs_block_request *request)
{
    if (!pool->is_growing_ahead || pool->ahead_bytes < request->rounded_bytes)
        return false;
    RS_ASSERT(pool->upstream_calls > 0);
    pool->ahead_bytes -= request->rounded_bytes;
    wait_until_settled(pool, GROWTH_WAIT_MS);
    return true;
}

/* False when the request is larger than all memory that is not live, as far as is known here. */
static bool could_fit(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t idle_bytes = rs_counter_idle(&pool->held_bytes, &pool->blocks.live_bytes);
    size_t most_bytes = rs_min(pool->maximum_bytes,
                               rs_environment_total_bytes(pool->environment, pool->base.memories));
    size_t upstream_bytes;

    if (rs_request_is_hopeless())
        return false;
    if (__builtin_add_overflow(rs_mr_growable_bytes(pool->base.upstream[0]), idle_bytes,
                               &upstream_bytes))
        upstream_bytes = SIZE_MAX;
    return request->rounded_bytes <= upstream_bytes &&
           request->rounded_bytes <= most_bytes - rs_min(most_bytes, pool->blocks.live_bytes);
}

bool rs_pool_made_room(struct rs_pool *pool, const struct rs_block_request *request,
                       uint64_t returns_before)
{
    if (pool->blocks.free_range_count && rs_pool_return_free_chunks(pool, 0, true) > 0)
        return true;
    if (pool->blocks.free_range_count && could_fit(pool, request) &&
        rs_pool_return_free_chunks(pool, 0, false) > 0)
        return true;
    if (pool->chunk_returns != returns_before)
        return true;
    if (pool->upstream_calls == 0)
        return false;
    wait_until_settled(pool, SETTLE_WAIT_MS);
    return true;
}
