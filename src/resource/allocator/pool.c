/* SPDX-License-Identifier: Apache-2.0 */
/* pool: best fit with immediate coalescing, in chunks of its upstream's.  RMM's
 * pool_memory_resource, with an index in place of its lists and no upstream call under its lock.
 *
 * How chunks are cut into blocks and blocks merge is in blocks.h.
 *
 * What is held beyond what is live is what pieces cost that no request fits.  To keep them few,
 * chunks taken on demand are for requests of one kind of size each, so that a small block that
 * lives long pins no chunk of large ones; a large request cuts no block much larger than itself,
 * which leaves a rest that the next one does not fit in, unless the largest still fits in that; and
 * before the pool would hold more than its allowance, chunks that are wholly free, too small or too
 * large as they are, go back.  What is for all, an initial size, is cut at both ends: small ones,
 * some of which live long, gather at the upper one, so that what is left is one piece; beside huge
 * blocks they have chunks elsewhere as long as there is room for some.  RMM's rules (growth=rmm) do
 * nothing of it. */
#include "resource/allocator/pool.h"

#include "base/clock.h"
#include "base/counter.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/published.h"
#include "base/request.h"
#include "heap/alignment.h"
#include "heap/blocks.h"
#include "resource/report.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum pool_growth { GROWTH_GEOMETRIC, GROWTH_RMM };

static const char *const growth_words[] = {"geometric", "rmm", NULL};

struct pool_config {
    size_t initial_size, maximum_size, alignment;
    int growth;
};

/* One upstream allocation.  Its first block lives as long as it does, as merging keeps the lower
 * record, so that block's record is part of the chunk's. */
struct chunk {
    struct rs_block first_block;
    struct chunk *next, *previous;
    struct rs_allocation upstream;
    enum rs_block_group group;
    bool is_initial; /* stays when the pool is trimmed */
    bool is_away;    /* taken for small requests that would have pinned another */
};

/* Requests below SMALL_BYTES and from LARGE_BYTES on have chunks of their own; from HUGE_BYTES on
 * each matters for what the device has room for. */
enum { SMALL_BYTES = 1 << 20, LARGE_BYTES = 32 << 20, HUGE_BYTES = 256 << 20 };

/* Held bytes may exceed live ones by a SLACK-th, and reach the initial size.  A growth takes a
 * STEP-th of what is held, little, as what is ahead of the requests is a part of that slack; with
 * an initial size, which is room ahead that was asked for, it takes a LONG_STEP-th, in fewer calls.
 */
enum { SLACK = 32, STEP = 128, LONG_STEP = 16 };

/* A request is small below the larger of two shares, of the initial size and of the largest request
 * so far.  It stays away from an initial size when that request was huge, and a share of it at
 * least, in chunks that are a share of what is held at most. */
enum { INITIAL_SHARE = 192, LARGEST_SHARE = 8, HUGE_SHARE = 32, AWAY_SHARE = 16 };

/* Giving chunks back and taking others costs driver calls and converges only when the program's
 * sizes do.  So there are that many returns for a start, then one in that many allocations; below
 * MERGE_RETURNS of them, what was given back is taken again in one piece.  The second half of them
 * is for chunks that are too small. */
enum { RETURNS = 512, ALLOCATIONS_PER_RETURN = 2048, MERGE_RETURNS = 128 };

/* So many allocations after a growth was refused memory is short. */
enum { SHORT_ALLOCATIONS = 4096 };

struct pool {
    struct rs_mr base;
    const struct rs_place *place;
    size_t initial_bytes, maximum_bytes;
    size_t alignment; /* of every block's address and rounded size */
    enum pool_growth growth;
    bool parts_kinds; /* chunks are for one kind of size each */

    struct rs_mutex lock;   /* protects what follows; never held around an upstream call */
    pthread_cond_t settled; /* an upstream call ended: look again */
    struct rs_blocks blocks;
    struct chunk *chunks;
    size_t chunk_count;

    size_t charged_bytes;      /* against the maximum: held, being asked for, being given back */
    _Atomic size_t held_bytes; /* base/counter.h */
    size_t peak_held_bytes;
    size_t missing_bytes; /* of the initial size: given back, to be taken again with a growth */
    size_t away_bytes;    /* of chunks with is_away */
    size_t largest_bytes; /* of the requests served so far */

    bool is_misaligned;      /* upstream has given a chunk that is aligned less than the pool */
    bool is_growing_ahead;   /* a growth larger than its request is under way, ... */
    size_t ahead_bytes;      /* ... with this much for others who wait for it */
    unsigned upstream_calls; /* under way */
    size_t step_limit_bytes; /* growth no larger than this: larger was refused lately */
    uint64_t early_returns;  /* chunks given back in favour of others */
    uint64_t short_until;    /* this count of allocations, memory is short */
    uint64_t growths, chunk_returns, allocations, failures;
};

/* RMM's own rules pack everything. */
RS_HOT_INLINE bool request_init(struct rs_block_request *request, const struct pool *pool,
                                size_t size_bytes)
{
    bool is_a_size =
        rs_block_request_init(request, size_bytes, pool->alignment, pool->growth == GROWTH_RMM);

    if (pool->parts_kinds)
        request->group = size_bytes < SMALL_BYTES   ? RS_BLOCKS_SMALL
                         : size_bytes < LARGE_BYTES ? RS_BLOCKS_MEDIUM
                                                    : RS_BLOCKS_LARGE;
    request->is_small = request->rounded_bytes < pool->blocks.apart_bytes;
    return is_a_size;
}

