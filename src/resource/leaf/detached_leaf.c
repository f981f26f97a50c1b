/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves whose memory outlives the context, and the list of their blocks. */
#include "resource/leaf/detached_leaf.h"

#include "base/log.h"
#include "base/request.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "resource/report.h"
#include "resource/segment.h"

#include <stdlib.h>
#include <sys/mman.h>

/* The record of one allocation.  It is the token, so a free needs no search and no memory. */
struct rs_detached_record {
    struct rs_detached_record *next, *previous;
    CUdeviceptr address;
    size_t size_bytes;
};

_Static_assert(sizeof(struct rs_detached_record) <= RS_RECORD_BYTES, "a record is a slab's record");

/* ---- the list of live blocks; the caller holds the lock ---- */

void rs_detached_leaf_hold(struct rs_detached_leaf *leaf, size_t held_bytes)
{
    RS_ASSERT_HELD(&leaf->base.lock);
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

/* ---- the end of the leaf, after all calls under way ---- */

/* Gives back a block that has been taken from the list.  If that fails, the block is put into the
 * list again. */
static CUresult give_record_back(struct rs_detached_leaf *leaf, struct rs_detached_record *record,
                                 rs_detached_give *give)
{
    CUresult result;

    /* give_block_back in leaf.c says why the segment is removed before the free. */
    rs_segment_remove(leaf->base.environment, record->address);
    result = give(leaf, record->address, record->size_bytes);
    if (result != CUDA_SUCCESS)
        (void)rs_segment_add(leaf->base.environment, record->address, record->size_bytes, true);
    RS_MUTEX_GUARD(&leaf->base.lock);
    if (result != CUDA_SUCCESS) {
        link_record(leaf, record);
    } else {
        rs_record_slab_give(&leaf->records, record);
        rs_counter_add(&leaf->deallocations, 1);
    }
    return result;
}

/* Ends the leaf: gives all live blocks back, and then destroys the leaf's own objects.  Called when
 * no call is under way any more.  Returns true when nothing is left. */
static bool detached_finish(struct rs_mr *mr)
{
    struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);
    struct rs_detached_record *record, *next;

    rs_mutex_lock(&leaf->base.lock);
    record = leaf->first;
    leaf->first = NULL;
    change_live(leaf, (size_t)0 - leaf->live_bytes);
    rs_mutex_unlock(&leaf->base.lock);
    for (; record; record = next) {
        next = record->next;
        (void)give_record_back(leaf, record, leaf->calls->give_late);
    }
    if (!leaf->is_closed)
        leaf->is_closed = !leaf->calls->end || leaf->calls->end(leaf);
    return !leaf->first && leaf->is_closed;
}

bool rs_detached_leaf_enter(struct rs_detached_leaf *leaf)
{
    RS_MUTEX_GUARD(&leaf->base.lock);

    leaf->inside += !leaf->has_ended;
    return !leaf->has_ended;
}

/* Counts the end of a call.  If the context has ended, the last call under way ends the leaf. */
bool rs_detached_leaf_leave(struct rs_detached_leaf *leaf)
{
    bool has_ended, is_last;

    rs_mutex_lock(&leaf->base.lock);
    leaf->inside--;
    has_ended = leaf->has_ended;
    is_last = has_ended && leaf->inside == 0;
    rs_mutex_unlock(&leaf->base.lock);
    if (is_last && !detached_finish(&leaf->base))
        rs_mr_add_unfinished(&leaf->base);
    return !has_ended;
}

static void detached_context_ended(struct rs_mr *mr)
{
    struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);

    if (!rs_detached_leaf_enter(leaf))
        return;
    rs_mutex_lock(&leaf->base.lock);
    leaf->has_ended = true;
    rs_mutex_unlock(&leaf->base.lock);
    (void)rs_detached_leaf_leave(leaf);
}

/* ---- allocation ---- */

/* Enters a block into the list and its memory as a segment.  Returns the block's record; NULL when
 * out of host memory. */
static struct rs_detached_record *enter_block(struct rs_detached_leaf *leaf, CUdeviceptr address,
                                              size_t size_bytes)
{
    RS_MUTEX_GUARD(&leaf->base.lock);
    struct rs_detached_record *record = rs_record_slab_take(&leaf->records);

    if (record && rs_segment_add(leaf->base.environment, address, size_bytes, true)) {
        record->address = address;
        record->size_bytes = size_bytes;
        link_record(leaf, record);
        rs_counter_add(&leaf->allocations, 1);
    } else if (record) {
        rs_record_slab_give(&leaf->records, record);
        record = NULL;
    }
    return record;
}

