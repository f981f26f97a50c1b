/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs: the blocks that were open at one time, sealed behind one event of the context
 * (driver/fence.h).  No later free joins an epoch.  When the event is done, the blocks are ready.
 *
 * A GPU that is stuck behind one long operation retires no epoch, and a program may free millions
 * of blocks meanwhile.  So there are at most RS_REUSE_EPOCHS epochs: each further seal merges two
 * neighbours, whose blocks then wait for the younger of the two fences.  Each merge takes the next
 * pair in turn, so that older epochs are larger, and a block waits only a small share longer than
 * it would without merges.  The oldest epoch is never merged, as threads wait for it.  No step of a
 * seal or of a merge depends on the number of blocks. */
#include "base/lock.h"
#include "driver/fence.h"
#include "resource/reuse/reuse.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SPIN_NS = 50 * 1000, /* a wait polls for 50 us, then sleeps */
    NAP_NS = 20 * 1000,
    LOOK_NS = 20, /* by how much each poll advances rs_clock_ns if the program's clock stands still;
                     a poll takes longer */

    /* A free queries fences at this many sealed epochs, or at 1/ASK_DIVISOR of the held bytes in
     * them.  A free of a large block, each of which seals an epoch, does so at ASK_LARGE_EPOCHS. */
    ASK_EPOCHS = 2,
    ASK_DIVISOR = 64,
    ASK_LARGE_EPOCHS = 4,

    LOCK_TURNS = 180, /* tries of lock_in_passing; the last 36 sleep, 9 ms in all */

    CROWD = 16, /* with this many epochs behind a stuck GPU, frees seal larger portions */

    /* retire_locked queries the youngest fence first.  While 8 or more epochs are left it skips 1/8
     * of them after each query; of fewer it queries each. */
    EXACT_DIVISOR = 8,

    /* The most blocks that one call gives upstream, at 0.2 to 0.9 us each; blocks that go back to a
     * shard do not count.  AT_ONCE: in a free that retires epochs.  IN_PASSING: in a free that only
     * looks at the backlog, which is enough to keep up with the frees.  IN_NEED: in one step of the
     * slow path. */
    AT_ONCE = 128,
    IN_PASSING = 8,
    IN_NEED = 512,
};

struct rs_reuse_epoch {
    struct rs_reuse_epoch *next; /* in the list of spare epochs */
    struct rs_reuse_batch blocks;
    uint64_t ordered_seal; /* the seal of its ordered blocks (rs_ordered_begin_seal); 0: it has none
                            */
    size_t bytes;          /* the bytes of `blocks` */
    unsigned seals;        /* the number of seals that were merged into this epoch */
    CUevent event;
    bool timed_out; /* a wait for this epoch timed out, so it is not waited for again */
};

static struct rs_reuse_epoch *take_epoch(struct rs_reuse *reuse)
{
    struct rs_reuse_epoch *epoch = reuse->spare;

    if (epoch) {
        reuse->spare = epoch->next;
        return epoch;
    }
    epoch = calloc(1, sizeof(*epoch));
    if (!epoch)
        return NULL;
    epoch->event = rs_fence_create(reuse->base.environment->context);
    if (!epoch->event) {
        free(epoch);
        return NULL;
    }
    return epoch;
}

static void spare_epoch(struct rs_reuse *reuse, struct rs_reuse_epoch *epoch)
{
    RS_ASSERT_SLOW(rs_reuse_batch_is_empty(reuse, &epoch->blocks));
    epoch->next = reuse->spare;
    reuse->spare = epoch;
}

static void remove_sealed(struct rs_reuse *reuse, unsigned at, unsigned count)
{
    RS_ASSERT(at + count <= reuse->sealed_count);
    reuse->sealed_count -= count;
    memmove(&reuse->sealed[at], &reuse->sealed[at + count],
            /* NOLINTNEXTLINE(bugprone-sizeof-expression): the array has pointers */
            (reuse->sealed_count - at) * sizeof(reuse->sealed[0]));
}

