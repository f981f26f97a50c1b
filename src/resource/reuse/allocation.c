/* SPDX-License-Identifier: Apache-2.0 */
/* The path of an allocation through `reuse`: a block that the thread's shard keeps, a block freed
 * in the order of the same stream, or a block from upstream. */
#include "base/lock.h"
#include "base/request.h"
#include "driver/stream.h"
#include "resource/reuse/reuse.h"

/* ---- the slow path ---- */

enum {
    /* The longest wait for one epoch, and the time after which no further wait begins. */
    WAIT_NS = 20 * 1000 * 1000,
    SLACK = 32,         /* the held bytes may exceed the peak by 1/32 of it, as in pool */
    SMALL_DIVISOR = 64, /* a request up to 1/64 of the initial size ... */
    SMALL_SLACK = 16,   /* ... may make the stack grow past it by 1/16: pool has chunks of their own
                           for small blocks */
    SLICE_NS = 10 * 1000 * 1000, /* the longest single wait in wait_for_own */
};

/* Returns the peak of live bytes including this request.  The new peak is noted only when
 * is_served: bytes of a refused request were never live. */
static size_t peak_with(struct rs_reuse *reuse, size_t size_bytes, bool is_served)
{
    size_t peak_bytes;
    RS_MUTEX_GUARD(&reuse->lock);

    peak_bytes = rs_reuse_gather(reuse, NULL) + size_bytes;
    peak_bytes =
        rs_max(peak_bytes, atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed));
    if (is_served)
        atomic_store_explicit(&reuse->peak_live_bytes, peak_bytes, memory_order_relaxed);
    return peak_bytes;
}

/* True when the stack may grow for the request without a wait.  It may hold the initial size, or a
 * little more than the peak including this request, since the driver alone would have needed that
 * much too.  The larger of the two is the bound, and not their sum: with the sum, a pool of 20 GiB
 * held 35 GiB while 16 GiB were live. */
static bool may_grow(struct rs_reuse *reuse, size_t size_bytes)
{
    size_t peak_bytes = peak_with(reuse, size_bytes, false), initial_bytes = reuse->initial_bytes;

    if (size_bytes <= initial_bytes / SMALL_DIVISOR)
        initial_bytes += initial_bytes / SMALL_SLACK;
    return rs_reuse_held_bytes(reuse) + size_bytes <=
           rs_max(initial_bytes, peak_bytes + peak_bytes / SLACK);
}

/* Notes that upstream is short, which means that it had no fitting block lately: frees then seal
 * early for a while (deallocation.c). */
static void note_upstream_short(struct rs_reuse *reuse)
{
    size_t divisor =
        reuse->initial_bytes > 0 ? RS_REUSE_SHORT_INITIAL_DIVISOR : RS_REUSE_SHORT_DIVISOR;

    if (!rs_reuse_may_have_fence(reuse) || reuse->is_eager)
        return; /* without fences a seal would be a wait; frees of host memory seal anyway */
    atomic_store_explicit(&reuse->short_seals, RS_REUSE_SHORT_SEALS, memory_order_relaxed);
    atomic_store_explicit(&reuse->eager_bytes,
                          rs_max(RS_REUSE_SHORT_BYTES, rs_reuse_held_bytes(reuse) / divisor),
                          memory_order_relaxed);
}

/* Returns the number of blocks that have ever entered the quarantine.  Once as many have left it
 * (have_left), nearly all blocks that are in it now have left, since blocks leave about in the
 * order in which they entered. */
static size_t blocks_entered(const struct rs_reuse *reuse)
{
    size_t left = atomic_load_explicit(&reuse->left_count, memory_order_relaxed);

    return left + rs_reuse_quarantined(reuse).blocks;
}

static bool have_left(const struct rs_reuse *reuse, size_t count)
{
    return (ptrdiff_t)(atomic_load_explicit(&reuse->left_count, memory_order_acquire) - count) >= 0;
}