static struct pool *pool_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct pool, base);
}

/* ---- chunks; all under the lock ---- */

/* Bytes at a chunk's beginning that no block may use, where the upstream aligns less than the pool.
 * A chunk that would be left with nothing stays as it is, and no request fits it. */
static size_t skipped_bytes(const struct pool *pool, const struct chunk *chunk)
{
    size_t skipped = rs_lead_bytes(chunk->upstream.address, pool->alignment);

    return skipped < chunk->upstream.size_bytes ? skipped : 0;
}

static void add_chunk(struct pool *pool, struct chunk *chunk)
{
    size_t skipped = skipped_bytes(pool, chunk);

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
    pool->away_bytes += chunk->is_away ? chunk->upstream.size_bytes : 0;
    pool->peak_held_bytes = rs_max(pool->peak_held_bytes, rs_counter_get(&pool->held_bytes));
    rs_blocks_insert_free(&pool->blocks, &chunk->first_block);
}

/* Still charged against the maximum, until upstream has it. */
static void remove_chunk(struct pool *pool, struct chunk *chunk)
{
    rs_blocks_remove_free(&pool->blocks, &chunk->first_block);
    *(chunk->previous ? &chunk->previous->next : &pool->chunks) = chunk->next;
    if (chunk->next)
        chunk->next->previous = chunk->previous;
    pool->chunk_count--;
    rs_counter_subtract(&pool->held_bytes, chunk->upstream.size_bytes);
    pool->away_bytes -= chunk->is_away ? chunk->upstream.size_bytes : 0;
}

static bool is_free_chunk(const struct chunk *chunk)
{
    return chunk->first_block.is_free && rs_block_is_whole(&chunk->first_block);
}

/* Takes free chunks out of the pool, at most that many and all but keep_bytes of them, as a list.
 */