/* Merges an epoch with its younger neighbour.  The younger fence covers the work of the older one.
 */
static void merge_with_next(struct rs_reuse *reuse, unsigned at)
{
    struct rs_reuse_epoch *older = reuse->sealed[at], *younger = reuse->sealed[at + 1];
    CUevent event = older->event;

    RS_ASSERT(at > 0 && at + 1 < reuse->sealed_count); /* threads wait for the oldest epoch */
    rs_reuse_batch_append(reuse, &older->blocks, &younger->blocks);
    older->ordered_seal = rs_max(older->ordered_seal, younger->ordered_seal);
    older->bytes += younger->bytes;
    older->seals += younger->seals;
    older->event = younger->event;
    younger->event = event;
    remove_sealed(reuse, at + 1, 1);
    spare_epoch(reuse, younger);
}

static void make_room_for_epoch(struct rs_reuse *reuse)
{
    if (reuse->sealed_count < RS_REUSE_EPOCHS)
        return;
    if (reuse->merge_at == 0 || reuse->merge_at + 1 >= reuse->sealed_count)
        reuse->merge_at = 1;
    merge_with_next(reuse, reuse->merge_at++);
}

static void note_crowd(struct rs_reuse *reuse)
{
    bool crowded = reuse->is_stuck && reuse->sealed_count >= CROWD;

    if (crowded != rs_reuse_is_crowded(reuse))
        atomic_store_explicit(&reuse->is_crowded, crowded, memory_order_relaxed);
}

/* Tells the job that the program has freed memory, except host memory, which counts against no
 * limit. */
static void tell_job_of_freed(struct rs_reuse *reuse, size_t sealed_bytes)
{
    if (reuse->base.upstream[0]->memories != 1u << RS_MEMORY_HOST)
        rs_account_freed(reuse->base.environment->account, sealed_bytes);
}

static void note_fault(const struct rs_reuse *reuse)
{
    if (reuse->base.environment->note_fault)
        reuse->base.environment->note_fault(reuse->base.environment);
}

/* Seals the open blocks.  Gathers them first and then records the fence: in the other order a block
 * freed in between would join an epoch whose fence does not cover its work.  Returns false when no
 * block was open or no fence could be had. */
static bool seal_locked(struct rs_reuse *reuse)
{
    struct rs_reuse_epoch *epoch = rs_fence_supported() ? take_epoch(reuse) : NULL;
    enum rs_fence_refusal refusal = RS_FENCE_REFUSED;
    bool fenced = false, any;
    size_t sealed_bytes;

    if (epoch) {
        rs_reuse_gather(reuse, &epoch->blocks);
        epoch->bytes = rs_reuse_batch_size(reuse, &epoch->blocks).bytes;
        epoch->ordered_seal =
            atomic_load(&reuse->ordered.is_used) ? rs_ordered_begin_seal(&reuse->ordered) : 0;
        any = epoch->ordered_seal > 0 || epoch->bytes > 0;
        /* The refusal stays as it was when no block is open. */
        refusal = (enum rs_fence_refusal)reuse->refusal;
        fenced = any && rs_fence_record(reuse->base.environment->context, epoch->event, &refusal);
        if (fenced) {
            make_room_for_epoch(reuse);
            RS_ASSERT(reuse->sealed_count < RS_REUSE_EPOCHS);
            reuse->epochs_bytes += epoch->bytes;
            epoch->timed_out = false;
            epoch->seals = 1;
            reuse->sealed[reuse->sealed_count++] = epoch;
            rs_reuse_count(&reuse->sealed_epochs, 1);
            sealed_bytes = epoch->bytes;
            if (epoch->ordered_seal > 0)
                sealed_bytes += rs_ordered_end_seal(&reuse->ordered, epoch->ordered_seal);
            tell_job_of_freed(reuse, sealed_bytes);
        } else {
            rs_reuse_put_back(reuse, &epoch->blocks);
            spare_epoch(reuse, epoch);
            if (refusal == RS_FENCE_FAULTY)
                note_fault(reuse);
        }
    }
    note_crowd(reuse);
    atomic_store_explicit(&reuse->refusal, refusal, memory_order_relaxed);
    return fenced;
}

