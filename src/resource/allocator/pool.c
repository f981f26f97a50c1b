/* SPDX-License-Identifier: Apache-2.0 */
/* pool: best fit with immediate coalescing, in chunks from its upstream.  RMM's
 * pool_memory_resource, with an index in place of its lists, and no upstream call under its lock.
 *
 * How chunks are cut into blocks, and how blocks merge, is in ranges.h.
 *
 * Held bytes beyond the live ones are free pieces that fit no request.  Four rules keep them few.
 * A chunk taken on demand serves requests of one size group only, so that a small block that lives
 * long pins no chunk of large ones.  A large request cuts a free block only if the block is hardly
 * larger than the request, or if the rest has room for the largest request so far.  Before the pool
 * would exceed its allowance, it gives back wholly free chunks, none of which fits the request
 * well.  An initial size, which serves all requests, is cut from both ends: small blocks gather at
 * the upper end, so that the rest stays one piece.  (Beside huge blocks, small ones get chunks of
 * their own as long as there is room.) With growth=rmm RMM's rules apply, which do none of this. */
#include "resource/allocator/pool_inside.h"

#include "base/log.h"
#include "base/request.h"
#include "resource/report.h"

#include <errno.h>
#include <stdlib.h>

struct pool_config {
    size_t initial_size, maximum_size; /* multiples of 256 */
    size_t alignment;
    int growth; /* enum rs_pool_growth */
};

static const char *const growth_words[] = {"geometric", "rmm", NULL};

/* Fills in the request.  False for a size that overflows when rounded.  With growth=rmm, large
 * requests get no larger alignment than others, as in RMM. */
RS_HOT_INLINE bool request_init(struct rs_block_request *request, const struct rs_pool *pool,
                                size_t size_bytes)
{
    bool is_a_size = rs_block_request_init(request, size_bytes, pool->alignment,
                                           pool->growth == RS_POOL_GROWTH_RMM);

    if (pool->parts_kinds)
        request->group = size_bytes < RS_POOL_SMALL_BYTES   ? RS_BLOCKS_SMALL
                         : size_bytes < RS_POOL_LARGE_BYTES ? RS_BLOCKS_MEDIUM
                                                            : RS_BLOCKS_LARGE;
    request->is_small = request->rounded_bytes <
                        atomic_load_explicit(&pool->blocks.apart_bytes, memory_order_relaxed);
    return is_a_size;
}

/* ---- allocation ---- */

enum { ROUNDS_MAX = 16 };

/* Called when no block was found for a small request that should leave large blocks whole
 * (stays_away).  Takes any block if no free block has apart_bytes, so that none is worth keeping
 * whole. */
static bool take_all_the_same(struct rs_pool *pool, struct rs_block_request *request,
                              struct rs_allocation *out)
{
    if (rs_blocks_largest_free_bytes(&pool->blocks) >= pool->blocks.apart_bytes)
        return false;
    request->stays_away = false;
    return rs_blocks_take(&pool->blocks, request, out);
}

RS_HOT_INLINE bool take_fitting(struct rs_pool *pool, struct rs_block_request *request,
                                struct rs_allocation *out)
{
    return rs_blocks_take(&pool->blocks, request, out) ||
           (request->stays_away && take_all_the_same(pool, request, out));
}

/* True when the caller is past an allowance of its own, which it tells by RS_EFFORT_LITTLE.  The
 * allowance of `reuse` may be lower than the pool's: a freed block that waits for the GPU is live
 * for the pool, but not for `reuse`. */
static bool is_past_callers(const struct rs_pool *pool, enum rs_pool_how_much how_much)
{
    return pool->growth != RS_POOL_GROWTH_RMM && how_much == RS_POOL_A_LITTLE;
}

/* Called after the growth for a small request with stays_away: takes any block, and returns true if
 * there was one.  After a failed growth it does so only if the pool has an initial size, which
 * would otherwise be given back for such a request. */
static bool took_after_growth(struct rs_pool *pool, struct rs_block_request *request,
                              CUresult result, struct rs_allocation *out)
{
    request->stays_away = false;
    if (result != CUDA_SUCCESS && pool->initial_bytes == 0)
        return false;
    request->most_bytes = SIZE_MAX;
    return rs_blocks_take(&pool->blocks, request, out);
}

/* Finds a block, growing as needed.  Called and left with the lock held.  The number of rounds is
 * bounded, since other threads may take each block for which this one made room. */
