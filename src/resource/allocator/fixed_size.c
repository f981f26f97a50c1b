/* SPDX-License-Identifier: Apache-2.0 */
/* fixed_size: blocks of one size, cut from upstream chunks of many blocks.  RMM's
 * fixed_size_memory_resource.
 *
 * RMM's list is first in, first out, so a program walks through all blocks it ever had.  This one
 * hands out the block freed last, whose lines and pages are still in the caches. */
#include "resource/allocator/fixed_size.h"

#include "base/counter.h"
#include "base/lock.h"
#include "ledger/account.h"
#include "resource/report.h"
#include "resource/resource.h"
#include "shared/published.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* A block's record; it is the allocation's token. */
struct slot {
    struct chunk *chunk;
    struct slot *next; /* the next free slot of the chunk */
    bool is_live;
};

/* A list of chunks: those with a free slot are in one, full ones in another. */
struct chunk_list {
    struct chunk *first;
};

struct chunk {
    struct chunk *next, *previous;
    struct rs_allocation upstream;
    size_t slot_count, used_count; /* slots from used_count on were never handed out */
    size_t live_count;
    struct slot *free_slots;
    struct slot slots[];
};

struct fixed_size {
    struct rs_mr base;
    struct rs_account *account;
    size_t block_bytes, blocks_per_chunk;

    struct rs_mutex lock;   /* protects the fields below; never held around an upstream call */
    pthread_cond_t settled; /* signalled when a growth ended: look again */
    struct chunk_list open, full;
    bool is_growing;
    _Atomic size_t held_bytes, live_bytes; /* base/counter.h */
    size_t peak_held_bytes, chunk_count;
    uint64_t growths, chunk_returns, allocations, failures;
};

static struct fixed_size *fixed_size_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct fixed_size, base);
}

/* ---- chunks and slots; all under the lock ---- */

static void list_add(struct chunk_list *list, struct chunk *chunk)
{
    chunk->previous = NULL;
    chunk->next = list->first;
    if (chunk->next)
        chunk->next->previous = chunk;
    list->first = chunk;
}

static void list_remove(struct chunk_list *list, struct chunk *chunk)
{
    RS_ASSERT(chunk->previous ? chunk->previous->next == chunk : list->first == chunk);
    *(chunk->previous ? &chunk->previous->next : &list->first) = chunk->next;
    if (chunk->next)
        chunk->next->previous = chunk->previous;
}

static bool is_full(const struct chunk *chunk)
{
    return chunk->live_count == chunk->slot_count;
}

static CUdeviceptr slot_address(const struct fixed_size *fixed, const struct slot *slot)
{
    return slot->chunk->upstream.address + (size_t)(slot - slot->chunk->slots) * fixed->block_bytes;
}

/* A slot joins the free list only at its first free, so a new chunk costs no walk over its slots.
 */
static struct slot *take_slot(struct chunk *chunk)
{
    struct slot *slot = chunk->free_slots;

    RS_ASSERT(chunk->live_count < chunk->slot_count);
    if (slot) {
        RS_ASSERT(!slot->is_live && slot->chunk == chunk);
        chunk->free_slots = slot->next;
    } else {
        slot = &chunk->slots[chunk->used_count++];
        slot->chunk = chunk;
    }
    slot->is_live = true;
    chunk->live_count++;
    return slot;
}

static bool take_block(struct fixed_size *fixed, size_t size_bytes, struct rs_allocation *out)
{
    struct chunk *chunk = fixed->open.first;
    struct slot *slot;

    if (!chunk)
        return false;
    slot = take_slot(chunk);
    if (is_full(chunk)) {
        list_remove(&fixed->open, chunk);
        list_add(&fixed->full, chunk);
    }
    rs_counter_add(&fixed->live_bytes, fixed->block_bytes);
    *out = (struct rs_allocation){slot_address(fixed, slot), size_bytes, slot, NULL};
    return true;
}

static void give_block(struct fixed_size *fixed, struct slot *slot)
{
    struct chunk *chunk = slot->chunk;

    RS_ASSERT(chunk->live_count > 0 && fixed->live_bytes >= fixed->block_bytes);
    if (is_full(chunk)) {
        list_remove(&fixed->full, chunk);
        list_add(&fixed->open, chunk);
    }
    slot->is_live = false;
    slot->next = chunk->free_slots;
    chunk->free_slots = slot;
    chunk->live_count--;
    rs_counter_subtract(&fixed->live_bytes, fixed->block_bytes);
}

static void add_chunk(struct fixed_size *fixed, struct chunk *chunk)
{
    RS_ASSERT(chunk->slot_count > 0 && chunk->live_count == 0);
    list_add(&fixed->open, chunk);
    fixed->chunk_count++;
    rs_counter_add(&fixed->held_bytes, chunk->upstream.size_bytes);
    fixed->peak_held_bytes = rs_max(fixed->peak_held_bytes, rs_counter_get(&fixed->held_bytes));
}

