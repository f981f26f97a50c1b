/* SPDX-License-Identifier: Apache-2.0 */
/* fallback: a second upstream serves requests for which the first is out of memory.  RMM's
 * failure_callback_resource_adaptor, without a callback.
 *
 * A block goes back to the upstream from which it came.  Each allocation prefers the first
 * upstream, so the program uses the first one's memory again as soon as there is room.  While the
 * first upstream is known to be full, it is asked for held memory only: a refusal by the driver
 * costs as much as an allocation.
 *
 * Freed blocks that wait for the GPU may soon make room in the first upstream.  So `reuse` above
 * first asks with RS_EFFORT_BEST, which excludes the second upstream, and waits up to 20 ms for
 * freed blocks.  Then the second upstream serves the request.  With an allocator in between, as in
 * pool(fallback(cuda, managed)), there is no such wait, and chunks of both kinds of memory lie in
 * one pool: fallback(pool(cuda), pool(managed)) is better.
 *
 * A pool that grows asks for more than its request needs (RS_EFFORT_AHEAD).  If the first upstream
 * has less, the pool is refused, and asks for less.  Otherwise all of the growth would come from
 * the second upstream, although the first one has room for the request itself. */
#include "base/lock.h"
#include "base/request.h"
#include "resource/record_slab.h"
#include "resource/report.h"
#include "resource/resource.h"

enum { FIRST, SECOND, SIDES };

/* After this time at the latest a full first upstream is asked again, since another process or
 * context may have freed memory. */
enum { ASK_AGAIN_NS = 10 * 1000 * 1000 };

/* The record of a live block, which is its token. */
struct spillable {
    struct rs_allocation upstream;
    unsigned side;
};

_Static_assert(sizeof(struct spillable) <= RS_RECORD_BYTES, "a block's record is a slab's record");

struct side {
    _Atomic size_t live_bytes, peak_live_bytes, live_count;
};

struct fallback {
    struct rs_mr base;
    struct side sides[SIDES];
    _Atomic size_t freed_bytes; /* bytes ever freed to the first upstream */
    _Atomic uint64_t fallbacks, refusals, skips;

    /* The fields below are protected by the lock. */
    struct rs_record_slab records;
    size_t refused_bytes; /* the size that the first upstream refused last; SIZE_MAX: none */
    uint64_t refused_ns;  /* when it refused this size (rs_clock_ns) */
    size_t refused_freed; /* the value of freed_bytes at that time */
    bool refused_ahead;   /* the refused request had RS_EFFORT_AHEAD */
};

static void count_one(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- blocks ---- */

static void enter_side(struct fallback *fallback, struct spillable *record, unsigned side)
{
    struct side *counters = &fallback->sides[side];
    size_t size_bytes = record->upstream.size_bytes;
    size_t live_bytes = size_bytes + atomic_fetch_add_explicit(&counters->live_bytes, size_bytes,
                                                               memory_order_relaxed);

    record->side = side;
    atomic_fetch_add_explicit(&counters->live_count, 1, memory_order_relaxed);
    rs_counter_raise(&counters->peak_live_bytes, live_bytes);
}

static void leave_side(struct fallback *fallback, const struct spillable *record)
{
    struct side *counters = &fallback->sides[record->side];

    atomic_fetch_sub_explicit(&counters->live_bytes, record->upstream.size_bytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&counters->live_count, 1, memory_order_relaxed);
    if (record->side == FIRST)
        atomic_fetch_add_explicit(&fallback->freed_bytes, record->upstream.size_bytes,
                                  memory_order_release);
}

/* ---- the first upstream ---- */

/* True when the first upstream would refuse this request: it lately refused one that was no larger,
 * and fewer bytes than this request needs have been freed since.  If the refused request had
 * RS_EFFORT_AHEAD, this is assumed only of requests that have it too. */
static bool is_known_full(struct fallback *fallback, size_t size_bytes, enum rs_effort effort)
{
    size_t freed = atomic_load_explicit(&fallback->freed_bytes, memory_order_acquire);

    RS_MUTEX_GUARD(&fallback->base.lock);
    return size_bytes >= fallback->refused_bytes && freed - fallback->refused_freed < size_bytes &&
           (!fallback->refused_ahead || rs_effort_is_ahead(effort)) &&
           rs_clock_ns() - fallback->refused_ns < ASK_AGAIN_NS;
}

/* True when the request is a growth of a pool, which can do with less.  A request of at most 2 MiB
 * does not count: if it were refused, the pool would take a separate chunk for each small request.
 */
static bool is_step(size_t size_bytes, enum rs_effort effort)
{
    return rs_effort_is_ahead(effort) && size_bytes > RS_DRIVER_GRANULARITY;
}

/* Notes the answer of the first upstream.  freed: the value of freed_bytes before it was asked, so
 * that bytes freed meanwhile count as freed after the refusal. */
static void note_answer(struct fallback *fallback, size_t size_bytes, enum rs_effort effort,
                        size_t freed, CUresult result)
{
    RS_MUTEX_GUARD(&fallback->base.lock);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        fallback->refused_bytes = size_bytes;
        fallback->refused_freed = freed;
        fallback->refused_ns = rs_clock_ns();
        fallback->refused_ahead = rs_effort_is_ahead(effort);
    } else if (size_bytes >= fallback->refused_bytes) {
        fallback->refused_bytes = SIZE_MAX;
    }
}