static CUresult find_or_grow(struct rs_pool *pool, struct rs_block_request *request,
                             enum rs_effort effort, struct rs_allocation *out)
{
    enum rs_pool_how_much how_much = effort & RS_EFFORT_LITTLE ? RS_POOL_A_LITTLE : RS_POOL_A_STEP;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool returned = false;

    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        uint64_t returns_before = pool->chunk_returns;

        if (!rs_record_slab_reserve(&pool->blocks.records))
            return CUDA_ERROR_OUT_OF_MEMORY;
        rs_pool_limit_cuts(pool, request);
        if (rs_pool_is_short(pool))
            rs_pool_limit_cuts_when_short(pool, request);
        request->stays_away = how_much != RS_POOL_EXACTLY && rs_pool_stays_away(pool, request);
        if (take_fitting(pool, request, out))
            return CUDA_SUCCESS;
        if (round == 0 && rs_pool_waited_for_growth(pool, request))
            continue;
        if (how_much == RS_POOL_A_LITTLE && !request->stays_away &&
            rs_blocks_take_any(&pool->blocks, request, out))
            return CUDA_SUCCESS;
        if (!request->stays_away &&
            (rs_pool_is_past_allowance(pool, request) || is_past_callers(pool, how_much))) {
            if (!returned && (returned = rs_pool_returned_early(pool)))
                continue;
            if (!rs_pool_is_short(pool) && rs_blocks_take_any(&pool->blocks, request, out))
                return CUDA_SUCCESS;
        }
        result = rs_pool_grow(pool, request, how_much, effort);
        if (request->stays_away && took_after_growth(pool, request, result, out))
            return CUDA_SUCCESS;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
        if (result != CUDA_SUCCESS && round == 0 && pool->blocks.free_range_count > 0 &&
            rs_pool_made_room(pool, request, returns_before)) {
            how_much = RS_POOL_EXACTLY;
            continue;
        }
        /* A misaligned block is better than a refusal or a second chunk.  The pool looks for one
         * also after a failed growth, since another thread may have freed a block. */
        request->any_alignment = true;
        if (rs_blocks_take_any(&pool->blocks, request, out))
            return CUDA_SUCCESS;
        result = CUDA_ERROR_OUT_OF_MEMORY; /* also when the growth gave a chunk that was too
                                              misaligned for the request */
        how_much = RS_POOL_EXACTLY;
        if (!rs_pool_made_room(pool, request, returns_before))
            return result;
    }
    return result;
}

static void count_served(struct rs_pool *pool, const struct rs_block_request *request)
{
    pool->allocations++;
    if (RS_LIKELY(request->rounded_bytes <= pool->largest_bytes))
        return;
    pool->largest_bytes = request->rounded_bytes;
    rs_pool_set_apart_bytes(pool);
}

__attribute__((noinline)) static CUresult allocate_growing(struct rs_pool *pool, size_t size_bytes,
                                                           enum rs_effort effort,
                                                           struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct rs_block_request request;
    bool is_a_size = request_init(&request, pool, size_bytes);

    RS_ASSERT(size_bytes > 0);
    rs_request_begin();
    rs_mutex_lock(&pool->base.lock);
    if (is_a_size && size_bytes <= pool->maximum_bytes)
        result = find_or_grow(pool, &request, effort, out);
    if (result == CUDA_SUCCESS)
        count_served(pool, &request);
    else
        pool->failures++;
    rs_mutex_unlock(&pool->base.lock);
    RS_ASSERT(result != CUDA_ERROR_NOT_READY);
    RS_ASSERT_SLOW(pool->base.ops.check(&pool->base));
    rs_request_end();
    return result;
}

/* Takes a block of another group when none of the request's own group serves it.  For `reuse`
 * (frees_are_ready) such a block is better than a wait, but not better than a growth.  So while the
 * pool can grow, it takes none, except with RS_EFFORT_CUT_ANY, by which `reuse` says that it can
 * neither grow nor wait.  Where there is no `reuse`, it takes one only past the allowance. */
static bool take_any_held(struct rs_pool *pool, struct rs_block_request *request,
                          enum rs_effort effort, struct rs_allocation *out)
{
    bool ready = pool->base.environment->frees_are_ready;

    if (request->stays_away)
        return false;
    if (ready && !(effort & RS_EFFORT_CUT_ANY) &&
        (rs_pool_can_grow(pool, request) || rs_pool_is_short(pool)))
        return false;
    return (ready || rs_pool_is_past_allowance(pool, request)) &&
           rs_blocks_take_any(&pool->blocks, request, out);
}

