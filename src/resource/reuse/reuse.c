/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: lets a freed block be handed out again only when all work that its context had been given
 * before the free is done, which is what cudaFree guarantees by stopping the world.
 *
 * Freed blocks gather in open lists, one per group of threads.  By need (bytes, count, an
 * allocation that finds nothing clean) the lists are sealed into an epoch behind one fence
 * (reuse_epochs.c).  When that is done the epoch's blocks are clean: they stay with their threads
 * for the next request of their size (reuse_clean.c), or go upstream.  Nobody waits in a free, and
 * an allocation waits only when it would otherwise grow past what the program ever used at once
 * (reuse_need.c).
 *
 * Host memory is sealed at each free that is not small.  The next such allocation asks for the
 * fence, so that a loop over one buffer stays in the processor's caches; one so large that no cache
 * would have the buffer asks only where there is no other.  The last large blocks of one size are
 * kept too, which spares a pair the way upstream and back (some 800 instructions).
 *
 * A block that was freed in the order of a stream may be handed out at once to an allocation in the
 * order of the same stream.  Until then it waits with the others, in a list of its own, and leaves
 * the quarantine by whichever way opens first. */
#include "resource/reuse/reuse.h"
#include "base/clock.h"
#include "base/published.h"
#include "base/request.h"
#include "driver/fence.h"
#include "driver/stream_order.h"
#include "resource/report.h"

#include <errno.h>
#include <stdlib.h>

static const char *const mode_words[] = {"deferred", "wait", NULL};

struct reuse_config {
    int free;
};

enum {
    SEAL_BYTES = RS_REUSE_SEAL_BYTES,
    SEAL_COUNT = 128,  /* in one shard */
    SCARCE_SHARE = 32, /* less than this share of what is held is clean: frees seal at once */
    LOOK_EVERY = 16,   /* both are looked at by the first free after a seal, by every sixteenth, */
    LOOK_BYTES = SEAL_BYTES / 8, /* and when so much has opened in a shard since */
    EAGER_BYTES = 64 << 10,      /* of host memory; of other memory, none is enough */
    TRIM_LOOKS = 24,             /* in vain, at fences that a trim waits for, */
    TRIM_NS = 20 * 1000 * 1000,  /* and its time in all */
    UNFENCED_BYTES = 64 << 20,   /* so much may wait for the end of a capture, or what the program
                                    held before where that is more */
    HUGE_BYTES = 256 << 20,      /* what becomes of such a block takes longer than a fence */
    SORT_TURNS = 8, /* an allocation looks so far into what is not sorted: there may be thousands */
};

static struct rs_reuse *reuse_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_reuse, base);
}

RS_HOT_INLINE size_t eager_bytes(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->eager_bytes, memory_order_relaxed);
}

/* Upstream had nothing fitting lately (reuse_need.c). */
static bool is_short(const struct rs_reuse *reuse)
{
    return eager_bytes(reuse) == RS_REUSE_SHORT_BYTES;
}

static bool is_starved(const struct rs_reuse *reuse)
{
    return reuse->has_fences && eager_bytes(reuse) == RS_REUSE_STARVED;
}

/* ---- allocation ---- */

/* A clean block of that size, which is counted as live from now on, or NULL; *more: there may be
 * one among those that are not sorted yet. */
RS_HOT_INLINE struct rs_freed *take_kept(struct rs_reuse *reuse, size_t size_bytes, bool *more)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    struct rs_freed *kept;

    rs_spinlock_lock(&shard->lock);
    kept = rs_kept_take(&shard->kept, size_bytes);
    *more = shard->clean.first;
    if (RS_LIKELY(kept)) {
        shard->live_bytes += (ptrdiff_t)size_bytes;
        if (RS_LIKELY(*more))
            rs_reuse_sort_one(shard);
        else
            rs_kept_prefetch(kept);
    }
    rs_spinlock_unlock(&shard->lock);
    return kept;
}

/* In the order of a stream: what was freed in that order needs no fence.  Sizes are rounded, so
 * that more of them are alike. */
