/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `reuse`, for its own files alone.  reuse.c is the resource: how it is made,
 * trimmed and reported.  What it works with:
 *
 *   allocation.c    the way of an allocation
 *   deallocation.c  the way of a free
 *   shards.c        groups of threads, and the records of their blocks
 *   quarantine.c    freed blocks that work may still use: open lists, batches, how much it is
 *   epochs.c        what is sealed behind one fence, until that is done or was waited for
 *   ready.c         blocks that no work uses any more: kept by a shard, or given upstream
 *   slow_path.c     an allocation that upstream has nothing fitting for
 *
 * The resource's lock is taken first, then either that of the ordered blocks or one shard's. */
#pragma once

#include "base/lock.h"
#include "base/thread_index.h"
#include "driver/fence.h"
#include "heap/record_slab.h"
#include "ledger/account.h"
#include "resource/resource.h"
#include "resource/reuse/kept_blocks.h"
#include "resource/reuse/ordered_blocks.h"

#include <stdatomic.h>

enum rs_reuse_mode { RS_REUSE_DEFERRED, RS_REUSE_WAIT };

enum { RS_REUSE_SHARDS = 16, RS_REUSE_EPOCHS = 64 };

struct rs_reuse_epoch;
struct rs_reuse_lot;

/* How much a shard may keep, and how large the largest block that is not large. */
struct rs_reuse_room {
    size_t limit_bytes, small_bytes;
};

/* Threads are spread over shards, so that their frees do not meet. */
struct rs_reuse_shard {
    /* A free's cache line, ... */
    _Alignas(2 * RS_CACHE_LINE) struct rs_freed_list open; /* as in struct rs_reuse_batch */
    struct rs_freed_list open_rest;

    /* ... one of both, and then an allocation has another and its bin. */
    struct rs_spinlock lock; /* protects the shard */
    size_t published_bytes;  /* of what is open here, in the sum of all shards */
    ptrdiff_t live_bytes;    /* allocated minus freed through this shard; may be negative */
    /* That ever entered the quarantine through this shard; read without the lock. */
    _Atomic size_t entered_bytes, entered_count;
    struct rs_freed_list ready; /* has come back, and is not sorted yet: kept, or upstream */
    struct rs_reuse_room room;  /* when it came back */
    struct rs_kept_blocks kept;

    struct rs_record_slab records;
};

/* Freed blocks of all shards.  A shard's own that are not large come back to it in one piece when
 * they are ready, untouched by the thread that brings them, so that their records stay in the cache
 * of the threads that use them. */
struct rs_reuse_batch {
    struct rs_freed_list own[RS_REUSE_SHARDS];
    struct rs_freed_list rest; /* large ones, and those that another shard's threads freed */
};

struct rs_reuse {
    struct rs_mr base;
    const struct rs_environment *environment;
    enum rs_reuse_mode mode;
    bool has_fences, keeps_blocks;
    bool is_eager; /* host memory: the block used last is still in the processor's caches */
    _Atomic size_t
        eager_bytes; /* a free of so much seals at once, and an allocation looks at fences */
    size_t own_bytes_max;
    _Atomic unsigned shards_used; /* the first so many have been, by any thread, ever */
    _Atomic size_t own_bytes;     /* what is not larger comes back to its shard when it is ready */
    size_t initial_bytes;         /* held upstream when this was made */
    _Atomic size_t device_free_bytes; /* when upstream was last asked for more, without fences */

    /* Protects what follows; no driver call that waits is made under it.  Written at each seal, and
     * so apart from what every allocation and free reads. */
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    struct rs_reuse_epoch *sealed[RS_REUSE_EPOCHS]; /* oldest first */
    unsigned sealed_count, merge_at;                /* merge_at: next to take in the one after it */
    bool is_stuck;                  /* the oldest was pending when it was asked for last */
    size_t epochs_bytes;            /* in them, without ordered blocks */
    struct rs_reuse_epoch *spare;   /* with their events */
    struct rs_reuse_lot *spare_lot; /* of ordered blocks */
    _Atomic int refusal;            /* of the last seal; read without the lock */
    /* Clean blocks that go upstream a few at a time, still counted as in quarantine. */
    struct rs_freed_list backlog;
    struct rs_reuse_lot *backlog_lots;
    _Atomic bool has_backlog;       /* read without the lock */
    _Atomic bool is_crowded;        /* stuck behind many epochs; read without the lock */
    _Atomic size_t peak_live_bytes; /* as it was noted last; read without the lock */