RS_HOT_INLINE bool take_held_block(struct rs_pool *pool, struct rs_block_request *request,
                                   enum rs_effort effort, struct rs_allocation *out)
{
    if (request->group == RS_BLOCKS_LARGE && !(effort & RS_EFFORT_CUT_ANY) &&
        rs_pool_can_grow(pool, request))
        rs_pool_limit_cuts(pool, request);
    if (RS_UNLIKELY(rs_pool_is_short(pool)) && !(effort & RS_EFFORT_CUT_ANY))
        rs_pool_limit_cuts_when_short(pool, request);
    if (RS_UNLIKELY(pool->largest_bytes >= RS_POOL_HUGE_BYTES))
        request->stays_away = rs_pool_stays_away(pool, request) && !(effort & RS_EFFORT_CUT_ANY);
    return take_fitting(pool, request, out) || take_any_held(pool, request, effort, out);
}

RS_HOT_INLINE CUresult allocate_held_block(struct rs_pool *pool, size_t size_bytes,
                                           enum rs_effort effort, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    struct rs_block_request request;

    if (!request_init(&request, pool, size_bytes))
        return result;
    rs_mutex_lock(&pool->base.lock);
    if (rs_record_slab_reserve(&pool->blocks.records) &&
        take_held_block(pool, &request, effort, out)) {
        result = CUDA_SUCCESS;
        count_served(pool, &request);
    }
    rs_mutex_unlock(&pool->base.lock);
    return result;
}

/* Ignores the stream: no work uses a pool's free blocks any more (reuse.c), so any stream may get
 * them.  Upstream gets no RS_EFFORT_BEST, so a pool over `fallback` may have chunks of both of its
 * memory resources. */
static CUresult pool_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              enum rs_effort effort, struct rs_allocation *out)
{
    (void)stream;
    return rs_effort_is_held(effort)
               ? allocate_held_block(RS_MR_AS(rs_pool, mr), size_bytes, effort, out)
               : allocate_growing(RS_MR_AS(rs_pool, mr), size_bytes, effort, out);
}

/* ---- other operations ---- */

static CUresult pool_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);
    struct rs_block *block = allocation->token;

    (void)stream;
    rs_mutex_lock(&pool->base.lock);
    RS_ASSERT(!block->is_free && block->address == allocation->address);
    rs_blocks_give(&pool->blocks, block);
    rs_mutex_unlock(&pool->base.lock);
    return CUDA_SUCCESS;
}

static size_t pool_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);
    size_t returned_bytes;

    rs_mutex_lock(&pool->base.lock);
    returned_bytes =
        rs_pool_return_free_chunks(pool, trim->keep_bytes, !rs_trim_takes_initial(trim, mr));
    rs_mutex_unlock(&pool->base.lock);
    RS_ASSERT_SLOW(mr->ops.check(mr));
    return returned_bytes + rs_mr_trim_with(mr->upstream[0], trim);
}

static size_t pool_idle_bytes(struct rs_mr *mr)
{
    const struct rs_pool *pool = RS_MR_AS(rs_pool, mr);

    return rs_counter_idle(&pool->held_bytes, &pool->blocks.live_bytes);
}

static size_t pool_growable_bytes(struct rs_mr *mr)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);

    if (pool->maximum_bytes == SIZE_MAX)
        return SIZE_MAX;
    RS_MUTEX_GUARD(&pool->base.lock);
    return pool->maximum_bytes - pool->charged_bytes;
}

static size_t pool_free_blocks(struct rs_mr *mr)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);
    RS_MUTEX_GUARD(&pool->base.lock);

    return pool->blocks.free_block_count;
}

static void pool_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);
    const char *name = mr->descriptor->name;
    struct rs_term free_bytes[] = {RS_TERM(pool->held_bytes, 1),
                                   RS_TERM(pool->blocks.live_bytes, -1)};

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add_field(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    if (!rs_mutex_lock_bounded(&pool->base.lock, name))
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
    rs_mutex_unlock(&pool->base.lock);
#undef ADD
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

static bool pool_is_sound(struct rs_mr *mr)
{
    const struct rs_pool *pool = RS_MR_AS(rs_pool, mr);
    struct pool_sums sums = {0};
    size_t indexed_blocks;

    for (const struct rs_pool_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        if ((chunk->next && chunk->next->previous != chunk) || !chunk_check(pool, chunk, &sums))
            return false;
    /* The index has as many blocks as the chunks have free ones, and all of them are free, so it
     * has every free block. */
    return rs_blocks_index_check(&pool->blocks, &indexed_blocks) &&
           indexed_blocks == sums.free_blocks && indexed_blocks == pool->blocks.free_block_count &&
           sums.held_bytes == pool->held_bytes && sums.live_bytes == pool->blocks.live_bytes &&
           sums.chunks == pool->chunk_count && sums.free_chunks == pool->blocks.free_range_count &&
           pool->charged_bytes >= pool->held_bytes && pool->charged_bytes <= pool->maximum_bytes &&
           (pool->upstream_calls > 0 || pool->charged_bytes == pool->held_bytes);
}

static void pool_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);

    RS_ASSERT(pool->upstream_calls == 0 && pool->charged_bytes == pool->held_bytes);
    while (pool->chunks) {
        struct rs_pool_chunk *chunk = pool->chunks;
        pool->chunks = chunk->next;
        if (!memory_is_gone)
            (void)rs_mr_deallocate(mr->upstream[0], &chunk->upstream, NULL);
        free(chunk);
    }
    rs_blocks_end(&pool->blocks);
    pthread_cond_destroy(&pool->settled);
}

