/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `reuse`, for its own files alone.  reuse.c is the resource: how it is made, trimmed
 * and reported.  The other files:
 *
 *   allocation.c    the path of an allocation, also where upstream holds no fitting block
 *   deallocation.c  the path of a free
 *   quarantine.c    freed blocks that work may still use: open lists, batches, counts, and blocks
 *                   freed in the order of a stream
 *   epochs.c        freed blocks sealed behind one fence, until it is done or was waited for
 *   ready.c         blocks that no work uses any more: kept by a shard, or given upstream
 *
 * Words: a freed block is *open* until a fence covers it, then *sealed* in an epoch, then *ready*
 * once the fence is done.  A ready block goes back to a shard, which *keeps* it or gives it
 * upstream later, or goes upstream at once.  A block is in *quarantine* from its free until it is
 * back in a shard, comes back to an allocation, or is upstream.
 *
 * Lock order: the resource's lock first, then either the ordered blocks' lock or one shard's. */
#pragma once

#include "base/lock.h"
#include "base/thread.h"
#include "driver/fence.h"
#include "ledger/account.h"
#include "resource/block.h"
#include "resource/resource.h"

#include <stdatomic.h>

/* ---- kept blocks ---- */

enum {
    RS_KEPT_BIN_BITS = 6,
    RS_KEPT_BINS = 1 << RS_KEPT_BIN_BITS, /* bins are chosen by a hash of the size */
    RS_KEPT_LOOK = 4,
    RS_KEPT_SMALL_BYTES = 1 << 20,
};

/* The classes of kept blocks by size.  Each class has its own limit, and its blocks go upstream
 * without those of the other class.  With one limit for both classes, a few blocks of some MiB
 * reached it, and all small blocks had to go upstream with them. */
enum rs_kept_class { RS_KEPT_SMALL, RS_KEPT_LARGE, RS_KEPT_CLASSES };

RS_HOT_INLINE enum rs_kept_class rs_kept_class(size_t size_bytes)
{
    return RS_UNLIKELY(size_bytes > RS_KEPT_SMALL_BYTES) ? RS_KEPT_LARGE : RS_KEPT_SMALL;
}

/* Each class has bins of its own, and each bin has its latest block first.  All zero is empty. */
struct rs_kept_blocks {
    size_t bytes[RS_KEPT_CLASSES], count[RS_KEPT_CLASSES];
    /* One bit for each bin that got a block since the class was last emptied. */
    uint64_t filled[RS_KEPT_CLASSES];
    struct rs_block_record *bins[RS_KEPT_CLASSES * RS_KEPT_BINS];
};

RS_HOT_INLINE unsigned rs_kept_bin(size_t size_bytes, enum rs_kept_class class)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - RS_KEPT_BIN_BITS)) +
           class * RS_KEPT_BINS;
}

/* Takes and returns a block of exactly size_bytes.  Looks only at the latest RS_KEPT_LOOK blocks of
 * the bin, and returns NULL when none of these has the size. */
RS_HOT_INLINE struct rs_block_record *rs_kept_take_of(struct rs_kept_blocks *kept,
                                                      size_t size_bytes, enum rs_kept_class class)
{
    struct rs_block_record **at = &kept->bins[rs_kept_bin(size_bytes, class)], *found;

    for (unsigned i = 0; (found = *at) && i < RS_KEPT_LOOK; i++, at = &found->next) {
        if (RS_UNLIKELY(found->upstream_bytes != size_bytes))
            continue;
        RS_ASSERT_SLOW(kept->count[class] > 0 && kept->bytes[class] >= size_bytes);
        *at = found->next;
        kept->bytes[class] -= size_bytes;
        kept->count[class]--;
        return found;
    }
    return NULL;
}

RS_HOT_INLINE struct rs_block_record *rs_kept_take(struct rs_kept_blocks *kept, size_t size_bytes)
{
    if (RS_UNLIKELY(size_bytes > RS_KEPT_SMALL_BYTES))
        return rs_kept_take_of(kept, size_bytes, RS_KEPT_LARGE);
    return rs_kept_take_of(kept, size_bytes, RS_KEPT_SMALL);
}