/* ---- before a refusal ---- */

/* True when all blocks in quarantine are open (no fence covers them) and cannot get a fence now.
 * Blocks that a thread carries upstream, or for which another thread's free waits, are not open.
 * False also when the last seal got its fence, since the open blocks were freed after it. */
static bool are_open_for_good(struct rs_reuse *reuse)
{
    size_t blocks = rs_reuse_quarantined(reuse).blocks, open = rs_reuse_open_count(reuse);

    return atomic_load_explicit(&reuse->refusal, memory_order_relaxed) != RS_FENCE_GRANTED &&
           open > 0 && blocks <= open;
}

/* Does as rs_mr_make_ready for this `reuse`.  Asks upstream only when no block here can become
 * ready. */
static enum rs_readiness make_own_ready(struct rs_reuse *reuse, uint64_t wait_ns)
{
    uint64_t begin_ns = rs_clock_ns();
    bool some = rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL), in_vain = false;

    (void)rs_reuse_seal(reuse);
    some = rs_reuse_retire(reuse) || some;
    if (!some && wait_ns > 0 && rs_reuse_has_sealed(reuse, false)) {
        some = rs_reuse_wait_for_first(reuse, wait_ns);
        /* The wait ended before wait_ns without success, so the context is broken. */
        in_vain = !some && rs_clock_ns() - begin_ns < wait_ns;
    }
    rs_reuse_end_slow_path(reuse);
    if (some)
        return RS_READY_SOME;
    if (!in_vain && rs_reuse_has_sealed(reuse, false))
        return RS_READY_PENDING;
    if (in_vain || are_open_for_good(reuse) ||
        (!rs_reuse_has_quarantine(reuse) && atomic_load(&reuse->giving_bytes) == 0))
        return rs_mr_make_ready(reuse->base.upstream[0], wait_ns);
    if (wait_ns > 0)
        rs_reuse_nap(); /* another thread is about to give the blocks upstream */
    return RS_READY_PENDING;
}

enum rs_readiness rs_mr_make_ready(struct rs_mr *mr, uint64_t wait_ns)
{
    enum rs_readiness best = RS_READY_NOTHING, readiness;

    if (mr->descriptor == &rs_mr_descriptor_reuse)
        return make_own_ready(RS_MR_AS(rs_reuse, mr), wait_ns);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++) {
        readiness = rs_mr_make_ready(mr->upstream[i], wait_ns);
        best = readiness > best ? readiness : best;
    }
    return best;
}

uint64_t rs_mr_progress(struct rs_mr *mr)
{
    uint64_t progress = 0;

    if (mr->descriptor == &rs_mr_descriptor_reuse)
        return rs_reuse_progress(RS_MR_AS(rs_reuse, mr));
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        progress += rs_mr_progress(mr->upstream[i]);
    return progress;
}

/* False when a request is larger than all idle memory and upstream's growth together. */
static bool may_be_served(struct rs_reuse *reuse, size_t size_bytes)
{
    size_t growable_bytes = rs_mr_growable_bytes_best(reuse->base.upstream[0]);

    return size_bytes <= growable_bytes ||
           size_bytes - growable_bytes <= rs_mr_idle_bytes_best(&reuse->base);
}

/* Waits for freed blocks of this stack.  It is used when the stack's own maximum refuses the
 * request, since other stacks cannot help then.  Returns true when blocks became ready. */
static bool wait_for_own(struct rs_reuse *reuse, size_t size_bytes)
{
    enum rs_readiness readiness;

    if (!may_be_served(reuse, size_bytes))
        return false;
    do
        readiness = make_own_ready(reuse, rs_min(SLICE_NS, rs_request_patience_ns()));
    while (readiness == RS_READY_PENDING && rs_request_patience_ns() > 0);
    return readiness == RS_READY_SOME;
}