/* ---- creation ---- */

/* Takes the initial size, or as much of it as there is.  Less than the initial size is no error,
 * and only a log line tells of it: the device may be shared, and the pool grows on demand.  Returns
 * 0, or -EIO after another error than a lack of memory. */
static int take_initial_chunk(struct rs_pool *pool)
{
    char asked[RS_SIZE_TEXT_BYTES], got[RS_SIZE_TEXT_BYTES];
    struct rs_pool_ask ask = {.most_bytes = pool->initial_bytes,
                              .least_bytes = pool->initial_bytes,
                              .group = RS_BLOCKS_COMMON,
                              .is_initial = true};
    size_t free_bytes = rs_environment_free_bytes(pool->base.environment, pool->base.memories);
    CUresult result;

    rs_mutex_lock(&pool->base.lock);
    result = rs_pool_add_chunk_from_upstream(pool, &ask);
    /* The next attempt asks for half, or for all bytes that were free if that is more. */
    ask.most_bytes = rs_max(ask.most_bytes / 2, free_bytes < ask.most_bytes ? free_bytes : 0);
    ask.most_bytes = rs_round_down(ask.most_bytes, RS_DRIVER_GRANULARITY);
    ask.least_bytes = RS_DRIVER_GRANULARITY;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && ask.most_bytes > 0)
        result = rs_pool_add_chunk_from_upstream(pool, &ask);
    pool->step_limit_bytes = SIZE_MAX;
    rs_mutex_unlock(&pool->base.lock);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return -EIO;
    if (pool->held_bytes < pool->initial_bytes)
        rs_log("%s: the initial size is %s, but only %s could be allocated: the pool grows on "
               "demand",
               pool->base.descriptor->name, rs_size_format(pool->initial_bytes, asked),
               rs_size_format(pool->held_bytes, got));
    return 0;
}

static const struct rs_mr_ops pool_ops = {
    .allocate = pool_allocate,
    .deallocate = pool_deallocate,
    .end = pool_end,
    .trim = pool_trim,
    .excess_bytes = rs_mr_no_excess_bytes,
    .idle_bytes = pool_idle_bytes,
    .growable_bytes = pool_growable_bytes,
    .free_blocks = pool_free_blocks,
    .report = pool_report,
    .is_sound = pool_is_sound,
};

static int pool_init(struct rs_mr *mr, const void *config)
{
    const struct pool_config *settings = config;
    struct rs_pool *pool = RS_MR_AS(rs_pool, mr);

    rs_condition_init(&pool->settled);
    if (!rs_blocks_begin(&pool->blocks))
        return -ENOMEM;
    pool->initial_bytes = settings->initial_size;
    pool->maximum_bytes = settings->maximum_size;
    pool->alignment = settings->alignment;
    pool->growth = (enum rs_pool_growth)settings->growth;
    pool->step_limit_bytes = SIZE_MAX;
    RS_ASSERT(rs_is_power_of_two(pool->alignment));
    RS_ASSERT(pool->initial_bytes <= pool->maximum_bytes);
    rs_pool_set_apart_bytes(pool);
    /* A pool with an initial size but without frees_are_ready (RMM_FREE=immediate) does not part
     * its chunks: freed blocks do not wait for the GPU there, and all groups share the initial
     * size. */
    pool->parts_kinds = pool->growth != RS_POOL_GROWTH_RMM &&
                        (pool->initial_bytes == 0 || mr->environment->frees_are_ready);
    return pool->initial_bytes > 0 && mr->environment->first_on_device ? take_initial_chunk(pool)
                                                                       : 0;
}