/* Prefetches the lines that the next two requests of this size write, after `taken` was handed out:
 * the program's own code and data in between may have pushed them out of the caches. */
RS_HOT_INLINE void rs_kept_prefetch(const struct rs_block_record *taken)
{
    if (RS_LIKELY(taken->next)) {
        rs_block_record_prefetch(taken->next);
        __builtin_prefetch(taken->next->next, 1);
    }
}

RS_HOT_INLINE void rs_kept_put(struct rs_kept_blocks *kept, struct rs_block_record *freed)
{
    size_t size_bytes = freed->upstream_bytes;
    enum rs_kept_class class = rs_kept_class(size_bytes);
    unsigned bin = rs_kept_bin(size_bytes, class);

    RS_ASSERT_SLOW(!freed->is_ordered); /* else two allocations could get this block */
    freed->next = kept->bins[bin];
    kept->bins[bin] = freed;
    kept->filled[class] |= (uint64_t)1 << bin % RS_KEPT_BINS;
    kept->bytes[class] += size_bytes;
    kept->count[class]++;
}

/* True when all invariants hold. */
bool rs_kept_check(const struct rs_kept_blocks *kept);

struct rs_reuse_quantity {
    size_t bytes, blocks;
};

/* ---- blocks freed in the order of a stream ---- */

enum {
    RS_ORDERED_SET_BITS = 6,
    /* Sets are chosen by a hash of stream and size class. */
    RS_ORDERED_SETS = 1 << RS_ORDERED_SET_BITS,
    RS_ORDERED_WAYS = 16, /* the number of slots in a set */
};

/* A place in which an allocation finds an ordered block (freed in the order of a stream), whether
 * the block is open, sealed or ready. */
struct rs_ordered_slot {
    unsigned long long stream;     /* the stream's key (rs_stream_key) */
    struct rs_block_record *block; /* NULL: the slot is empty */
    uint64_t seal;                 /* the number of seals that had begun when the block was freed */
};

/* Blocks that were freed in the order of a stream.  They are in slots and in no list.  A seal of
 * these blocks is a number, and covers the blocks whose slots have lower numbers.  So no block need
 * be visited to merge two seals, or when a seal fails. */
struct rs_ordered_blocks {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    uint64_t begun;  /* seals so far, also those that failed */
    uint64_t sealed; /* the last seal that did not fail: a block with this number or more is open */
    struct rs_reuse_quantity open;
    _Atomic ptrdiff_t live_bytes; /* bytes that allocations took back minus bytes freed, as in a
                                     shard; may be negative; read without the lock */
    _Atomic uint64_t reuses;      /* how many blocks allocations took back; read without the lock */
    _Atomic bool is_used;         /* any block was ever freed in order; read without the lock */
    uint64_t filled;              /* one bit per set that may have a block */
    /* For each full set, the slot that the next block replaces. */
    unsigned char turn[RS_ORDERED_SETS];
    struct rs_ordered_slot slots[RS_ORDERED_SETS][RS_ORDERED_WAYS];
};

/* Takes a block that was freed in the order of `stream` (a key of rs_stream_key) and is at most an
 * eighth larger than size_bytes, and counts it as live again.  Returns NULL when there is none. */
struct rs_block_record *rs_ordered_take(struct rs_ordered_blocks *ordered, size_t size_bytes,
                                        unsigned long long stream);

/* Enters a block that was freed in the order of `stream` into a slot.  Returns the block that it
 * replaces there, which the caller enters into an open list, or NULL.  Sets *open to the bytes and
 * the number of the open ordered blocks. */
struct rs_block_record *rs_ordered_push(struct rs_ordered_blocks *ordered,
                                        struct rs_block_record *freed, unsigned long long stream,
                                        struct rs_reuse_quantity *open);

/* Begins a seal of all open ordered blocks, before its fence is recorded.  Returns the number of
 * the seal, or 0 when no block is open.  The caller of this and of rs_ordered_end_seal holds
 * reuse->lock. */
