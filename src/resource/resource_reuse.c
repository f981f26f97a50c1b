/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: lets a freed block be handed out again only when all work that its context had been given
 * before the free is done, which is what cudaFree guarantees by stopping the world.
 *
 * Freed blocks gather in open lists, one per group of threads.  By need (bytes, count, an
 * allocation that finds nothing clean) the lists are sealed into an epoch, which no free can join
 * any more, and the epoch is then fenced by one context event (driver/fence.h).  When the event is
 * done the epoch's blocks are clean and go upstream.  Nobody waits in a free, and an allocation
 * waits only when it would otherwise grow past what the program ever used at once, and then for a
 * bounded time: the work it waits for may itself wait for this thread.
 *
 * Clean blocks that are not large stay with the group of threads that allocated them, by size, up
 * to a share of what is held: the next request for just that size costs neither upstream's search
 * nor a record, not even its holder's.  They go upstream before anything more is taken from there.
 * Whoever finds an epoch done gives each group its blocks in one piece; the group's next allocation
 * that finds nothing by size sorts them.
 *
 * Host memory is sealed at each free that is not small and looked at by the next such allocation,
 * and the last large block stays with its threads too, so that a loop over one buffer stays in the
 * processor's caches.
 *
 * A block that was freed in the order of a stream may be handed out at once to an allocation in the
 * order of the same stream.  Until then it waits with the others, in a list of its own, and leaves
 * the quarantine by whichever way opens first. */
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/thread_index.h"
#include "driver/fence.h"
#include "driver/stream_order.h"
#include "resource/account.h"
#include "resource/kept_blocks.h"
#include "resource/ordered_blocks.h"
#include "resource/record_slab.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum reuse_mode { MODE_DEFERRED, MODE_WAIT };

static const char *const mode_words[] = {"deferred", "wait", NULL};

struct reuse_config {
    int free;
};

enum {
    SHARDS = 16,
    SEAL_BYTES =
        32 << 20,    /* in one shard, or a share of what is held where that is more: so that */
    SEAL_SHARE = 16, /* a large block is not held twice over */
    SEAL_COUNT = 128,
    SCARCE_SHARE = 32, /* less than this share of what is held is clean: frees seal at once */
    SCARCE_EVERY = 16, /* looked at by the first free after a seal, and by every sixteenth */
    WAIT_NS = 20 * 1000 * 1000, /* for one epoch, once */
    SPIN_NS = 50 * 1000,        /* then in naps: */
    NAP_NS = 20 * 1000,
    /* Clean blocks kept by a shard. */
    KEPT_COUNT = 512,
    KEPT_SHARE = 64,      /* this share of what is held, ... */
    KEPT_BYTES = 1 << 20, /* ... or so much; */
    KEPT_LARGE_SHARE = 4, /* no block larger than this share of that, ... */
    KEPT_LARGE = 1 << 20, /* ... nor than this: it would stand in the way of larger ones. */
    PLENTY_SHARE = 16,    /* Where upstream has plenty: this share of what is held, ... */
    PLENTY_IDLE_SHARE =
        4, /* ... if that is no more than this share of upstream's idle bytes, ... */
    PLENTY_LARGE_SHARE = 32, /* ... and blocks of this share of those, ... */
    PLENTY_LARGE = 16 << 20, /* ... or so much */
    LAZY_SHARE = 8,          /* a free of so large a share of what is held ... */
    LAZY_EPOCHS = 4,         /* ... retires only when so many epochs are sealed */
    EAGER_BYTES = 64 << 10,  /* of host memory; of other memory, none is enough */
};

static const struct timespec nap = {.tv_nsec = NAP_NS};
static const uint64_t last_wait_ns = 30ull * 1000 * 1000 * 1000; /* before out-of-memory */

/* Threads are spread over shards, so that their frees do not meet. */
struct shard {
    _Alignas(2 * RS_CACHE_LINE) struct rs_spinlock lock; /* protects the shard */
    struct rs_record_slab records;
    struct rs_freed_list open, open_rest; /* as in struct batch */
    ptrdiff_t live_bytes; /* allocated minus freed through this shard; may be negative */
    /* That ever entered the quarantine through this shard; read without the lock. */
    _Atomic size_t entered_bytes, entered_count;
    struct rs_freed_list clean; /* has come back, and is not sorted yet: kept, or upstream */
    struct rs_kept_blocks kept;
};

/* Freed blocks of all shards.  A shard's own that are not large come back to it in one piece when
 * they are clean, untouched by the thread that brings them, so that their records stay in the cache
 * of the threads that use them. */
struct batch {
    struct rs_freed_list own[SHARDS];
    struct rs_freed_list rest; /* large ones, and those that another shard's threads freed */
};

struct epoch {
    struct epoch *next;
    struct batch blocks;
    struct rs_freed_list ordered;
    CUevent event;
    bool timed_out; /* was waited for in vain, and is not waited for again */
};

struct reuse {
    struct rs_mr base;
    const struct rs_place *place;
    enum reuse_mode mode;
    bool has_fences, keeps_blocks;
    bool is_eager;      /* host memory: the block used last is still in the processor's caches */
    size_t eager_bytes; /* a free of so much seals at once, and an allocation looks at fences */
    size_t own_bytes_max;
    _Atomic unsigned shards_used; /* the first so many have been, by any thread, ever */
    _Atomic size_t own_bytes;     /* what is not larger comes back to its shard when it is clean */
    size_t initial_bytes;         /* held upstream when this was made */

    struct rs_mutex lock; /* protects what follows; no driver call that waits is made under it */
    struct epoch *first, **end; /* sealed, oldest first */
    struct epoch *spare;        /* with their events */
    size_t peak_live_bytes;

    /* That ever entered the quarantine in the order of a stream, and that ever left it. */
    _Atomic size_t ordered_bytes, ordered_count, left_bytes, left_count;
    _Atomic unsigned in_need; /* threads that upstream has nothing for: nothing is kept meanwhile */
    _Atomic uint64_t retired_epochs, sealed_epochs, waits, wait_ns, full_waits, timeouts;

    struct shard shards[SHARDS];
    struct rs_ordered_blocks ordered;
};

