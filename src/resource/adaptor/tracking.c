/* SPDX-License-Identifier: Apache-2.0 */
/* tracking: keeps a record of each live block and, where asked for, of the call site that allocated
 * it.  RMM's tracking_resource_adaptor.
 *
 * A block's token is its record.  So a free needs neither a search nor memory, and cannot take the
 * record of a later block at the same address. */
#include "resource/adaptor/tracking.h"

#include "base/thread.h"
#include "resource/record_slab.h"
#include "resource/report.h"

enum { SHARDS = 16 };

struct tracking_config {
    bool stacks;
};

struct record {
    struct record *before, *after; /* neighbours in the ring of its shard's live blocks */
    struct rs_allocation upstream;
    const struct rs_call_site *site;
    struct shard *home;
};

_Static_assert(sizeof(struct record) <= RS_RECORD_BYTES, "a block's record is a slab's record");

/* A part of the records with a lock of its own.  A thread's index chooses the shard for the blocks
 * that the thread allocates; a record stays in its shard until the block is freed. */
struct shard {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock; /* protects the shard */
    struct rs_record_slab records;
    struct record live; /* the head of the ring, which is no block */
    /* Written under the lock, also read without it (base/lock.h). */
    _Atomic size_t live_bytes, live_count;
};

struct tracking {
    struct rs_mr base;
    struct tracking_config set;
    struct shard shards[SHARDS];
};

/* Adds the record of a live block, with its upstream allocation filled in, to the ring. */
static void enter_record(struct shard *shard, struct record *record)
{
    RS_MUTEX_GUARD(&shard->lock);

    record->before = shard->live.before;
    record->after = &shard->live;
    record->before->after = record;
    record->after->before = record;
    rs_counter_add(&shard->live_bytes, record->upstream.size_bytes);
    rs_counter_add(&shard->live_count, 1);
}

static void leave_record(struct shard *shard, struct record *record)
{
    RS_MUTEX_GUARD(&shard->lock);

    record->before->after = record->after;
    record->after->before = record->before;
    rs_counter_subtract(&shard->live_bytes, record->upstream.size_bytes);
    rs_counter_subtract(&shard->live_count, 1);
}

/* Allocates from upstream, and records the block.  The call site is found only after the request
 * was served, and while no lock is held. */
static CUresult tracking_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);
    struct shard *home = &tracking->shards[rs_thread_index() % SHARDS];
    struct record *record = rs_record_slab_take_alone(&home->records, &home->lock);
    CUresult result;

    if (!record)
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, &record->upstream);
    if (result != CUDA_SUCCESS) {
        rs_record_slab_give_alone(&home->records, &home->lock, record);
        return result;
    }
    record->home = home;
    record->site = tracking->set.stacks ? rs_call_site_here() : NULL;
    enter_record(home, record);
    *out = (struct rs_allocation){record->upstream.address, size_bytes, record,
                                  record->upstream.block};
    return CUDA_SUCCESS;
}

/* Removes the record before upstream frees, as afterwards another thread may have the same memory.
 * The size comes from the record, not from the caller. */
static CUresult tracking_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct record *record = allocation->token;
    struct shard *home = record->home;
    CUresult result;

    leave_record(home, record);
    result = rs_mr_deallocate(mr->upstream[0], &record->upstream, stream);
    if (result == CUDA_SUCCESS)
        rs_record_slab_give_alone(&home->records, &home->lock, record);
    else
        enter_record(home, record);
    return result;
}

void rs_tracking_each(struct rs_mr *mr, void (*visit)(void *data, const struct rs_tracked *tracked),
                      void *data)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);

    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &tracking->shards[i];
        if (!rs_mutex_lock_bounded(&shard->lock, mr->descriptor->name))
            continue;
        for (struct record *record = shard->live.after; record != &shard->live;
             record = record->after)
            visit(data, &(struct rs_tracked){record->upstream.address, record->upstream.size_bytes,
                                             record->site});
        rs_mutex_unlock(&shard->lock);
    }
}

static void tracking_report(struct rs_mr *mr, struct rs_report *report)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);
    const char *name = mr->descriptor->name;
    const struct shard *first = &tracking->shards[0];
    struct rs_term bytes = {RS_REPORT_PLACE(first->live_bytes), SHARDS, sizeof(*first), 1};
    struct rs_term blocks = {RS_REPORT_PLACE(first->live_count), SHARDS, sizeof(*first), 1};

    rs_report_add_sum(report, name, "live", RS_COUNTER_LIVE, RS_UNIT_BYTES, &bytes, 1);
    rs_report_add_sum(report, name, "live_allocations", RS_COUNTER_LIVE, RS_UNIT_COUNT, &blocks, 1);
}

static bool check_shard(struct shard *shard)
{
    size_t live_bytes = 0, live_count = 0;
    bool good = true;

    for (struct record *record = shard->live.after; record != &shard->live;
         record = record->after) {
        live_bytes += record->upstream.size_bytes;
        live_count++;
        good = good && record->before->after == record && record->after->before == record;
    }
    return good && live_bytes == shard->live_bytes && live_count == shard->live_count;
}

static bool tracking_check(struct rs_mr *mr)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);
    bool good = true;

    for (unsigned i = 0; i < SHARDS; i++) {
        RS_MUTEX_GUARD(&tracking->shards[i].lock);
        good = check_shard(&tracking->shards[i]) && good;
    }
    return good;
}

static void tracking_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);

    (void)memory_is_gone; /* this adaptor holds no memory, and does not free the live blocks */
    for (unsigned i = 0; i < SHARDS; i++) {
        rs_record_slab_destroy(&tracking->shards[i].records);
        rs_mutex_destroy(&tracking->shards[i].lock);
    }
}

static const struct rs_mr_ops tracking_ops = {
    .allocate = tracking_allocate,
    .deallocate = tracking_deallocate,
    .end = tracking_end,
    .report = tracking_report,
    .check = tracking_check,
};

static int tracking_init(struct rs_mr *mr, const void *config)
{
    struct tracking *tracking = RS_MR_AS(tracking, mr);

    (void)config;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct record *ring = &tracking->shards[i].live;
        rs_mutex_init(&tracking->shards[i].lock, RS_RANK_RESOURCE);
        ring->before = ring->after = ring;
    }
    return 0;
}

static const struct rs_option tracking_options[] = {
    RS_OPTION_BOOLEAN_ROW(
        struct tracking_config, stacks, "0",
        "1: record the call stack of each allocation, including lines of Python code; 0 (the "
        "default, unless RMM_TRACKING is set): record no call stack",
        .aliases = {{"capture_stacks", RS_OPTION_BOOLEAN}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_tracking = {
    .name = "tracking",
    .summary = "records each block in use, and with stacks=1 the code that allocated it, for "
               "`rmmshim leaks` and for the report of RMM_TRACKING",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct tracking_config),
    .options = tracking_options,
};

RS_MR_CLASS_WITH_SET(tracking, struct tracking, tracking_ops, tracking_init);