uint64_t rs_ordered_begin_seal(struct rs_ordered_blocks *ordered);

/* Called when the fence of the latest seal is recorded: the blocks of that seal are no longer open.
 * Returns their bytes. */
size_t rs_ordered_end_seal(struct rs_ordered_blocks *ordered, uint64_t seal);

/* Moves up to `most` of the blocks whose slots have seal numbers from `first` to below `end` to a
 * list, so that no allocation in the order of their stream finds them.  Returns false when it moved
 * fewer than `most`, so that none of these blocks is left. */
bool rs_ordered_drain(struct rs_ordered_blocks *ordered, uint64_t first, uint64_t end, size_t most,
                      struct rs_block_list *to);

size_t rs_ordered_open_count(struct rs_ordered_blocks *ordered);

/* Adds the bytes and the number of the blocks in all slots to *sum.  Returns false when an
 * invariant is broken.  The caller holds the lock. */
bool rs_ordered_check(const struct rs_ordered_blocks *ordered, struct rs_reuse_quantity *sum);

/* ---- the resource ---- */

enum { RS_REUSE_SHARDS = 16, RS_REUSE_EPOCHS = 64 };

struct rs_reuse_epoch;

/* The bytes of each class that a shard may keep, and the size of the largest block that it may keep
 * (of host memory it also keeps a few larger ones, see ready.c). */
struct rs_reuse_room {
    size_t limit_bytes, largest_bytes;
};

/* Threads are spread over shards, so that their frees do not contend for one lock. */
struct rs_reuse_shard {
    /* The first cache line is written by frees. */
    /* Open blocks, divided as in struct rs_reuse_batch: `open` has the shard's own small blocks,
     * and `open_rest` all others. */
    _Alignas(2 * RS_CACHE_LINE) struct rs_block_list open;
    struct rs_block_list open_rest;

    /* The second cache line is written by frees and allocations, and the rest mostly by
     * allocations. */
    struct rs_spinlock lock; /* protects the shard's other fields */
    unsigned char index;     /* the shard's index, which never changes */
    /* The part of this shard's open bytes that is included in the sum over all shards. */
    size_t published_bytes;
    /* Bytes allocated minus bytes freed through this shard; may be negative. */
    ptrdiff_t live_bytes;
    /* Bytes and blocks that ever entered the quarantine through this shard; read without the lock.
     */
    _Atomic size_t entered_bytes, entered_count;
    struct rs_block_list ready; /* ready blocks that came back to the shard; each is still to be
                                   kept, or given upstream */
    struct rs_reuse_room room;  /* the limits when the ready blocks came back */
    struct rs_kept_blocks kept;
};

/* Freed blocks of all shards.  A shard's own small blocks come back to it in one piece when they
 * are ready.  The thread that brings them does not touch their records, so the records stay in the
 * caches of the threads that use them. */
struct rs_reuse_batch {
    struct rs_block_list own[RS_REUSE_SHARDS];
    struct rs_block_list rest; /* large blocks, and blocks that a thread of another shard freed */
};

struct rs_reuse {
    struct rs_mr base;
    bool is_unordered; /* free=wait: no block is handed out in the order of a stream */
    bool frees_wait; /* a free that names no stream waits: with free=wait, or for memory other than
                        the host's on a driver without fences */
    bool keeps_blocks;   /* ready blocks stay with their shards */
    bool memory_is_gone; /* the memory ended with its context: nothing goes upstream any more */
    bool is_eager; /* for host memory: blocks are sealed early, since the block used last is still
                      in the processor's caches */
    _Atomic size_t eager_bytes; /* a free of this many bytes or more seals at once, and an
                                   allocation of this many or more queries the fences first (from
                                   RS_REUSE_SEAL_BYTES on, only if no block is free) */
    /* No thread has used a shard with this index or a higher one. */
    _Atomic unsigned shards_used;
    _Atomic size_t own_bytes; /* a block up to this size comes back to its shard when it is ready */
    size_t initial_bytes;     /* the bytes that upstream held when this resource was made */

