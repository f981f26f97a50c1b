/* SPDX-License-Identifier: Apache-2.0 */
/* statistics: counts live, peak and total bytes and allocations, in nested levels.  RMM's
 * statistics_resource_adaptor. */
#include "resource/adaptor/statistics.h"

#include "resource/report.h"

#include <errno.h>
#include <stdlib.h>

struct level {
    struct rs_statistics_level counters;
    struct level *below;
};

struct statistics {
    struct rs_mr base;
    struct level first, *top;
    struct rs_statistics_level whole; /* all levels folded into one, as if each had been popped */
    uint64_t failures;
};

static void count_up(struct rs_statistics_counter *counter, int64_t amount)
{
    counter->live += amount;
    counter->total += amount;
    if (counter->live > counter->peak)
        counter->peak = counter->live;
}

static void count_allocation(struct rs_statistics_level *level, size_t size_bytes)
{
    count_up(&level->bytes, (int64_t)size_bytes);
    count_up(&level->allocations, 1);
}

static void add_to_level(struct rs_statistics_level *level, int64_t bytes, int64_t allocations)
{
    level->bytes.live += bytes;
    level->allocations.live += allocations;
}

/* Folds a level's counter into the level below; its peak came on top of the bytes live there. */
static void fold(struct rs_statistics_counter *below, const struct rs_statistics_counter *counter)
{
    if (below->live + counter->peak > below->peak)
        below->peak = below->live + counter->peak;
    below->live += counter->live;
    below->total += counter->total;
}

static void fold_level(struct rs_statistics_level *below, const struct rs_statistics_level *level)
{
    fold(&below->bytes, &level->bytes);
    fold(&below->allocations, &level->allocations);
}

/* CUDA_ERROR_NOT_READY does not count as a failure: a request with more effort follows it. */
static CUresult statistics_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    CUresult result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);

    if (result == CUDA_ERROR_NOT_READY)
        return result;
    rs_mutex_lock(&statistics->base.lock);
    if (result == CUDA_SUCCESS) {
        count_allocation(&statistics->top->counters, size_bytes);
        count_allocation(&statistics->whole, size_bytes);
    } else {
        statistics->failures++;
    }
    rs_mutex_unlock(&statistics->base.lock);
    return result;
}

static void add_live(struct statistics *statistics, int64_t bytes, int64_t allocations)
{
    rs_mutex_lock(&statistics->base.lock);
    add_to_level(&statistics->top->counters, bytes, allocations);
    add_to_level(&statistics->whole, bytes, allocations);
    rs_mutex_unlock(&statistics->base.lock);
}

/* Counts before upstream frees: afterwards another thread may have the same memory, which would be
 * live twice. */
static CUresult statistics_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                      CUstream stream)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    int64_t bytes = (int64_t)allocation->size_bytes;
    CUresult result;

    add_live(statistics, -bytes, -1);
    result = rs_mr_deallocate(mr->upstream[0], allocation, stream);
    if (result != CUDA_SUCCESS)
        add_live(statistics, bytes, 1);
    return result;
}

void rs_statistics_get(struct rs_mr *mr, struct rs_statistics_level *level)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);

    rs_mutex_lock(&statistics->base.lock);
    *level = statistics->top->counters;
    rs_mutex_unlock(&statistics->base.lock);
}

int rs_statistics_push(struct rs_mr *mr, struct rs_statistics_level *level)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    struct level *pushed = calloc(1, sizeof(*pushed));

    if (!pushed)
        return -ENOMEM;
    rs_mutex_lock(&statistics->base.lock);
    *level = statistics->top->counters;
    pushed->below = statistics->top;
    statistics->top = pushed;
    rs_mutex_unlock(&statistics->base.lock);
    return 0;
}

int rs_statistics_pop(struct rs_mr *mr, struct rs_statistics_level *level)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);
    struct level *popped;

    rs_mutex_lock(&statistics->base.lock);
    popped = statistics->top;
    if (popped->below) {
        *level = popped->counters;
        fold_level(&popped->below->counters, &popped->counters);
        statistics->top = popped->below;
    }
    rs_mutex_unlock(&statistics->base.lock);
    if (!popped->below)
        return -ERANGE;
    free(popped);
    return 0;
}

#define ROW(counter, kind, unit, field)                                                            \
    RS_COUNTER_ROW(counter, kind, unit, struct statistics, field)
static const struct rs_counter_row statistics_counters[] = {
    ROW("live", LIVE, BYTES, whole.bytes.live),
    ROW("peak", PEAK, BYTES, whole.bytes.peak),
    ROW("total", TOTAL, BYTES, whole.bytes.total),
    ROW("live_allocations", LIVE, COUNT, whole.allocations.live),
    ROW("peak_allocations", PEAK, COUNT, whole.allocations.peak),
    ROW("allocations", TOTAL, COUNT, whole.allocations.total),
    ROW("failures", TOTAL, COUNT, failures),
    RS_COUNTER_END,
};

static void statistics_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct statistics *statistics = RS_MR_AS(statistics, mr);

    (void)memory_is_gone;
    while (statistics->top->below) {
        struct level *level = statistics->top;
        statistics->top = level->below;
        free(level);
    }
}

static const struct rs_mr_ops statistics_ops = {
    .allocate = statistics_allocate,
    .deallocate = statistics_deallocate,
    .end = statistics_end,
    .counters = statistics_counters,
};

static int statistics_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    RS_MR_AS(statistics, mr)->top = &RS_MR_AS(statistics, mr)->first;
    return 0;
}

static const struct rs_option statistics_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_statistics = {
    .name = "statistics",
    .summary = "counts live, peak and total bytes and allocations",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .options = statistics_options,
    .bytes = sizeof(struct statistics),
    .ops = &statistics_ops,
    .init = statistics_init,
};