static bool allocate_in_order(struct rs_reuse *reuse, size_t *size_bytes, CUstream stream,
                              unsigned long long *key, struct rs_allocation *out)
{
    size_t asked_bytes = *size_bytes, rounded_bytes;
    struct rs_freed *block;

    if (!rs_round_up(asked_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return false;
    *size_bytes = rounded_bytes;
    if (reuse->mode == RS_REUSE_WAIT || !rs_stream_key(stream, reuse->place->context, key))
        return false;
    block = rs_ordered_take(&reuse->ordered, rounded_bytes, *key);
    if (!block)
        return false;
    rs_reuse_count_left(reuse, block->upstream.size_bytes, 1);
    block->stream = *key;
    *out = (struct rs_allocation){block->upstream.address, asked_bytes, block, NULL};
    return true;
}

/* What a huge block leaves free around it must be in one piece: so upstream shall see all that is
 * done with, first.  Freed blocks of its own size would leave a hole for the next one. */
static void clean_for_huge(struct rs_reuse *reuse, size_t size_bytes)
{
    struct rs_reuse_quantity freed = rs_reuse_quarantined(reuse);

    if (size_bytes < rs_reuse_held_bytes(reuse) / SCARCE_SHARE ||
        freed.bytes == freed.blocks * size_bytes)
        return;
    rs_request_begin();
    (void)rs_reuse_seal(reuse);
    (void)rs_reuse_retire(reuse);
    rs_request_end();
}

/* What comes from upstream is for all streams, as it will be handed to others in its time.  Where
 * frees wait no gap is late, so any block will do (reuse_need.c). */
static CUresult allocate_from_upstream(struct rs_reuse *reuse, size_t size_bytes, bool only_held,
                                       struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    CUresult result;

    if (RS_UNLIKELY(size_bytes >= HUGE_BYTES))
        clean_for_huge(reuse, size_bytes);
    if (RS_UNLIKELY(only_held))
        result = rs_mr_allocate_any_held(upstream, size_bytes, out);
    else if (RS_UNLIKELY(reuse->mode == RS_REUSE_WAIT))
        result = rs_mr_allocate_good_held(upstream, size_bytes, out);
    else
        result = rs_mr_allocate_held(upstream, size_bytes, NULL, out);
    if (result != CUDA_ERROR_NOT_READY)
        return result;
    return only_held ? rs_reuse_allocate_held_in_need(reuse, size_bytes, out)
                     : rs_reuse_allocate_slowly(reuse, size_bytes, out);
}

__attribute__((noinline)) static CUresult allocate_new(struct rs_reuse *reuse, size_t size_bytes,
                                                       size_t upstream_bytes,
                                                       unsigned long long key, bool only_held,
                                                       struct rs_allocation *out)
{
    struct rs_allocation upstream;
    struct rs_freed *record;
    CUresult result = allocate_from_upstream(reuse, upstream_bytes, only_held, &upstream);

    if (result != CUDA_SUCCESS)
        return result;
    record = rs_reuse_take_record(reuse, upstream_bytes);
    if (RS_UNLIKELY(!record)) {
        (void)rs_mr_deallocate(reuse->base.upstream[0], &upstream, NULL); /* nobody has seen it */
        return only_held ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
    }
    record->upstream.address = upstream.address;
    record->upstream.size_bytes = upstream.size_bytes;
    record->upstream.token = upstream.token;
    record->stream = key;
    *out = (struct rs_allocation){record->upstream.address, size_bytes, record, NULL};
    return CUDA_SUCCESS;
}

/* A block of the shard's, or one from upstream; for an allocation on the stream of that key. */
RS_HOT_INLINE CUresult allocate_any(struct rs_reuse *reuse, size_t size_bytes,
                                    size_t upstream_bytes, unsigned long long key, bool only_held,
                                    struct rs_allocation *out)
{
    bool more = false;
    struct rs_freed *kept = take_kept(reuse, upstream_bytes, &more);

    for (unsigned turn = 0; RS_UNLIKELY(!kept && more) && turn < SORT_TURNS; turn++) {
        rs_reuse_sort_clean(reuse);
        kept = take_kept(reuse, upstream_bytes, &more);
    }
    if (RS_UNLIKELY(!kept))
        return allocate_new(reuse, size_bytes, upstream_bytes, key, only_held, out);
    if (size_bytes != upstream_bytes)
        rs_reuse_forget_holder(reuse, kept);
    *out = (struct rs_allocation){kept->upstream.address, size_bytes, kept, kept->holder};
    kept->stream = key;
    return CUDA_SUCCESS;
}

static bool is_something_kept(struct rs_reuse *reuse, size_t size_bytes)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    bool kept;

    rs_spinlock_lock(&shard->lock);
    kept = shard->kept.bytes >= size_bytes;
    rs_spinlock_unlock(&shard->lock);
    return kept;
}

/* Of memory that an allocation looks at fences for: so much that no processor's cache has it may be
 * any block, and is asked for only when there is none. */
static bool asks_first(struct rs_reuse *reuse, size_t size_bytes)
{
    return size_bytes >= eager_bytes(reuse) &&
           (size_bytes < SEAL_BYTES ||
            (rs_mr_idle_bytes_best(reuse->base.upstream[0]) < size_bytes &&
             !is_something_kept(reuse, size_bytes)));
}

/* In the order of a stream, or of a block that an allocation looks at fences for. */
__attribute__((noinline)) static CUresult allocate_unusual(struct rs_reuse *reuse,
                                                           size_t size_bytes, CUstream stream,
                                                           struct rs_allocation *out)
{
    size_t upstream_bytes = size_bytes;
    unsigned long long key = 0;

    if (asks_first(reuse, size_bytes)) {
        rs_request_begin();
        (void)rs_reuse_retire(reuse);
        rs_request_end();
    }
    if (stream && allocate_in_order(reuse, &upstream_bytes, stream, &key, out))
        return CUDA_SUCCESS;
    return allocate_any(reuse, size_bytes, upstream_bytes, key, false, out);
}

RS_HOT static CUresult reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                      struct rs_allocation *out)
{
    struct rs_reuse *reuse = reuse_of(mr);

    if (RS_UNLIKELY((uintptr_t)stream | (size_bytes >= eager_bytes(reuse))))
        return allocate_unusual(reuse, size_bytes, stream, out);
    return allocate_any(reuse, size_bytes, size_bytes, 0, false, out);
}