bool rs_reuse_seal(struct rs_reuse *reuse)
{
    RS_MUTEX_GUARD(&reuse->lock);

    return seal_locked(reuse);
}

/* Moves ready ordered blocks (freed in the order of a stream) to the list until it has `count`.
 * The blocks that are left stay in their slots, where allocations on their streams may still take
 * them. */
static void take_ready_ordered(struct rs_reuse *reuse, size_t count, struct rs_block_list *list)
{
    if (reuse->ready_seal > 0 && list->count < count &&
        !rs_ordered_drain(&reuse->ordered, 0, reuse->ready_seal, count - list->count, list))
        reuse->ready_seal = 0;
}

static void note_backlog(struct rs_reuse *reuse)
{
    bool has = reuse->backlog.first || reuse->ready_seal > 0;

    if (has != atomic_load_explicit(&reuse->has_backlog, memory_order_relaxed))
        atomic_store_explicit(&reuse->has_backlog, has, memory_order_relaxed);
}

/* Moves one block of the backlog to the list, and prefetches the lines that the way upstream
 * writes, since the block was freed long ago. */
static void take_one(struct rs_reuse *reuse, struct rs_block_list *list)
{
    struct rs_block_record *freed = rs_block_list_pop(&reuse->backlog);

    rs_block_record_prefetch(freed);
    __builtin_prefetch(freed->upstream_token, 1);
    rs_block_list_push(list, freed);
}

/* Moves blocks of the backlog to the list until it has `count`. */
static void take_backlog(struct rs_reuse *reuse, size_t count, struct rs_block_list *list)
{
    while (list->count < count && reuse->backlog.first) {
        if (reuse->backlog.count <= count - list->count)
            rs_block_list_append(list, &reuse->backlog);
        else
            take_one(reuse, list);
    }
    take_ready_ordered(reuse, count, list);
    note_backlog(reuse);
}

/* Moves the blocks of ready->rest to the backlog if they are more than `most`, as it would take too
 * long to give them upstream now.  Blocks that go back to their shard in one piece take no time.
 * While a thread is on the slow path none go back, so all count. */
static void leave_backlog(struct rs_reuse *reuse, struct rs_reuse_batch *ready, size_t most)
{
    if (atomic_load(&reuse->on_slow_path) > 0)
        for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++)
            rs_block_list_append(&ready->rest, &ready->own[i]);
    if (ready->rest.count > most)
        rs_block_list_append(&reuse->backlog, &ready->rest);
    else
        take_ready_ordered(reuse, most, &ready->rest);
    note_backlog(reuse);
}

void rs_reuse_add_backlog(struct rs_reuse *reuse, struct rs_block_list *list)
{
    RS_MUTEX_GUARD(&reuse->lock);

    rs_block_list_append(&reuse->backlog, list);
    note_backlog(reuse);
}

void rs_reuse_give_backlog(struct rs_reuse *reuse)
{
    struct rs_block_list list = {NULL, NULL, 0, 0};

    if (!rs_mutex_try_lock(&reuse->lock))
        return;
    take_backlog(reuse, IN_PASSING, &list);
    rs_mutex_unlock(&reuse->lock);
    if (list.first)
        rs_reuse_give_upstream(reuse, &list);
}

/* Takes the blocks of the `count` oldest epochs.  The youngest fence among them is done, and covers
 * the work of the others, as it was recorded after them.  (rs_reuse_destroy_epochs calls this when
 * nothing uses the blocks any more.) */