/* Reclaims memory of the refused kind.  If that gives nothing and the stack spills to host memory,
 * reclaims host memory, from which the request may be served too. */
static bool reclaim_for(const struct rs_reuse *reuse, const struct rs_refusal *refusal)
{
    const struct rs_environment *environment = reuse->base.environment;
    struct rs_refusal host = *refusal;

    host.memory = RS_MEMORY_HOST;
    return environment->reclaim(environment, refusal, true) ||
           (refusal->memory != RS_MEMORY_HOST && reuse->base.memories & 1u << RS_MEMORY_HOST &&
            environment->reclaim(environment, &host, true));
}

/* Reclaims memory or waits for it, and returns true when another attempt may succeed.  That is so
 * too when blocks moved between quarantine and upstream during the last attempt (`progress`), which
 * may have found them in neither place. */
static bool may_try_again(struct rs_reuse *reuse, const struct rs_refusal *refusal,
                          uint64_t progress)
{
    bool is_short = rs_request.is_short && reuse->base.environment->reclaim;

    return (is_short ? reclaim_for(reuse, refusal) : wait_for_own(reuse, refusal->size_bytes)) ||
           (progress != rs_reuse_progress(reuse) && rs_request_may_repeat());
}

/* The last attempts, each after a bounded wait for freed memory.  With the driver alone the program
 * would have waited for the same work in cudaFree. */
static CUresult allocate_at_last(struct rs_reuse *reuse, struct rs_refusal *refusal,
                                 uint64_t progress, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    while (result == CUDA_ERROR_OUT_OF_MEMORY && may_try_again(reuse, refusal, progress)) {
        progress = rs_reuse_progress(reuse);
        refusal->releases = rs_account_releases(reuse->base.environment->account);
        result = rs_mr_allocate(reuse->base.upstream[0], refusal->size_bytes, NULL, out);
    }
    return result;
}

/* ---- an allocation ---- */

/* Allocates from the first upstream, or from a second that stands in for it (slower memory).
 * Slower memory is worse than a short wait and better than a long one.  So this first waits for
 * epochs, up to WAIT_NS, as long as the freed bytes can be enough. */
static CUresult allocate_or_fall_back(struct rs_reuse *reuse, size_t size_bytes,
                                      enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    enum rs_effort best = effort | RS_EFFORT_BEST;
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_mr_allocate_with(upstream, size_bytes, NULL, best, out);

    while (result == CUDA_ERROR_NOT_READY && rs_clock_ns() - begin_ns < WAIT_NS &&
           rs_mr_idle_bytes_best(&reuse->base) >= size_bytes && rs_reuse_wait_once(reuse, WAIT_NS))
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, best, out);
    if (result == CUDA_ERROR_NOT_READY)
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, effort, out);
    return result;
}

/* Gives some of the backlog (ready blocks that go upstream a few at a time) upstream.  Returns
 * false when there is no backlog.  Then it retires no epoch either: other threads may free blocks
 * all the time, and a loop over this function would never end. */
static bool has_more(struct rs_reuse *reuse)
{
    return rs_reuse_has_backlog(reuse) && rs_reuse_retire_some(reuse);
}

static enum rs_memory memory_asked(const struct rs_reuse *reuse)
{
    return reuse->base.memories == 1u << RS_MEMORY_MANAGED ? RS_MEMORY_MANAGED
           : reuse->base.memories == 1u << RS_MEMORY_HOST  ? RS_MEMORY_HOST
                                                           : RS_MEMORY_DEVICE;
}

/* Serves a request for which no ready block was found. effort: RS_EFFORT_FULL or RS_EFFORT_AHEAD.
 *
 * For a large request the small kept blocks first stay where they are, since they seldom help it.
 * They go upstream before a wait, and before upstream is asked for more than it holds.
 *
 * Freed blocks that wait for the GPU come back late.  If the request meanwhile cuts a larger block
 * instead, the larger block is pinned, and the next large request finds none.  So upstream first
 * cuts only blocks that fit well.  Its usual rules apply once the stack may grow, or the blocks
 * that were freed before the request are ready.  If neither comes in time, it cuts any block. */