static CUresult take_block(struct rs_detached_leaf *leaf, size_t size_bytes, enum rs_effort effort,
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

/* Allocates memory that is usable on every stream at once.  A refused request with RS_EFFORT_HELD
 * does not count as a failure: the caller asks again with more effort. */
static CUresult detached_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);
    CUresult result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct rs_allocation taken;

    (void)stream;
    if (rs_detached_leaf_enter(leaf)) {
        result = take_block(leaf, size_bytes, effort, &taken);
        if (!rs_detached_leaf_leave(leaf) && result == CUDA_SUCCESS)
            result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* the context ended meanwhile, and the block
                                                         was given back with it */
    }
    if (result == CUDA_SUCCESS)
        *out = taken;
    else if (!rs_effort_is_held(effort))
        atomic_fetch_add_explicit(&leaf->failures, 1, memory_order_relaxed);
    return rs_effort_result(effort, result);
}

/* Waits for all work of the context.  Inside a request it only asks whether the context is idle,
 * and returns CUDA_ERROR_NOT_READY if not. */
static CUresult wait_for_work(const struct rs_detached_leaf *leaf)
{
    const struct rs_environment *environment = leaf->base.environment;

    if (!rs_request_is_under_way())
        return rs_sentinel_wait(environment->sentinel, environment->context);
    return rs_request_sees_idle(environment->context) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult detached_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);
    CUresult result = CUDA_SUCCESS;

    (void)stream;
    if (!rs_detached_leaf_enter(leaf))
        return CUDA_SUCCESS; /* the block was given back when the context ended */
    /* Without a `reuse` above, earlier work may still use the block, and `give` does not wait. */
    if (!leaf->base.environment->frees_are_ready)
        result = wait_for_work(leaf);
    if (result == CUDA_SUCCESS) {
        rs_mutex_lock(&leaf->base.lock);
        unlink_record(leaf, allocation->token);
        rs_mutex_unlock(&leaf->base.lock);
        result = give_record_back(leaf, allocation->token, leaf->calls->give);
    }
    (void)rs_detached_leaf_leave(leaf);
    return result;
}

/* Ends the leaf, unless its context's end has done so.  Memory that the driver has refused to take
 * back is leaked until the process ends.  The segments of this memory are removed, since they point
 * to the environment, which is freed after the leaf. */
static void detached_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);

    (void)memory_is_gone;
    detached_context_ended(mr); /* does nothing if the context has ended already */
    rs_mr_remove_unfinished(mr);
    for (struct rs_detached_record *record = leaf->first; record; record = record->next)
        rs_segment_remove(leaf->base.environment, record->address);
    if (leaf->first)
        rs_log("memory resource %s: %zu bytes of a CUDA context that has ended could not be given "
               "back: they stay allocated until the process ends",
               mr->descriptor->name, leaf->live_bytes);
    else if (!leaf->is_closed)
        rs_log("memory resource %s: memory that was reserved for a CUDA context that has ended "
               "could not be given back: it stays allocated until the process ends",
               mr->descriptor->name);
    rs_record_slab_destroy(&leaf->records);
}

/* ---- the rest ---- */

static const struct rs_counter_row detached_counters[] = {
    RS_COUNTER_ROW("held", LIVE, BYTES, struct rs_detached_leaf, held_bytes),
    RS_COUNTER_ROW("held_peak", PEAK, BYTES, struct rs_detached_leaf, peak_held_bytes),
    RS_COUNTER_ROW("live", LIVE, BYTES, struct rs_detached_leaf, live_bytes),
    RS_COUNTER_ROW("driver_allocations", TOTAL, COUNT, struct rs_detached_leaf, allocations),
    RS_COUNTER_ROW("driver_frees", TOTAL, COUNT, struct rs_detached_leaf, deallocations),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct rs_detached_leaf, failures),
    RS_COUNTER_END,
};

static bool detached_is_sound(struct rs_mr *mr)
{
    const struct rs_detached_leaf *leaf = RS_MR_AS(rs_detached_leaf, mr);
    const struct rs_detached_record *previous = NULL;
    size_t bytes = 0;

    for (const struct rs_detached_record *record = leaf->first; record; record = record->next) {
        if (record->previous != previous)
            return false;
        bytes += record->size_bytes;
        previous = record;
    }
    return bytes == leaf->live_bytes;
}

const struct rs_mr_ops rs_detached_ops = {
    .allocate = detached_allocate,
    .deallocate = detached_deallocate,
    .end = detached_end,
    .context_ended = detached_context_ended,
    .finish = detached_finish,
    .counters = detached_counters,
    .is_sound = detached_is_sound,
};

