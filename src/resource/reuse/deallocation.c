/* SPDX-License-Identifier: Apache-2.0 */
/* The path of a free through `reuse`: the block enters an open list of its thread's shard, and some
 * frees seal the open lists of all shards. */
#include "resource/reuse/reuse.h"

#include "base/lock.h"
#include "base/request.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"

enum {
    SEAL_COUNT = 128, /* a free seals when a shard has this many open blocks */
    LOOK_EVERY = 16,  /* which frees look whether it is time to seal: the first one after a seal,
                         then each sixteenth and the one after it, ... */
    /* ... and any free that finds this many new open bytes in its shard. */
    LOOK_BYTES = RS_REUSE_SEAL_BYTES / 8,
    UNFENCED_BYTES = 64 << 20, /* freed bytes that may wait for the end of a capture;
                                  is_much_unfenced may allow more */
};

/* True while upstream counts as short: it had no fitting block lately (allocation.c). */
static bool is_short(const struct rs_reuse *reuse)
{
    size_t eager_bytes = rs_reuse_eager_bytes(reuse);

    return !reuse->is_eager && eager_bytes != SIZE_MAX && eager_bytes != RS_REUSE_STARVED;
}

static bool is_starved(const struct rs_reuse *reuse)
{
    return rs_reuse_eager_bytes(reuse) == RS_REUSE_STARVED;
}

/* True when the next allocation will probably need the block being freed now.  Then this free
 * records the fence, not that allocation: a fence recorded later would also cover work that is
 * launched in between, and that work may be waiting for this very thread. */
static bool is_scarce(struct rs_reuse *reuse)
{
    return rs_mr_idle_bytes_best(reuse->base.upstream[0]) <
           rs_reuse_held_bytes(reuse) / RS_REUSE_SCARCE_DIVISOR;
}

/* Returns an estimate of the bytes that the device has left.  With `asks` it asks the driver, which
 * takes 4 us.  Without, it does not know of memory that other processes have, or that the program
 * took from the driver itself.  Never waits. */
static size_t device_left_bytes(const struct rs_reuse *reuse, bool asks)
{
    const struct rs_environment *environment = reuse->base.environment;
    size_t held_bytes = rs_reuse_held_bytes(reuse), free_bytes = SIZE_MAX, total_bytes;
    CUresult result;

    if (asks && rs_driver.cuMemGetInfo_v2) {
        RS_RELAXED_GUARD();
        RS_CONTEXT_GUARD(environment->context, &result);
        if (result == CUDA_SUCCESS &&
            rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
            free_bytes = SIZE_MAX;
    }
    return rs_min(free_bytes,
                  environment->total_bytes - rs_min(held_bytes, environment->total_bytes));
}

/* True when upstream can give less than `bytes`. */
static bool has_less_left(struct rs_reuse *reuse, size_t bytes, bool asks)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    size_t growable_bytes = rs_mr_growable_bytes_best(upstream);

    if (!reuse->is_eager)
        growable_bytes = rs_min(growable_bytes, rs_account_room(reuse->base.environment->account));
    if (upstream->memories & 1u << RS_MEMORY_DEVICE)
        growable_bytes = rs_min(growable_bytes, device_left_bytes(reuse, asks));
    return growable_bytes < bytes && rs_mr_idle_bytes_best(upstream) < bytes - growable_bytes;
}

/* True when upstream can give little more than the bytes that may be open.  It is used where no
 * fence can be had, so that no allocation can wait for open blocks, and one could be refused that
 * the driver alone would have served.  Each free that looks then waits. */
static bool has_little_left(struct rs_reuse *reuse)
{
    return has_less_left(reuse, 2 * rs_reuse_seal_bytes(reuse), false);
}

static size_t live_bytes(struct rs_reuse *reuse)
{
    ptrdiff_t live = reuse->ordered.live_bytes;

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        live += reuse->shards[i].live_bytes;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return live > 0 ? (size_t)live : 0;
}