static struct reuse *reuse_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct reuse, base);
}

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- shards ---- */

/* Shards from here on were never used. */
static unsigned shards_used(const struct reuse *reuse)
{
    return atomic_load_explicit(&reuse->shards_used, memory_order_acquire);
}

__attribute__((cold, noinline)) static void use_shard(struct reuse *reuse, unsigned index)
{
    unsigned used = atomic_load(&reuse->shards_used);

    while (used <= index && !atomic_compare_exchange_weak(&reuse->shards_used, &used, index + 1))
        ;
}

RS_HOT_INLINE struct shard *shard_of_thread(struct reuse *reuse)
{
    unsigned index = rs_thread_index() % SHARDS;

    if (RS_UNLIKELY(atomic_load_explicit(&reuse->shards_used, memory_order_relaxed) <= index))
        use_shard(reuse, index);
    return &reuse->shards[index];
}

/* A clean block of that size, which is counted as live from now on, or NULL; *more: there may be
 * one among those that are not sorted yet. */
RS_HOT_INLINE struct rs_freed *take_kept(struct reuse *reuse, size_t size_bytes, bool *more)
{
    struct shard *shard = shard_of_thread(reuse);
    struct rs_freed *kept;

    rs_spinlock_lock(&shard->lock);
    kept = rs_kept_take(&shard->kept, size_bytes);
    if (RS_LIKELY(kept))
        shard->live_bytes += (ptrdiff_t)size_bytes;
    else
        *more = shard->clean.first;
    rs_spinlock_unlock(&shard->lock);
    return kept;
}

/* A record for a block of that size, which is counted as live from now on. */
static struct rs_freed *take_record(struct reuse *reuse, size_t size_bytes)
{
    struct shard *shard = shard_of_thread(reuse);
    struct rs_freed *record;

    rs_spinlock_lock(&shard->lock);
    record = rs_record_slab_take(&shard->records);
    shard->live_bytes += record ? (ptrdiff_t)size_bytes : 0;
    rs_spinlock_unlock(&shard->lock);
    if (!record)
        return NULL;
    record->home = (uint16_t)(shard - reuse->shards);
    record->slot = 0;
    record->stream = 0;
    record->has_holder = false;
    return record;
}

static void give_record(struct reuse *reuse, struct rs_freed *record)
{
    struct shard *home = &reuse->shards[record->home];

    rs_spinlock_lock(&home->lock);
    rs_record_slab_give(&home->records, record);
    rs_spinlock_unlock(&home->lock);
}

/* The allocation failed. */
static void untake_record(struct reuse *reuse, struct rs_freed *record, size_t size_bytes)
{
    struct shard *home = &reuse->shards[record->home];

    rs_spinlock_lock(&home->lock);
    home->live_bytes -= (ptrdiff_t)size_bytes;
    rs_record_slab_give(&home->records, record);
    rs_spinlock_unlock(&home->lock);
}

/* ---- what is in quarantine ---- */

struct quantity {
    size_t bytes, blocks;
};

static size_t load(const _Atomic size_t *size)
{
    return atomic_load_explicit(size, memory_order_acquire);
}

static struct quantity entered(const struct reuse *reuse)
{
    struct quantity sum = {load(&reuse->ordered_bytes), load(&reuse->ordered_count)};

    for (unsigned i = 0; i < shards_used(reuse); i++) {
        sum.bytes += load(&reuse->shards[i].entered_bytes);
        sum.blocks += load(&reuse->shards[i].entered_count);
    }
    return sum;
}

/* Never too little: what left is read first, and a block leaves in the end, when it is upstream. */
static bool has_quarantine(const struct reuse *reuse)
{
    size_t left = load(&reuse->left_count);

    return entered(reuse).blocks != left;
}

/* Never too much, so that no more memory is said to be idle than there is. */
static struct quantity quarantined(const struct reuse *reuse)
{
    struct quantity sum = entered(reuse);
    size_t left_bytes = load(&reuse->left_bytes), left_count = load(&reuse->left_count);

    return (struct quantity){sum.bytes > left_bytes ? sum.bytes - left_bytes : 0,
                             sum.blocks > left_count ? sum.blocks - left_count : 0};
}

/* Under the shard's lock, so that no locked instruction is needed. */
static void count_entered(struct shard *shard, size_t size_bytes)
{
    atomic_store_explicit(&shard->entered_bytes, shard->entered_bytes + size_bytes,
                          memory_order_relaxed);
    atomic_store_explicit(&shard->entered_count, shard->entered_count + 1, memory_order_relaxed);
}

static void count_left(struct reuse *reuse, size_t size_bytes, size_t blocks)
{
    atomic_fetch_add_explicit(&reuse->left_bytes, size_bytes, memory_order_release);
    atomic_fetch_add_explicit(&reuse->left_count, blocks, memory_order_release);
}

/* ---- batches ---- */

static const struct batch no_batch;

static struct quantity size_of(const struct reuse *reuse, const struct batch *batch)
{
    struct quantity size = {batch->rest.bytes, batch->rest.count};

    for (unsigned i = 0; i < shards_used(reuse); i++) {
        size.bytes += batch->own[i].bytes;
        size.blocks += batch->own[i].count;
    }
    return size;
}

static bool is_empty(const struct reuse *reuse, const struct batch *batch)
{
    return size_of(reuse, batch).blocks == 0;
}

static void append_batch(const struct reuse *reuse, struct batch *batch, struct batch *tail)
{
    for (unsigned i = 0; i < shards_used(reuse); i++)
        rs_freed_append(&batch->own[i], &tail->own[i]);
    rs_freed_append(&batch->rest, &tail->rest);
}

/* ---- all of the open lists ---- */

/* Moves all open lists but the ordered one to a batch, unless that is NULL, and notes how much is
 * live.  Under reuse->lock. */