/* From what upstream holds, with what can be cleaned at once. */
static CUresult reuse_allocate_held(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                    struct rs_allocation *out)
{
    (void)stream;
    return allocate_any(reuse_of(mr), size_bytes, size_bytes, 0, true, out);
}

/* ---- deallocation ---- */

/* True when the next allocation will probably need what is being freed now.  Then the fence must
 * not wait for that allocation: work that is launched in between would be behind it too, and that
 * work may end only when this thread goes on. */
static bool is_scarce(struct rs_reuse *reuse)
{
    return rs_mr_idle_bytes_best(reuse->base.upstream[0]) <
           rs_reuse_held_bytes(reuse) / SCARCE_SHARE;
}

__attribute__((noinline)) static bool is_time_to_seal(struct rs_reuse *reuse, size_t open_bytes,
                                                      size_t opened)
{
    if (rs_reuse_has_backlog(reuse))
        rs_reuse_give_backlog(reuse);
    if (!reuse->has_fences)
        rs_reuse_note_room(reuse);
    if (opened >= SEAL_COUNT ||
        (open_bytes >= SEAL_BYTES && open_bytes >= rs_reuse_seal_bytes(reuse)))
        return true;
    if (opened >= LOOK_EVERY && is_short(reuse))
        return true;
    return rs_reuse_may_have_fence(reuse) && opened % LOOK_EVERY == 1 &&
           !(opened == 1 && rs_reuse_is_crowded(reuse)) && is_scarce(reuse);
}

_Static_assert(SEAL_COUNT % LOOK_EVERY == 0, "is_time_to_look looks at one remainder");

/* Of one shard; the new bytes are those since it last published.  Not at each free from SEAL_BYTES
 * on: with two threads looking made a pair of 1 MiB half as long again. */
RS_HOT_INLINE bool is_time_to_look(size_t opened, size_t new_bytes)
{
    return RS_UNLIKELY((opened % LOOK_EVERY <= 1) | opened / SEAL_COUNT | new_bytes / LOOK_BYTES);
}

