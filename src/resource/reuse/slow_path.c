/* SPDX-License-Identifier: Apache-2.0 */
/* The slow path: an allocation for which upstream holds no fitting block.  It grows, up to the most
 * that the program ever used at once, rather than cut a block that is better left to others.  It
 * waits only when it would otherwise grow past that, and then for a bounded time, as the work it
 * waits for may itself wait for this thread. */
#include "base/lock.h"
#include "base/request.h"
#include "resource/reuse/reuse.h"

enum {
    /* The longest wait for one epoch, and the time after which no further wait begins. */
    WAIT_NS = 20 * 1000 * 1000,
    SLACK = 32,         /* held bytes may exceed the peak by 1/32, as in pool */
    SMALL_DIVISOR = 64, /* a request up to 1/64 of the initial size ... */
    SMALL_SLACK = 16,   /* ... may grow past it by 1/16: pool keeps small blocks apart, in chunks of
                           their own */
    SLICE_NS = 10 * 1000 * 1000, /* the longest wait between two looks at other threads' progress */
};

/* Returns the peak of live bytes including this request.  It is noted only once upstream has served
 * the request: a program that asks for more than there is has not used it. */
static size_t peak_with(struct rs_reuse *reuse, size_t size_bytes, bool is_served)
{
    size_t peak_bytes;

    rs_mutex_lock(&reuse->lock);
    peak_bytes = rs_reuse_gather(reuse, NULL) + size_bytes;
    peak_bytes =
        rs_max(peak_bytes, atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed));
    if (is_served)
        atomic_store_explicit(&reuse->peak_live_bytes, peak_bytes, memory_order_relaxed);
    rs_mutex_unlock(&reuse->lock);
    return peak_bytes;
}

/* True when the request may grow without a wait: up to the initial size, or up to the peak with
 * this request and a little more, as the driver alone would have needed that much too.  The sum of
 * both was too much: a pool of 20 GiB held 35 GiB for 16 GiB live. */
static bool may_grow(struct rs_reuse *reuse, size_t size_bytes)
{
    size_t peak_bytes = peak_with(reuse, size_bytes, false), initial_bytes = reuse->initial_bytes;

    if (size_bytes <= initial_bytes / SMALL_DIVISOR)
        initial_bytes += initial_bytes / SMALL_SLACK;
    return rs_reuse_held_bytes(reuse) + size_bytes <=
           rs_max(initial_bytes, peak_bytes + peak_bytes / SLACK);
}

/* Notes that upstream is short: frees seal early for a while (deallocation.c). */
static void note_shortage(struct rs_reuse *reuse)
{
    size_t divisor =
        reuse->initial_bytes > 0 ? RS_REUSE_SHORT_INITIAL_DIVISOR : RS_REUSE_SHORT_DIVISOR;

    if (!rs_reuse_may_have_fence(reuse) || reuse->is_eager)
        return; /* without fences a seal is a wait; host memory seals at each free anyhow */
    atomic_store_explicit(&reuse->short_seals, RS_REUSE_SHORT_SEALS, memory_order_relaxed);
    atomic_store_explicit(&reuse->eager_bytes,
                          rs_max(RS_REUSE_SHORT_BYTES, rs_reuse_held_bytes(reuse) / divisor),
                          memory_order_relaxed);
}

/* The number of blocks that have entered the quarantine.  When as many have left it, each block
 * that was in it now is ready. */
static size_t count_entered(const struct rs_reuse *reuse)
{
    size_t left = atomic_load_explicit(&reuse->left_count, memory_order_relaxed);

    return left + rs_reuse_quarantined(reuse).blocks;
}

static bool have_left(const struct rs_reuse *reuse, size_t count)
{
    return (ptrdiff_t)(atomic_load_explicit(&reuse->left_count, memory_order_acquire) - count) >= 0;
}

/* ---- out of memory, perhaps ---- */