static void gather(struct reuse *reuse, struct batch *batch)
{
    ptrdiff_t live = rs_ordered_live_bytes(&reuse->ordered);

    for (unsigned i = 0; i < shards_used(reuse); i++) {
        struct shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        if (batch) {
            rs_freed_append(&batch->own[i], &shard->open);
            rs_freed_append(&batch->rest, &shard->open_rest);
        }
        live += shard->live_bytes;
        rs_spinlock_unlock(&shard->lock);
    }
    if (live > 0)
        reuse->peak_live_bytes = rs_max(reuse->peak_live_bytes, (size_t)live);
}

static void put_back(struct reuse *reuse, struct batch *batch)
{
    struct shard *shard = shard_of_thread(reuse);

    rs_spinlock_lock(&shard->lock);
    rs_freed_append(&shard->open_rest, &batch->rest);
    rs_spinlock_unlock(&shard->lock);
    for (unsigned i = 0; i < shards_used(reuse); i++) {
        if (!batch->own[i].first)
            continue;
        rs_spinlock_lock(&reuse->shards[i].lock);
        rs_freed_append(&reuse->shards[i].open, &batch->own[i]);
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
}

/* ---- clean blocks ---- */

/* By the context, of the memories of this stack: what its stacks of other kinds hold is no measure
 * of what this one may. */
static size_t held_bytes(const struct reuse *reuse)
{
    return rs_account_held_bytes_of(reuse->place->account, reuse->base.upstream[0]->memories);
}

static void forget_holder(const struct reuse *reuse, struct rs_freed *freed)
{
    if (freed->has_holder)
        reuse->place->forget_holder(reuse->place, freed->holder);
    freed->has_holder = false;
}

static CUresult deallocate_upstream(struct reuse *reuse, const struct rs_freed *freed)
{
    const struct rs_allocation allocation = {freed->upstream.address, freed->upstream.size_bytes,
                                             freed->upstream.token, NULL};

    return rs_mr_deallocate(reuse->base.upstream[0], &allocation, NULL);
}

static void give_list_upstream(struct reuse *reuse, const struct rs_freed_list *list)
{
    struct rs_freed *next;

    for (struct rs_freed *freed = list->first; freed; freed = next) {
        next = freed->next;
        forget_holder(reuse, freed);
        /* Fails only when a driver call beneath does, for a context that is broken anyhow. */
        (void)deallocate_upstream(reuse, freed);
        give_record(reuse, freed);
    }
}

/* How much a shard may keep now, and how large the largest block. */
struct kept_room {
    size_t limit_bytes, small_bytes;
};

static struct kept_room kept_room(struct reuse *reuse)
{
    size_t held = held_bytes(reuse), idle = rs_mr_idle_bytes_best(reuse->base.upstream[0]);
    size_t plenty_bytes = rs_min(held / PLENTY_SHARE, idle / PLENTY_IDLE_SHARE);
    size_t large_bytes = rs_max(KEPT_LARGE, rs_min(PLENTY_LARGE, idle / PLENTY_LARGE_SHARE));
    struct kept_room room = {rs_max(KEPT_BYTES, rs_max(held / KEPT_SHARE, plenty_bytes)), 0};

    room.small_bytes = rs_min(large_bytes, room.limit_bytes / KEPT_LARGE_SHARE);
    return room;
}

/* True for a block that is not large where there is room for it. */
RS_HOT_INLINE bool has_room(const struct shard *shard, size_t size_bytes,
                            const struct kept_room *room)
{
    return size_bytes <= room->small_bytes && shard->kept.bytes + size_bytes <= room->limit_bytes &&
           shard->kept.count < KEPT_COUNT;
}

/* Keeps a clean block in its shard, or adds it to those that go upstream; with it, when the shard
 * has no more room, all that is there: sizes that are no longer asked for would stay for ever.  Of
 * large blocks only host memory's last one is kept, alone.  Under the shard's lock. */
static void keep_or_not(struct reuse *reuse, struct shard *shard, struct rs_freed *freed,
                        const struct kept_room *room, struct rs_freed_list *rest)
{
    size_t size_bytes = freed->upstream.size_bytes;
    bool small = size_bytes <= room->small_bytes;

    if (!reuse->keeps_blocks || (!small && !reuse->is_eager) || atomic_load(&reuse->in_need) > 0) {
        rs_freed_push(rest, freed);
        return;
    }
    if (!has_room(shard, size_bytes, room))
        rs_kept_empty(&shard->kept, rest);
    rs_kept_put(&shard->kept, freed);
}

/* Sorts what has come back to a shard; what goes upstream is added to the rest.  Under its lock. */
static void sort_locked(struct reuse *reuse, struct shard *shard, const struct kept_room *room,
                        struct rs_freed_list *rest)
{
    bool keeps = reuse->keeps_blocks && atomic_load(&reuse->in_need) == 0;

    for (struct rs_freed *freed = shard->clean.first, *next; freed; freed = next) {
        size_t size_bytes = freed->upstream.size_bytes;
        next = freed->next;
        if (RS_LIKELY(keeps && has_room(shard, size_bytes, room)))
            rs_kept_put(&shard->kept, freed);
        else
            keep_or_not(reuse, shard, freed, room, rest);
    }
    shard->clean = (struct rs_freed_list){NULL, NULL, 0, 0};
}

/* Brings a shard's own clean blocks back to it, for its threads to sort; what would be too much for
 * one that may never allocate again is sorted here. */
static void bring_back(struct reuse *reuse, struct shard *shard, struct rs_freed_list *list,
                       const struct kept_room *room, struct rs_freed_list *rest)
{
    rs_spinlock_lock(&shard->lock);
    rs_freed_append(&shard->clean, list);
    if (atomic_load(&reuse->in_need) > 0 || shard->clean.bytes > room->limit_bytes)
        sort_locked(reuse, shard, room, rest);
    rs_spinlock_unlock(&shard->lock);
}

/* Of a list of clean blocks, adds those that go upstream to the rest. */
static void keep_some(struct reuse *reuse, const struct rs_freed_list *list,
                      const struct kept_room *room, struct rs_freed_list *rest)
{
    struct shard *locked = NULL;
    struct rs_freed *next;

    for (struct rs_freed *freed = list->first; freed; freed = next) {
        struct shard *home = &reuse->shards[freed->home];
        next = freed->next;
        if (locked && locked != home)
            rs_spinlock_unlock(&locked->lock);
        if (locked != home)
            rs_spinlock_lock(&home->lock);
        locked = home;
        keep_or_not(reuse, home, freed, room, rest);
    }
    if (locked)
        rs_spinlock_unlock(&locked->lock);
}

/* Gives all that is kept upstream.  False when that is nothing. */
static bool give_kept_upstream(struct reuse *reuse)
{
    struct rs_freed_list all = {NULL, NULL, 0, 0};

    for (unsigned i = 0; i < shards_used(reuse); i++) {
        struct shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        rs_kept_empty(&shard->kept, &all);
        rs_freed_append(&all, &shard->clean);
        rs_spinlock_unlock(&shard->lock);
    }
    give_list_upstream(reuse, &all);
    return all.first;
}

/* From here to the end of need whatever is clean goes upstream.  Who keeps a block looks for need
 * under the shard's lock, which is taken here afterwards: so none slips through.  True when
 * something went upstream. */
static bool begin_need(struct reuse *reuse)
{
    atomic_fetch_add(&reuse->in_need, 1);
    return give_kept_upstream(reuse);
}

static void end_need(struct reuse *reuse)
{
    atomic_fetch_sub(&reuse->in_need, 1);
}

static size_t kept_bytes(struct reuse *reuse, size_t *count)
{
    size_t bytes = 0;

    *count = 0;
    for (unsigned i = 0; i < shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        bytes += reuse->shards[i].kept.bytes + reuse->shards[i].clean.bytes;
        *count += reuse->shards[i].kept.count + reuse->shards[i].clean.count;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return bytes;
}

/* Blocks that no work uses any more leave the quarantine. */
static void give_clean(struct reuse *reuse, struct batch *batch)
{
    struct rs_freed_list rest = {NULL, NULL, 0, 0};
    struct quantity size = size_of(reuse, batch);
    struct kept_room room = kept_room(reuse);

    atomic_store_explicit(&reuse->own_bytes, rs_min(room.small_bytes, reuse->own_bytes_max),
                          memory_order_relaxed);
    for (unsigned i = 0; i < shards_used(reuse); i++)
        if (batch->own[i].first)
            bring_back(reuse, &reuse->shards[i], &batch->own[i], &room, &rest);
    keep_some(reuse, &batch->rest, &room, &rest);
    give_list_upstream(reuse, &rest);
    /* Now, not before: whoever finds nothing in quarantine and nothing upstream is out of memory.
     */
    count_left(reuse, size.bytes, size.blocks);
    *batch = no_batch;
}

/* Sorts what has come back to the thread's shard. */
static void sort_clean(struct reuse *reuse)
{
    struct shard *shard = shard_of_thread(reuse);
    struct rs_freed_list rest = {NULL, NULL, 0, 0};
    struct kept_room room = kept_room(reuse);

    rs_spinlock_lock(&shard->lock);
    sort_locked(reuse, shard, &room, &rest);
    rs_spinlock_unlock(&shard->lock);
    give_list_upstream(reuse, &rest);
}

/* ---- epochs ---- */

static struct epoch *take_epoch(struct reuse *reuse)
{
    struct epoch *epoch = reuse->spare;

    if (epoch) {
        reuse->spare = epoch->next;
        return epoch;
    }
    epoch = calloc(1, sizeof(*epoch));
    if (!epoch)
        return NULL;
    epoch->event = rs_fence_create(reuse->place->context);
    if (!epoch->event) {
        free(epoch);
        return NULL;
    }
    return epoch;
}

static void spare_epoch(struct reuse *reuse, struct epoch *epoch)
{
    epoch->next = reuse->spare;
    reuse->spare = epoch;
}

/* Seals what is open and fences it.  In this order: a free that joins later must not lie behind the
 * fence.  False when nothing was open or no fence can be had now (a capture, host memory). */
static bool seal_locked(struct reuse *reuse)
{
    struct epoch *epoch = reuse->has_fences ? take_epoch(reuse) : NULL;
    bool fenced = false, any;

    if (epoch) {
        gather(reuse, &epoch->blocks);
        any = rs_ordered_move(&reuse->ordered, &reuse->ordered.open, &epoch->ordered) ||
              !is_empty(reuse, &epoch->blocks);
        fenced = any && rs_fence_record(reuse->place->context, epoch->event);
        if (fenced) {
            epoch->timed_out = false;
            epoch->next = NULL;
            *reuse->end = epoch;
            reuse->end = &epoch->next;
            count(&reuse->sealed_epochs, 1);
        } else {
            put_back(reuse, &epoch->blocks);
            (void)rs_ordered_move(&reuse->ordered, &epoch->ordered, &reuse->ordered.open);
            spare_epoch(reuse, epoch);
        }
    }
    return fenced;
}

static bool seal(struct reuse *reuse)
{
    bool fenced;

    rs_mutex_lock(&reuse->lock);
    fenced = seal_locked(reuse);
    rs_mutex_unlock(&reuse->lock);
    return fenced;
}

/* Takes the blocks of the epochs whose fences are done, oldest first; false when there are none.
 * *oldest is the state of the fence that is the oldest then: RS_FENCE_DONE when there is none left.
 */
static bool retire_locked(struct reuse *reuse, enum rs_fence_state *oldest, struct batch *clean)
{
    bool any = false;

    *clean = no_batch;
    *oldest = RS_FENCE_DONE;
    while (reuse->first) {
        *oldest = rs_fence_query(reuse->place->context, reuse->first->event);
        if (*oldest != RS_FENCE_DONE)
            break;
        struct epoch *epoch = reuse->first;
        reuse->first = epoch->next;
        if (!reuse->first)
            reuse->end = &reuse->first;
        append_batch(reuse, clean, &epoch->blocks);
        rs_ordered_drain(&reuse->ordered, &epoch->ordered, &clean->rest);
        spare_epoch(reuse, epoch);
        count(&reuse->retired_epochs, 1);
        any = true;
    }
    return any && !is_empty(reuse, clean);
}

/* True when there was something to retire. */
static bool retire_and_look(struct reuse *reuse, enum rs_fence_state *oldest)
{
    struct batch clean;
    bool any;

    rs_mutex_lock(&reuse->lock);
    any = retire_locked(reuse, oldest, &clean);
    rs_mutex_unlock(&reuse->lock);
    if (any)
        give_clean(reuse, &clean);
    return any;
}

/* What a free does when it is time: seals and retires, unless somebody is about it.  That may be
 * this very thread, when a tool's callback from a driver call of ours frees.  A free of a large
 * block leaves retiring to others while only a few epochs are sealed: asking for a fence costs as
 * much as all the rest of it. */
static void seal_and_retire_in_passing(struct reuse *reuse, bool is_large)
{
    struct batch clean;
    enum rs_fence_state oldest;
    uint64_t pending;
    bool any = false;

    if (!rs_mutex_try_lock(&reuse->lock))
        return;
    pending = atomic_load_explicit(&reuse->sealed_epochs, memory_order_relaxed) -
              atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed);
    if (!is_large || pending >= LAZY_EPOCHS)
        /* first: a fence is not done as it is recorded */
        any = retire_locked(reuse, &oldest, &clean);
    (void)seal_locked(reuse);
    rs_mutex_unlock(&reuse->lock);
    if (any)
        give_clean(reuse, &clean);
}

static bool retire(struct reuse *reuse)
{
    enum rs_fence_state oldest;

    return retire_and_look(reuse, &oldest);
}

static bool has_open(struct reuse *reuse)
{
    bool found = rs_ordered_has_open(&reuse->ordered);

    for (unsigned i = 0; i < shards_used(reuse) && !found; i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        found = reuse->shards[i].open.first || reuse->shards[i].open_rest.first;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return found;
}

static bool has_sealed(struct reuse *reuse, bool not_timed_out)
{
    bool sealed;

    rs_mutex_lock(&reuse->lock);
    sealed = reuse->first && !(not_timed_out && reuse->first->timed_out);
    rs_mutex_unlock(&reuse->lock);
    return sealed;
}

static void give_up_first(struct reuse *reuse)
{
    rs_mutex_lock(&reuse->lock);
    if (reuse->first)
        reuse->first->timed_out = true;
    rs_mutex_unlock(&reuse->lock);
    count(&reuse->timeouts, 1);
}

/* Waits until the oldest epoch is retired, by this thread or by another, at most that long.  Not
 * under any lock.  False when that was in vain, at once when the fence is broken. */
static bool wait_for_first(struct reuse *reuse, uint64_t limit_ns)
{
    uint64_t begin_ns = rs_clock_ns(), waited_ns = 0;
    uint64_t before = atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed);
    enum rs_fence_state oldest;
    bool retired = retire_and_look(reuse, &oldest);

    while (!retired && oldest == RS_FENCE_PENDING && waited_ns < limit_ns) {
        if (waited_ns > SPIN_NS)
            nanosleep(&nap, NULL);
        retired = retire_and_look(reuse, &oldest) ||
                  atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed) != before;
        waited_ns = rs_clock_ns() - begin_ns;
    }
    count(&reuse->waits, 1);
    count(&reuse->wait_ns, waited_ns);
    return retired || oldest == RS_FENCE_DONE;
}