/* What is open in all shards, of the others what they have published: threads that free side by
 * side would else each have as much open as one may.  Little is not published, as the sum is in a
 * cache line that all of them write.  Under the shard's lock. */
static size_t open_in_all(struct rs_reuse *reuse, struct rs_reuse_shard *shard, size_t open_bytes)
{
    size_t new_bytes = open_bytes - shard->published_bytes;

    if (new_bytes < LOOK_BYTES)
        return atomic_load_explicit(&reuse->open_bytes, memory_order_relaxed) + new_bytes;
    shard->published_bytes = open_bytes;
    return atomic_fetch_add_explicit(&reuse->open_bytes, new_bytes, memory_order_relaxed) +
           new_bytes;
}

/* Under the shard's lock, so that no locked instruction is needed. */
RS_HOT_INLINE void count_entered(struct rs_reuse_shard *shard, size_t size_bytes)
{
    atomic_store_explicit(&shard->entered_bytes, shard->entered_bytes + size_bytes,
                          memory_order_relaxed);
    atomic_store_explicit(&shard->entered_count, shard->entered_count + 1, memory_order_relaxed);
}

/* Besides those for which it is time. */
RS_HOT_INLINE bool seals_at_once(const struct rs_reuse *reuse, size_t size_bytes)
{
    return RS_UNLIKELY(size_bytes >= eager_bytes(reuse)) &&
           !(is_short(reuse) && rs_reuse_is_crowded(reuse));
}

/* Enters a freed block into the open list of the thread's shard.  True when it is time to seal. */
RS_HOT_INLINE bool open_push(struct rs_reuse *reuse, struct rs_freed *record)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    size_t size_bytes = record->upstream.size_bytes, opened, open_bytes;
    bool looks;

    bool is_own = (size_bytes <= atomic_load_explicit(&reuse->own_bytes, memory_order_relaxed)) &
                  (&reuse->shards[record->home] == shard);

    rs_spinlock_lock(&shard->lock);
    count_entered(shard, size_bytes);
    shard->live_bytes -= (ptrdiff_t)size_bytes;
    rs_freed_push(is_own ? &shard->open : &shard->open_rest, record);
    opened = shard->open.count + shard->open_rest.count;
    open_bytes = shard->open.bytes + shard->open_rest.bytes;
    looks = is_time_to_look(opened, open_bytes - shard->published_bytes);
    if (looks)
        open_bytes = open_in_all(reuse, shard, open_bytes);
    rs_spinlock_unlock(&shard->lock);
    return looks && is_time_to_seal(reuse, open_bytes, opened);
}

/* The same for a block freed in the order of a stream. */
static bool ordered_push(struct rs_reuse *reuse, struct rs_freed *record, unsigned long long stream)
{
    size_t opened, open_bytes;

    atomic_fetch_add_explicit(&reuse->ordered_bytes, record->upstream.size_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&reuse->ordered_count, 1, memory_order_relaxed);
    opened = rs_ordered_push(&reuse->ordered, record, stream, &open_bytes);
    return is_time_to_look(opened, open_bytes) && is_time_to_seal(reuse, open_bytes, opened);
}

/* A block that another size or stream may be handed is new to its holder then. */
RS_HOT_INLINE void keep_holder(struct rs_reuse *reuse, struct rs_freed *record,
                               const struct rs_allocation *allocation, bool in_order)
{
    record->holder = NULL;
    if (RS_LIKELY(!in_order && allocation->size_bytes == record->upstream.size_bytes))
        record->holder = allocation->holder;
    else if (allocation->holder)
        reuse->place->forget_holder(reuse->place, allocation->holder);
}

/* As cudaFree: nothing of it is touched any more when this returns.  (Frees in the order of a
 * stream do not wait, in no mode: cuMemFreeAsync does not; nor does what is freed late, inside a
 * request, when the process that it was exported to has closed it.) */