static size_t peak_bytes(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed);
}

/* Returns by how much the live bytes are below their peak, or below `at_least` if that is more than
 * the peak. */
static size_t bytes_to_peak(struct rs_reuse *reuse, size_t at_least)
{
    size_t most_bytes = rs_max(peak_bytes(reuse), at_least);

    return most_bytes - rs_min(live_bytes(reuse), most_bytes);
}

/* True when what upstream has idle and may still take is less than the program needs to reach its
 * peak of live bytes again, with a margin.  It is asked while a stream captures, since then
 * freed blocks get no fence until the capture ends. */
static bool may_lack(struct rs_reuse *reuse)
{
    return has_less_left(
        reuse, bytes_to_peak(reuse, 0) + rs_min(peak_bytes(reuse), 2 * rs_reuse_seal_bytes(reuse)),
        true);
}

__attribute__((noinline)) static bool is_time_to_seal(struct rs_reuse *reuse, size_t open_bytes,
                                                      size_t opened)
{
    int refusal = atomic_load_explicit(&reuse->refusal, memory_order_relaxed);

    if (rs_reuse_has_backlog(reuse))
        rs_reuse_give_backlog(reuse);
    if (opened >= SEAL_COUNT ||
        (open_bytes >= RS_REUSE_SEAL_BYTES && open_bytes >= rs_reuse_seal_bytes(reuse)))
        return true;
    if (is_short(reuse) && (opened >= LOOK_EVERY || open_bytes >= rs_reuse_eager_bytes(reuse)))
        return true;
    if (RS_UNLIKELY(refusal != RS_FENCE_GRANTED)) {
        if (refusal == RS_FENCE_REFUSED)
            return has_little_left(reuse);
        if (refusal == RS_FENCE_CAPTURES && may_lack(reuse))
            return true;
    }
    return opened % LOOK_EVERY == 1 && !(opened == 1 && rs_reuse_is_crowded(reuse)) &&
           is_scarce(reuse);
}

_Static_assert(SEAL_COUNT % LOOK_EVERY == 0, "is_time_to_look looks at one remainder");

/* True when a free looks whether it is time to seal. opened: open blocks in the shard; new_bytes:
 * bytes since the shard last published its open bytes.  Even with RS_REUSE_SEAL_BYTES open, not
 * every free looks: with two threads, an allocation and free of 1 MiB took half as long again when
 * every free looked. */
RS_HOT_INLINE bool is_time_to_look(size_t opened, size_t new_bytes)
{
    return RS_UNLIKELY((opened % LOOK_EVERY <= 1) | opened / SEAL_COUNT | new_bytes / LOOK_BYTES);
}

/* Returns the open bytes of all shards: this shard's own, and those that the others have published.
 * Without a sum over all shards, each freeing thread could have as many bytes open as all together
 * may.  Small amounts are not published, since all threads write the cache line of the sum.  The
 * caller holds the shard's lock. */
static size_t open_in_all(struct rs_reuse *reuse, struct rs_reuse_shard *shard, size_t open_bytes)
{
    size_t new_bytes = open_bytes - shard->published_bytes;

    if (new_bytes < LOOK_BYTES)
        return atomic_load_explicit(&reuse->open_bytes, memory_order_relaxed) + new_bytes;
    shard->published_bytes = open_bytes;
    return atomic_fetch_add_explicit(&reuse->open_bytes, new_bytes, memory_order_relaxed) +
           new_bytes;
}

/* Counts a block that enters the quarantine.  The caller holds the shard's lock, so plain stores
 * suffice. */
RS_HOT_INLINE void count_entered(struct rs_reuse_shard *shard, size_t size_bytes)
{
    atomic_store_explicit(&shard->entered_bytes, shard->entered_bytes + size_bytes,
                          memory_order_relaxed);
    atomic_store_explicit(&shard->entered_count, shard->entered_count + 1, memory_order_relaxed);
}

