/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a pool: which free block a request may cut, when the pool holds more than it
 * should, and how chunks are taken from upstream and given back. */
#include "resource/allocator/pool_inside.h"

#include "base/lock.h"
#include "base/request.h"

#include <stdlib.h>

/* ---- chunks ---- */

size_t rs_pool_skipped_bytes(const struct rs_pool *pool, const struct rs_pool_chunk *chunk)
{
    size_t skipped = rs_lead_bytes(chunk->upstream.address, pool->alignment);

    return skipped < chunk->upstream.size_bytes ? skipped : 0;
}

/* Enters a chunk, whose upstream, group and flags are set, as one free block. */
static void add_free_chunk(struct rs_pool *pool, struct rs_pool_chunk *chunk)
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

/* Takes up to `most` free chunks out of the pool, except for keep_bytes of them and (keep_initial)
 * the initial size, and returns them as a list. */
static struct rs_pool_chunk *detach_free_chunks(struct rs_pool *pool, uint64_t most,
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

/* Counts the end of an upstream call (pool->upstream_calls), and wakes the threads that wait for
 * it. */
static void end_upstream_call(struct rs_pool *pool)
{
    RS_ASSERT(pool->upstream_calls > 0);
    pool->upstream_calls--;
    pthread_cond_broadcast(&pool->settled);
}

/* Gives detached chunks back upstream, and returns the bytes that upstream took (see
 * rs_pool_return_free_chunks). */
static size_t return_chunks(struct rs_pool *pool, struct rs_pool_chunk *chunk)
{
    size_t returned_bytes = 0;

    for (const struct rs_pool_chunk *each = chunk; each; each = each->next)
        rs_account_begin_return(pool->base.environment->account, each->upstream.size_bytes);
    while (chunk) {
        struct rs_pool_chunk *next = chunk->next;
        CUresult result;

        pool->upstream_calls++;
        rs_mutex_unlock(&pool->base.lock);
        result = rs_mr_deallocate(pool->base.upstream[0], &chunk->upstream, NULL);
        rs_mutex_lock(&pool->base.lock);
        end_upstream_call(pool);
        if (result != CUDA_SUCCESS)
            add_free_chunk(pool, chunk); /* upstream refused it, so it stays ours */
        rs_account_end_return(pool->base.environment->account, chunk->upstream.size_bytes);
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
    return return_chunks(pool, detach_free_chunks(pool, UINT64_MAX, keep_bytes, keep_initial));
}

/* ---- policy ---- */

/* How many chunks a pool may give back early, just before a growth: RS_POOL_INITIAL_RETURNS if it
 * has an initial size, else RS_POOL_RETURNS, and one more per ALLOCATIONS_PER_RETURN allocations.
 * Giving a chunk back and taking another costs driver calls, some 0.2 ms a pair, and helps only if
 * the program's sizes settle.  A transformer that repeats one training step, with an initial size
 * of 512 MiB, gave back and took 9 chunks in each step until 256 returns were used up.  With a
 * limit of 64 it held no more (1.16 to 1.26 times its live bytes). */
enum { RS_POOL_RETURNS = 512, RS_POOL_INITIAL_RETURNS = 64 };

static uint64_t first_returns(const struct rs_pool *pool)
{
    return pool->initial_bytes > 0 ? RS_POOL_INITIAL_RETURNS : RS_POOL_RETURNS;
}

/* Chunks for small requests that stay away from the initial size (is_away) are at most 1/16 of the
 * held bytes.  The first such chunk has 1/STEP of the held bytes.  When it had only 2 MiB, in a
 * pool of 4 GiB that had served a request of 256 MiB, every second allocation of 1 MiB found no
 * block, and `reuse` sealed its freed blocks each time. */
enum { RS_POOL_AWAY_DIVISOR = 16 };

/* Rounds up to a multiple of `unit`; returns `otherwise` where the result overflows. */
static size_t round_up_or(size_t bytes, size_t unit, size_t otherwise)
{
    size_t rounded;

    return rs_round_up(bytes, unit, &rounded) ? rounded : otherwise;
}

/* The allowance: the held bytes may exceed the peak of the live bytes by 1/SLACK of that peak, and
 * may always reach the initial size. */
enum { SLACK = 32 };

/* A request is small below 1/INITIAL_DIVISOR of the initial size or 1/LARGEST_DIVISOR of the
 * largest request so far, whichever is larger.  The first of the two counts only from 256 KiB on,
 * the second from 32 MiB on.  A small request stays away from blocks that large requests could use
 * if the largest request so far was huge, and at least 1/HUGE_DIVISOR of the initial size. */
enum { INITIAL_DIVISOR = 192, LARGEST_DIVISOR = 8, HUGE_DIVISOR = 32 };

enum { ALLOCATIONS_PER_RETURN = 2048 };

/* Memory counts as short for this many allocations after a growth was refused. */
enum { SHORT_ALLOCATIONS = 4096 };

/* Returns the bytes that the pool may hold once this request is served.  A pool that needs more is
 * fragmented. */
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

static uint64_t returns_left(const struct rs_pool *pool)
{
    uint64_t allowed = first_returns(pool) + pool->allocations / ALLOCATIONS_PER_RETURN;

    return allowed > pool->early_returns ? allowed - pool->early_returns : 0;
}

/* Notes that upstream refused this size.  Memory counts as short only if the program once had a
 * block of this size or more: a program may ask for more only to find out how much there is. */
static void note_refused_size(struct rs_pool *pool, size_t bytes)
{
    if (bytes <= pool->largest_bytes)
        pool->short_until = pool->allocations + SHORT_ALLOCATIONS;
}

/* While memory is short, a medium or large request only cuts a block that it nearly fills: a small
 * block in a larger chunk would keep that chunk from being given back.  Instead the pool takes a
 * chunk of the request's size, rounded up to 2 MiB, as long as it can give free chunks back for it;
 * when that fails, any block is cut.  So after a while most requests have a chunk of their own, as
 * with the driver alone.  An initial size cannot be given back in parts, so a pool that has one
 * cuts any block once it cannot grow. */
void rs_pool_limit_cuts_when_short(const struct rs_pool *pool, struct rs_block_request *request)
{
    if (request->group <= RS_BLOCKS_SMALL ||
        (pool->initial_bytes > 0 && !rs_pool_can_grow(pool, request)))
        return;
    request->most_bytes = round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, SIZE_MAX);
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

/* True for a request whose cuts are limited: a large one, or, where chunks are not parted by size
 * group, a huge one. */
static bool chooses_cuts(const struct rs_pool *pool, const struct rs_block_request *request)
{
    return request->group == RS_BLOCKS_LARGE ||
           (request->rounded_bytes >= RS_POOL_HUGE_BYTES && pool->growth != RS_POOL_GROWTH_RMM);
}

/* Large free blocks are kept whole for the largest requests, so only a request of the largest size
 * so far may cut any block.  A smaller one may cut a block of up to 1.5 times its size, or one that
 * leaves a rest of at least 1.5 times the largest request; a rest of just that size was too small
 * for programs with growing sequence lengths.  Any block may be cut if upstream would refuse a
 * growth, or once fewer than half of the first early returns are left. */
void rs_pool_limit_cuts(const struct rs_pool *pool, struct rs_block_request *request)
{
    size_t bytes = request->rounded_bytes, largest_bytes = pool->largest_bytes;

    request->most_bytes = SIZE_MAX;
    if (!chooses_cuts(pool, request) || bytes >= largest_bytes ||
        returns_left(pool) < first_returns(pool) / 2 || bytes >= pool->step_limit_bytes)
        return;
    request->most_bytes = bytes + bytes / 2;
    request->ample_bytes = bytes + largest_bytes + largest_bytes / 2;
}

/* ---- growth ---- */

/* A growth takes 1/STEP of the held bytes.  That is little, since the part beyond the request
 * counts towards the bytes that may be held beyond the live ones.  A growth takes 1/LONG_STEP in
 * two cases: with an initial size, since such a program wants room ahead and few growths, and once
 * no early return is left. */
enum { STEP = 128, LONG_STEP = 16 };

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500 };

bool rs_pool_returned_early(struct rs_pool *pool)
{
    uint64_t left = returns_left(pool), before = pool->chunk_returns;
    struct rs_pool_chunk *chunks;
    size_t returned_bytes;

    if (left == 0 || pool->blocks.free_range_count == 0 ||
        !rs_mr_deallocates_in_order(pool->base.upstream[0]))
        return false;
    chunks = detach_free_chunks(pool, left, 0, true);
    if (!chunks)
        return false;
    returned_bytes = return_chunks(pool, chunks);
    pool->early_returns += rs_max(pool->chunk_returns - before, 1);
    return returned_bytes > 0;
}

/* Returns the bytes that a chunk for this request alone must have. */
static size_t needed_bytes(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t slack_bytes = pool->is_misaligned ? pool->alignment - RS_BLOCK_ALIGNMENT : 0, needed;

    return __builtin_add_overflow(request->rounded_bytes, slack_bytes, &needed)
               ? request->rounded_bytes
               : needed;
}

/* Returns the bytes of a growth step, at least the request's unless upstream lately refused that
 * much.  With growth=geometric they are a multiple of the request, so that more blocks of this size
 * fill the chunk, rounded up to 2 MiB. */
static size_t growth_step(const struct rs_pool *pool, const struct rs_block_request *request,
                          size_t remaining_bytes)
{
    bool is_long = pool->initial_bytes > 0 || returns_left(pool) == 0;
    size_t step_bytes;

    if (pool->growth == RS_POOL_GROWTH_RMM)
        return rs_max(request->rounded_bytes,
                      pool->maximum_bytes == SIZE_MAX ? pool->held_bytes : remaining_bytes / 2);
    step_bytes = pool->held_bytes / (is_long ? LONG_STEP : STEP);
    if (request->stays_away && pool->initial_bytes > 0)
        step_bytes = rs_min(rs_max(pool->away_bytes, pool->held_bytes / STEP),
                            pool->held_bytes / RS_POOL_AWAY_DIVISOR - pool->away_bytes);
    step_bytes = rs_max(request->rounded_bytes, step_bytes);
    step_bytes = rs_min(step_bytes, pool->step_limit_bytes);
    step_bytes -= step_bytes % request->rounded_bytes;
    return rs_min(round_up_or(step_bytes, RS_DRIVER_GRANULARITY, step_bytes),
                  pool->step_limit_bytes);
}

/* Returns the bytes that make the pool hold its initial size again. 0 for a request with
 * stays_away, since the initial size would serve all requests. */
static size_t missing_step(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t held_bytes = rs_min(pool->charged_bytes, pool->initial_bytes);

    if (request->stays_away)
        return 0;
    return rs_min(rs_min(pool->missing_bytes, pool->initial_bytes - held_bytes),
                  pool->step_limit_bytes);
}

/* Returns the bytes to ask for after ask_bytes was refused: half of them.  With growth=geometric
 * this is rounded down to a multiple of the request, and then of the driver's unit of 2 MiB, since
 * the driver would round up any size in between.  Never less than least_bytes. */
static size_t smaller_step(const struct rs_pool *pool, size_t ask_bytes, size_t least_bytes)
{
    size_t half_bytes = ask_bytes / 2;

    if (pool->growth == RS_POOL_GROWTH_GEOMETRIC)
        half_bytes = rs_round_down(half_bytes - half_bytes % least_bytes, RS_DRIVER_GRANULARITY);
    return rs_max(half_bytes, least_bytes);
}

/* Sets step_limit_bytes after a growth.  After a refusal it is the size that succeeded in the end,
 * or else the last one refused, so that the next growth does not ask the driver for refused sizes
 * again.  Each success at the limit doubles it. */
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

/* Asks upstream for a chunk, after each refusal for fewer bytes, down to ask->least_bytes.  Returns
 * upstream's last answer; *size_bytes: the size that was asked for last.  Called without the lock.
 */
static CUresult ask_upstream(struct rs_pool *pool, const struct rs_pool_ask *ask,
                             size_t *size_bytes, struct rs_allocation *out)
{
    *size_bytes = ask->most_bytes;
    for (;;) {
        bool is_ahead = ask->is_ahead || *size_bytes > ask->least_bytes;
        CUresult result;

        rs_request.is_hopeless = false;
        /* asks on the NULL stream, since chunks serve all streams */
        result = rs_mr_allocate_with(pool->base.upstream[0], *size_bytes, NULL,
                                     is_ahead ? RS_EFFORT_AHEAD : RS_EFFORT_FULL, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || *size_bytes == ask->least_bytes)
            return result;
        *size_bytes = smaller_step(pool, *size_bytes, ask->least_bytes);
    }
}

/* All host memory is taken before upstream is called, so that no upstream call has to be undone.
 * `spare` holds the record that the caller needs to cut the block, while other threads take
 * records. */
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
    rs_mutex_unlock(&pool->base.lock);
    result = ask_upstream(pool, ask, &size_bytes, &chunk->upstream);
    rs_mutex_lock(&pool->base.lock);
    end_upstream_call(pool);
    rs_record_slab_give(&pool->blocks.records, spare);
    RS_ASSERT(pool->charged_bytes - pool->held_bytes >= ask->most_bytes);
    RS_ASSERT(size_bytes >= ask->least_bytes && size_bytes <= ask->most_bytes);
    pool->charged_bytes -= ask->most_bytes;
    if (!ask->is_ahead && (result == CUDA_ERROR_OUT_OF_MEMORY || size_bytes < ask->most_bytes))
        note_refused_size(pool, ask->least_bytes);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
        learn_step(pool, ask->most_bytes, size_bytes, result);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    pool->charged_bytes += size_bytes;
    chunk->group = ask->group;
    chunk->is_initial = ask->is_initial;
    chunk->is_away = ask->is_away;
    add_free_chunk(pool, chunk);
    return CUDA_SUCCESS;
}