/* The driver's own wait, after which all that was freed before is clean: sealed or not, fenced or
 * not. */
static CUresult wait_for_all(struct reuse *reuse)
{
    struct batch clean = no_batch;
    CUresult result;

    rs_mutex_lock(&reuse->lock);
    gather(reuse, &clean);
    rs_ordered_drain(&reuse->ordered, &reuse->ordered.open, &clean.rest);
    rs_mutex_unlock(&reuse->lock);
    count(&reuse->full_waits, 1);
    result = rs_sentinel_wait(reuse->place->sentinel, reuse->place->context);
    if (result == CUDA_SUCCESS)
        give_clean(reuse, &clean);
    else
        put_back(reuse, &clean);
    (void)retire(reuse);
    return result;
}

/* ---- allocation ---- */

/* Growth is free up to what the program used at once, this request included (it is counted as live
 * already), and the initial size: it would have needed that much of the driver too. */
static bool may_grow(struct reuse *reuse, size_t size_bytes)
{
    size_t allowed_bytes;

    rs_mutex_lock(&reuse->lock);
    gather(reuse, NULL);
    allowed_bytes = reuse->peak_live_bytes + reuse->initial_bytes;
    rs_mutex_unlock(&reuse->lock);
    return held_bytes(reuse) + size_bytes <= allowed_bytes;
}

