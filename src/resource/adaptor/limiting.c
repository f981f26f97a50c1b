/* SPDX-License-Identifier: Apache-2.0 */
/* limiting: refuses an allocation that would bring the live bytes above a limit.  RMM's
 * limiting_resource_adaptor.  It counts the requested bytes, rounded up to multiples of 256. */
#include "base/lock.h"
#include "resource/report.h"
#include "resource/resource.h"

enum { ACCOUNTING_UNIT = 256 }; /* RMM's unit, so that the numbers are the same */

struct limiting_config {
    size_t limit;
};

struct limiting {
    struct rs_mr base;
    struct limiting_config set;
    _Atomic size_t live_bytes, peak_bytes;
    _Atomic uint64_t refusals;
};

/* Adds to the live bytes unless that exceeds the limit, in one atomic step.  RMM adds first and
 * then checks, so a request that is too large can make one of another thread fail. */
static bool add_to_live(struct limiting *limiting, size_t bytes)
{
    size_t live_bytes = atomic_load_explicit(&limiting->live_bytes, memory_order_relaxed);

    do {
        if (bytes > limiting->set.limit - live_bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&limiting->live_bytes, &live_bytes,
                                                    live_bytes + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void subtract_from_live(struct limiting *limiting, size_t bytes)
{
    size_t before = atomic_fetch_sub_explicit(&limiting->live_bytes, bytes, memory_order_relaxed);

    RS_ASSERT(before >= bytes);
    (void)before;
}

static CUresult limiting_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct limiting *limiting = RS_MR_AS(limiting, mr);
    size_t counted_bytes;
    CUresult result;

    if (!rs_round_up(size_bytes, ACCOUNTING_UNIT, &counted_bytes) ||
        !add_to_live(limiting, counted_bytes)) {
        /* A held-memory request does not count as refused: the caller asks again with more effort.
         */
        if (!rs_effort_is_held(effort))
            atomic_fetch_add_explicit(&limiting->refusals, 1, memory_order_relaxed);
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);
    if (result != CUDA_SUCCESS) {
        subtract_from_live(limiting, counted_bytes);
        return result;
    }
    /* The peak is raised only now, since memory that upstream refuses was never live. */
    rs_counter_raise(&limiting->peak_bytes,
                     atomic_load_explicit(&limiting->live_bytes, memory_order_relaxed));
    return CUDA_SUCCESS;
}

/* Subtracts the bytes only when upstream has the memory back, so that the blocks that upstream has
 * handed out never exceed the limit. */
static CUresult limiting_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    size_t counted_bytes = 0;
    bool is_a_size = rs_round_up(allocation->size_bytes, ACCOUNTING_UNIT, &counted_bytes);
    CUresult result = rs_mr_deallocate(mr->upstream[0], allocation, stream);

    RS_ASSERT(is_a_size); /* the same size was valid when the block was allocated */
    (void)is_a_size;
    if (result == CUDA_SUCCESS)
        subtract_from_live(RS_MR_AS(limiting, mr), counted_bytes);
    return result;
}

static size_t limiting_growable_bytes(struct rs_mr *mr)
{
    struct limiting *limiting = RS_MR_AS(limiting, mr);

    return limiting->set.limit - atomic_load_explicit(&limiting->live_bytes, memory_order_relaxed);
}

static bool limiting_is_sound(struct rs_mr *mr)
{
    struct limiting *limiting = RS_MR_AS(limiting, mr);

    return atomic_load_explicit(&limiting->live_bytes, memory_order_relaxed) <= limiting->set.limit;
}

static const struct rs_counter_row limiting_counters[] = {
    RS_COUNTER_ROW("limit", PEAK, BYTES, struct limiting, set.limit),
    RS_COUNTER_ROW("live", LIVE, BYTES, struct limiting, live_bytes),
    RS_COUNTER_ROW("live_peak", PEAK, BYTES, struct limiting, peak_bytes),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct limiting, refusals),
    RS_COUNTER_END,
};

static const struct rs_mr_ops limiting_ops = {
    .allocate = limiting_allocate,
    .deallocate = limiting_deallocate,
    .growable_bytes = limiting_growable_bytes,
    .counters = limiting_counters,
    .is_sound = limiting_is_sound,
};

static bool limiting_validate(const void *config, const struct rs_validation *of)
{
    const struct limiting_config *settings = config;

    return settings->limit != SIZE_MAX ||
           RS_REFUSE(of, "'limiting' needs a limit, as in limit=8GiB");
}

static const struct rs_option limiting_options[] = {
    RS_OPTION_SIZE_ROW(struct limiting_config, limit, "none",
                       "the most bytes that may be in use at one time", .none = true,
                       .is_required = true, .beyond_whole = true,
                       .aliases = {{"allocation_limit", RS_OPTION_SIZE}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_limiting = {
    .name = "limiting",
    .summary = "refuses requests that would bring the bytes in use above a limit",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct limiting_config),
    .options = limiting_options,
    .validate = limiting_validate,
};

RS_MR_CLASS_WITH_SET(limiting, struct limiting, limiting_ops, NULL);