RS_HOT_INLINE void take_through(struct rs_reuse *reuse, unsigned count,
                                struct rs_reuse_batch *ready)
{
    RS_ASSERT(count <= reuse->sealed_count);
    for (unsigned i = 0; i < count; i++) {
        struct rs_reuse_epoch *epoch = reuse->sealed[i];
        RS_ASSERT(epoch->seals > 0 && reuse->epochs_bytes >= epoch->bytes);
        rs_reuse_batch_append(reuse, ready, &epoch->blocks);
        reuse->ready_seal = rs_max(reuse->ready_seal, epoch->ordered_seal);
        reuse->epochs_bytes -= epoch->bytes;
        rs_reuse_count(&reuse->retired_epochs, epoch->seals);
        spare_epoch(reuse, epoch);
    }
    remove_sealed(reuse, 0, count);
    RS_ASSERT(reuse->sealed_count > 0 || reuse->epochs_bytes == 0);
    reuse->merge_at -= rs_min(reuse->merge_at, count);
}

/* Queries the fence of the count-th oldest epoch, and takes the blocks it covers if it is done.
 *
 * On an H200 the driver takes 1.3 us to answer that an event is done, however often it has said so
 * before, and 0.17 us to answer that it is not (tests/bench, group fence).  So young epochs are
 * queried first: only the last answer is the expensive one, and it holds for all older epochs. */
static enum rs_fence_state ask_locked(struct rs_reuse *reuse, unsigned count,
                                      struct rs_reuse_batch *ready)
{
    struct rs_reuse_epoch *epoch = reuse->sealed[count - 1];
    enum rs_fence_state state = rs_fence_query(reuse->base.environment->context, epoch->event);

    if (state == RS_FENCE_DONE)
        take_through(reuse, count, ready);
    else if (state == RS_FENCE_FAULT)
        note_fault(reuse);
    reuse->is_stuck = count == 1 && state == RS_FENCE_PENDING;
    note_crowd(reuse);
    return state;
}

/* If the oldest epoch was pending last time, queries it first and returns its state: while it is
 * pending, all epochs are.  Else returns RS_FENCE_DONE. */
static enum rs_fence_state ask_if_stuck(struct rs_reuse *reuse, struct rs_reuse_batch *ready)
{
    return reuse->is_stuck ? ask_locked(reuse, 1, ready) : RS_FENCE_DONE;
}

/* Takes the blocks of all epochs whose fences are done.  Returns the state of the oldest fence
 * left: RS_FENCE_DONE when there is none. */
static enum rs_fence_state retire_locked(struct rs_reuse *reuse, struct rs_reuse_batch *ready)
{
    enum rs_fence_state state = ask_if_stuck(reuse, ready);
    unsigned unknown = reuse->sealed_count, count; /* the `unknown` oldest epochs may be done */

    while (unknown > 0 && state == RS_FENCE_DONE) {
        for (count = unknown; count > 0; count -= 1 + count / EXACT_DIVISOR) {
            state = ask_locked(reuse, count, ready);
            if (state != RS_FENCE_PENDING)
                break;
            unknown = count - 1;
        }
        unknown -= count;
    }
    RS_ASSERT(unknown <= reuse->sealed_count);
    if (state == RS_FENCE_DONE && reuse->sealed_count)
        state = RS_FENCE_PENDING;
    reuse->is_stuck = state == RS_FENCE_PENDING;
    note_crowd(reuse);
    return state;
}

/* Retires the epochs whose fences are done, and gives ready blocks to shards or upstream.  Returns
 * true when there were any.  At most `most` blocks go upstream now; the others are left in the
 * backlog.  *oldest: set to what retire_locked returns. */