static CUresult ask_first(struct fallback *fallback, size_t size_bytes, CUstream stream,
                          enum rs_effort effort, struct rs_allocation *out)
{
    size_t freed = atomic_load_explicit(&fallback->freed_bytes, memory_order_acquire);
    CUresult result =
        rs_mr_allocate_with(fallback->base.upstream[FIRST], size_bytes, stream, effort, out);

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        count_one(&fallback->refusals);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !is_step(size_bytes, effort))
        note_answer(fallback, size_bytes, effort, freed, result);
    return result;
}

/* Takes from the first upstream.  If that is known to be full, asks it for held memory only, and
 * sets *asked to false. */
static CUresult take_from_first(struct fallback *fallback, size_t size_bytes, CUstream stream,
                                enum rs_effort effort, struct rs_allocation *out, bool *asked)
{
    CUresult result;

    *asked = !is_known_full(fallback, size_bytes, effort);
    if (*asked)
        return ask_first(fallback, size_bytes, stream, effort, out);
    count_one(&fallback->skips);
    result = rs_mr_allocate_with(fallback->base.upstream[FIRST], size_bytes, stream, RS_EFFORT_HELD,
                                 out);
    return result == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* ---- the resource ---- */

/* Takes from either upstream.  Sets *side to SECOND if the second one serves the request. */
static CUresult take_from_either(struct fallback *fallback, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out, unsigned *side)
{
    bool asked;
    CUresult result = take_from_first(fallback, size_bytes, stream, effort, out, &asked);

    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (effort & RS_EFFORT_BEST)
        return CUDA_ERROR_NOT_READY;
    if (asked && is_step(size_bytes, effort))
        return result;
    /* The first upstream may have set this flag, which does not hold for the second one. */
    rs_request.is_hopeless = false;
    result = rs_mr_allocate_with(fallback->base.upstream[SECOND], size_bytes, stream, effort, out);
    if (result == CUDA_SUCCESS) {
        *side = SECOND;
        count_one(&fallback->fallbacks);
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY || asked)
        return result;
    /* A request may be refused only after the first upstream was asked for more than held memory.
     */
    return ask_first(fallback, size_bytes, stream, effort, out);
}

static CUresult fallback_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct fallback *fallback = RS_MR_AS(fallback, mr);
    struct spillable *record = rs_record_slab_take_alone(&fallback->records, &fallback->base.lock);
    unsigned side = FIRST;
    CUresult result;

    if (!record)
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    if (rs_effort_is_held(effort))
        /* The second upstream is not asked for held memory: otherwise the program would go on using
         * memory of the second one although the first one has room again. */
        result =
            rs_mr_allocate_with(mr->upstream[FIRST], size_bytes, stream, effort, &record->upstream);
    else
        result = take_from_either(fallback, size_bytes, stream, effort, &record->upstream, &side);
    if (result != CUDA_SUCCESS) {
        rs_record_slab_give_alone(&fallback->records, &fallback->base.lock, record);
        return result;
    }
    enter_side(fallback, record, side);
    *out = record->upstream;
    out->token = record;
    return CUDA_SUCCESS;
}

static CUresult fallback_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct fallback *fallback = RS_MR_AS(fallback, mr);
    struct spillable *record = allocation->token;
    CUresult result = rs_mr_deallocate(mr->upstream[record->side], &record->upstream, stream);

    if (result != CUDA_SUCCESS)
        return result;
    leave_side(fallback, record);
    rs_record_slab_give_alone(&fallback->records, &fallback->base.lock, record);
    return CUDA_SUCCESS;
}

#define ROW(counter, kind, unit, field) RS_COUNTER_ROW(counter, kind, unit, struct fallback, field)
static const struct rs_counter_row fallback_counters[] = {
    ROW("live_first", LIVE, BYTES, sides[FIRST].live_bytes),
    ROW("live_first_peak", PEAK, BYTES, sides[FIRST].peak_live_bytes),
    ROW("live_first_blocks", LIVE, COUNT, sides[FIRST].live_count),
    ROW("live_second", LIVE, BYTES, sides[SECOND].live_bytes),
    ROW("live_second_peak", PEAK, BYTES, sides[SECOND].peak_live_bytes),
    ROW("live_second_blocks", LIVE, COUNT, sides[SECOND].live_count),
    ROW("fallbacks", TOTAL, COUNT, fallbacks),
    ROW("internal_refusals", TOTAL, COUNT, refusals),
    ROW("refusals_expected", TOTAL, COUNT, skips),
    RS_COUNTER_END,
};

static bool fallback_is_sound(struct rs_mr *mr)
{
    struct fallback *fallback = RS_MR_AS(fallback, mr);

    return atomic_load(&fallback->sides[FIRST].live_bytes) <= SIZE_MAX / 2 &&
           atomic_load(&fallback->sides[SECOND].live_bytes) <= SIZE_MAX / 2;
}

static void fallback_end(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone; /* this adaptor holds no memory */
    rs_record_slab_destroy(&RS_MR_AS(fallback, mr)->records);
}

static int fallback_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    RS_MR_AS(fallback, mr)->refused_bytes = SIZE_MAX;
    return 0;
}

static const struct rs_mr_ops fallback_ops = {
    .allocate = fallback_allocate,
    .deallocate = fallback_deallocate,
    .end = fallback_end,
    .counters = fallback_counters,
    .is_sound = fallback_is_sound,
};

static const struct rs_option fallback_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_fallback = {
    .name = "fallback",
    .aliases = {"failure_callback"},
    .summary = "takes memory from its second upstream when the first upstream has no memory left",
    .upstream_count = 2,
    .frees = RS_FREE_AS_UPSTREAM,
    .options = fallback_options,
};

RS_MR_CLASS(fallback, struct fallback, fallback_ops, fallback_init);