static void remove_chunk(struct fixed_size *fixed, struct chunk *chunk)
{
    RS_ASSERT(chunk->live_count == 0 && fixed->chunk_count > 0);
    RS_ASSERT(fixed->held_bytes >= chunk->upstream.size_bytes);
    list_remove(&fixed->open, chunk);
    fixed->chunk_count--;
    rs_counter_subtract(&fixed->held_bytes, chunk->upstream.size_bytes);
}

/* ---- growth ---- */

/* Asks upstream for a chunk of `blocks` blocks, or of ever fewer, down to one.  Called without the
 * lock. */
static CUresult ask_upstream(struct fixed_size *fixed, enum rs_effort effort, struct chunk *chunk,
                             size_t blocks)
{
    CUresult result;

    for (;; blocks /= 2) {
        /* on the NULL stream, as chunks serve all streams */
        result = rs_mr_allocate_with(fixed->base.upstream[0], blocks * fixed->block_bytes, NULL,
                                     effort, &chunk->upstream);
        if ((result != CUDA_ERROR_OUT_OF_MEMORY && result != CUDA_ERROR_NOT_READY) || blocks == 1)
            break;
    }
    chunk->slot_count = blocks;
    return result;
}

/* Called and left with the lock held, which is released in between.  All host memory is taken
 * first, so no upstream call has to be undone. */
static CUresult grow(struct fixed_size *fixed, enum rs_effort effort)
{
    size_t slots_bytes = fixed->blocks_per_chunk * sizeof(struct slot);
    struct chunk *chunk = calloc(1, sizeof(*chunk) + slots_bytes);
    CUresult result;

    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fixed->is_growing = true;
    rs_mutex_unlock(&fixed->lock);
    result = ask_upstream(fixed, effort, chunk, fixed->blocks_per_chunk);
    rs_mutex_lock(&fixed->lock);
    fixed->is_growing = false;
    pthread_cond_broadcast(&fixed->settled);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    add_chunk(fixed, chunk);
    fixed->growths++;
    return CUDA_SUCCESS;
}

/* Waits for another thread's growth, for a bounded time.  Sixteen threads that find no block at
 * once must not take sixteen chunks.  Upstream may wait for the GPU, and the GPU for this thread,
 * so the wait has an end. */
static void wait_for_growth(struct fixed_size *fixed)
{
    enum { WAIT_MS = 500 };
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (fixed->is_growing && rs_condition_wait_until(&fixed->settled, &fixed->lock, &until) == 0)
        ;
}

static CUresult allocate_locked(struct fixed_size *fixed, size_t size_bytes, enum rs_effort effort,
                                struct rs_allocation *out)
{
    CUresult result;

    if (take_block(fixed, size_bytes, out))
        return CUDA_SUCCESS;
    if (fixed->is_growing) {
        wait_for_growth(fixed);
        if (take_block(fixed, size_bytes, out))
            return CUDA_SUCCESS;
    }
    result = grow(fixed, effort);
    /* also after a failure, as other threads may have freed or grown meanwhile */
    return take_block(fixed, size_bytes, out) ? CUDA_SUCCESS : result;
}

/* ---- the resource ---- */

/* No work uses the free blocks any more, so they serve every stream (reuse.c).  RS_EFFORT_LITTLE
 * takes no less: a growth is one chunk, each of whose blocks serves a request.  A refused
 * RS_EFFORT_HELD request is not counted as a failure: one with more effort follows it. */
static CUresult fixed_size_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    struct fixed_size *fixed = fixed_size_of(mr);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    (void)stream;
    rs_mutex_lock(&fixed->lock);
    if (size_bytes <= fixed->block_bytes)
        result =
            allocate_locked(fixed, size_bytes, rs_effort_without(effort, RS_EFFORT_LITTLE), out);
    if (result != CUDA_SUCCESS && rs_effort_is_held(effort))
        result = CUDA_ERROR_NOT_READY;
    fixed->allocations += result == CUDA_SUCCESS;
    fixed->failures += result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    rs_mutex_unlock(&fixed->lock);
    return result;
}

static CUresult fixed_size_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                      CUstream stream)
{
    struct fixed_size *fixed = fixed_size_of(mr);
    struct slot *slot = allocation->token;

    (void)stream;
    rs_mutex_lock(&fixed->lock);
    RS_ASSERT(slot->is_live && slot_address(fixed, slot) == allocation->address);
    give_block(fixed, slot);
    rs_mutex_unlock(&fixed->lock);
    return CUDA_SUCCESS;
}

/* Takes chunks without a live block, except for keep_bytes of them, out of the resource, and
 * returns them as a list.  They are then neither idle here nor the driver's.  The account notes
 * them as being returned, or another thread that is refused meanwhile would take them for live. */