__attribute__((noinline)) static CUresult deallocate_waiting(struct rs_reuse *reuse,
                                                             const struct rs_allocation *allocation)
{
    struct rs_freed *record = allocation->token;
    const struct rs_allocation upstream = rs_freed_upstream(record);
    uint64_t begin_ns = rs_clock_ns();
    CUresult result;

    if (rs_request_is_under_way()) {
        keep_holder(reuse, record, allocation, false);
        (void)open_push(reuse, record);
        return CUDA_SUCCESS;
    }
    result = rs_sentinel_wait(reuse->place->sentinel, reuse->place->context);
    rs_reuse_count(&reuse->full_waits, 1);
    rs_reuse_count(&reuse->wait_ns, rs_clock_ns() - begin_ns);
    if (result == CUDA_SUCCESS)
        result = rs_mr_deallocate_at_once(reuse->base.upstream[0], &upstream);
    if (result == CUDA_SUCCESS)
        rs_reuse_untake_record(reuse, record, upstream.size_bytes);
    return result;
}

/* False when another thread has sealed since what this one freed: many find at once that it is
 * time. */
static bool has_own_open(struct rs_reuse *reuse)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    bool found;

    rs_spinlock_lock(&shard->lock);
    found = shard->open.first || shard->open_rest.first;
    rs_spinlock_unlock(&shard->lock);
    return found || rs_ordered_has_open(&reuse->ordered);
}

/* Threads that count side by side end a shortage a little early or late.  Where no fence can be had
 * to seal is to wait. */
static void count_seal(struct rs_reuse *reuse, enum rs_fence_refusal refusal)
{
    if (is_short(reuse) &&
        (refusal == RS_FENCE_REFUSED ||
         atomic_fetch_sub_explicit(&reuse->short_seals, 1, memory_order_relaxed) <= 1))
        atomic_store_explicit(&reuse->eager_bytes, SIZE_MAX, memory_order_relaxed);
}

static size_t live_bytes(struct rs_reuse *reuse)
{
    ptrdiff_t live = rs_ordered_live_bytes(&reuse->ordered);

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        live += reuse->shards[i].live_bytes;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return live > 0 ? (size_t)live : 0;
}

/* True when more must come from what is ready: an arena has all it will ever have. */
static bool is_capped(const struct rs_reuse *reuse)
{
    return rs_min(rs_mr_growable_bytes_best(reuse->base.upstream[0]),
                  rs_account_room(reuse->place->account)) < UNFENCED_BYTES;
}

/* A capture may last.  What waits for its end is as much as the program would need again anyway:
 * what it or the initial size held before, and is not live now.  Where upstream cannot grow it is
 * less, and no more than what is ready, as allocations find only that and do not wait. */
static bool is_much_unfenced(struct rs_reuse *reuse)
{
    size_t held_bytes = rs_max(atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed),
                               reuse->initial_bytes);
    size_t live = live_bytes(reuse);
    size_t spare_bytes = held_bytes > live ? held_bytes - live : 0;
    size_t bytes = rs_reuse_quarantined(reuse).bytes;

    return is_capped(reuse)
               ? bytes >= rs_min(UNFENCED_BYTES, rs_mr_idle_bytes_best(reuse->base.upstream[0]))
               : bytes >= rs_max(UNFENCED_BYTES, spare_bytes);
}

/* What was to be sealed stays open.  Host memory is to be sealed at each free, which must not wait
 * each time. */
static bool is_time_to_wait(struct rs_reuse *reuse, enum rs_fence_refusal refusal)
{
    if (refusal == RS_FENCE_REFUSED)
        return !reuse->is_eager || rs_reuse_quarantined(reuse).bytes >= rs_reuse_seal_bytes(reuse);
    return refusal == RS_FENCE_CAPTURES && (is_starved(reuse) || is_much_unfenced(reuse));
}

/* Without a fence, a free may wait, as cudaFree does, and an allocation may not.  An error of the
 * wait is the context's, and the next call will say it.  A free in the order of a stream waits only
 * on old drivers. */