static CUresult allocate_on_slow_path(struct rs_reuse *reuse, size_t size_bytes,
                                      enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    bool more = rs_reuse_begin_slow_path(reuse, rs_kept_class(size_bytes)), allowed, retired;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = memory_asked(reuse)};
    uint64_t begin_ns = rs_clock_ns(), progress;
    size_t entered = blocks_entered(reuse);
    CUresult result;

    RS_ASSERT(!rs_effort_is_held(effort) && atomic_load(&reuse->on_slow_path) > 0);
    note_upstream_short(reuse);
    /* in bounded steps, since after a long operation millions of blocks may become ready at once */
    retired = rs_reuse_retire_some(reuse) || (rs_reuse_seal(reuse) && rs_reuse_retire_some(reuse));
    for (; retired || more; retired = has_more(reuse), more = false) {
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    if (rs_reuse_give_kept(reuse, RS_KEPT_SMALL)) {
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    while (!(allowed = have_left(reuse, entered) || may_grow(reuse, size_bytes))) {
        if (rs_clock_ns() - begin_ns >= WAIT_NS || !rs_reuse_wait_once(reuse, WAIT_NS))
            break;
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    /* The number is read before the allocation, so that a block that moves during it changes the
     * number. */
    progress = rs_reuse_progress(reuse);
    refusal.releases = rs_account_releases(reuse->base.environment->account);
    result = allowed
                 ? allocate_or_fall_back(reuse, size_bytes, effort, out)
                 : rs_mr_allocate_with(upstream, size_bytes, NULL, effort | RS_EFFORT_LITTLE, out);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !rs_effort_is_ahead(effort))
        result = allocate_at_last(reuse, &refusal, progress, out);
    if (result == CUDA_SUCCESS)
        (void)peak_with(reuse, size_bytes, true);
    else if (!reuse->is_eager && rs_reuse_open_count(reuse))
        atomic_store_explicit(&reuse->eager_bytes, RS_REUSE_STARVED, memory_order_relaxed);
    return result;
}

/* Serves from held memory alone, with all blocks that are ready or can be made ready at once.
 * Returns CUDA_ERROR_NOT_READY when they do not suffice. */
static CUresult allocate_from_held(struct rs_reuse *reuse, size_t size_bytes,
                                   struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    CUresult result = CUDA_ERROR_NOT_READY;

    if (rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL))
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY,
                                     out);
    if (result == CUDA_ERROR_NOT_READY && rs_reuse_retire(reuse))
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY,
                                     out);
    return result;
}

static CUresult allocate_in_request(struct rs_reuse *reuse, size_t size_bytes,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    CUresult result;

    RS_ASSERT(size_bytes > 0);
    if (size_bytes > PTRDIFF_MAX) /* no device has this much, and sums of live bytes are signed */
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    rs_request_begin();
    result = rs_effort_is_held(effort)
                 ? allocate_from_held(reuse, size_bytes, out)
                 : allocate_on_slow_path(reuse, size_bytes, effort & RS_EFFORT_AHEAD, out);
    RS_ASSERT(result != CUDA_ERROR_NOT_READY || rs_effort_is_held(effort));
    rs_reuse_end_slow_path(reuse);
    rs_request_end();
    return result;
}

/* ---- the usual path ---- */

enum {
    /* The GPU's work on a block of this size takes longer than recording a fence. */
    HUGE_BYTES = 256 << 20,
    /* The most batches that one allocation sorts, since thousands of blocks may be unsorted. */
    SORT_TURNS = 8,
};

/* Takes a kept block of this size and counts it as live, or returns NULL.  *more: the shard has
 * unsorted ready blocks, one of which may have this size. */
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