/* True for a free that seals even if is_time_to_seal says no, since its block is large.  While
 * upstream is short and many epochs wait, no free does so. */
RS_HOT_INLINE bool seals_at_once(const struct rs_reuse *reuse, size_t size_bytes)
{
    return RS_UNLIKELY(size_bytes >= rs_reuse_eager_bytes(reuse)) &&
           !(is_short(reuse) && rs_reuse_is_crowded(reuse));
}

/* Enters a freed block into an open list of the thread's shard.  Returns true when it is time to
 * seal.  ordered: NULL, or, for a block that was freed in the order of a stream, the bytes and
 * number of open ordered blocks; such a block has been counted already. */
RS_HOT_INLINE bool enter_open(struct rs_reuse *reuse, struct rs_block_record *record,
                              const struct rs_reuse_quantity *ordered)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    size_t size_bytes = record->upstream_bytes, opened, open_bytes;
    bool is_own = (size_bytes <= atomic_load_explicit(&reuse->own_bytes, memory_order_relaxed)) &
                  (record->home == shard->index);
    bool looks;

    RS_ASSERT_SLOW(!record->is_ordered && size_bytes > 0);
    rs_spinlock_lock(&shard->lock);
    if (!ordered) {
        count_entered(shard, size_bytes);
        shard->live_bytes -= (ptrdiff_t)size_bytes;
    }
    rs_block_list_push(is_own ? &shard->open : &shard->open_rest, record);
    opened = shard->open.count + shard->open_rest.count + (ordered ? ordered->blocks : 0);
    open_bytes = shard->open.bytes + shard->open_rest.bytes;
    looks = is_time_to_look(opened, open_bytes - shard->published_bytes);
    if (looks)
        open_bytes = open_in_all(reuse, shard, open_bytes) + (ordered ? ordered->bytes : 0);
    rs_spinlock_unlock(&shard->lock);
    return looks && is_time_to_seal(reuse, open_bytes, opened);
}

/* Enters a block that was freed in the order of a stream into a slot.  A block that it replaces
 * there joins the open list, and its fence may then be later than it would have been.  Returns true
 * when it is time to seal. */
static bool ordered_push(struct rs_reuse *reuse, struct rs_block_record *record,
                         unsigned long long stream)
{
    struct rs_reuse_quantity open;
    struct rs_block_record *replaced;

    atomic_fetch_add_explicit(&reuse->ordered_bytes, record->upstream_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&reuse->ordered_count, 1, memory_order_relaxed);
    replaced = rs_ordered_push(&reuse->ordered, record, stream, &open);
    if (replaced)
        return enter_open(reuse, replaced, &open);
    return is_time_to_look(open.blocks, open.bytes) &&
           is_time_to_seal(reuse, open.bytes, open.blocks);
}

/* Ends RS_REUSE_STARVED, so that only the first free after the refused allocation waits, and only
 * if it gets no fence. */
static void end_starvation(struct rs_reuse *reuse)
{
    if (is_starved(reuse))
        atomic_store_explicit(&reuse->eager_bytes, SIZE_MAX, memory_order_relaxed);
}

/* Does the full wait of one free, and returns its result.  Without fences it also makes the open
 * blocks ready, which nothing else would do. */
static CUresult wait_fully(struct rs_reuse *reuse)
{
    if (!rs_fence_supported()) {
        end_starvation(reuse);
        return rs_reuse_wait_for_all(reuse);
    }
    rs_reuse_count(&reuse->full_waits, 1);
    return rs_sentinel_wait(reuse->base.environment->sentinel, reuse->base.environment->context);
}

/* Counts a block as freed that does not go through the quarantine. */
static void uncount_live(struct rs_reuse *reuse, const struct rs_block_record *block)
{
    struct rs_reuse_shard *home = &reuse->shards[block->home];

    RS_ASSERT(block->home < rs_reuse_shards_used(reuse) && !block->is_ordered);
    rs_spinlock_lock(&home->lock);
    home->live_bytes -= (ptrdiff_t)block->upstream_bytes;
    rs_spinlock_unlock(&home->lock);
}