__attribute__((noinline)) static CUresult seal_after_free(struct rs_reuse *reuse, size_t size_bytes,
                                                          CUstream stream)
{
    enum rs_fence_refusal refusal;
    bool may_wait = !rs_request_is_under_way();

    if (!reuse->has_fences) {
        if (may_wait)
            (void)rs_reuse_wait_for_all(reuse);
        return CUDA_SUCCESS;
    }
    if (!has_own_open(reuse))
        return CUDA_SUCCESS;
    refusal = rs_reuse_seal_and_retire_in_passing(
        reuse, reuse->is_eager || size_bytes >= rs_reuse_seal_bytes(reuse));
    count_seal(reuse, refusal);
    if (!stream && may_wait && is_time_to_wait(reuse, refusal))
        (void)rs_reuse_wait_for_all(reuse);
    if (is_starved(reuse) && may_wait)
        atomic_store_explicit(&reuse->eager_bytes, SIZE_MAX, memory_order_relaxed);
    return CUDA_SUCCESS;
}

__attribute__((noinline)) static CUresult
deallocate_in_order(struct rs_reuse *reuse, const struct rs_allocation *allocation, CUstream stream)
{
    struct rs_freed *record = allocation->token;
    size_t size_bytes = record->upstream.size_bytes; /* the record is another's after the push */
    unsigned long long key;
    bool in_order = rs_stream_key_to_free(stream, reuse->place->context, record->stream, &key);
    bool time_to_seal;

    keep_holder(reuse, record, allocation, in_order);
    time_to_seal = in_order ? ordered_push(reuse, record, key) : open_push(reuse, record);
    return time_to_seal || seals_at_once(reuse, size_bytes)
               ? seal_after_free(reuse, size_bytes, stream)
               : CUDA_SUCCESS;
}

RS_HOT static CUresult reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                        CUstream stream)
{
    struct rs_reuse *reuse = reuse_of(mr);
    struct rs_freed *record = allocation->token;
    size_t size_bytes = record->upstream.size_bytes; /* the record is another's after the push */

    if (RS_UNLIKELY((uintptr_t)stream | RS_DIFFER(reuse->mode, RS_REUSE_DEFERRED)))
        return stream ? deallocate_in_order(reuse, allocation, stream)
                      : deallocate_waiting(reuse, allocation);
    keep_holder(reuse, record, allocation, false);
    return RS_UNLIKELY(open_push(reuse, record) || seals_at_once(reuse, size_bytes))
               ? seal_after_free(reuse, size_bytes, NULL)
               : CUDA_SUCCESS;
}

/* ---- the rest of the resource ---- */

static enum rs_readiness reuse_make_ready(struct rs_mr *mr, uint64_t wait_ns)
{
    return rs_reuse_make_ready(reuse_of(mr), wait_ns);
}

static uint64_t reuse_moves(struct rs_mr *mr)
{
    return rs_reuse_moves(reuse_of(mr));
}

/* The fence of an idle context is done some microseconds after it was recorded, and may be one of
 * several: a trim that was asked for sees all of them done.  Looks are counted, not time alone, as
 * other threads may be what the processors are busy with. */
static void retire_at_once(struct rs_reuse *reuse)
{
    uint64_t begin_ns = rs_clock_ns();
    unsigned looks = 0;

    (void)rs_reuse_retire(reuse);
    while (rs_reuse_has_sealed(reuse, false) && !rs_request_is_under_way() && looks < TRIM_LOOKS &&
           rs_clock_ns() - begin_ns < TRIM_NS) {
        rs_reuse_nap();
        looks = rs_reuse_retire(reuse) ? 0 : looks + 1;
    }
}

static size_t reuse_trim(struct rs_mr *mr, size_t keep_bytes)
{
    struct rs_reuse *reuse = reuse_of(mr);

    (void)rs_reuse_begin_need(reuse);
    if (!rs_reuse_retire(reuse) || rs_reuse_has_open(reuse))
        (void)rs_reuse_seal(reuse);
    retire_at_once(reuse);
    /* What cannot be fenced is waited for, but not inside a request. */
    if (!reuse->has_fences && rs_reuse_has_open(reuse) && !rs_request_is_under_way())
        (void)rs_reuse_wait_for_all(reuse);
    rs_reuse_end_need(reuse);
    return rs_mr_trim(mr->upstream[0], keep_bytes);
}

static size_t reuse_excess_bytes(struct rs_mr *mr)
{
    return rs_mr_excess_bytes(mr->upstream[0]);
}