/* Upstream has no more: waits until something more of the quarantine is there.  False when that
 * failed. */
static bool clean_some(struct reuse *reuse)
{
    (void)seal(reuse);
    if (retire(reuse))
        return true;
    if (has_sealed(reuse, false))
        return wait_for_first(reuse, last_wait_ns);
    if (has_open(reuse)) /* nothing could be fenced: an old driver, or a capture is under way */
        return wait_for_all(reuse) == CUDA_SUCCESS;
    nanosleep(&nap, NULL); /* another thread is about to give it upstream */
    return true;
}

/* Upstream had no more, when there was something in quarantine.  That may do: bounded, with one
 * line, as the program would have waited in cudaFree for the same work. */
static CUresult allocate_at_last(struct reuse *reuse, size_t size_bytes, struct rs_allocation *out)
{
    static bool said;
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool more = true;

    while (result == CUDA_ERROR_OUT_OF_MEMORY && more && rs_clock_ns() - begin_ns < last_wait_ns &&
           clean_some(reuse)) {
        if (rs_clock_ns() - begin_ns > 1000000000 && rs_log_once(&said))
            rs_log("device %d is full: waited for work that uses freed memory",
                   (int)reuse->place->device);
        more = has_quarantine(reuse);
        result = rs_mr_allocate(reuse->base.upstream[0], size_bytes, NULL, out);
    }
    return result;
}

/* Waits for the oldest epoch, unless that was in vain once.  False when there is none such. */
static bool wait_once(struct reuse *reuse)
{
    (void)seal(reuse);
    if (!has_sealed(reuse, true))
        return false;
    if (!wait_for_first(reuse, WAIT_NS))
        give_up_first(reuse);
    return true;
}