static bool retire_and_look(struct rs_reuse *reuse, size_t most, enum rs_fence_state *oldest)
{
    struct rs_reuse_batch ready = rs_reuse_no_batch;
    bool any;

    rs_mutex_lock(&reuse->lock);
    *oldest = retire_locked(reuse, &ready);
    if (most < SIZE_MAX)
        leave_backlog(reuse, &ready, most);
    take_backlog(reuse, most, &ready.rest);
    rs_mutex_unlock(&reuse->lock);
    any = !rs_reuse_batch_is_empty(reuse, &ready);
    if (any)
        rs_reuse_give_ready(reuse, &ready);
    RS_ASSERT_SLOW(reuse->base.ops.check(&reuse->base));
    return any;
}

static bool asks_in_passing(const struct rs_reuse *reuse, bool is_large)
{
    unsigned count = reuse->sealed_count;

    return is_large ? count >= ASK_LARGE_EPOCHS
                    : count >= ASK_EPOCHS ||
                          reuse->epochs_bytes >= rs_reuse_held_bytes(reuse) / ASK_DIVISOR;
}

/* Retires epochs for a free, with few queries: of the youngest epoch first, then each time of the
 * one half way to the oldest, until one is done or the oldest is pending.  An allocation that needs
 * more makes its own queries. */
static void retire_in_passing(struct rs_reuse *reuse, struct rs_reuse_batch *ready)
{
    unsigned count;

    if (ask_if_stuck(reuse, ready) != RS_FENCE_DONE)
        return;
    count = reuse->sealed_count;
    while (count > 0 && ask_locked(reuse, count, ready) == RS_FENCE_PENDING)
        count /= 2;
}

/* Tries to take the lock, and returns true when it did.  Does not wait for the lock, since its
 * holder may be this very thread: a tool's callback from one of our driver calls may free memory.
 * While streams capture it tries for some milliseconds, since a free that misses the lock would not
 * wait where it should, and nothing else would make its block ready. */
static bool lock_in_passing(struct rs_reuse *reuse)
{
    bool locked = rs_mutex_try_lock(&reuse->lock);

    for (unsigned turn = 0; RS_UNLIKELY(!locked) && turn < LOCK_TURNS &&
                            atomic_load(&reuse->refusal) == RS_FENCE_CAPTURES;
         turn++) {
        rs_pause(turn);
        locked = rs_mutex_try_lock(&reuse->lock);
    }
    return locked;
}

/* On a driver without fences, this makes no driver call under the lock. */
enum rs_fence_refusal rs_reuse_advance(struct rs_reuse *reuse, bool is_large)
{
    enum rs_fence_refusal refusal = RS_FENCE_GRANTED;
    struct rs_reuse_batch ready; /* has many lists, so it is set only where blocks may be ready */
    bool asks, any;

    if (!lock_in_passing(reuse))
        return rs_fence_supported() ? refusal : RS_FENCE_REFUSED;
    /* Fences are queried before the seal, whose own fence cannot be done yet. */
    asks = asks_in_passing(reuse, is_large);
    any = asks || reuse->ready_seal > 0;
    if (any)
        ready = rs_reuse_no_batch;
    if (asks)
        retire_in_passing(reuse, &ready);
    if (any)
        leave_backlog(reuse, &ready, AT_ONCE);
    if (!seal_locked(reuse))
        refusal = (enum rs_fence_refusal)reuse->refusal;
    rs_mutex_unlock(&reuse->lock);
    if (any && !rs_reuse_batch_is_empty(reuse, &ready))
        rs_reuse_give_ready(reuse, &ready);
    return refusal;
}

bool rs_reuse_retire(struct rs_reuse *reuse)
{
    enum rs_fence_state oldest;

    return retire_and_look(reuse, SIZE_MAX, &oldest);
}

bool rs_reuse_retire_some(struct rs_reuse *reuse)
{
    enum rs_fence_state oldest;

    return retire_and_look(reuse, IN_NEED, &oldest);
}

/* ---- waiting ---- */

bool rs_reuse_has_sealed(struct rs_reuse *reuse, bool not_timed_out)
{
    RS_MUTEX_GUARD(&reuse->lock);

    return reuse->sealed_count && !(not_timed_out && reuse->sealed[0]->timed_out);
}