/* Returns the group of a new chunk.  Where chunks are not parted by size group, a chunk for
 * requests with stays_away gets the group RS_BLOCKS_END, since large requests would cut it in the
 * common group. */
static enum rs_block_group group_to_grow(const struct rs_block_request *request)
{
    return request->stays_away && request->group == RS_BLOCKS_COMMON ? RS_BLOCKS_END
                                                                     : request->group;
}

/* Returns the bytes that a growth asks for first, or 0 for the request alone. remaining_bytes: the
 * bytes left to the maximum.  Only one growth at a time asks for a step: sixteen threads that find
 * no block at the same time must not take sixteen steps. */
static size_t bytes_to_ask(const struct rs_pool *pool, const struct rs_block_request *request,
                           enum rs_pool_how_much how_much, size_t remaining_bytes)
{
    if (how_much == RS_POOL_A_STEP &&
        (rs_pool_is_short(pool) || (request->stays_away && request->group == RS_BLOCKS_LARGE)))
        how_much = RS_POOL_A_LITTLE;
    if (how_much == RS_POOL_A_LITTLE)
        return rs_min(remaining_bytes,
                      round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, 0));
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
                              .is_away = request->stays_away,
                              .is_ahead = request->stays_away || rs_effort_is_ahead(effort)};
    bool leads;
    CUresult result;

    if (least_bytes < request->bytes) {
        note_refused_size(pool, request->rounded_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY; /* the request is past the maximum */
    }
    ask.most_bytes = rs_max(least_bytes, bytes_to_ask(pool, request, how_much, remaining_bytes));
    RS_ASSERT(ask.most_bytes <= remaining_bytes);
    /* Only the first of several growths that ask for more than their requests counts as growing
     * ahead. */
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
    pool->growths += result == CUDA_SUCCESS;
    return result;
}