static struct chunk *detach_free_chunks(struct fixed_size *fixed, size_t keep_bytes)
{
    struct chunk *detached = NULL, *next;

    for (struct chunk *chunk = fixed->open.first; chunk; chunk = next) {
        next = chunk->next;
        if (chunk->live_count > 0)
            continue;
        if (chunk->upstream.size_bytes <= keep_bytes) {
            keep_bytes -= chunk->upstream.size_bytes;
            continue;
        }
        rs_account_begin_return(fixed->account, chunk->upstream.size_bytes);
        remove_chunk(fixed, chunk);
        chunk->next = detached;
        detached = chunk;
    }
    return detached;
}

static bool fixed_size_check(struct rs_mr *mr);

static size_t fixed_size_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct fixed_size *fixed = fixed_size_of(mr);
    size_t returned_bytes = 0;
    struct chunk *chunk;

    rs_mutex_lock(&fixed->lock);
    chunk = detach_free_chunks(fixed, trim->keep_bytes);
    while (chunk) {
        struct chunk *next = chunk->next;
        CUresult result;

        rs_mutex_unlock(&fixed->lock);
        result = rs_mr_deallocate(mr->upstream[0], &chunk->upstream, NULL);
        rs_mutex_lock(&fixed->lock);
        if (result != CUDA_SUCCESS)
            add_chunk(fixed, chunk); /* still ours */
        rs_account_end_return(fixed->account, chunk->upstream.size_bytes);
        if (result == CUDA_SUCCESS) {
            returned_bytes += chunk->upstream.size_bytes;
            fixed->chunk_returns++;
            free(chunk);
        }
        chunk = next;
    }
    rs_mutex_unlock(&fixed->lock);
    RS_ASSERT_SLOW(fixed_size_check(mr));
    return returned_bytes + rs_mr_trim_with(mr->upstream[0], trim);
}

static size_t fixed_size_idle_bytes(struct rs_mr *mr)
{
    const struct fixed_size *fixed = fixed_size_of(mr);

    return rs_counter_idle(&fixed->held_bytes, &fixed->live_bytes);
}

static size_t fixed_size_free_blocks(struct rs_mr *mr)
{
    return fixed_size_idle_bytes(mr) / fixed_size_of(mr)->block_bytes;
}

static void fixed_size_report(struct rs_mr *mr, struct rs_report *report)
{
    struct fixed_size *fixed = fixed_size_of(mr);
    const char *name = mr->descriptor->name;

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add_field(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    if (!rs_mutex_lock_bounded(&fixed->lock, name))
        return;
    ADD("held", LIVE, BYTES, fixed->held_bytes);
    ADD("held_peak", PEAK, BYTES, fixed->peak_held_bytes);
    ADD("live", LIVE, BYTES, fixed->live_bytes);
    ADD("chunks", LIVE, COUNT, fixed->chunk_count);
    ADD("growths", TOTAL, COUNT, fixed->growths);
    ADD("chunk_returns", TOTAL, COUNT, fixed->chunk_returns);
    ADD("allocations", TOTAL, COUNT, fixed->allocations);
    ADD("failures", TOTAL, COUNT, fixed->failures);
    rs_mutex_unlock(&fixed->lock);
#undef ADD
}

struct fixed_size_sums {
    size_t held_bytes, live_count, chunks;
};

static bool chunk_check(const struct fixed_size *fixed, const struct chunk *chunk,
                        struct fixed_size_sums *sums)
{
    size_t live_count = 0, free_count = 0;

    if (chunk->used_count > chunk->slot_count)
        return false;
    for (size_t i = 0; i < chunk->used_count; i++)
        live_count += chunk->slots[i].is_live;
    for (const struct slot *slot = chunk->free_slots; slot; slot = slot->next)
        if (slot->is_live || slot->chunk != chunk || ++free_count > chunk->used_count)
            return false;
    sums->held_bytes += chunk->upstream.size_bytes;
    sums->live_count += live_count;
    sums->chunks++;
    return live_count == chunk->live_count && live_count + free_count == chunk->used_count &&
           chunk->slot_count * fixed->block_bytes == chunk->upstream.size_bytes;
}

static bool list_check(const struct fixed_size *fixed, const struct chunk_list *list, bool full,
                       struct fixed_size_sums *sums)
{
    for (const struct chunk *chunk = list->first; chunk; chunk = chunk->next)
        if ((chunk->next && chunk->next->previous != chunk) || is_full(chunk) != full ||
            !chunk_check(fixed, chunk, sums))
            return false;
    return true;
}

static bool fixed_size_check(struct rs_mr *mr)
{
    struct fixed_size *fixed = fixed_size_of(mr);
    struct fixed_size_sums sums = {0};
    bool good;

    rs_mutex_lock(&fixed->lock);
    good = list_check(fixed, &fixed->open, false, &sums) &&
           list_check(fixed, &fixed->full, true, &sums) && sums.held_bytes == fixed->held_bytes &&
           sums.live_count * fixed->block_bytes == fixed->live_bytes &&
           sums.chunks == fixed->chunk_count;
    rs_mutex_unlock(&fixed->lock);
    return good;
}

static void list_destroy(struct fixed_size *fixed, struct chunk_list *list, bool memory_is_gone)
{
    while (list->first) {
        struct chunk *chunk = list->first;
        list->first = chunk->next;
        if (!memory_is_gone)
            (void)rs_mr_deallocate(fixed->base.upstream[0], &chunk->upstream, NULL);
        free(chunk);
    }
}

static void fixed_size_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct fixed_size *fixed = fixed_size_of(mr);

    list_destroy(fixed, &fixed->open, memory_is_gone);
    list_destroy(fixed, &fixed->full, memory_is_gone);
    pthread_cond_destroy(&fixed->settled);
    rs_mutex_destroy(&fixed->lock);
    rs_published_free(fixed);
}

