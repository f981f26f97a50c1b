/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves whose memory outlives the context, and the list of their blocks. */
#include "resource/leaf/detached_leaf.h"

#include "base/log.h"
#include "base/request.h"
#include "driver/fence.h"
#include "driver/idle.h"
#include "resource/report.h"
#include "resource/segment.h"
#include "shared/published.h"

#include <stdlib.h>

/* The record of one allocation.  It is the token, so a free needs no search and no memory. */
struct rs_detached_record {
    struct rs_detached_record *next, *previous;
    CUdeviceptr address;
    size_t size_bytes;
};

_Static_assert(sizeof(struct rs_detached_record) <= RS_RECORD_BYTES, "a record is a slab's record");

/* ---- the list; under the lock ---- */

void rs_detached_leaf_hold(struct rs_detached_leaf *leaf, size_t held_bytes)
{
    RS_ASSERT_HELD(&leaf->lock);
    atomic_store_explicit(&leaf->held_bytes, held_bytes, memory_order_release);
    if (held_bytes > leaf->peak_held_bytes)
        atomic_store_explicit(&leaf->peak_held_bytes, held_bytes, memory_order_release);
}

static void change_live(struct rs_detached_leaf *leaf, size_t by)
{
    rs_counter_add(&leaf->live_bytes, by);
    if (!leaf->calls->holds_more)
        rs_detached_leaf_hold(leaf, leaf->live_bytes);
}

static void link_record(struct rs_detached_leaf *leaf, struct rs_detached_record *record)
{
    record->previous = NULL;
    record->next = leaf->first;
    if (leaf->first)
        leaf->first->previous = record;
    leaf->first = record;
    change_live(leaf, record->size_bytes);
}

static void unlink_record(struct rs_detached_leaf *leaf, struct rs_detached_record *record)
{
    if (record->previous)
        record->previous->next = record->next;
    else
        leaf->first = record->next;
    if (record->next)
        record->next->previous = record->previous;
    change_live(leaf, (size_t)0 - record->size_bytes);
}

/* ---- the end: calls under way finish first ---- */

/* Gives back a block that is in no list.  After a failure it is in the list again. */
static CUresult give_back(struct rs_detached_leaf *leaf, struct rs_detached_record *record,
                          rs_detached_give *give)
{
    CUresult result;

    /* Removed before the free, and entered again after a failure: see leaf.c. */
    rs_segment_remove(leaf->environment, record->address);
    result = give(leaf, record->address, record->size_bytes);
    if (result != CUDA_SUCCESS)
        (void)rs_segment_add_lasting(leaf->environment, record->address, record->size_bytes);
    rs_mutex_lock(&leaf->lock);
    if (result != CUDA_SUCCESS) {
        link_record(leaf, record);
    } else {
        rs_record_slab_give(&leaf->records, record);
        rs_counter_add(&leaf->deallocations, 1);
    }
    rs_mutex_unlock(&leaf->lock);
    return result;
}

/* Gives back all blocks that can be, once no call is under way, then ends the leaf's own objects.
 * True when nothing is left. */
static bool finish(struct rs_unfinished *unfinished)
{
    struct rs_detached_leaf *leaf =
        RS_CONTAINER_OF(unfinished, struct rs_detached_leaf, unfinished);
    struct rs_detached_record *record, *next;

    rs_mutex_lock(&leaf->lock);
    record = leaf->first;
    leaf->first = NULL;
    change_live(leaf, (size_t)0 - leaf->live_bytes);
    rs_mutex_unlock(&leaf->lock);
    for (; record; record = next) {
        next = record->next;
        (void)give_back(leaf, record, leaf->calls->give_late);
    }
    if (!leaf->is_closed)
        leaf->is_closed = !leaf->calls->end || leaf->calls->end(leaf);
    return !leaf->first && leaf->is_closed;
}

bool rs_detached_leaf_enter(struct rs_detached_leaf *leaf)
{
    bool entered;

    rs_mutex_lock(&leaf->lock);
    entered = !leaf->has_ended;
    leaf->inside += entered;
    rs_mutex_unlock(&leaf->lock);
    return entered;
}

/* A call is no longer under way, and the last one after the context's end ends the leaf. */
bool rs_detached_leaf_leave(struct rs_detached_leaf *leaf)
{
    bool has_ended, is_last;

    rs_mutex_lock(&leaf->lock);
    leaf->inside--;
    has_ended = leaf->has_ended;
    is_last = has_ended && leaf->inside == 0;
    rs_mutex_unlock(&leaf->lock);
    if (is_last && !finish(&leaf->unfinished))
        rs_unfinished_add(&leaf->unfinished, finish);
    return !has_ended;
}

static void detached_context_ended(struct rs_mr *mr)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);

    if (!rs_detached_leaf_enter(leaf))
        return;
    rs_mutex_lock(&leaf->lock);
    leaf->has_ended = true;
    rs_mutex_unlock(&leaf->lock);
    (void)rs_detached_leaf_leave(leaf);
}

/* ---- allocation ---- */

/* Enters a block.  NULL when out of host memory. */
static struct rs_detached_record *enter_block(struct rs_detached_leaf *leaf, CUdeviceptr address,
                                              size_t size_bytes)
{
    struct rs_detached_record *record;

    rs_mutex_lock(&leaf->lock);
    record = rs_record_slab_take(&leaf->records);
    if (record && rs_segment_add_lasting(leaf->environment, address, size_bytes)) {
        record->address = address;
        record->size_bytes = size_bytes;
        link_record(leaf, record);
        rs_counter_add(&leaf->allocations, 1);
    } else if (record) {
        rs_record_slab_give(&leaf->records, record);
        record = NULL;
    }
    rs_mutex_unlock(&leaf->lock);
    return record;
}