    /* That ever entered the quarantine in the order of a stream, and that ever left it. */
    _Atomic size_t ordered_bytes, ordered_count, left_bytes, left_count;
    _Atomic int short_seals; /* by frees, until upstream is short no longer */
    _Atomic unsigned
        on_slow_path; /* threads that upstream has nothing for: nothing is kept meanwhile */
    _Atomic size_t giving_bytes; /* ready blocks in hand, on their way upstream */
    _Atomic size_t given;        /* how many came there */
    _Atomic uint64_t retired_epochs, sealed_epochs, waits, wait_ns, full_waits, timeouts;

    struct rs_reuse_shard shards[RS_REUSE_SHARDS];
    struct rs_ordered_blocks ordered;
    struct rs_spinlock refused_lock; /* protects what follows */
    struct rs_freed_list refused;    /* ready, but upstream would not take it */
    /* Open in all shards: each adds what has opened now and then, and gathering takes it away. */
    _Alignas(2 * RS_CACHE_LINE) _Atomic size_t open_bytes;
};

static inline struct rs_reuse *rs_reuse_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_reuse, base);
}

/* False on an old driver, and where the driver refused the last one for good. */
static inline bool rs_reuse_may_have_fence(const struct rs_reuse *reuse)
{
    return reuse->has_fences &&
           atomic_load_explicit(&reuse->refusal, memory_order_relaxed) != RS_FENCE_REFUSED;
}

static inline void rs_reuse_count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- shards and records ---- */

/* Shards from here on were never used. */
static inline unsigned rs_reuse_shards_used(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->shards_used, memory_order_acquire);
}

/* The thread's, which no thread used before, or whose thread has no index yet. */
RS_COLD unsigned rs_reuse_use_shard(struct rs_reuse *reuse);

RS_HOT_INLINE struct rs_reuse_shard *rs_reuse_shard_of_thread(struct rs_reuse *reuse)
{
    /* Of a thread without an index, until it has one: any will do that is used. */
    unsigned index = (rs_thread.index_plus_one - 1) % RS_REUSE_SHARDS;

    if (RS_UNLIKELY(atomic_load_explicit(&reuse->shards_used, memory_order_relaxed) <= index))
        index = rs_reuse_use_shard(reuse);
    return &reuse->shards[index];
}

/* A record for a block of that size that upstream has given, which is counted as live from now on;
 * NULL when out of host memory. */
RS_HOT_INLINE struct rs_freed *rs_reuse_take_record(struct rs_reuse *reuse, size_t size_bytes)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
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
    return record;
}

RS_HOT_INLINE void rs_reuse_give_record(struct rs_reuse *reuse, struct rs_freed *record)
{
    struct rs_reuse_shard *home = &reuse->shards[record->home];

    RS_ASSERT_SLOW(record->home < rs_reuse_shards_used(reuse));
    rs_spinlock_lock(&home->lock);
    rs_record_slab_give(&home->records, record);
    rs_spinlock_unlock(&home->lock);
}

/* For a block that does not go through the quarantine: undoes rs_reuse_take_record. */
void rs_reuse_untake_record(struct rs_reuse *reuse, struct rs_freed *record, size_t size_bytes);

/* ---- quarantine ---- */

struct rs_reuse_quantity {
    size_t bytes, blocks;
};

/* Changes with each block that enters or leaves, and with ready ones that come upstream. */
uint64_t rs_reuse_moves(const struct rs_reuse *reuse);

/* Never too little: what left is read first, and a block leaves in the end, when it is upstream. */
bool rs_reuse_has_quarantine(const struct rs_reuse *reuse);

/* Never too much, so that no more memory is said to be idle than there is. */
struct rs_reuse_quantity rs_reuse_quarantined(const struct rs_reuse *reuse);

static inline void rs_reuse_count_left(struct rs_reuse *reuse, size_t size_bytes, size_t blocks)
{
    atomic_fetch_add_explicit(&reuse->left_bytes, size_bytes, memory_order_release);
    atomic_fetch_add_explicit(&reuse->left_count, blocks, memory_order_release);
}

extern const struct rs_reuse_batch rs_reuse_no_batch;

static inline struct rs_reuse_quantity rs_reuse_batch_size(const struct rs_reuse *reuse,
                                                           const struct rs_reuse_batch *batch)
{
    struct rs_reuse_quantity size = {batch->rest.bytes, batch->rest.count};

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        size.bytes += batch->own[i].bytes;
        size.blocks += batch->own[i].count;
    }
    return size;
}

static inline bool rs_reuse_batch_is_empty(const struct rs_reuse *reuse,
                                           const struct rs_reuse_batch *batch)
{
    return rs_reuse_batch_size(reuse, batch).blocks == 0;
}

