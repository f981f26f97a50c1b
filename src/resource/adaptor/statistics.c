/* SPDX-License-Identifier: Apache-2.0 */
/* statistics: counts live, peak and total bytes and allocations.  RMM's
 * statistics_resource_adaptor; its nested counters (push and pop) are in context/scope.h, as they
 * need no adaptor here. */
#include "resource/report.h"
#include "resource/resource.h"

/* The counts are signed, as in RMM.  `total` only grows. */
struct count {
    int64_t live, peak, total;
};

struct statistics {
    struct rs_mr base;
    /* The fields below are protected by the lock. */
    struct count bytes, allocations; /* bytes as requested */
    uint64_t failures;
};

static void count_up(struct count *counter, int64_t amount)
{
    counter->live += amount;
    counter->total += amount;
    if (counter->live > counter->peak)
        counter->peak = counter->live;
}

/* Allocates from upstream, and counts the result.  CUDA_ERROR_NOT_READY is no failure: the caller
 * asks again with more effort. */
static CUresult statistics_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    CUresult result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);

    if (result == CUDA_ERROR_NOT_READY)
        return result;
    RS_MUTEX_GUARD(&statistics->base.lock);
    if (result == CUDA_SUCCESS) {
        count_up(&statistics->bytes, (int64_t)size_bytes);
        count_up(&statistics->allocations, 1);
    } else {
        statistics->failures++;
    }
    return result;
}

static void adjust_live(struct statistics *statistics, int64_t bytes, int64_t allocations)
{
    RS_MUTEX_GUARD(&statistics->base.lock);

    statistics->bytes.live += bytes;
    statistics->allocations.live += allocations;
}

/* Counts before upstream frees.  Afterwards another thread may have the same memory, which would
 * count as live twice. */
static CUresult statistics_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                      CUstream stream)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    int64_t bytes = (int64_t)allocation->size_bytes;
    CUresult result;

    adjust_live(statistics, -bytes, -1);
    result = rs_mr_deallocate(mr->upstream[0], allocation, stream);
    if (result != CUDA_SUCCESS)
        adjust_live(statistics, bytes, 1);
    return result;
}

#define ROW(counter, kind, unit, field)                                                            \
    RS_COUNTER_ROW(counter, kind, unit, struct statistics, field)
static const struct rs_counter_row statistics_counters[] = {
    ROW("live", LIVE, BYTES, bytes.live),
    ROW("peak", PEAK, BYTES, bytes.peak),
    ROW("total", TOTAL, BYTES, bytes.total),
    ROW("live_allocations", LIVE, COUNT, allocations.live),
    ROW("peak_allocations", PEAK, COUNT, allocations.peak),
    ROW("allocations", TOTAL, COUNT, allocations.total),
    ROW("failures", TOTAL, COUNT, failures),
    RS_COUNTER_END,
};

static const struct rs_mr_ops statistics_ops = {
    .allocate = statistics_allocate,
    .deallocate = statistics_deallocate,
    .counters = statistics_counters,
};

static const struct rs_option statistics_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_statistics = {
    .name = "statistics",
    .summary = "counts bytes and allocations: those in use, their peak and their total",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .options = statistics_options,
};

RS_MR_CLASS(statistics, struct statistics, statistics_ops, NULL);