    /* Protects the fields below, down to `ready_seal`.  No driver call that waits is made under
     * it. It is written at each seal, so it stands apart from the fields that every allocation and
     * free reads. */
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    struct rs_reuse_epoch *sealed[RS_REUSE_EPOCHS]; /* oldest first */
    unsigned sealed_count, merge_at; /* merge_at: the index of the epoch that the next merge joins
                                        with its younger neighbour */
    bool is_stuck;                   /* the oldest epoch's fence was pending at its last query */
    size_t epochs_bytes;             /* the bytes of the sealed epochs, without ordered blocks */
    struct rs_reuse_epoch *spare;    /* epochs to use again, with their events */
    _Atomic int refusal; /* enum rs_fence_refusal of the last seal, or RS_FENCE_CAPTURES when a
                            capture is about to begin; always RS_FENCE_REFUSED on a driver without
                            fences; read without the lock */
    /* Ready blocks that go upstream a few at a time; they still count as in quarantine. */
    struct rs_block_list backlog;
    uint64_t ready_seal; /* ordered blocks with lower seal numbers are ready, and go upstream in the
                            same way; 0: none are left */
    _Atomic bool has_backlog; /* `backlog` or ready_seal is not empty; read without the lock */
    _Atomic bool is_crowded;  /* the GPU is stuck and many epochs wait; read without the lock */
    _Atomic size_t peak_live_bytes; /* the most live bytes noted so far; read without the lock */

    /* Bytes and blocks that ever entered the quarantine in the order of a stream, and bytes and
     * blocks of any kind that ever left it. */
    _Atomic size_t ordered_bytes, ordered_count, left_bytes, left_count;
    _Atomic int short_seals; /* the number of seals by frees after which upstream no longer counts
                                as short */
    _Atomic unsigned on_slow_path; /* the number of threads on the slow path; while there is one, no
                                      block is kept */
    /* The bytes of ready blocks that a thread is giving upstream; these are in no list. */
    _Atomic size_t giving_bytes;
    _Atomic size_t given; /* the number of such blocks that upstream has taken so far */
    _Atomic uint64_t retired_epochs, sealed_epochs, waits, wait_ns, full_waits, timeouts;

    struct rs_reuse_shard shards[RS_REUSE_SHARDS];
    struct rs_ordered_blocks ordered;
    struct rs_spinlock refused_lock; /* protects `refused` */
    struct rs_block_list refused;    /* ready blocks that upstream refused to take */
    /* The open bytes of all shards.  Each shard adds its new ones now and then (published_bytes),
     * and rs_reuse_gather subtracts them. */
    _Alignas(2 * RS_CACHE_LINE) _Atomic size_t open_bytes;
};

/* False on a driver without fences, and when the last seal found that no fence can be had, or no
 * host memory for one. */
static inline bool rs_reuse_may_have_fence(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->refusal, memory_order_relaxed) != RS_FENCE_REFUSED;
}

static inline void rs_reuse_count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- shards ---- */

/* All shards from this index on are unused. Some below it may be unused too. */
static inline unsigned rs_reuse_shards_used(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->shards_used, memory_order_acquire);
}

/* Returns the index of the calling thread's shard, and marks the shard used.  Gives the thread an
 * index first, if it has none. */
RS_COLD unsigned rs_reuse_use_shard(struct rs_reuse *reuse);

RS_HOT_INLINE struct rs_reuse_shard *rs_reuse_shard_of_thread(struct rs_reuse *reuse)
{
    /* A thread without an index takes the last shard if it is used.  Else it gets an index below.
     */
    unsigned index = (rs_thread.index_plus_one - 1) % RS_REUSE_SHARDS;
    struct rs_reuse_shard *shard;

    if (RS_UNLIKELY(atomic_load_explicit(&reuse->shards_used, memory_order_relaxed) <= index))
        index = rs_reuse_use_shard(reuse);
    shard = &reuse->shards[index];
    /* Keeps the address in a register; GCC 12 would compute it again for each use. */
    __asm__("" : "+r"(shard));
    return shard;
}

/* ---- quarantine ---- */