/* Frees as cudaFree does: on return no work uses the block, which is upstream.  Two kinds of frees
 * do not wait, and leave their blocks open: a free inside a request, such as that of an exported
 * block that the other process has now closed; and a free while the device has no memory for a
 * sentinel.  A free in the order of a stream never comes here, as cuMemFreeAsync does not wait. */
__attribute__((noinline)) static CUresult deallocate_waiting(struct rs_reuse *reuse,
                                                             const struct rs_allocation *allocation)
{
    struct rs_block_record *record = allocation->token;
    const struct rs_allocation upstream = rs_freed_upstream(record);
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_request_is_under_way() ? CUDA_ERROR_OUT_OF_MEMORY : wait_fully(reuse);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        (void)enter_open(reuse, record, NULL);
        return CUDA_SUCCESS;
    }
    rs_reuse_count(&reuse->wait_ns, rs_clock_ns() - begin_ns);
    if (result != CUDA_SUCCESS)
        return result;
    rs_block_hide(record);
    result = rs_mr_deallocate_at_once(reuse->base.upstream[0], &upstream);
    if (result == CUDA_SUCCESS) {
        uncount_live(reuse, record);
        rs_block_record_give(record);
    }
    return result;
}

/* True when this thread's shard has open blocks, or ordered blocks are open.  It has none if
 * another thread has sealed them meanwhile, as happens when many threads find at once that it is
 * time to seal. */
static bool has_own_open(struct rs_reuse *reuse)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    bool found;

    rs_spinlock_lock(&shard->lock);
    found = shard->open.first || shard->open_rest.first;
    rs_spinlock_unlock(&shard->lock);
    return found || rs_ordered_open_count(&reuse->ordered);
}

/* Counts a seal, and ends upstream's shortage after RS_REUSE_SHORT_SEALS of them (a little early or
 * late when several threads count at the same time).  If fences are refused for good, the shortage
 * ends at once, since each further seal would be a wait. */
static void count_seal(struct rs_reuse *reuse, enum rs_fence_refusal refusal)
{
    if (is_short(reuse) &&
        (refusal == RS_FENCE_REFUSED ||
         atomic_fetch_sub_explicit(&reuse->short_seals, 1, memory_order_relaxed) <= 1))
        atomic_store_explicit(&reuse->eager_bytes, SIZE_MAX, memory_order_relaxed);
}

/* True when upstream can hardly grow (an arena takes all its memory when it is made), so that
 * allocations depend on ready blocks. */
static bool is_capped(const struct rs_reuse *reuse)
{
    return rs_min(rs_mr_growable_bytes_best(reuse->base.upstream[0]),
                  rs_account_room(reuse->base.environment->account)) < UNFENCED_BYTES;
}

/* True when too many freed bytes wait for the end of a capture, which may take long.  The bound is
 * UNFENCED_BYTES, or, if that is more, what the program would hold anyway: its peak or the initial
 * size, less the live bytes.  If upstream can hardly grow, the bound is at most upstream's idle
 * bytes, since allocations get only those, and do not wait. */
static bool is_much_unfenced(struct rs_reuse *reuse)
{
    size_t bytes = rs_reuse_quarantined(reuse).bytes;

    return is_capped(reuse)
               ? bytes >= rs_min(UNFENCED_BYTES, rs_mr_idle_bytes_best(reuse->base.upstream[0]))
               : bytes >= rs_max(UNFENCED_BYTES, bytes_to_peak(reuse, reuse->initial_bytes));
}

/* True when a free waits because its seal was refused.  Host memory seals at each free that is not
 * small, and must not wait each time. */