void rs_reuse_batch_append(const struct rs_reuse *reuse, struct rs_reuse_batch *batch,
                           struct rs_reuse_batch *tail);

/* Moves all open lists but the ordered one to a batch, unless that is NULL, and notes how much is
 * live, which it returns.  Under reuse->lock. */
size_t rs_reuse_gather(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

/* Opens them again. */
void rs_reuse_put_back(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

bool rs_reuse_has_open(struct rs_reuse *reuse);

/* ---- epochs ---- */

/* Seals what is open and fences it.  False when nothing was open or no fence can be had now (a
 * capture, host memory). */
bool rs_reuse_seal(struct rs_reuse *reuse);

/* Makes ready the epochs whose fences are done.  True when there was something to retire. */
bool rs_reuse_retire(struct rs_reuse *reuse);

/* The same in a bounded time, so that more may be left: again, until there was nothing. */
bool rs_reuse_retire_some(struct rs_reuse *reuse);

/* Clean blocks that their shard has no room for: they go upstream a few at a time. */
void rs_reuse_add_backlog(struct rs_reuse *reuse, struct rs_freed_list *list);

/* Gives a few of those upstream, unless somebody is about it.  Frees do it in passing. */
void rs_reuse_give_backlog(struct rs_reuse *reuse);

static inline bool rs_reuse_has_backlog(const struct rs_reuse *reuse)
{
    return RS_UNLIKELY(atomic_load_explicit(&reuse->has_backlog, memory_order_relaxed));
}

/* True while the GPU was stuck when it was asked last, and many epochs wait: one more for each free
 * would come no sooner than its neighbours, and costs 2.5 us on an H200. */
static inline bool rs_reuse_is_crowded(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->is_crowded, memory_order_relaxed);
}

/* What a free does when it is time: seals and retires, unless somebody is about it.  Why something
 * stays open. */
enum rs_fence_refusal rs_reuse_seal_and_retire_in_passing(struct rs_reuse *reuse, bool is_large);

/* not_timed_out: and the oldest epoch was not waited for in vain. */
bool rs_reuse_has_sealed(struct rs_reuse *reuse, bool not_timed_out);

/* Between two looks at what another thread or the GPU is about to change. */
void rs_reuse_nap(void);

/* Waits until the oldest epoch is retired, by this thread or by another, at most that long.  Not
 * under any lock.  False when that was in vain, at once when the fence is broken. */
bool rs_reuse_wait_for_first(struct rs_reuse *reuse, uint64_t limit_ns);

/* Seals, and waits for the oldest epoch, unless that was in vain once.  False when there is none
 * such. */
bool rs_reuse_wait_once(struct rs_reuse *reuse, uint64_t limit_ns);

/* The driver's own wait, after which all that was freed before is ready: sealed or not, fenced or
 * not. */
CUresult rs_reuse_wait_for_all(struct rs_reuse *reuse);

/* Adds what is in the epochs.  False when it contradicts itself.  Under reuse->lock and that of the
 * ordered blocks. */
bool rs_reuse_check_epochs(const struct rs_reuse *reuse, size_t *bytes, size_t *blocks);

void rs_reuse_destroy_epochs(struct rs_reuse *reuse, bool memory_is_gone);

/* ---- ready blocks ---- */

enum { RS_REUSE_KEPT_COUNT = 512 };

void rs_reuse_init_ready(struct rs_reuse *reuse);

/* True for a block that is not large where there is room for it.  Under the shard's lock. */
RS_HOT_INLINE bool rs_reuse_has_room(const struct rs_reuse_shard *shard, size_t size_bytes,
                                     const struct rs_reuse_room *room)
{
    return size_bytes <= room->small_bytes && shard->kept.bytes + size_bytes <= room->limit_bytes &&
           shard->kept.count < RS_REUSE_KEPT_COUNT;
}

/* Sorts one block of what has come back, if it is to be kept, and has the processor fetch what the
 * next will need.  Each allocation does: sorting all at once waits for each record in turn where
 * the program's own data have pushed them out of the caches.  Under the shard's lock; while all is
 * to go upstream nothing is here. */
RS_HOT_INLINE void rs_reuse_sort_one(struct rs_reuse_shard *shard)
{
    struct rs_freed *freed = shard->ready.first;

    if (RS_UNLIKELY(!rs_reuse_has_room(shard, freed->upstream.size_bytes, &shard->room)))
        return;
    rs_freed_pop(&shard->ready);
    if (RS_LIKELY(shard->ready.first))
        __builtin_prefetch(shard->ready.first, 1);
    __builtin_prefetch(freed->holder, 1);
    rs_kept_put(&shard->kept, freed);
}

/* By the context, of the memories of this stack: what its stacks of other kinds hold is no measure
 * of what this one may. */
static inline size_t rs_reuse_held_bytes(const struct rs_reuse *reuse)
{
    return rs_account_held_bytes_of(reuse->environment->account, reuse->base.upstream[0]->memories);
}

void rs_reuse_forget_holder(const struct rs_reuse *reuse, struct rs_freed *freed);

static inline struct rs_allocation rs_freed_upstream(const struct rs_freed *freed)
{
    return (struct rs_allocation){freed->upstream.address, freed->upstream.size_bytes,
                                  freed->upstream.token, NULL};
}

/* Blocks that upstream would not take, as a driver call beneath failed or would have waited: tries
 * again.  True when it took some. */
bool rs_reuse_return_refused(struct rs_reuse *reuse);

/* Blocks that no work uses any more leave the quarantine. */
void rs_reuse_give_ready(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

/* The same for blocks that no shard is to keep. */
void rs_reuse_give_upstream(struct rs_reuse *reuse, const struct rs_freed_list *list);

/* Sorts some of what has come back to the thread's shard. */
void rs_reuse_sort_ready(struct rs_reuse *reuse);

/* From here to the end of the slow path whatever is ready goes upstream.  True when something went
 * there. */
bool rs_reuse_begin_slow_path(struct rs_reuse *reuse);
void rs_reuse_end_slow_path(struct rs_reuse *reuse);

/* What the shards keep, and what upstream would not take. */
size_t rs_reuse_kept_bytes(struct rs_reuse *reuse, size_t *count);

/* ---- need ---- */

/* Upstream is short from a need on until so many seals of frees later.  Meanwhile each free of so
 * many bytes seals, and each such allocation looks at fences (eager_bytes): freed memory comes back
 * before other blocks are cut in its stead, and a need that waits finds an epoch whose end is near,
 * behind which the GPU still has work. */
enum { RS_REUSE_SHORT_SEALS = 1024, RS_REUSE_SHORT_BYTES = 256 << 10 };

/* In eager_bytes: an allocation was refused for what no fence could cover, in a capture.  Programs
 * answer that by freeing something and asking again, so the next free does the full wait. */
enum { RS_REUSE_STARVED = 0 };

RS_HOT_INLINE size_t rs_reuse_eager_bytes(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->eager_bytes, memory_order_relaxed);
}

enum { RS_REUSE_SEAL_BYTES = 32 << 20, RS_REUSE_SEAL_DIVISOR = 16 };

/* Less than this share of what is held is ready: frees seal at once. */
enum { RS_REUSE_SCARCE_DIVISOR = 32 };

/* Open in all shards, so much is sealed: a share of what is held where that is more. */
static inline size_t rs_reuse_seal_bytes(const struct rs_reuse *reuse)
{
    return rs_max(RS_REUSE_SEAL_BYTES, rs_reuse_held_bytes(reuse) / RS_REUSE_SEAL_DIVISOR);
}

/* What may be open, and as much again. */
static inline size_t rs_reuse_scarce_bytes(const struct rs_reuse *reuse)
{
    return 2 * rs_reuse_seal_bytes(reuse);
}

/* Without fences no allocation can wait for what is open: it would be refused what the driver alone
 * would have served.  So where there is little more to take than what may be open, each free waits,
 * as cudaFree does.  The second asks the driver what is free. */
void rs_reuse_note_room(struct rs_reuse *reuse);
void rs_reuse_ask_room(struct rs_reuse *reuse);

/* As rs_mr_make_ready. */
enum rs_readiness rs_reuse_make_ready(struct rs_reuse *reuse, uint64_t wait_ns);

/* An allocation that upstream's held memory does not serve: with what can be made ready, after a
 * wait for it, or by growth; for held memory alone with what can be made ready at once. */
CUresult rs_reuse_allocate_slowly(struct rs_reuse *reuse, size_t size_bytes, enum rs_effort effort,
                                  struct rs_allocation *out);

/* ---- as in struct rs_mr_ops ---- */

/* RS_EFFORT_LITTLE and RS_EFFORT_BEST are as RS_EFFORT_FULL: how much upstream is asked for, and
 * when a lesser one stands in, is chosen here. */
CUresult rs_reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                           enum rs_effort effort, struct rs_allocation *out);
CUresult rs_reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                             CUstream stream);