static bool pool_validate(const void *config, const struct rs_validation *of)
{
    const struct pool_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    if (settings->maximum_size < settings->initial_size)
        return RS_REFUSE(of, "the pool's maximum size %s is below its initial size %s",
                         rs_size_format(settings->maximum_size, first),
                         rs_size_format(settings->initial_size, second));
    if (!rs_is_power_of_two(settings->alignment) || settings->alignment < RS_BLOCK_ALIGNMENT ||
        settings->alignment > RS_DRIVER_GRANULARITY)
        return RS_REFUSE(
            of, "the pool's alignment must be a power of two from 512 bytes to 2MiB, not %s",
            rs_size_format(settings->alignment, first));
    return rs_mr_fits_device(of, "pool's initial size", settings->initial_size);
}

static const struct rs_option pool_options[] = {
    RS_OPTION_SIZE_ROW(
        struct pool_config, initial_size, "0",
        "how much memory the pool takes at the first allocation; `rmmshim trim` "
        "leaves this memory in the pool; the pool gives it back only when an allocation "
        "of the process would fail otherwise, and takes it again when it next grows",
        .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE, .beyond_whole = true,
        .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_SIZE_ROW(
        struct pool_config, maximum_size, "none",
        "the most memory that the pool takes from its upstream; none (the default): no maximum",
        .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE, .none = true, .beyond_whole = true,
        .aliases = {{"maximum_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_WORD_ROW(struct pool_config, growth, growth_words, "geometric",
                       "how much more memory the pool takes when it is full; geometric (the "
                       "default): what the request needs, or up to a sixteenth of the pool's size "
                       "if that is more; rmm, as in RMM: as much as the pool has "
                       "already, or, with a maximum_size, half of what the pool may still take"),
    RS_OPTION_SIZE_ROW(
        struct pool_config, alignment, "512",
        "the address of each block, and the number of bytes that the block takes up, are multiples "
        "of this power of two",
        .minimum = RS_BLOCK_ALIGNMENT, .maximum = RS_DRIVER_GRANULARITY),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_pool = {
    .name = "pool",
    .summary = "takes large blocks from its upstream, serves each request from the smallest free "
               "piece that fits, and merges adjacent free pieces at once",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct pool_config),
    .options = pool_options,
    .unit_option = "alignment",
    .validate = pool_validate,
};

RS_MR_CLASS(pool, struct rs_pool, pool_ops, pool_init);

/* ---- arena: RMM's word for a pool whose initial and maximum size are arena_size.  RMM's
 * arena_memory_resource takes one block of a fixed size, and cuts superblocks from it for each
 * thread.  Superblocks were measured here: they refuse more on a full device than a pool of that
 * size does, hold more for what is live, and are slower with one thread and with four. ---- */

struct arena_config {
    size_t arena_size;
    bool dump_log_on_failure;
};

enum { ARENA_LEAST_BYTES = 1 << 20 };

/* An arena_size that is a share of the free memory is known only here.  It may be below the
 * option's minimum, or no multiple of 512, so it is corrected. */
static int arena_init(struct rs_mr *mr, const void *config)
{
    const struct arena_config *settings = config;
    size_t bytes =
        rs_max(rs_round_down(settings->arena_size, RS_BLOCK_ALIGNMENT), (size_t)ARENA_LEAST_BYTES);

    return pool_init(mr, &(struct pool_config){.initial_size = bytes,
                                               .maximum_size = bytes,
                                               .alignment = RS_BLOCK_ALIGNMENT});
}

static bool arena_validate(const void *config, const struct rs_validation *of)
{
    const struct arena_config *settings = config;

    return rs_mr_fits_device(of, "arena's size", settings->arena_size);
}

static const struct rs_option arena_options[] = {
    RS_OPTION_SIZE_ROW(struct arena_config, arena_size, "50%free",
                       "the arena's initial and maximum size: it takes this much at the first "
                       "allocation and never more",
                       .minimum = ARENA_LEAST_BYTES, .maximum = RS_SIZE_ADDRESSABLE,
                       .beyond_whole = true),
    RS_OPTION_BOOLEAN_ROW(
        struct arena_config, dump_log_on_failure, "0",
        "an option of RMM's that has no effect here and must be 0 (false); for a report when "
        "memory runs out, set RMM_ON_OOM",
        .only_no = "this option of 'arena' has no effect in rmmshim and must be 0; for a report "
                   "when memory runs out, set RMM_ON_OOM=text:PATH"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_arena = {
    .name = "arena",
    .summary = "a pool of a fixed size: its initial and its maximum size are arena_size",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct arena_config),
    .options = arena_options,
    .validate = arena_validate,
};

RS_MR_CLASS(arena, struct rs_pool, pool_ops, arena_init);