/* Fills in *out for a block.  A block that served another size before is hidden first, so that it
 * enters the map of blocks as a new one. */
RS_HOT_INLINE void fill_allocation(struct rs_block_record *block, size_t size_bytes,
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

/* Allocates a block that was freed in the order of the same stream, since such a block needs no
 * fence.  Returns false when there is none.  Rounds *size_bytes up in either case, so that more
 * blocks have equal sizes.  Sets *key to the key of the stream, if it has one. */
static bool allocate_in_order(struct rs_reuse *reuse, size_t *size_bytes, CUstream stream,
                              unsigned long long *key, struct rs_allocation *out)
{
    size_t asked_bytes = *size_bytes, rounded_bytes;
    struct rs_block_record *block;

    if (!rs_round_up(asked_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return false;
    *size_bytes = rounded_bytes;
    if (reuse->is_unordered || !rs_stream_key(stream, reuse->base.environment->context, key))
        return false;
    block = rs_ordered_take(&reuse->ordered, rounded_bytes, *key);
    if (!block)
        return false;
    rs_reuse_count_left(reuse, block->upstream_bytes, 1);
    fill_allocation(block, asked_bytes, *key, out);
    return true;
}

/* Makes all blocks ready that can be before a huge block is cut, so that they merge first and the
 * cut leaves one free piece and not several.  Does nothing for less than 1/32 of the held bytes, or
 * if all freed blocks have exactly this size, since one of them will serve the request. */
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

/* Asks upstream on no stream: the block must be usable on all streams, since other streams may get
 * it later. */
static CUresult allocate_from_upstream(struct rs_reuse *reuse, size_t size_bytes,
                                       enum rs_effort effort, struct rs_allocation *out)
{
    enum rs_effort first =
        rs_effort_is_held(effort) ? RS_EFFORT_HELD | RS_EFFORT_CUT_ANY : RS_EFFORT_HELD;
    CUresult result;

    if (RS_UNLIKELY(size_bytes >= HUGE_BYTES))
        ready_for_huge(reuse, size_bytes);
    result = rs_mr_allocate_with(reuse->base.upstream[0], size_bytes, NULL, first, out);
    return result == CUDA_ERROR_NOT_READY ? allocate_in_request(reuse, size_bytes, effort, out)
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
    count_live(reuse, record);
    fill_allocation(record, size_bytes, key, out);
    return CUDA_SUCCESS;
}

/* Sorts ready blocks until one of this size is found, and takes it.  Returns NULL when there is
 * none among the blocks of SORT_TURNS batches. */
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
    fill_allocation(kept, size_bytes, key, out);
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

/* True when an allocation queries the fences before it takes a block.  For host memory it then gets
 * the block used last, from the processor's caches; while upstream is short, freed blocks come back
 * sooner.  For a size that no cache holds, it queries the fences only if no block is free. */
static bool asks_first(struct rs_reuse *reuse, size_t size_bytes)
{
    return size_bytes >= rs_reuse_eager_bytes(reuse) &&
           (size_bytes < RS_REUSE_SEAL_BYTES ||
            (rs_mr_idle_bytes_best(reuse->base.upstream[0]) < size_bytes &&
             !is_something_kept(reuse, size_bytes)));
}

/* Serves an allocation in the order of a stream, one of a size that queries fences first, or one
 * with another effort than RS_EFFORT_FULL.  A request for held memory ignores the stream, since its
 * block is usable on all streams. */
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
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);

    RS_ASSERT_SLOW(size_bytes > 0);
    if (RS_UNLIKELY((uintptr_t)stream |
                    (effort | (unsigned)(size_bytes >= rs_reuse_eager_bytes(reuse)))))
        return allocate_unusual(reuse, size_bytes, stream, effort, out);
    return allocate_any(reuse, size_bytes, size_bytes, 0, RS_EFFORT_FULL, out);
}