static CUresult take(struct rs_detached_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                     struct rs_allocation *out)
{
    struct rs_detached_record *record;
    CUdeviceptr address = 0;
    CUresult result = leaf->calls->take(leaf, size_bytes, effort, &address);

    if (result != CUDA_SUCCESS)
        return result;
    record = enter_block(leaf, address, size_bytes);
    if (!record) {
        (void)leaf->calls->give(leaf, address, size_bytes); /* the program has not seen the block */
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (struct rs_allocation){address, size_bytes, record, NULL};
    return CUDA_SUCCESS;
}

/* The memory is usable on all streams.  A refused RS_EFFORT_HELD request is not counted as a
 * failure: blocks in quarantine above may still serve it. */
static CUresult detached_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);
    CUresult result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct rs_allocation taken;

    (void)stream;
    if (rs_detached_leaf_enter(leaf)) {
        result = take(leaf, size_bytes, effort, &taken);
        if (!rs_detached_leaf_leave(leaf) && result == CUDA_SUCCESS)
            result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* the block has gone back already */
    }
    if (result == CUDA_SUCCESS)
        *out = taken;
    else if (!rs_effort_is_held(effort))
        atomic_fetch_add_explicit(&leaf->failures, 1, memory_order_relaxed);
    return rs_effort_result(effort, result);
}

/* Inside a request, CUDA_ERROR_NOT_READY when the context is not seen idle. */
static CUresult wait_for_work(const struct rs_detached_leaf *leaf)
{
    const struct rs_environment *environment = leaf->environment;

    if (!rs_request_is_under_way())
        return rs_sentinel_wait(environment->sentinel, environment->context);
    return rs_request_sees_idle(environment->context) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult detached_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);
    CUresult result = CUDA_SUCCESS;

    (void)stream;
    if (!rs_detached_leaf_enter(leaf))
        return CUDA_SUCCESS; /* it went back when the context ended */
    /* these frees do not wait for earlier work, and without `reuse` nothing above has waited */
    if (!leaf->environment->frees_are_ready)
        result = wait_for_work(leaf);
    if (result == CUDA_SUCCESS) {
        rs_mutex_lock(&leaf->lock);
        unlink_record(leaf, allocation->token);
        rs_mutex_unlock(&leaf->lock);
        result = give_back(leaf, allocation->token, leaf->calls->give);
    }
    (void)rs_detached_leaf_leave(leaf);
    return result;
}

/* Memory that is left now is lost: the environment, which identifies its segments, goes with the
 * leaf. */
static void detached_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);

    (void)memory_is_gone;
    detached_context_ended(mr); /* unless it has, and this is its end too */
    rs_unfinished_remove(&leaf->unfinished);
    for (struct rs_detached_record *record = leaf->first; record; record = record->next)
        rs_segment_remove(leaf->environment, record->address);
    if (leaf->first)
        rs_log("%s: %zu bytes of a context that has ended could not be given back",
               mr->descriptor->name, leaf->live_bytes);
    else if (!leaf->is_closed)
        rs_log("%s: memory that was reserved for a context that has ended could not be given back",
               mr->descriptor->name);
    rs_record_slab_destroy(&leaf->records);
    rs_mutex_destroy(&leaf->lock);
    rs_published_free(leaf);
}

/* ---- the rest ---- */

static void detached_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);
    const char *name = mr->descriptor->name;

    rs_report_add_field(report, name, "held", RS_COUNTER_LIVE, RS_UNIT_BYTES, leaf->held_bytes);
    rs_report_add_field(report, name, "held_peak", RS_COUNTER_PEAK, RS_UNIT_BYTES,
                        leaf->peak_held_bytes);
    rs_report_add_field(report, name, "live", RS_COUNTER_LIVE, RS_UNIT_BYTES, leaf->live_bytes);
    rs_report_add_field(report, name, "driver_allocations", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->allocations);
    rs_report_add_field(report, name, "driver_frees", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->deallocations);
    rs_report_add_field(report, name, "internal_refusals", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                        leaf->failures);
}

static bool detached_check(struct rs_mr *mr)
{
    struct rs_detached_leaf *leaf = rs_detached_leaf_of(mr);
    const struct rs_detached_record *previous = NULL;
    size_t bytes = 0;
    bool good = true;

    rs_mutex_lock(&leaf->lock);
    for (struct rs_detached_record *record = leaf->first; record; record = record->next) {
        good = good && record->previous == previous;
        bytes += record->size_bytes;
        previous = record;
    }
    good = good && bytes == leaf->live_bytes;
    rs_mutex_unlock(&leaf->lock);
    return good;
}

void rs_detached_leaf_init(struct rs_detached_leaf *leaf, const struct rs_mr_descriptor *descriptor,
                           const struct rs_environment *environment,
                           const struct rs_detached_calls *calls)
{
    struct rs_mr_ops ops = calls->ops;

    ops.allocate = detached_allocate;
    ops.deallocate = detached_deallocate;
    ops.destroy = detached_destroy;
    ops.context_ended = detached_context_ended;
    ops.report = detached_report;
    ops.check = detached_check;
    rs_unfinished_retry();
    rs_mr_init(&leaf->base, &ops, descriptor, NULL);
    leaf->environment = environment;
    leaf->calls = calls;
    rs_mutex_init(&leaf->lock, RS_RANK_RESOURCE);
}