/* True when blocks are in quarantine.  May still return true just after the last block left, but
 * never false while one is there: the count of blocks that left is read first, and a block is
 * counted in it only once it is upstream, back in a shard, or an allocation's. */
bool rs_reuse_has_quarantine(const struct rs_reuse *reuse);

/* Returns what rs_mr_progress returns, for this `reuse` alone. */
uint64_t rs_reuse_progress(const struct rs_reuse *reuse);

/* Returns the bytes and blocks in quarantine.  Blocks that leave during the call may make the
 * numbers too small, but never too large. */
struct rs_reuse_quantity rs_reuse_quarantined(const struct rs_reuse *reuse);

/* Counts blocks that left the quarantine. */
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

/* Moves all blocks of `tail` to the end of `batch`. */
void rs_reuse_batch_append(const struct rs_reuse *reuse, struct rs_reuse_batch *batch,
                           struct rs_reuse_batch *tail);

/* Moves all open blocks except the ordered ones to a batch (NULL: moves none).  Notes the peak of
 * the live bytes, and returns the live bytes.  The caller holds reuse->lock. */
size_t rs_reuse_gather(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

/* Moves a batch's blocks back to the open lists. */
void rs_reuse_put_back(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

/* Returns the number of open blocks. */
size_t rs_reuse_open_count(struct rs_reuse *reuse);

/* ---- epochs ---- */

/* Seals all open blocks into an epoch and records its fence.  False when no block was open or no
 * fence could be had (an old driver, a capture, no host memory, a failed context). */
bool rs_reuse_seal(struct rs_reuse *reuse);

/* Retires all epochs whose fences are done: their blocks become ready and go to shards or upstream,
 * and so does the backlog.  Returns true when there were any such blocks. */
bool rs_reuse_retire(struct rs_reuse *reuse);

/* Does as rs_reuse_retire, but gives only a bounded number of blocks upstream and leaves the others
 * in the backlog.  The caller repeats it as long as it needs more and there is a backlog. */
bool rs_reuse_retire_some(struct rs_reuse *reuse);

/* Adds ready blocks for which their shard has no room to the backlog, which goes upstream a few
 * blocks at a time. */
void rs_reuse_add_backlog(struct rs_reuse *reuse, struct rs_block_list *list);

/* Called by frees: gives a few blocks of the backlog upstream, unless another thread holds the
 * lock. */
void rs_reuse_give_backlog(struct rs_reuse *reuse);

static inline bool rs_reuse_has_backlog(const struct rs_reuse *reuse)
{
    return RS_UNLIKELY(atomic_load_explicit(&reuse->has_backlog, memory_order_relaxed));
}

/* True while the GPU was stuck at the last query and many epochs wait.  Frees then seal less often:
 * one more epoch would be done no sooner than its neighbours, and costs 2.5 us on an H200. */
static inline bool rs_reuse_is_crowded(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->is_crowded, memory_order_relaxed);
}

/* Takes a block out of its open list, so that it is live again.  Returns false when it is in no
 * open list (it may be sealed, or in a slot), or another thread holds the lock. */
bool rs_reuse_take_back(struct rs_reuse *reuse, struct rs_block_record *record);

/* Called by a free when it is time to seal.  Retires done epochs and seals, unless another thread
 * holds the lock.  Returns RS_FENCE_GRANTED, or why the seal got no fence; its blocks then stay
 * open.  While another thread holds the lock, returns RS_FENCE_GRANTED, and on a driver without
 * fences RS_FENCE_REFUSED.  is_large: each free of such a size may seal an epoch of its own, so
 * fences are queried only when more epochs wait. */
enum rs_fence_refusal rs_reuse_advance(struct rs_reuse *reuse, bool is_large);

/* True when there is a sealed epoch.  With not_timed_out, false also when a wait for the oldest one
 * has timed out. */
bool rs_reuse_has_sealed(struct rs_reuse *reuse, bool not_timed_out);

/* Sleeps for a moment between two looks at a change by another thread or by the GPU. */
void rs_reuse_nap(void);

/* Waits up to limit_ns until an epoch is retired, by this thread or another.  The caller holds no
 * lock.  Returns true when one was retired or none is sealed.  Returns false after the limit, or at
 * once when the query of a fence fails. */
bool rs_reuse_wait_for_first(struct rs_reuse *reuse, uint64_t limit_ns);

/* Seals, and waits up to limit_ns for the oldest epoch.  Returns true when it waited, also if the
 * wait timed out.  Returns false when there is no epoch to wait for; one for which a wait timed out
 * is not waited for again. */
bool rs_reuse_wait_once(struct rs_reuse *reuse, uint64_t limit_ns);

/* Moves all open blocks, the ordered ones too, to `open`.  The caller gives them upstream, or puts
 * them back. */
void rs_reuse_take_open(struct rs_reuse *reuse, struct rs_reuse_batch *open);

/* Waits for all work of the context, as cudaFree does, and makes every block ready that was freed
 * before, open or sealed.  Returns CUDA_SUCCESS, or the wait's error. */
CUresult rs_reuse_wait_for_all(struct rs_reuse *reuse);

/* Returns the bytes and the number of the blocks in epochs and backlog, without the ordered ones.
 * The caller holds reuse->lock. */
struct rs_reuse_quantity rs_reuse_in_epochs(const struct rs_reuse *reuse);

/* Frees all epochs, and gives their blocks upstream. */
void rs_reuse_destroy_epochs(struct rs_reuse *reuse);

/* ---- ready blocks ---- */

enum { RS_REUSE_KEPT_COUNT = 512 }; /* the most blocks of each class that a shard keeps */

/* True when the shard has room to keep a block of this size.  The caller holds the shard's lock. */
RS_HOT_INLINE bool rs_reuse_has_room(const struct rs_reuse_shard *shard, size_t size_bytes,
                                     const struct rs_reuse_room *room)
{
    enum rs_kept_class class = rs_kept_class(size_bytes);

    return size_bytes <= room->largest_bytes &&
           shard->kept.bytes[class] + size_bytes <= room->limit_bytes &&
           shard->kept.count[class] < RS_REUSE_KEPT_COUNT;
}

/* Keeps the first of the shard's ready blocks, of which there is at least one, if there is room for
 * it, and prefetches the record of the next one.  Each allocation does this for one block: sorting
 * all blocks at once would wait for each record in turn, since the program's own data have pushed
 * them out of the caches.  The caller holds the shard's lock.  While a thread is on the slow path,
 * the list of ready blocks is empty, so this is not called. */
RS_HOT_INLINE void rs_reuse_sort_one(struct rs_reuse_shard *shard)
{
    struct rs_block_record *freed = shard->ready.first;

    if (RS_UNLIKELY(!rs_reuse_has_room(shard, freed->upstream_bytes, &shard->room)))
        return;
    rs_block_list_pop(&shard->ready);
    if (RS_LIKELY(shard->ready.first))
        __builtin_prefetch(shard->ready.first, 1);
    rs_block_record_prefetch(freed);
    rs_kept_put(&shard->kept, freed);
}

/* Returns the bytes that the context holds of this stack's kinds of memory.  Stacks of other kinds
 * do not count, since their memory says nothing about how much this stack may hold. */
static inline size_t rs_reuse_held_bytes(const struct rs_reuse *reuse)
{
    return rs_account_held_bytes_of(reuse->base.environment->account,
                                    reuse->base.upstream[0]->memories);
}

/* Returns the allocation as upstream knows it. */
static inline struct rs_allocation rs_freed_upstream(const struct rs_block_record *freed)
{
    return (struct rs_allocation){freed->address, freed->upstream_bytes, freed->upstream_token,
                                  NULL};
}

/* Empties a batch of blocks that no work uses any more: they leave the quarantine and go to shards
 * or upstream.  Blocks of a shard that has too many unsorted ones join the backlog instead. */
void rs_reuse_give_ready(struct rs_reuse *reuse, struct rs_reuse_batch *batch);

/* Gives ready blocks upstream, as rs_reuse_give_ready does, but lets no shard keep any. */
void rs_reuse_give_upstream(struct rs_reuse *reuse, const struct rs_block_list *list);

/* Sorts some of the ready blocks of the calling thread's shard. */
void rs_reuse_sort_ready(struct rs_reuse *reuse);

/* Between begin and end every block that becomes ready goes upstream and none is kept.  Begin also
 * gives upstream the refused blocks, and does as rs_reuse_give_kept.  It returns true when upstream
 * took any. */
bool rs_reuse_begin_slow_path(struct rs_reuse *reuse, enum rs_kept_class from);
void rs_reuse_end_slow_path(struct rs_reuse *reuse);

/* Gives upstream all unsorted blocks, and the kept ones from class `from` on (RS_KEPT_SMALL: all).
 * Called between begin and end.  True when upstream took some. */
bool rs_reuse_give_kept(struct rs_reuse *reuse, enum rs_kept_class from);

/* Returns the bytes and the number of all kept, unsorted and refused blocks. */
struct rs_reuse_quantity rs_reuse_kept(struct rs_reuse *reuse);

/* ---- when frees seal ---- */

/* Upstream counts as short from an allocation on the slow path until frees have sealed
 * RS_REUSE_SHORT_SEALS times.  Meanwhile eager_bytes is 1/128 of the held bytes (1/64 where the
 * program asked for an initial size, that is for room ahead), at least 256 KiB.  A free seals when
 * this much is open, and each allocation of this size or more queries fences.  So freed memory
 * comes back before an allocation has to cut another block instead, and an allocation that waits
 * finds an epoch that will be done soon, even while the GPU works on later commands.
 *
 * A fixed 256 KiB made training record a fence for two of three frees.  Measured on six traces
 * (deferred_replay, with the GPU 0.1, 1 and 10 ms behind), 1/128 of the held bytes instead of a
 * fixed 256 KiB: without an initial size it records 1459 fences instead of 2335, makes 4372 queries
 * instead of 10157, and holds 1.147 bytes per live byte instead of 1.141; with an initial size of
 * 512 MiB it records 1157 fences instead of 1932, makes 3800 queries instead of 9840, and holds
 * 1.515 bytes instead of 1.518.  With 1/64 fewer fences still are recorded, but `pool` then holds
 * more than RMM's arena.  With an initial size of 512 MiB, 1/64 records 0.73 times the fences of
 * 1/128. */
enum {
    RS_REUSE_SHORT_SEALS = 1024,
    RS_REUSE_SHORT_BYTES = 256 << 10,
    RS_REUSE_SHORT_DIVISOR = 128,
    RS_REUSE_SHORT_INITIAL_DIVISOR = 64
};

/* A value of eager_bytes: an allocation was refused while freed blocks had no fence.  Programs then
 * free something and allocate again, so the next free seals, and does the full wait if it gets no
 * fence. */
enum { RS_REUSE_STARVED = 0 };

RS_HOT_INLINE size_t rs_reuse_eager_bytes(const struct rs_reuse *reuse)
{
    return atomic_load_explicit(&reuse->eager_bytes, memory_order_relaxed);
}

enum { RS_REUSE_SEAL_BYTES = 32 << 20, RS_REUSE_SEAL_DIVISOR = 16 };

/* The first free after a seal, and each sixteenth one after it, seals if upstream's idle bytes are
 * less than 1/32 of the held bytes. */
enum { RS_REUSE_SCARCE_DIVISOR = 32 };

/* Returns how many open bytes of all shards make a free seal: 32 MiB, or 1/16 of the held bytes if
 * that is more. */
static inline size_t rs_reuse_seal_bytes(const struct rs_reuse *reuse)
{
    return rs_max(RS_REUSE_SEAL_BYTES, rs_reuse_held_bytes(reuse) / RS_REUSE_SEAL_DIVISOR);
}

/* The ops of `reuse`.  They treat RS_EFFORT_LITTLE and RS_EFFORT_BEST as RS_EFFORT_FULL, since
 * `reuse` chooses by itself how much to ask of upstream, and when a second upstream stands in. */
CUresult rs_reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                           enum rs_effort effort, struct rs_allocation *out);
CUresult rs_reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                             CUstream stream);