static struct chunk *detach_free_chunks(struct pool *pool, uint64_t most, size_t keep_bytes,
                                        bool keep_initial)
{
    struct chunk *detached = NULL, *next;

    for (struct chunk *chunk = pool->chunks; chunk && most > 0 && pool->blocks.free_range_count;
         chunk = next) {
        next = chunk->next;
        if (!is_free_chunk(chunk) || (keep_initial && chunk->is_initial))
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

static void end_upstream_call(struct pool *pool)
{
    pool->upstream_calls--;
    pthread_cond_broadcast(&pool->settled);
}

/* Gives detached chunks back upstream.  The lock is held at entry and exit, not in between. Returns
 * the bytes that upstream took: it refuses what would have to wait inside a request. */
static size_t return_chunks(struct pool *pool, struct chunk *chunk)
{
    size_t returned_bytes = 0;

    for (const struct chunk *each = chunk; each; each = each->next)
        rs_account_begin_return(pool->place->account, each->upstream.size_bytes);
    while (chunk) {
        struct chunk *next = chunk->next;
        CUresult result;

        pool->upstream_calls++;
        rs_mutex_unlock(&pool->lock);
        result = rs_mr_deallocate(pool->base.upstream[0], &chunk->upstream, NULL);
        rs_mutex_lock(&pool->lock);
        end_upstream_call(pool);
        if (result != CUDA_SUCCESS)
            add_chunk(pool, chunk); /* still ours */
        rs_account_end_return(pool->place->account, chunk->upstream.size_bytes);
        if (result == CUDA_SUCCESS) {
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

static size_t return_free_chunks(struct pool *pool, size_t keep_bytes, bool keep_initial)
{
    return return_chunks(pool, detach_free_chunks(pool, UINT64_MAX, keep_bytes, keep_initial));
}

/* ---- the allowance ---- */

/* What the pool may hold when this request has been served before fragmentation is to blame. */
static size_t allowance(const struct pool *pool, const struct rs_block_request *request)
{
    size_t live_bytes =
        rs_max(pool->blocks.peak_live_bytes, pool->blocks.live_bytes + request->rounded_bytes);

    return rs_min(rs_max(pool->initial_bytes, live_bytes + live_bytes / SLACK),
                  pool->maximum_bytes);
}

static bool is_past_allowance(const struct pool *pool, const struct rs_block_request *request)
{
    return pool->growth != GROWTH_RMM &&
           pool->charged_bytes + request->rounded_bytes > allowance(pool, request);
}

/* False where upstream would be asked in vain. */
static bool can_grow(const struct pool *pool, const struct rs_block_request *request)
{
    return request->rounded_bytes < pool->step_limit_bytes &&
           request->rounded_bytes <= pool->maximum_bytes - pool->charged_bytes;
}

/* How many chunks may be given back early now. */
static uint64_t returns_left(const struct pool *pool)
{
    uint64_t allowed = RETURNS + pool->allocations / ALLOCATIONS_PER_RETURN;

    return allowed > pool->early_returns ? allowed - pool->early_returns : 0;
}

static bool is_short(const struct pool *pool)
{
    return pool->allocations < pool->short_until;
}

static size_t round_up_or(size_t bytes, size_t unit, size_t otherwise)
{
    size_t rounded;

    return rs_round_up(bytes, unit, &rounded) ? rounded : otherwise;
}

/* Such a size was refused.  What the program never had it may ask for to see whether it is there.
 */
static void note_shortage(struct pool *pool, size_t bytes)
{
    if (bytes <= pool->largest_bytes)
        pool->short_until = pool->allocations + SHORT_ALLOCATIONS;
}

/* Where memory is short a chunk that a small rest of pins is missed: no block is cut for a request
 * that does not nearly fill it.  Another chunk, of just its size, is taken for it as long as free
 * ones can be given back; when all that was refused any block is cut.  So after a while most have a
 * chunk of their own, as with the driver alone.  An initial size cannot be given back in parts. */
static void limit_cuts_when_short(const struct pool *pool, struct rs_block_request *request)
{
    if (request->group <= RS_BLOCKS_SMALL || (pool->initial_bytes > 0 && !can_grow(pool, request)))
        return;
    request->most_bytes = round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, SIZE_MAX);
    request->ample_bytes = SIZE_MAX;
}

/* What is small beside the initial size and the largest request so far. */
static void set_apart_bytes(struct pool *pool)
{
    size_t of_initial_bytes = pool->initial_bytes / INITIAL_SHARE;
    size_t of_largest_bytes = pool->largest_bytes / LARGEST_SHARE;

    if (pool->growth == GROWTH_RMM)
        return;
    if (of_initial_bytes < SMALL_BYTES / 4)
        of_initial_bytes = 0;
    if (of_largest_bytes < LARGE_BYTES)
        of_largest_bytes = 0;
    pool->blocks.apart_bytes = rs_max(of_initial_bytes, of_largest_bytes);
}

/* True when another chunk is better for a small request than to pin one that a large one could
 * have.  With an initial size such chunks may be a share of what is held beyond it, which is to
 * stay whole; else they are within the allowance. */
static bool stays_away(const struct pool *pool, const struct rs_block_request *request)
{
    if (!request->is_small || pool->largest_bytes < HUGE_BYTES ||
        pool->largest_bytes < pool->initial_bytes / HUGE_SHARE || !can_grow(pool, request))
        return false;
    return pool->initial_bytes > 0
               ? pool->away_bytes + request->rounded_bytes <= pool->held_bytes / AWAY_SHARE
               : !is_past_allowance(pool, request);
}

/* Where there is no large block to stay away from, any will do. */
static bool take_all_the_same(struct pool *pool, struct rs_block_request *request,
                              struct rs_allocation *out)
{
    if (rs_blocks_largest_free_bytes(&pool->blocks) >= pool->blocks.apart_bytes)
        return false;
    request->stays_away = false;
    return rs_blocks_take(&pool->blocks, request, out);
}

RS_HOT_INLINE bool take(struct pool *pool, struct rs_block_request *request,
                        struct rs_allocation *out)
{
    return rs_blocks_take(&pool->blocks, request, out) ||
           (request->stays_away && take_all_the_same(pool, request, out));
}

/* Of kinds that are not parted the huge ones. */
static bool chooses_cuts(const struct pool *pool, const struct rs_block_request *request)
{
    return request->group == RS_BLOCKS_LARGE ||
           (request->rounded_bytes >= HUGE_BYTES && pool->growth != GROWTH_RMM);
}

/* What a large request may cut.  What is large is passed by for the sake of the largest requests,
 * so the largest so far may cut any block.  Others may cut one half as large again as themselves,
 * and one whose rest is half as large again as the largest: just as large was too little for
 * programs whose lengths grow.  Any, where a growth instead would be asked for in vain, or by
 * returns that are better kept. */
static void limit_cuts(const struct pool *pool, struct rs_block_request *request)
{
    size_t bytes = request->rounded_bytes, largest_bytes = pool->largest_bytes;

    request->most_bytes = SIZE_MAX;
    if (!chooses_cuts(pool, request) || bytes >= largest_bytes ||
        returns_left(pool) < RETURNS / 2 || bytes >= pool->step_limit_bytes)
        return;
    request->most_bytes = bytes + bytes / 2;
    request->ample_bytes = bytes + largest_bytes + largest_bytes / 2;
}

/* Gives free chunks back although more is about to be taken: where upstream can do that without
 * waiting for the GPU, which may itself wait for this thread.  A return in vain counts, so that a
 * busy context is not looked at again and again.  Returns the bytes given back. */
static size_t return_early(struct pool *pool)
{
    uint64_t left = returns_left(pool), before = pool->chunk_returns;
    struct chunk *chunks;
    size_t returned_bytes;

    if (left == 0 || pool->blocks.free_range_count == 0 ||
        !rs_mr_deallocates_in_order(pool->base.upstream[0]))
        return 0;
    chunks = detach_free_chunks(pool, left, 0, true);
    if (!chunks)
        return 0;
    returned_bytes = return_chunks(pool, chunks);
    pool->early_returns += rs_max(pool->chunk_returns - before, 1);
    return returned_bytes;
}

/* ---- growth ---- */

/* The least that a chunk for this request alone must have. */
static size_t needed_bytes(const struct pool *pool, const struct rs_block_request *request)
{
    size_t slack_bytes = pool->is_misaligned ? pool->alignment - RS_BLOCK_ALIGNMENT : 0, needed;

    return __builtin_add_overflow(request->rounded_bytes, slack_bytes, &needed)
               ? request->rounded_bytes
               : needed;
}

/* What to ask for when nothing stands in the way.  again_bytes: were given back for it. */
static size_t growth_step(const struct pool *pool, const struct rs_block_request *request,
                          size_t remaining_bytes, size_t again_bytes)
{
    bool is_long = pool->initial_bytes > 0 || returns_left(pool) == 0;
    size_t step_bytes;

    if (pool->growth == GROWTH_RMM)
        return rs_max(request->rounded_bytes,
                      pool->maximum_bytes == SIZE_MAX ? pool->held_bytes : remaining_bytes / 2);
    step_bytes = pool->held_bytes / (is_long ? LONG_STEP : STEP);
    if (request->stays_away && pool->initial_bytes > 0)
        step_bytes = rs_min(pool->away_bytes, pool->held_bytes / AWAY_SHARE - pool->away_bytes);
    step_bytes = rs_max(request->rounded_bytes, step_bytes);
    if (returns_left(pool) < MERGE_RETURNS)
        step_bytes = rs_max(step_bytes, again_bytes);
    return rs_min(round_up_or(step_bytes, RS_DRIVER_GRANULARITY, step_bytes),
                  pool->step_limit_bytes);
}

/* What makes the pool hold its initial size again. */
static size_t missing_step(const struct pool *pool)
{
    size_t held_bytes = rs_min(pool->charged_bytes, pool->initial_bytes);

    return rs_min(rs_min(pool->missing_bytes, pool->initial_bytes - held_bytes),
                  pool->step_limit_bytes);
}

/* What to ask for next, after ask_bytes was refused.  Below the driver's own unit there is nothing
 * to gain by trying sizes in between; RMM's rule has them, odd ones too. */
static size_t smaller_step(const struct pool *pool, size_t ask_bytes, size_t least_bytes)
{
    size_t half_bytes = ask_bytes / 2;

    if (pool->growth == GROWTH_GEOMETRIC)
        half_bytes = rs_round_down(half_bytes, RS_DRIVER_GRANULARITY);
    return rs_max(half_bytes, least_bytes);
}

/* After a refusal the next growth begins where this one succeeded, instead of asking the driver in
 * vain for the same sizes each time, and feels its way up again from there. */
static void learn_step(struct pool *pool, size_t first_ask_bytes, size_t ask_bytes, CUresult result)
{
    if (result != CUDA_SUCCESS)
        pool->step_limit_bytes = rs_min(pool->step_limit_bytes, ask_bytes);
    else if (ask_bytes < first_ask_bytes)
        pool->step_limit_bytes = ask_bytes;
    else if (ask_bytes >= pool->step_limit_bytes &&
             __builtin_mul_overflow(ask_bytes, (size_t)2, &pool->step_limit_bytes))
        pool->step_limit_bytes = SIZE_MAX;
}

/* The calling thread asks for what it can do without: nothing is reclaimed for it, and a refusal
 * does not mean that memory is short. */
static __thread bool can_do_without;

/* Asks upstream for a chunk, less and less down to least_bytes.  Without the lock. */
static CUresult ask_upstream(struct pool *pool, size_t *ask_bytes, size_t least_bytes,
                             struct rs_allocation *out)
{
    for (;;) {
        CUresult result;

        /* On the NULL stream: chunks are for all streams. */
        rs_mr_ask_ahead(*ask_bytes > least_bytes || can_do_without);
        rs_request_note_hopeless(false);
        result = rs_mr_allocate(pool->base.upstream[0], *ask_bytes, NULL, out);
        rs_mr_ask_ahead(false);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || *ask_bytes == least_bytes)
            return result;
        *ask_bytes = smaller_step(pool, *ask_bytes, least_bytes);
    }
}

/* Charges for and asks for a chunk between least_bytes and ask_bytes.  The lock is held at entry
 * and exit, not in between.  All host memory is taken before upstream is called, so there is
 * nothing to undo behind it; the record that the caller's split needs is put in reserve again. */
static CUresult add_chunk_from_upstream(struct pool *pool, size_t ask_bytes, size_t least_bytes,
                                        enum rs_block_group group, bool is_initial)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    void *spare = chunk ? rs_record_slab_take(&pool->blocks.records) : NULL;
    size_t first_ask_bytes = ask_bytes;
    CUresult result;

    if (!spare) {
        free(chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->charged_bytes += first_ask_bytes;
    pool->upstream_calls++;
    rs_mutex_unlock(&pool->lock);
    result = ask_upstream(pool, &ask_bytes, least_bytes, &chunk->upstream);
    rs_mutex_lock(&pool->lock);
    end_upstream_call(pool);
    rs_record_slab_give(&pool->blocks.records, spare);
    pool->charged_bytes -= first_ask_bytes;
    if (!can_do_without && (result == CUDA_ERROR_OUT_OF_MEMORY || ask_bytes < first_ask_bytes))
        note_shortage(pool, least_bytes);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
        learn_step(pool, first_ask_bytes, ask_bytes, result);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    pool->charged_bytes += ask_bytes;
    chunk->group = group;
    chunk->is_initial = is_initial;
    add_chunk(pool, chunk);
    return CUDA_SUCCESS;
}

/* What a growth asks for: a step ahead of the request, the request in the driver's own unit, or the
 * request alone. */
enum how_much { A_STEP, A_LITTLE, EXACTLY };

/* What is common could not be told from what others have. */
static enum rs_block_group group_to_grow(const struct rs_block_request *request)
{
    return request->stays_away && request->group == RS_BLOCKS_COMMON ? RS_BLOCKS_END
                                                                     : request->group;
}

static void set_away(struct pool *pool, struct chunk *chunk)
{
    chunk->is_away = true;
    pool->away_bytes += chunk->upstream.size_bytes;
}

/* Grows by at least the request; on success a block for it is in the index and the lock was not
 * released since.  Only one growth at a time asks for more than its request: sixteen threads that
 * find nothing at once must not take sixteen steps. */
static CUresult grow(struct pool *pool, const struct rs_block_request *request,
                     enum how_much how_much, size_t again_bytes)
{
    size_t remaining_bytes = pool->maximum_bytes - pool->charged_bytes;
    size_t least_bytes = rs_min(needed_bytes(pool, request), remaining_bytes);
    size_t ask_bytes = least_bytes;
    bool ahead, is_initial, before = can_do_without; /* of a pool above */
    CUresult result;

    if (least_bytes < request->bytes) {
        note_shortage(pool, request->rounded_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY; /* past the maximum */
    }
    if (how_much == A_STEP && ((pool->initial_bytes == 0 && is_short(pool)) ||
                               (request->stays_away && request->group == RS_BLOCKS_LARGE)))
        how_much = A_LITTLE;
    if (how_much == A_LITTLE)
        ask_bytes = rs_max(
            least_bytes,
            rs_min(remaining_bytes, round_up_or(request->rounded_bytes, RS_DRIVER_GRANULARITY, 0)));
    if (how_much == A_STEP && !pool->is_growing_ahead)
        ask_bytes = rs_max(
            least_bytes,
            rs_min(remaining_bytes, rs_max(growth_step(pool, request, remaining_bytes, again_bytes),
                                           missing_step(pool))));
    ahead = ask_bytes > least_bytes;
    is_initial = ahead && !request->stays_away && ask_bytes <= pool->missing_bytes;
    if (ahead) {
        pool->is_growing_ahead = true;
        pool->ahead_bytes = ask_bytes - least_bytes;
    }
    can_do_without = request->stays_away || before;
    result =
        add_chunk_from_upstream(pool, ask_bytes, least_bytes,
                                is_initial ? RS_BLOCKS_COMMON : group_to_grow(request), is_initial);
    can_do_without = before;
    if (result == CUDA_SUCCESS && is_initial)
        pool->missing_bytes -= pool->chunks->upstream.size_bytes;
    if (ahead) {
        pool->is_growing_ahead = false;
        pool->ahead_bytes = 0;
    }
    if (result == CUDA_SUCCESS && request->stays_away)
        set_away(pool, pool->chunks);
    pool->growths += result == CUDA_SUCCESS;
    return result;
}

/* Waits for the end of an upstream call of another thread, at most for a while: that call may wait
 * for the GPU, and the GPU for this thread. */
static void wait_until_settled(struct pool *pool, long milliseconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)rs_condition_wait_until(&pool->settled, &pool->lock, &until);
}

/* ---- the resource ---- */

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500, ROUNDS_MAX = 16 };

/* True when another thread's growth will leave room for this request and was waited for. */
static bool waited_for_growth(struct pool *pool, const struct rs_block_request *request)
{
    if (!pool->is_growing_ahead || pool->ahead_bytes < request->rounded_bytes)
        return false;
    pool->ahead_bytes -= request->rounded_bytes;
    wait_until_settled(pool, GROWTH_WAIT_MS);
    return true;
}

/* False when the request is larger than all that is not live, as far as it is known here. */
static bool could_fit(const struct pool *pool, const struct rs_block_request *request)
{
    size_t idle_bytes = rs_counter_idle(&pool->held_bytes, &pool->blocks.live_bytes);
    size_t most_bytes =
        rs_min(pool->maximum_bytes, rs_place_total_bytes(pool->place, pool->base.memories));
    size_t upstream_bytes;

    if (rs_request_is_hopeless())
        return false;
    if (__builtin_add_overflow(rs_mr_growable_bytes(pool->base.upstream[0]), idle_bytes,
                               &upstream_bytes))
        upstream_bytes = SIZE_MAX;
    return request->rounded_bytes <= upstream_bytes &&
           request->rounded_bytes <= most_bytes - rs_min(most_bytes, pool->blocks.live_bytes);
}

/* After an out-of-memory: true when something changed or may have, so that another try is due.  The
 * initial size goes back only for what may fit then. */
static bool made_room(struct pool *pool, const struct rs_block_request *request,
                      uint64_t returns_before)
{
    if (pool->blocks.free_range_count && return_free_chunks(pool, 0, true) > 0)
        return true;
    if (pool->blocks.free_range_count && could_fit(pool, request) &&
        return_free_chunks(pool, 0, false) > 0)
        return true;
    if (pool->chunk_returns != returns_before)
        return true;
    if (pool->upstream_calls == 0)
        return false;
    wait_until_settled(pool, SETTLE_WAIT_MS);
    return true;
}

/* True when the caller is past an allowance of its own, which may be less than ours: what `reuse`
 * keeps until the GPU is done with it is live here, and not there. */
static bool is_past_callers(const struct pool *pool, enum how_much how_much)
{
    return pool->growth != GROWTH_RMM && how_much == A_LITTLE;
}

/* After a growth that could be done without: an initial size is not given back for want of it. */
static bool took_after_growth(struct pool *pool, struct rs_block_request *request, CUresult result,
                              struct rs_allocation *out)
{
    request->stays_away = false;
    if (result != CUDA_SUCCESS && pool->initial_bytes == 0)
        return false;
    request->most_bytes = SIZE_MAX;
    return rs_blocks_take(&pool->blocks, request, out);
}

/* Finds a block, growing as needed.  The lock is held at entry and exit.  The rounds are bounded as
 * other threads could for ever take what was made room for. */
static CUresult allocate_locked(struct pool *pool, struct rs_block_request *request,
                                enum how_much how_much, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    size_t again_bytes = 0;

    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        uint64_t returns_before = pool->chunk_returns;

        if (!rs_record_slab_reserve(&pool->blocks.records))
            return CUDA_ERROR_OUT_OF_MEMORY;
        limit_cuts(pool, request);
        if (is_short(pool))
            limit_cuts_when_short(pool, request);
        request->stays_away = how_much != EXACTLY && stays_away(pool, request);
        if (take(pool, request, out))
            return CUDA_SUCCESS;
        if (round == 0 && waited_for_growth(pool, request))
            continue;
        if (how_much == A_LITTLE && !request->stays_away &&
            rs_blocks_take_any(&pool->blocks, request, out))
            return CUDA_SUCCESS;
        if (!request->stays_away &&
            (is_past_allowance(pool, request) || is_past_callers(pool, how_much))) {
            if (again_bytes == 0 && (again_bytes = return_early(pool)) > 0)
                continue;
            if (!is_short(pool) && rs_blocks_take_any(&pool->blocks, request, out))
                return CUDA_SUCCESS;
        }
        result = grow(pool, request, how_much, again_bytes);
        if (request->stays_away && took_after_growth(pool, request, result, out))
            return CUDA_SUCCESS;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
        if (result != CUDA_SUCCESS && round == 0 && pool->blocks.free_range_count > 0 &&
            made_room(pool, request, returns_before)) {
            how_much = EXACTLY;
            continue;
        }
        request->any_alignment = true; /* better than a refusal, or a second chunk */
        if (rs_blocks_take_any(&pool->blocks, request,
                               out)) /* also after a failure: others may have freed */
            return CUDA_SUCCESS;
        result = CUDA_ERROR_OUT_OF_MEMORY; /* also when a misaligned chunk was of no use */
        how_much = EXACTLY;
        if (!made_room(pool, request, returns_before))
            return result;
    }
    return result;
}

static void count_served(struct pool *pool, const struct rs_block_request *request)
{
    pool->allocations++;
    if (RS_LIKELY(request->rounded_bytes <= pool->largest_bytes))
        return;
    pool->largest_bytes = request->rounded_bytes;
    set_apart_bytes(pool);
}

static CUresult allocate(struct pool *pool, size_t size_bytes, enum how_much how_much,
                         struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct rs_block_request request;
    bool is_a_size = request_init(&request, pool, size_bytes);

    RS_ASSERT(size_bytes > 0);
    rs_request_begin();
    rs_mutex_lock(&pool->lock);
    if (is_a_size && size_bytes <= pool->maximum_bytes)
        result = allocate_locked(pool, &request, how_much, out);
    if (result == CUDA_SUCCESS)
        count_served(pool, &request);
    else
        pool->failures++;
    rs_mutex_unlock(&pool->lock);
    rs_request_end();
    return result;
}

static CUresult pool_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              struct rs_allocation *out)
{
    (void)stream; /* blocks in a pool are retired: good for every stream (resource_reuse.c) */
    return allocate(pool_of(mr), size_bytes, A_STEP, out);
}

static CUresult pool_allocate_little(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                     struct rs_allocation *out)
{
    (void)stream;
    return allocate(pool_of(mr), size_bytes, A_LITTLE, out);
}

/* True for a caller that any block is good for: a huge one shall rather grow, if it may. */
static bool takes_any(const struct rs_block_request *request)
{
    return rs_mr_takes_any() && !(request->rounded_bytes >= HUGE_BYTES && rs_mr_may_grow());
}

/* `reuse` asks for held memory before it waits for some, then for any: that of all groups is better
 * than a wait, but not than a growth. */
static bool take_held(struct pool *pool, struct rs_block_request *request,
                      struct rs_allocation *out)
{
    bool clean = pool->place->frees_are_clean;

    if (request->group == RS_BLOCKS_LARGE && !takes_any(request) && can_grow(pool, request))
        limit_cuts(pool, request);
    if (RS_UNLIKELY(is_short(pool)) && !takes_any(request))
        limit_cuts_when_short(pool, request);
    if (RS_UNLIKELY(pool->largest_bytes >= HUGE_BYTES))
        request->stays_away = stays_away(pool, request) && rs_mr_may_grow();
    if (take(pool, request, out))
        return true;
    if (request->stays_away)
        return false;
    if (clean && !takes_any(request) && (can_grow(pool, request) || is_short(pool)))
        return false;
    return (clean || is_past_allowance(pool, request)) &&
           rs_blocks_take_any(&pool->blocks, request, out);
}

static CUresult pool_allocate_held(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                   struct rs_allocation *out)
{
    struct pool *pool = pool_of(mr);
    CUresult result = CUDA_ERROR_NOT_READY;
    struct rs_block_request request;

    (void)stream;
    if (!request_init(&request, pool, size_bytes))
        return result;
    rs_mutex_lock(&pool->lock);
    if (rs_record_slab_reserve(&pool->blocks.records) && take_held(pool, &request, out)) {
        result = CUDA_SUCCESS;
        count_served(pool, &request);
    }
    rs_mutex_unlock(&pool->lock);
    return result;
}

static CUresult pool_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct pool *pool = pool_of(mr);
    struct rs_block *block = allocation->token;

    (void)stream;
    rs_mutex_lock(&pool->lock);
    RS_ASSERT(!block->is_free && block->address == allocation->address);
    rs_blocks_give(&pool->blocks, block);
    rs_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

static size_t pool_trim(struct rs_mr *mr, size_t keep_bytes)
{
    struct pool *pool = pool_of(mr);
    size_t returned_bytes;

    rs_mutex_lock(&pool->lock);
    returned_bytes = return_free_chunks(pool, keep_bytes, !rs_mr_is_trimming_initial(mr));
    rs_mutex_unlock(&pool->lock);
    return returned_bytes + rs_mr_trim(mr->upstream[0], keep_bytes);
}

static size_t pool_idle_bytes(struct rs_mr *mr)
{
    const struct pool *pool = pool_of(mr);

    return rs_counter_idle(&pool->held_bytes, &pool->blocks.live_bytes);
}

static size_t pool_growable_bytes(struct rs_mr *mr)
{
    struct pool *pool = pool_of(mr);
    size_t bytes;

    if (pool->maximum_bytes == SIZE_MAX)
        return SIZE_MAX;
    rs_mutex_lock(&pool->lock);
    bytes = pool->maximum_bytes - pool->charged_bytes;
    rs_mutex_unlock(&pool->lock);
    return bytes;
}

static size_t pool_free_blocks(struct rs_mr *mr)
{
    struct pool *pool = pool_of(mr);
    size_t blocks;

    rs_mutex_lock(&pool->lock);
    blocks = pool->blocks.free_block_count;
    rs_mutex_unlock(&pool->lock);
    return blocks;
}

static void pool_report(struct rs_mr *mr, struct rs_report *report)
{
    struct pool *pool = pool_of(mr);
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
    struct pool *pool = pool_of(mr);

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

/* One chunk from end to end: no gap, no overlap, no two free blocks side by side. */
static bool chunk_check(const struct pool *pool, const struct chunk *chunk, struct pool_sums *sums)
{
    CUdeviceptr address = chunk->upstream.address + skipped_bytes(pool, chunk);
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
    sums->free_chunks += is_free_chunk(chunk);
    return address == chunk->upstream.address + chunk->upstream.size_bytes;
}

static bool check_locked(const struct pool *pool)
{
    struct pool_sums sums = {0};
    size_t indexed_blocks;

    for (const struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        if ((chunk->next && chunk->next->previous != chunk) || !chunk_check(pool, chunk, &sums))
            return false;
    /* The index holds free blocks only and as many as there are: exactly those. */
    return rs_blocks_index_check(&pool->blocks, &indexed_blocks) &&
           indexed_blocks == sums.free_blocks && indexed_blocks == pool->blocks.free_block_count &&
           sums.held_bytes == pool->held_bytes && sums.live_bytes == pool->blocks.live_bytes &&
           sums.chunks == pool->chunk_count && sums.free_chunks == pool->blocks.free_range_count &&
           pool->charged_bytes >= pool->held_bytes && pool->charged_bytes <= pool->maximum_bytes &&
           (pool->upstream_calls > 0 || pool->charged_bytes == pool->held_bytes);
}

static bool pool_check(struct rs_mr *mr)
{
    struct pool *pool = pool_of(mr);
    bool good;

    rs_mutex_lock(&pool->lock);
    good = check_locked(pool);
    rs_mutex_unlock(&pool->lock);
    return good;
}

static void pool_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct pool *pool = pool_of(mr);

    while (pool->chunks) {
        struct chunk *chunk = pool->chunks;
        pool->chunks = chunk->next;
        if (!memory_is_gone)
            (void)rs_mr_deallocate(mr->upstream[0], &chunk->upstream, NULL);
        free(chunk);
    }
    rs_record_slab_destroy(&pool->blocks.records);
    pthread_cond_destroy(&pool->settled);
    rs_mutex_destroy(&pool->lock);
    rs_published_free(pool);
}

/* ---- creation ---- */

/* Takes the initial size, or what there is of it: less than asked for is worth a line but no error,
 * as the device may be shared, and the pool grows on demand. */
static int take_initial(struct pool *pool, const struct rs_place *place)
{
    char asked[RS_SIZE_TEXT_BYTES], got[RS_SIZE_TEXT_BYTES];
    size_t ask_bytes = pool->initial_bytes;
    size_t free_bytes = rs_place_free_bytes(place, pool->base.memories);
    CUresult result;

    rs_mutex_lock(&pool->lock);
    result = add_chunk_from_upstream(pool, ask_bytes, ask_bytes, RS_BLOCKS_COMMON, true);
    /* What was free is nearer to the wish than its half. */
    ask_bytes = rs_max(ask_bytes / 2, free_bytes < ask_bytes ? free_bytes : 0);
    ask_bytes = rs_round_down(ask_bytes, RS_DRIVER_GRANULARITY);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && ask_bytes > 0)
        result =
            add_chunk_from_upstream(pool, ask_bytes, RS_DRIVER_GRANULARITY, RS_BLOCKS_COMMON, true);
    pool->step_limit_bytes = SIZE_MAX;
    rs_mutex_unlock(&pool->lock);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return -EIO;
    if (pool->held_bytes < pool->initial_bytes)
        rs_log("pool: %s asked for, %s are free: starting with that, growing on demand",
               rs_size_format(pool->initial_bytes, asked), rs_size_format(pool->held_bytes, got));
    return 0;
}

static void init_locks(struct pool *pool)
{
    pthread_condattr_t monotonic;

    rs_mutex_init(&pool->lock);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static const struct rs_mr_ops pool_ops = {
    .allocate = pool_allocate,
    .allocate_held = pool_allocate_held,
    .allocate_little = pool_allocate_little,
    .deallocate = pool_deallocate,
    .destroy = pool_destroy,
    .trim = pool_trim,
    .excess_bytes = rs_mr_no_excess_bytes,
    .idle_bytes = pool_idle_bytes,
    .growable_bytes = pool_growable_bytes,
    .free_blocks = pool_free_blocks,
    .report = pool_report,
    .check = pool_check,
};

static int pool_create(const struct rs_place *place, const void *config,
                       struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct pool_config *settings = config;
    struct pool *pool = RS_PUBLISHED_NEW(struct pool);
    int failed = 0;

    if (!pool)
        return -ENOMEM;
    rs_mr_init(&pool->base, &pool_ops, &rs_mr_descriptor_pool, upstream);
    init_locks(pool);
    pool->place = place;
    pool->initial_bytes = settings->initial_size;
    pool->maximum_bytes = settings->maximum_size;
    pool->alignment = settings->alignment;
    pool->growth = (enum pool_growth)settings->growth;
    pool->step_limit_bytes = SIZE_MAX;
    set_apart_bytes(pool);
    /* Where blocks are free at once (RMM_FREE=immediate) an initial size is room enough for all
     * kinds together.  Where freed blocks wait for the GPU, it is cut for those that come
     * meanwhile. */
    pool->parts_kinds =
        pool->growth != GROWTH_RMM && (pool->initial_bytes == 0 || place->frees_are_clean);
    if (pool->initial_bytes > 0 && place->first_on_device)
        failed = take_initial(pool, place);
    if (failed) {
        pool_destroy(&pool->base, false);
        return failed;
    }
    *out = &pool->base;
    return 0;
}

static bool pool_validate(const void *config, const struct rs_place *place,
                          const struct rs_source *source, struct rs_complaints *complaints)
{
    const struct pool_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    if (settings->maximum_size < settings->initial_size) {
        rs_complain(complaints, source, NULL,
                    "the pool's maximum size %s is below its initial size %s",
                    rs_size_format(settings->maximum_size, first),
                    rs_size_format(settings->initial_size, second));
        return false;
    }
    if (!rs_is_power_of_two(settings->alignment) || settings->alignment < RS_BLOCK_ALIGNMENT ||
        settings->alignment > RS_DRIVER_GRANULARITY) {
        rs_complain(complaints, source, NULL,
                    "the pool's alignment is a power of two from 512 bytes to 2MiB, not %s",
                    rs_size_format(settings->alignment, first));
        return false;
    }
    if (place && place->total_bytes && settings->initial_size > place->total_bytes) {
        rs_complain(complaints, source, NULL,
                    "the pool's initial size %s is larger than the device's memory of %s",
                    rs_size_format(settings->initial_size, first),
                    rs_size_format_short(place->total_bytes, second));
        return false;
    }
    return true;
}

static const struct rs_option pool_options[] = {
    RS_OPTION_SIZE_ROW(struct pool_config, initial_size, "0",
                       "taken at the first allocation; stays when the pool is trimmed, goes back "
                       "where only that makes room for a request, and is taken again with the next "
                       "growth",
                       .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE, .beyond_whole = true,
                       .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_SIZE_ROW(struct pool_config, maximum_size, "none", "most bytes taken from upstream",
                       .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE, .none = true,
                       .beyond_whole = true, .aliases = {{"maximum_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_WORD_ROW(
        struct pool_config, growth, growth_words, "geometric",
        "by little more than what is asked for (a sixteenth of what is held where there "
        "is an initial size), or as RMM does: doubling, half of what is left to the "
        "maximum"),
    RS_OPTION_SIZE_ROW(struct pool_config, alignment, "512",
                       "of every block: its address and the room it takes are multiples of this "
                       "power of two",
                       .minimum = RS_BLOCK_ALIGNMENT, .maximum = RS_DRIVER_GRANULARITY),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_pool = {
    .name = "pool",
    .summary = "best fit with immediate coalescing in large upstream blocks",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct pool_config),
    .options = pool_options,
    .unit_option = "alignment",
    .validate = pool_validate,
    .create = pool_create,
};