void rs_detached_leaf_init(struct rs_mr *mr, const struct rs_detached_calls *calls)
{
    rs_mr_retry_unfinished();
    RS_MR_AS(rs_detached_leaf, mr)->calls = calls;
}

/* ---- system: the process's own memory, which the device uses directly where it can (HMM, ATS).
 * RMM's system_memory_resource.
 *
 * Unlike cudaFree, free() waits for no kernel.  So system_give may be called only when no work uses
 * the block any more: otherwise a kernel could write into memory that malloc has given to the
 * program since. ---- */

enum {
    LARGE_BYTES = 2 << 20
}; /* a block of this size or more gets a mapping of its own, which begins at a large page */

static void *map_large(size_t size_bytes)
{
    size_t mapped_bytes, before_bytes;
    char *memory;

    if (__builtin_add_overflow(size_bytes, LARGE_BYTES, &mapped_bytes))
        return NULL;
    memory = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    before_bytes = -(uintptr_t)memory % LARGE_BYTES;
    if (before_bytes > 0)
        /* If this fails, the pages stay mapped, but take no memory, since nobody has touched them.
         */
        (void)munmap(memory, before_bytes);
    if (before_bytes < LARGE_BYTES)
        (void)munmap(memory + before_bytes + size_bytes, LARGE_BYTES - before_bytes);
    return memory + before_bytes;
}

/* Computes the bytes that a block takes.  A large block takes whole large pages. */
static bool round_size(size_t size_bytes, size_t *rounded_bytes)
{
    return rs_round_up(size_bytes, size_bytes >= LARGE_BYTES ? LARGE_BYTES : RS_BLOCK_ALIGNMENT,
                       rounded_bytes);
}

static CUresult system_take_once(struct rs_detached_leaf *leaf, size_t size_bytes,
                                 CUdeviceptr *address)
{
    struct rs_account *account = leaf->base.environment->account;
    size_t rounded_bytes;
    void *memory;

    if (!round_size(size_bytes, &rounded_bytes) ||
        !rs_account_take(account, size_bytes, 0, RS_MEMORY_HOST))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = size_bytes >= LARGE_BYTES ? map_large(rounded_bytes)
                                       : aligned_alloc(RS_BLOCK_ALIGNMENT, rounded_bytes);
    if (!memory) {
        rs_account_untake(account, size_bytes, 0, RS_MEMORY_HOST);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    rs_account_taken(account, size_bytes, 0, RS_MEMORY_HOST);
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Takes host memory.  If there is none, tries again after all stacks that hold host memory have
 * given idle memory back. */
static CUresult system_take(struct rs_detached_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                            CUdeviceptr *address)
{
    const struct rs_environment *environment = leaf->base.environment;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = RS_MEMORY_HOST};
    CUresult result;

    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY; /* this leaf holds no memory */
    rs_request_begin();
    do {
        refusal.releases = rs_account_releases(environment->account);
        result = system_take_once(leaf, size_bytes, address);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY &&
             rs_environment_reclaims(environment, &refusal, effort));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_request.is_short = true;
    rs_request_end();
    return result;
}

static CUresult system_give(struct rs_detached_leaf *leaf, CUdeviceptr address, size_t size_bytes)
{
    void *memory = (void *)(uintptr_t)address;
    size_t rounded_bytes = 0;

    if (size_bytes < LARGE_BYTES)
        free(memory);
    else if (!round_size(size_bytes, &rounded_bytes) || munmap(memory, rounded_bytes) != 0)
        return CUDA_ERROR_UNKNOWN; /* the process has reached its limit of mappings */
    rs_account_give(leaf->base.environment->account, size_bytes, 0, RS_MEMORY_HOST);
    return CUDA_SUCCESS;
}

static const struct rs_detached_calls system_calls = {
    .take = system_take,
    .give = system_give,
    .give_late = system_give,
};

static bool system_validate(const void *config, const struct rs_validation *of)
{
    (void)config;
    return !of->environment ||
           rs_driver_device_has(of->environment->device,
                                CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) ||
           RS_REFUSE(of, "the resource 'system' needs a device that can access the process's own "
                         "memory (HMM or ATS); this device cannot");
}

static int system_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    rs_detached_leaf_init(mr, &system_calls);
    return 0;
}

static const struct rs_option system_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_system = {
    .name = "system",
    .aliases = {"system_memory"},
    .summary = "host memory of the process (malloc), on devices that can access it (HMM, ATS)",
    .memory = RS_MEMORY_HOST,
    .overcommits = true,
    .frees = RS_FREE_AT_ONCE,
    .options = system_options,
    .validate = system_validate,
};

RS_MR_CLASS(system, struct rs_detached_leaf, rs_detached_ops, system_init);