/* The best upstream is full and another would stand in, whose memory is slow.  That is worse than a
 * short wait and better than a long one, so epochs that end within the bound are waited for, as
 * long as what is freed can be enough.  An old driver has no epochs: there the next frees clean it.
 */
static CUresult allocate_or_fall_back(struct reuse *reuse, size_t size_bytes,
                                      struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_mr_allocate_best(upstream, size_bytes, NULL, out);

    while (result == CUDA_ERROR_NOT_READY && rs_clock_ns() - begin_ns < WAIT_NS &&
           rs_mr_idle_bytes_best(&reuse->base) >= size_bytes && wait_once(reuse))
        result = rs_mr_allocate_best(upstream, size_bytes, NULL, out);
    if (result == CUDA_ERROR_NOT_READY)
        result = rs_mr_allocate(upstream, size_bytes, NULL, out);
    return result;
}

static CUresult allocate_in_need(struct reuse *reuse, size_t size_bytes, struct rs_allocation *out)
{
    struct rs_mr *upstream = reuse->base.upstream[0];
    bool more = begin_need(reuse), allowed;
    CUresult result;

    if (retire(reuse) || (seal(reuse) && retire(reuse)) || more) {
        result = rs_mr_allocate_held(upstream, size_bytes, NULL, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    while (!(allowed = may_grow(reuse, size_bytes))) {
        if (!wait_once(reuse))
            break;
        result = rs_mr_allocate_held(upstream, size_bytes, NULL, out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
    }
    more = has_quarantine(reuse); /* before, so that a block cannot slip past in between */
    result = allowed ? allocate_or_fall_back(reuse, size_bytes, out)
                     : rs_mr_allocate_little(upstream, size_bytes, NULL, out);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !more)
        return result;
    return allocate_at_last(reuse, size_bytes, out);
}

static CUresult allocate_slowly(struct reuse *reuse, size_t size_bytes, struct rs_allocation *out)
{
    CUresult result = allocate_in_need(reuse, size_bytes, out);

    end_need(reuse);
    return result;
}

/* In the order of a stream: what was freed in that order needs no fence.  Sizes are rounded, so
 * that more of them are alike. */
static bool allocate_in_order(struct reuse *reuse, size_t *size_bytes, CUstream stream,
                              unsigned long long *key, struct rs_allocation *out)
{
    size_t asked_bytes = *size_bytes, rounded_bytes;
    struct rs_freed *block;

    if (!rs_round_up(asked_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return false;
    *size_bytes = rounded_bytes;
    if (reuse->mode == MODE_WAIT || !rs_stream_key(stream, reuse->place->context, key))
        return false;
    block = rs_ordered_take(&reuse->ordered, rounded_bytes, *key);
    if (!block)
        return false;
    count_left(reuse, block->upstream.size_bytes, 1);
    block->stream = *key;
    *out = (struct rs_allocation){block->upstream.address, asked_bytes, block, NULL};
    return true;
}

static CUresult allocate_held_in_need(struct reuse *reuse, size_t size_bytes,
                                      struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_NOT_READY;

    if (begin_need(reuse))
        result = rs_mr_allocate_held(reuse->base.upstream[0], size_bytes, NULL, out);
    if (result == CUDA_ERROR_NOT_READY && retire(reuse))
        result = rs_mr_allocate_held(reuse->base.upstream[0], size_bytes, NULL, out);
    end_need(reuse);
    return result;
}

/* What comes from upstream is for all streams, as it will be handed to others in its time. */
static CUresult allocate_from_upstream(struct reuse *reuse, size_t size_bytes, bool only_held,
                                       struct rs_allocation *out)
{
    CUresult result = rs_mr_allocate_held(reuse->base.upstream[0], size_bytes, NULL, out);

    if (result != CUDA_ERROR_NOT_READY)
        return result;
    return only_held ? allocate_held_in_need(reuse, size_bytes, out)
                     : allocate_slowly(reuse, size_bytes, out);
}

__attribute__((noinline)) static CUresult allocate_new(struct reuse *reuse, size_t size_bytes,
                                                       size_t upstream_bytes,
                                                       unsigned long long key, bool only_held,
                                                       struct rs_allocation *out)
{
    struct rs_freed *record = take_record(reuse, upstream_bytes);
    struct rs_allocation upstream;
    CUresult result;

    if (!record)
        return only_held ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
    result = allocate_from_upstream(reuse, upstream_bytes, only_held, &upstream);
    if (result != CUDA_SUCCESS) {
        untake_record(reuse, record, upstream_bytes);
        return result;
    }
    record->upstream.address = upstream.address;
    record->upstream.size_bytes = upstream.size_bytes;
    record->upstream.token = upstream.token;
    record->stream = key;
    *out = (struct rs_allocation){record->upstream.address, size_bytes, record, NULL};
    return CUDA_SUCCESS;
}

/* A block of the shard's, or one from upstream; for an allocation on the stream of that key. */
RS_HOT_INLINE CUresult allocate_any(struct reuse *reuse, size_t size_bytes, size_t upstream_bytes,
                                    unsigned long long key, bool only_held,
                                    struct rs_allocation *out)
{
    bool more = false;
    struct rs_freed *kept = take_kept(reuse, upstream_bytes, &more);

    if (RS_UNLIKELY(!kept && more)) {
        sort_clean(reuse);
        kept = take_kept(reuse, upstream_bytes, &more);
    }
    if (RS_UNLIKELY(!kept))
        return allocate_new(reuse, size_bytes, upstream_bytes, key, only_held, out);
    if (size_bytes != upstream_bytes)
        forget_holder(reuse, kept);
    *out = (struct rs_allocation){kept->upstream.address, size_bytes, kept,
                                  kept->has_holder ? kept->holder : NULL};
    kept->has_holder = false;
    kept->stream = key;
    return CUDA_SUCCESS;
}

__attribute__((noinline)) static CUresult reuse_allocate_in_order(struct reuse *reuse,
                                                                  size_t size_bytes,
                                                                  CUstream stream,
                                                                  struct rs_allocation *out)
{
    size_t upstream_bytes = size_bytes;
    unsigned long long key = 0;

    if (allocate_in_order(reuse, &upstream_bytes, stream, &key, out))
        return CUDA_SUCCESS;
    return allocate_any(reuse, size_bytes, upstream_bytes, key, false, out);
}

static CUresult reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                               struct rs_allocation *out)
{
    struct reuse *reuse = reuse_of(mr);

    if (RS_UNLIKELY(size_bytes >= reuse->eager_bytes))
        (void)retire(reuse);
    if (RS_UNLIKELY(stream))
        return reuse_allocate_in_order(reuse, size_bytes, stream, out);
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
static bool is_scarce(struct reuse *reuse)
{
    return rs_mr_idle_bytes_best(reuse->base.upstream[0]) < held_bytes(reuse) / SCARCE_SHARE;
}

__attribute__((noinline)) static bool is_time_to_seal_now(struct reuse *reuse, size_t open_bytes,
                                                          size_t opened)
{
    if (opened >= SEAL_COUNT ||
        (open_bytes >= SEAL_BYTES && open_bytes >= held_bytes(reuse) / SEAL_SHARE))
        return true;
    return reuse->has_fences && opened % SCARCE_EVERY == 1 && is_scarce(reuse);
}

_Static_assert(SEAL_COUNT % SCARCE_EVERY == 0, "is_time_to_seal looks at one remainder");

RS_HOT_INLINE bool is_time_to_seal(struct reuse *reuse, size_t open_bytes, size_t opened)
{
    if (RS_LIKELY(opened % SCARCE_EVERY > 1 && open_bytes < SEAL_BYTES && opened < SEAL_COUNT))
        return false;
    return is_time_to_seal_now(reuse, open_bytes, opened);
}

/* Enters a freed block into the open list of the thread's shard.  True when it is time to seal. */
RS_HOT_INLINE bool open_push(struct reuse *reuse, struct rs_freed *record)
{
    struct shard *shard = shard_of_thread(reuse);
    size_t size_bytes = record->upstream.size_bytes, opened, open_bytes;

    bool is_own = size_bytes <= atomic_load_explicit(&reuse->own_bytes, memory_order_relaxed) &&
                  &reuse->shards[record->home] == shard;

    rs_spinlock_lock(&shard->lock);
    count_entered(shard, size_bytes);
    shard->live_bytes -= (ptrdiff_t)size_bytes;
    rs_freed_push(is_own ? &shard->open : &shard->open_rest, record);
    opened = shard->open.count + shard->open_rest.count;
    open_bytes = shard->open.bytes + shard->open_rest.bytes;
    rs_spinlock_unlock(&shard->lock);
    return is_time_to_seal(reuse, open_bytes, opened);
}

/* The same for a block freed in the order of a stream. */
static bool ordered_push(struct reuse *reuse, struct rs_freed *record, unsigned long long stream)
{
    size_t opened, open_bytes;

    atomic_fetch_add_explicit(&reuse->ordered_bytes, record->upstream.size_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&reuse->ordered_count, 1, memory_order_relaxed);
    opened = rs_ordered_push(&reuse->ordered, record, stream, &open_bytes);
    return is_time_to_seal(reuse, open_bytes, opened);
}

/* As cudaFree: nothing of it is touched any more when this returns. */
__attribute__((noinline)) static CUresult deallocate_waiting(struct reuse *reuse,
                                                             struct rs_freed *record)
{
    size_t size_bytes = record->upstream.size_bytes;
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_sentinel_wait(reuse->place->sentinel, reuse->place->context);

    count(&reuse->full_waits, 1);
    count(&reuse->wait_ns, rs_clock_ns() - begin_ns);
    if (result == CUDA_SUCCESS)
        result = deallocate_upstream(reuse, record);
    if (result == CUDA_SUCCESS)
        untake_record(reuse, record, size_bytes);
    return result;
}

/* A block that another size or stream may be handed is new to its holder then. */
RS_HOT_INLINE void keep_holder(struct reuse *reuse, struct rs_freed *record,
                               const struct rs_allocation *allocation, bool in_order)
{
    record->has_holder =
        allocation->holder && !in_order && allocation->size_bytes == record->upstream.size_bytes;
    if (record->has_holder)
        record->holder = allocation->holder;
    else if (allocation->holder)
        reuse->place->forget_holder(reuse->place, allocation->holder);
}

__attribute__((noinline)) static CUresult seal_after_free(struct reuse *reuse, size_t size_bytes)
{
    if (!reuse->has_fences) {
        /* An old driver: a free may wait, as cudaFree does, and an allocation may not.  An error is
         * the context's, and the next call will say it. */
        (void)wait_for_all(reuse);
        return CUDA_SUCCESS;
    }
    seal_and_retire_in_passing(
        reuse, reuse->is_eager || size_bytes >= rs_max(SEAL_BYTES, held_bytes(reuse) / LAZY_SHARE));
    return CUDA_SUCCESS;
}

__attribute__((noinline)) static CUresult
deallocate_in_order(struct reuse *reuse, const struct rs_allocation *allocation, CUstream stream)
{
    struct rs_freed *record = allocation->token;
    size_t size_bytes = record->upstream.size_bytes; /* the record is another's after the push */
    unsigned long long key;
    bool in_order = rs_stream_key_to_free(stream, reuse->place->context, record->stream, &key);
    bool time_to_seal;

    keep_holder(reuse, record, allocation, in_order);
    time_to_seal = in_order ? ordered_push(reuse, record, key) : open_push(reuse, record);
    return time_to_seal || size_bytes >= reuse->eager_bytes ? seal_after_free(reuse, size_bytes)
                                                            : CUDA_SUCCESS;
}

static CUresult reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                 CUstream stream)
{
    struct reuse *reuse = reuse_of(mr);
    struct rs_freed *record = allocation->token;
    size_t size_bytes = record->upstream.size_bytes; /* the record is another's after the push */

    if (RS_UNLIKELY(stream)) /* does not wait, in no mode: cuMemFreeAsync does not */
        return deallocate_in_order(reuse, allocation, stream);
    if (RS_UNLIKELY(reuse->mode == MODE_WAIT))
        return deallocate_waiting(reuse, record);
    keep_holder(reuse, record, allocation, false);
    return RS_UNLIKELY(open_push(reuse, record) || size_bytes >= reuse->eager_bytes)
               ? seal_after_free(reuse, size_bytes)
               : CUDA_SUCCESS;
}

/* ---- the rest of the resource ---- */

static size_t reuse_trim(struct rs_mr *mr, size_t keep_bytes)
{
    struct reuse *reuse = reuse_of(mr);

    (void)begin_need(reuse);
    (void)seal(reuse);
    (void)retire(reuse);
    end_need(reuse);
    return rs_mr_trim(mr->upstream[0], keep_bytes);
}

static size_t reuse_idle_bytes(struct rs_mr *mr)
{
    struct reuse *reuse = reuse_of(mr);
    size_t count;

    return kept_bytes(reuse, &count) + quarantined(reuse).bytes;
}

static size_t reuse_free_blocks(struct rs_mr *mr)
{
    struct reuse *reuse = reuse_of(mr);
    size_t count;

    (void)kept_bytes(reuse, &count);
    return count + quarantined(reuse).blocks;
}

static void reuse_report(struct rs_mr *mr, struct rs_report *report)
{
    struct reuse *reuse = reuse_of(mr);
    size_t count;

#define ADD(name, kind, unit, field)                                                               \
    rs_report_add(report, "reuse", name, RS_COUNTER_##kind, RS_UNIT_##unit,                        \
                  atomic_load_explicit(&reuse->field, memory_order_relaxed))
    rs_report_add(report, "reuse", "quarantined", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  quarantined(reuse).bytes);
    rs_report_add(report, "reuse", "quarantined_blocks", RS_COUNTER_LIVE, RS_UNIT_COUNT,
                  quarantined(reuse).blocks);
    rs_report_add(report, "reuse", "kept", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  kept_bytes(reuse, &count));
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
    struct reuse *reuse = reuse_of(mr);
    size_t bytes = 0, blocks = 0;
    bool good = true;

    rs_mutex_lock(&reuse->lock);
    for (unsigned i = 0; i < shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        bytes += reuse->shards[i].open.bytes + reuse->shards[i].open_rest.bytes;
        blocks += reuse->shards[i].open.count + reuse->shards[i].open_rest.count;
        good = rs_kept_check(&reuse->shards[i].kept) && good;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    rs_mutex_lock(&reuse->ordered.lock);
    good = rs_ordered_check(&reuse->ordered, &reuse->ordered.open, &bytes, &blocks) && good;
    for (struct epoch *epoch = reuse->first; epoch; epoch = epoch->next) {
        bytes += size_of(reuse, &epoch->blocks).bytes;
        blocks += size_of(reuse, &epoch->blocks).blocks;
        good = rs_ordered_check(&reuse->ordered, &epoch->ordered, &bytes, &blocks) && good;
    }
    rs_mutex_unlock(&reuse->ordered.lock);
    /* Blocks on their way upstream are in no list and still counted. */
    good = good && bytes <= quarantined(reuse).bytes && blocks <= quarantined(reuse).blocks;
    rs_mutex_unlock(&reuse->lock);
    return good;
}

static void destroy_epochs(struct reuse *reuse, struct epoch *epoch, bool memory_is_gone)
{
    while (epoch) {
        struct epoch *next = epoch->next;
        if (!memory_is_gone) {
            rs_ordered_drain(&reuse->ordered, &epoch->ordered, &epoch->blocks.rest);
            give_clean(reuse, &epoch->blocks);
            rs_fence_destroy(epoch->event);
        }
        free(epoch);
        epoch = next;
    }
}

static void reuse_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct reuse *reuse = reuse_of(mr);

    if (!memory_is_gone) {
        (void)begin_need(reuse);
        (void)wait_for_all(reuse);
    }
    destroy_epochs(reuse, reuse->first, memory_is_gone);
    destroy_epochs(reuse, reuse->spare, memory_is_gone);
    for (unsigned i = 0; i < shards_used(reuse); i++)
        rs_record_slab_destroy(&reuse->shards[i].records);
    rs_mutex_destroy(&reuse->ordered.lock);
    rs_mutex_destroy(&reuse->lock);
    free(reuse);
}

static const struct rs_mr_ops reuse_ops = {
    .allocate = reuse_allocate,
    .allocate_held = reuse_allocate_held,
    .deallocate = reuse_deallocate,
    .destroy = reuse_destroy,
    .trim = reuse_trim,
    .idle_bytes = reuse_idle_bytes,
    .free_blocks = reuse_free_blocks,
    .report = reuse_report,
    .check = reuse_check,
};

/* True when memory may come from a lesser upstream: a block of that must not be handed out again
 * while the better one has room. */
static bool chooses(const struct rs_mr *mr)
{
    return mr->upstream[1] || (mr->upstream[0] && chooses(mr->upstream[0]));
}

static int reuse_create(const struct rs_place *place, const void *config,
                        struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct reuse_config *settings = config;
    struct reuse *reuse = aligned_alloc(_Alignof(struct reuse), sizeof(*reuse));

    if (!reuse)
        return -ENOMEM;
    *reuse = (struct reuse){.place = place, .mode = (enum reuse_mode)settings->free};
    rs_mr_init(&reuse->base, &reuse_ops, &rs_mr_descriptor_reuse, upstream);
    reuse->keeps_blocks = reuse->mode == MODE_DEFERRED && !chooses(upstream[0]);
    reuse->base.keeps_holders = reuse->keeps_blocks && place->forget_holder;
    reuse->has_fences = rs_fence_supported();
    reuse->is_eager = reuse->has_fences && upstream[0]->memories == 1u << RS_MEMORY_HOST;
    reuse->own_bytes_max = reuse->keeps_blocks ? PLENTY_LARGE : 0;
    reuse->own_bytes = rs_min(KEPT_LARGE, reuse->own_bytes_max);
    reuse->eager_bytes = reuse->is_eager ? EAGER_BYTES : SIZE_MAX;
    reuse->end = &reuse->first;
    reuse->initial_bytes = held_bytes(reuse);
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