/* What is idle here and would come back to the driver: whole units of it, or nothing. */
static bool holds_excess(struct rs_reuse *reuse)
{
    size_t excess_bytes = rs_mr_excess_bytes(reuse->base.upstream[0]), count;

    return excess_bytes >= RS_DRIVER_GRANULARITY &&
           rs_reuse_quarantined(reuse).bytes + rs_reuse_kept_bytes(reuse, &count) >=
               RS_DRIVER_GRANULARITY;
}

/* As far as it is clean.  All work of the context: what was sealed is done, or will be in some
 * microseconds. */
static void give_excess(struct rs_reuse *reuse, bool all)
{
    (void)rs_reuse_begin_need(reuse);
    if (all)
        retire_at_once(reuse);
    else
        (void)rs_reuse_retire(reuse);
    rs_reuse_end_need(reuse);
}

/* Sealed before the program waits, an epoch is done when it has, unless other streams are busy. */
static void reuse_synchronise(struct rs_mr *mr, enum rs_synchronise when)
{
    struct rs_reuse *reuse = reuse_of(mr);

    if (reuse->base.has_threshold && holds_excess(reuse)) {
        if (when != RS_SYNCHRONISE_BEGIN)
            give_excess(reuse, when == RS_SYNCHRONISE_END_ALL);
        else if (rs_reuse_has_open(reuse))
            (void)rs_reuse_seal(reuse);
    }
    rs_mr_synchronise(mr->upstream[0], when);
}

static size_t reuse_idle_bytes(struct rs_mr *mr)
{
    struct rs_reuse *reuse = reuse_of(mr);
    size_t count;

    return rs_reuse_kept_bytes(reuse, &count) + rs_reuse_quarantined(reuse).bytes +
           atomic_load(&reuse->giving_bytes);
}

static size_t reuse_free_blocks(struct rs_mr *mr)
{
    struct rs_reuse *reuse = reuse_of(mr);
    size_t count;

    (void)rs_reuse_kept_bytes(reuse, &count);
    return count + rs_reuse_quarantined(reuse).blocks;
}

static void reuse_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_reuse *reuse = reuse_of(mr);
    const struct rs_reuse_shard *first = &reuse->shards[0];
    /* As rs_reuse_quarantined has it. */
    struct rs_term bytes[] = {
        {RS_REPORT_PLACE(first->entered_bytes), RS_REUSE_SHARDS, sizeof(*first), 1},
        RS_TERM(reuse->ordered_bytes, 1),
        RS_TERM(reuse->left_bytes, -1),
    };
    struct rs_term blocks[] = {
        {RS_REPORT_PLACE(first->entered_count), RS_REUSE_SHARDS, sizeof(*first), 1},
        RS_TERM(reuse->ordered_count, 1),
        RS_TERM(reuse->left_count, -1),
    };
    size_t count;

#define ADD(name, kind, unit, field)                                                               \
    rs_report_add_field(report, "reuse", name, RS_COUNTER_##kind, RS_UNIT_##unit, reuse->field)
    rs_report_add_sum(report, "reuse", "quarantined", RS_COUNTER_LIVE, RS_UNIT_BYTES, bytes, 3);
    rs_report_add_sum(report, "reuse", "quarantined_blocks", RS_COUNTER_LIVE, RS_UNIT_COUNT, blocks,
                      3);
    rs_report_add(report, "reuse", "kept", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  rs_reuse_kept_bytes(reuse, &count));
    ADD("epochs_sealed", TOTAL, COUNT, sealed_epochs);
    ADD("epochs_retired", TOTAL, COUNT, retired_epochs);
    ADD("waits", TOTAL, COUNT, waits);
    ADD("waits_in_vain", TOTAL, COUNT, timeouts);
    ADD("full_waits", TOTAL, COUNT, full_waits);
    ADD("waited", TOTAL, NANOSECONDS, wait_ns);
#undef ADD
    if (atomic_load(&reuse->ordered.is_used))
        rs_report_add(report, "reuse", "stream_reuses", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                      rs_ordered_reuses(&reuse->ordered));
}