static bool is_time_to_wait(struct rs_reuse *reuse, enum rs_fence_refusal refusal)
{
    if (refusal == RS_FENCE_REFUSED)
        return !reuse->is_eager || has_little_left(reuse) ||
               rs_reuse_quarantined(reuse).bytes >= rs_reuse_seal_bytes(reuse);
    return refusal == RS_FENCE_CAPTURES &&
           (is_starved(reuse) || may_lack(reuse) || is_much_unfenced(reuse));
}

/* Called when the driver's answer to this free's seal shows that work of the context has failed.
 * Makes the block live again and returns the context's error, as the driver's own free would;
 * CUDA_SUCCESS if the block is no longer open. */
static CUresult fail_free(struct rs_reuse *reuse, struct rs_block_record *record)
{
    CUresult result =
        rs_sentinel_wait(reuse->base.environment->sentinel, reuse->base.environment->context);

    return rs_is_fault(result) && rs_reuse_take_back(reuse, record) ? result : CUDA_SUCCESS;
}

/* Ends a free whose seal got no fence, or that comes after a refused allocation.  The free may wait
 * as cudaFree does, which an allocation may not.  The wait's error is one of the context, and the
 * program's next call returns it.  A free in the order of a stream waits only if fences are refused
 * for good, since freed blocks would then pile up. */
RS_COLD static CUresult after_seal(struct rs_reuse *reuse, enum rs_fence_refusal refusal,
                                   struct rs_block_record *record, CUstream stream)
{
    if (rs_request_is_under_way())
        return CUDA_SUCCESS;
    if (refusal == RS_FENCE_FAULTY && !stream)
        return fail_free(reuse, record);
    if ((!stream || refusal == RS_FENCE_REFUSED) && is_time_to_wait(reuse, refusal))
        (void)rs_reuse_wait_for_all(reuse);
    end_starvation(reuse);
    return CUDA_SUCCESS;
}

__attribute__((noinline)) static CUresult seal_after_free(struct rs_reuse *reuse,
                                                          struct rs_block_record *record,
                                                          size_t size_bytes, CUstream stream)
{
    enum rs_fence_refusal refusal;

    if (!has_own_open(reuse))
        return CUDA_SUCCESS;
    refusal = rs_reuse_advance(reuse, reuse->is_eager || size_bytes >= rs_reuse_seal_bytes(reuse));
    count_seal(reuse, refusal);
    return RS_LIKELY(refusal == RS_FENCE_GRANTED && !is_starved(reuse))
               ? CUDA_SUCCESS
               : after_seal(reuse, refusal, record, stream);
}

__attribute__((noinline)) static CUresult
deallocate_in_order(struct rs_reuse *reuse, const struct rs_allocation *allocation, CUstream stream)
{
    struct rs_block_record *record = allocation->token;
    size_t size_bytes =
        record->upstream_bytes; /* read now: after the push the record may be another thread's */
    unsigned long long key;
    bool in_order =
        rs_stream_key_to_free(stream, reuse->base.environment->context, record->stream, &key);
    bool time_to_seal;

    time_to_seal = in_order ? ordered_push(reuse, record, key) : enter_open(reuse, record, NULL);
    return time_to_seal || seals_at_once(reuse, size_bytes)
               ? seal_after_free(reuse, record, size_bytes, stream)
               : CUDA_SUCCESS;
}

RS_HOT CUresult rs_reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    struct rs_block_record *record = allocation->token;
    size_t size_bytes =
        record->upstream_bytes; /* read now: after the push the record may be another thread's */

    if (RS_UNLIKELY((uintptr_t)stream | reuse->frees_wait))
        return stream ? deallocate_in_order(reuse, allocation, stream)
                      : deallocate_waiting(reuse, allocation);
    return RS_UNLIKELY(enter_open(reuse, record, NULL) || seals_at_once(reuse, size_bytes))
               ? seal_after_free(reuse, record, size_bytes, NULL)
               : CUDA_SUCCESS;
}