/* True when all blocks in quarantine are open and can get no fence now.  Others are on their way,
 * or another thread's free waits for their work.  With a granted fence, blocks that are open were
 * freed by another thread since the seal. */
static bool are_open_for_good(struct rs_reuse *reuse)
{
    size_t blocks = rs_reuse_quarantined(reuse).blocks, open = rs_reuse_open_count(reuse);

    return atomic_load_explicit(&reuse->refusal, memory_order_relaxed) != RS_FENCE_GRANTED &&
           open > 0 && blocks <= open;
}

enum rs_readiness rs_reuse_make_ready(struct rs_reuse *reuse, uint64_t wait_ns)
{
    uint64_t begin_ns = rs_clock_ns();
    bool some = rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL), in_vain = false;

    (void)rs_reuse_seal(reuse);
    some = rs_reuse_retire(reuse) || some;
    if (!some && wait_ns > 0 && rs_reuse_has_sealed(reuse, false)) {
        some = rs_reuse_wait_for_first(reuse, wait_ns);
        /* A wait that ended early: the context is broken. */
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

/* False when a request is larger than all idle memory and upstream's growth together. */
static bool can_be_served(struct rs_reuse *reuse, size_t size_bytes)
{
    size_t growable_bytes = rs_mr_growable_bytes_best(reuse->base.upstream[0]);

    return size_bytes <= growable_bytes ||
           size_bytes - growable_bytes <= rs_mr_idle_bytes_best(&reuse->base);
}

/* Waits for blocks of this stack alone, whose own maximum is in the way. */
static bool wait_for_own(struct rs_reuse *reuse, size_t size_bytes)
{
    enum rs_readiness readiness;

    if (!can_be_served(reuse, size_bytes))
        return false;
    do
        readiness = rs_reuse_make_ready(reuse, rs_min(SLICE_NS, rs_request_patience_ns()));
    while (readiness == RS_READY_PENDING && rs_request_patience_ns() > 0);
    return readiness == RS_READY_SOME;
}

/* A stack that spills to host memory may be served from there, when the device has no more. */
static bool reclaim(const struct rs_reuse *reuse, const struct rs_refusal *refusal)
{
    const struct rs_environment *environment = reuse->environment;
    struct rs_refusal host = *refusal;

    host.memory = RS_MEMORY_HOST;
    return environment->reclaim(environment, refusal, true) ||
           (refusal->memory != RS_MEMORY_HOST && reuse->base.memories & 1u << RS_MEMORY_HOST &&
            environment->reclaim(environment, &host, true));
}

/* True when another try may succeed.  A block may have moved in and out of quarantine meanwhile,
 * unseen by each look at one place: then the refusal does not count. */
static bool make_room(struct rs_reuse *reuse, const struct rs_refusal *refusal, uint64_t moves)
{
    if (rs_request_is_short() && reuse->environment->reclaim)
        return reclaim(reuse, refusal) ||
               (moves != rs_reuse_moves(reuse) && rs_request_may_repeat());
    return wait_for_own(reuse, refusal->size_bytes) ||
           (moves != rs_reuse_moves(reuse) && rs_request_may_repeat());
}

/* Serves the request from freed blocks after a bounded wait: with the driver alone the program
 * would have waited in cudaFree for the same work. */
static CUresult allocate_at_last(struct rs_reuse *reuse, struct rs_refusal *refusal, uint64_t moves,
                                 struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    while (result == CUDA_ERROR_OUT_OF_MEMORY && make_room(reuse, refusal, moves)) {
        moves = rs_reuse_moves(reuse);
        refusal->releases = rs_account_releases(reuse->environment->account);
        result = rs_mr_allocate(reuse->base.upstream[0], refusal->size_bytes, NULL, out);
    }
    return result;
}

/* ---- an allocation ---- */

/* Allocates from the first upstream, or from a second that stands in for it (slower memory).  Slow
 * memory is worse than a short wait and better than a long one: so this waits for epochs that end
 * within WAIT_NS, as long as the freed bytes can be enough. */
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

/* True when blocks of the backlog went upstream.  It does not retire what other threads free
 * meanwhile, which might never end. */
static bool has_more(struct rs_reuse *reuse)
{
    return rs_reuse_has_backlog(reuse) && rs_reuse_retire_some(reuse);
}

static enum rs_memory memory_of(const struct rs_reuse *reuse)
{
    return reuse->base.memories == 1u << RS_MEMORY_MANAGED ? RS_MEMORY_MANAGED
           : reuse->base.memories == 1u << RS_MEMORY_HOST  ? RS_MEMORY_HOST
                                                           : RS_MEMORY_DEVICE;
}

/* effort: RS_EFFORT_FULL or RS_EFFORT_AHEAD.
 *
 * A large request first leaves the small kept blocks where they are, as they seldom are what it
 * lacks; they go upstream before a wait, and before upstream is asked for more than it holds.
 *
 * Freed blocks that wait for the GPU return late.  A block cut meanwhile in their stead pins a
 * larger one, and the next large request finds none.  So only fitting blocks are cut until all
 * blocks freed before are ready; from then on upstream's own rules are best.  Where a wait for them
 * is not possible, any block is cut. */
static CUresult allocate_on_slow_path(struct rs_reuse *reuse, size_t size_bytes,
                                      enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    bool more = rs_reuse_begin_slow_path(reuse, rs_kept_class(size_bytes)), allowed, retired;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = memory_of(reuse)};
    uint64_t begin_ns = rs_clock_ns(), moves;
    size_t entered = count_entered(reuse);
    CUresult result;

    RS_ASSERT(!rs_effort_is_held(effort) && atomic_load(&reuse->on_slow_path) > 0);
    note_shortage(reuse);
    /* in steps: after a long operation millions of blocks may be ready at once */
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
    /* Read before the allocation, so that no block's move is missed. */
    moves = rs_reuse_moves(reuse);
    refusal.releases = rs_account_releases(reuse->environment->account);
    result = allowed
                 ? allocate_or_fall_back(reuse, size_bytes, effort, out)
                 : rs_mr_allocate_with(upstream, size_bytes, NULL, effort | RS_EFFORT_LITTLE, out);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !rs_effort_is_ahead(effort))
        result = allocate_at_last(reuse, &refusal, moves, out);
    if (result == CUDA_SUCCESS)
        (void)peak_with(reuse, size_bytes, true);
    else if (!reuse->is_eager && rs_reuse_open_count(reuse))
        atomic_store_explicit(&reuse->eager_bytes, RS_REUSE_STARVED, memory_order_relaxed);
    return result;
}

/* Serves from held memory alone, with all blocks that are ready or can be made ready at once. */
static CUresult allocate_held(struct rs_reuse *reuse, size_t size_bytes, struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    CUresult result = CUDA_ERROR_NOT_READY;

    if (rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL))
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD_ANY, out);
    if (result == CUDA_ERROR_NOT_READY && rs_reuse_retire(reuse))
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD_ANY, out);
    return result;
}

CUresult rs_reuse_allocate_slowly(struct rs_reuse *reuse, size_t size_bytes, enum rs_effort effort,
                                  struct rs_allocation *out)
{
    CUresult result;

    RS_ASSERT(size_bytes > 0);
    if (size_bytes > PTRDIFF_MAX) /* no device has this much, and sums of live bytes are signed */
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    rs_request_begin();
    result = rs_effort_is_held(effort)
                 ? allocate_held(reuse, size_bytes, out)
                 : allocate_on_slow_path(reuse, size_bytes, effort & RS_EFFORT_AHEAD, out);
    RS_ASSERT(result != CUDA_ERROR_NOT_READY || rs_effort_is_held(effort));
    rs_reuse_end_slow_path(reuse);
    rs_request_end();
    return result;
}