static bool reuse_check(struct rs_mr *mr)
{
    struct rs_reuse *reuse = reuse_of(mr);
    size_t bytes = 0, blocks = 0;
    bool good = true;

    rs_mutex_lock(&reuse->lock);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        bytes += reuse->shards[i].open.bytes + reuse->shards[i].open_rest.bytes;
        blocks += reuse->shards[i].open.count + reuse->shards[i].open_rest.count;
        good = rs_kept_check(&reuse->shards[i].kept) && good;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    rs_mutex_lock(&reuse->ordered.lock);
    good = rs_ordered_check(&reuse->ordered, &reuse->ordered.open, &bytes, &blocks) && good;
    good = rs_reuse_check_epochs(reuse, &bytes, &blocks) && good;
    rs_mutex_unlock(&reuse->ordered.lock);
    /* Blocks on their way upstream are in no list and still counted. */
    good = good && bytes <= rs_reuse_quarantined(reuse).bytes &&
           blocks <= rs_reuse_quarantined(reuse).blocks;
    rs_mutex_unlock(&reuse->lock);
    return good;
}

static void reuse_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_reuse *reuse = reuse_of(mr);

    if (!memory_is_gone) {
        (void)rs_reuse_begin_need(reuse);
        (void)rs_reuse_wait_for_all(reuse);
    }
    rs_reuse_destroy_epochs(reuse, memory_is_gone);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++)
        rs_record_slab_destroy(&reuse->shards[i].records);
    rs_mutex_destroy(&reuse->ordered.lock);
    rs_mutex_destroy(&reuse->lock);
    rs_published_free(reuse);
}

static const struct rs_mr_ops reuse_ops = {
    .allocate = reuse_allocate,
    .allocate_held = reuse_allocate_held,
    .deallocate = reuse_deallocate,
    .destroy = reuse_destroy,
    .make_ready = reuse_make_ready,
    .moves = reuse_moves,
    .trim = reuse_trim,
    .excess_bytes = reuse_excess_bytes,
    .synchronise = reuse_synchronise,
    .idle_bytes = reuse_idle_bytes,
    .free_blocks = reuse_free_blocks,
    .report = reuse_report,
    .check = reuse_check,
};

/* True when memory may come from a lesser upstream: a block of that must not be handed out again
 * while the better one has room. */
static bool chooses(const struct rs_mr *mr)
{
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        if (chooses(mr->upstream[i]))
            return true;
    return mr->descriptor->upstream_count > 1;
}

static int reuse_create(const struct rs_place *place, const void *config,
                        struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct reuse_config *settings = config;
    struct rs_reuse *reuse = RS_PUBLISHED_NEW(struct rs_reuse);

    if (!reuse)
        return -ENOMEM;
    *reuse = (struct rs_reuse){.place = place, .mode = (enum rs_reuse_mode)settings->free};
    rs_mr_init(&reuse->base, &reuse_ops, &rs_mr_descriptor_reuse, upstream);
    reuse->keeps_blocks = reuse->mode == RS_REUSE_DEFERRED && !chooses(upstream[0]);
    reuse->base.keeps_holders = reuse->keeps_blocks && place->forget_holder;
    reuse->has_fences = rs_fence_supported();
    reuse->is_eager = reuse->has_fences && upstream[0]->memories == 1u << RS_MEMORY_HOST;
    rs_reuse_init_clean(reuse);
    atomic_init(&reuse->eager_bytes, reuse->is_eager ? EAGER_BYTES : SIZE_MAX);
    reuse->initial_bytes = rs_reuse_held_bytes(reuse);
    rs_reuse_ask_room(reuse);
    rs_mutex_init(&reuse->lock);
    rs_mutex_init(&reuse->ordered.lock);
    *out = &reuse->base;
    return 0;
}

static const struct rs_option reuse_options[] = {
    RS_OPTION_WORD_ROW(
        struct reuse_config, free, mode_words, "deferred",
        "a free returns at once and its block waits in quarantine, or the free itself "
        "waits for all earlier work of the context, as cudaFree does"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_reuse = {
    .name = "reuse",
    .summary =
        "a freed block becomes reusable when all earlier work of its context is done; put in "
        "where it is needed",
    .upstream_count = 1,
    .frees = RS_FREE_WAITS,
    .config_bytes = sizeof(struct reuse_config),
    .options = reuse_options,
    .create = reuse_create,
};