/* Waits for the end of another thread's upstream call, for a bounded time: that call may wait for
 * the GPU, and the GPU for this thread. */
static void wait_for_upstream_call(struct rs_pool *pool, long milliseconds)
{
    uint64_t until_ns = rs_clock_ns() + (uint64_t)milliseconds * 1000000;

    (void)rs_condition_wait_until_ns(&pool->settled, &pool->base.lock, until_ns);
}

bool rs_pool_waited_for_growth(struct rs_pool *pool, const struct rs_block_request *request)
{
    if (!pool->is_growing_ahead || pool->ahead_bytes < request->rounded_bytes)
        return false;
    RS_ASSERT(pool->upstream_calls > 0);
    pool->ahead_bytes -= request->rounded_bytes;
    wait_for_upstream_call(pool, GROWTH_WAIT_MS);
    return true;
}

/* False when the request is certainly larger than all memory that is not live. */
static bool could_fit(const struct rs_pool *pool, const struct rs_block_request *request)
{
    size_t idle_bytes = rs_counter_idle(&pool->held_bytes, &pool->blocks.live_bytes);
    size_t most_bytes =
        rs_min(pool->maximum_bytes,
               rs_environment_total_bytes(pool->base.environment, pool->base.memories));
    size_t upstream_bytes;

    if (rs_request.is_hopeless)
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
    wait_for_upstream_call(pool, SETTLE_WAIT_MS);
    return true;
}