/* ---- creation ---- */

static const struct rs_mr_ops fixed_size_ops = {
    .allocate = fixed_size_allocate,
    .deallocate = fixed_size_deallocate,
    .destroy = fixed_size_destroy,
    .trim = fixed_size_trim,
    .excess_bytes = rs_mr_no_excess_bytes,
    .idle_bytes = fixed_size_idle_bytes,
    .free_blocks = fixed_size_free_blocks,
    .report = fixed_size_report,
    .check = fixed_size_check,
};

static void init_locks(struct fixed_size *fixed)
{
    pthread_condattr_t monotonic;

    rs_mutex_init(&fixed->lock, RS_RANK_RESOURCE);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&fixed->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Takes the first chunk, if the device has room for it; a later growth reports when it has not. */
static int preallocate(struct fixed_size *fixed)
{
    CUresult result;

    rs_mutex_lock(&fixed->lock);
    result = grow(fixed, RS_EFFORT_FULL);
    rs_mutex_unlock(&fixed->lock);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : -EIO;
}

static int fixed_size_create(const struct rs_environment *environment, const void *config,
                             struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct rs_fixed_size_config *settings = config;
    struct fixed_size *fixed = RS_PUBLISHED_NEW(struct fixed_size);
    int failed = 0;

    if (!fixed)
        return -ENOMEM;
    rs_mr_init(&fixed->base, &fixed_size_ops, &rs_mr_descriptor_fixed_size, upstream);
    init_locks(fixed);
    fixed->account = environment->account;
    fixed->blocks_per_chunk = (size_t)settings->blocks_to_preallocate;
    if (!rs_round_up(settings->block_size, RS_BLOCK_ALIGNMENT, &fixed->block_bytes))
        failed = -EINVAL;
    else if (environment->first_on_device)
        failed = preallocate(fixed);
    if (failed) {
        fixed_size_destroy(&fixed->base, false);
        return failed;
    }
    *out = &fixed->base;
    return 0;
}

static bool fixed_size_validate(const void *config, const struct rs_environment *environment,
                                const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct rs_fixed_size_config *settings = config;
    char block[RS_SIZE_TEXT_BYTES];
    size_t chunk_bytes;

    (void)environment;
    if (settings->block_size > 0 &&
        rs_round_up(settings->block_size, RS_BLOCK_ALIGNMENT, &chunk_bytes) &&
        !__builtin_mul_overflow(chunk_bytes, (size_t)settings->blocks_to_preallocate, &chunk_bytes))
        return true;
    rs_diagnose(diagnostics, source, NULL, "fixed_size cannot have %llu blocks of %s",
                (unsigned long long)settings->blocks_to_preallocate,
                rs_size_format(settings->block_size, block));
    return false;
}

enum { BLOCKS_MAX = 1 << 20 }; /* per chunk, as their records are host memory */

static const struct rs_option fixed_size_options[] = {
    RS_OPTION_SIZE_ROW(struct rs_fixed_size_config, block_size, "1MiB",
                       "size of every block, rounded up to 512 bytes; larger requests are refused",
                       .minimum = 1),
    RS_OPTION_COUNT_ROW(struct rs_fixed_size_config, blocks_to_preallocate, "128",
                        "blocks taken from upstream at a time", .minimum = 1,
                        .maximum = BLOCKS_MAX),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_fixed_size = {
    .name = "fixed_size",
    .summary = "blocks of one size, cut from larger upstream blocks",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct rs_fixed_size_config),
    .options = fixed_size_options,
    .unit_option = "block_size",
    .validate = fixed_size_validate,
    .create = fixed_size_create,
};