static void give_up_first(struct rs_reuse *reuse)
{
    RS_MUTEX_GUARD(&reuse->lock);

    if (reuse->sealed_count)
        reuse->sealed[0]->timed_out = true;
    rs_reuse_count(&reuse->timeouts, 1);
}

void rs_reuse_nap(void)
{
    rs_nap(NAP_NS);
}

bool rs_reuse_wait_for_first(struct rs_reuse *reuse, uint64_t limit_ns)
{
    uint64_t begin_ns = rs_clock_ns(), waited_ns = 0;
    uint64_t before = atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed);
    enum rs_fence_state oldest;
    bool retired = retire_and_look(reuse, SIZE_MAX, &oldest);

    while (!retired && oldest == RS_FENCE_PENDING && waited_ns < limit_ns) {
        if (waited_ns > SPIN_NS)
            rs_reuse_nap();
        else
            rs_clock_note_slept(LOOK_NS);
        retired = retire_and_look(reuse, SIZE_MAX, &oldest) ||
                  atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed) != before;
        waited_ns = rs_clock_ns() - begin_ns;
    }
    rs_reuse_count(&reuse->waits, 1);
    rs_reuse_count(&reuse->wait_ns, waited_ns);
    return retired || oldest == RS_FENCE_DONE;
}

bool rs_reuse_wait_once(struct rs_reuse *reuse, uint64_t limit_ns)
{
    (void)rs_reuse_seal(reuse);
    if (!rs_reuse_has_sealed(reuse, true))
        return false;
    if (!rs_reuse_wait_for_first(reuse, limit_ns))
        give_up_first(reuse);
    return true;
}

void rs_reuse_take_open(struct rs_reuse *reuse, struct rs_reuse_batch *open)
{
    RS_MUTEX_GUARD(&reuse->lock);

    rs_reuse_gather(reuse, open);
    (void)rs_ordered_drain(&reuse->ordered, reuse->ordered.sealed, UINT64_MAX, SIZE_MAX,
                           &open->rest);
}

CUresult rs_reuse_wait_for_all(struct rs_reuse *reuse)
{
    struct rs_reuse_batch ready = rs_reuse_no_batch;
    CUresult result;

    rs_reuse_take_open(reuse, &ready);
    rs_reuse_count(&reuse->full_waits, 1);
    result = rs_sentinel_wait(reuse->base.environment->sentinel, reuse->base.environment->context);
    if (rs_is_fault(result))
        note_fault(reuse);
    if (result == CUDA_SUCCESS)
        rs_reuse_give_ready(reuse, &ready);
    else
        rs_reuse_put_back(reuse, &ready);
    (void)rs_reuse_retire(reuse);
    return result;
}

/* ---- sums and the end ---- */

struct rs_reuse_quantity rs_reuse_in_epochs(const struct rs_reuse *reuse)
{
    struct rs_reuse_quantity sum = {reuse->backlog.bytes, reuse->backlog.count};

    for (unsigned i = 0; i < reuse->sealed_count; i++) {
        struct rs_reuse_quantity size = rs_reuse_batch_size(reuse, &reuse->sealed[i]->blocks);
        sum.bytes += size.bytes;
        sum.blocks += size.blocks;
    }
    return sum;
}

void rs_reuse_destroy_epochs(struct rs_reuse *reuse)
{
    struct rs_reuse_batch ready = rs_reuse_no_batch;
    struct rs_reuse_epoch *epoch;

    take_through(reuse, reuse->sealed_count, &ready);
    while ((epoch = reuse->spare)) {
        reuse->spare = epoch->next;
        if (!reuse->memory_is_gone)
            rs_fence_destroy(epoch->event);
        free(epoch);
    }
    take_backlog(reuse, SIZE_MAX, &ready.rest);
    rs_reuse_give_ready(reuse, &ready);
}
