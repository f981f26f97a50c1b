/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks, which no work uses any more.
 *
 * Small ones stay with the shard (a group of threads) that allocated them, by size, up to a share
 * of the held bytes: the next request of exactly this size needs no search upstream and no new
 * record.  They go upstream before upstream has to grow.  The thread that finds an epoch done gives
 * each shard its blocks in one piece.  Later allocations of the shard sort them: one block each, or
 * a batch when no block of the size is found. */
#include "base/request.h"
#include "resource/reuse/reuse.h"

/* ---- shards ---- */

unsigned rs_reuse_use_shard(struct rs_reuse *reuse)
{
    unsigned index = rs_thread_index() % RS_REUSE_SHARDS;
    unsigned used = atomic_load(&reuse->shards_used);

    while (used <= index && !atomic_compare_exchange_weak(&reuse->shards_used, &used, index + 1))
        ;
    RS_ASSERT(index < rs_reuse_shards_used(reuse));
    return index;
}

/* ---- bins of kept blocks ---- */

static void empty_bin(struct rs_block_record **bin, struct rs_block_list *list)
{
    for (struct rs_block_record *freed = *bin, *next; freed; freed = next) {
        next = freed->next;
        rs_block_list_push(list, freed);
    }
    *bin = NULL;
}

static void empty_class(struct rs_kept_blocks *kept, enum rs_kept_class class,
                        struct rs_block_list *list)
{
    size_t bytes = list->bytes, count = list->count;

    for (uint64_t rest = kept->filled[class]; rest; rest &= rest - 1)
        empty_bin(&kept->bins[class * RS_KEPT_BINS + (unsigned)__builtin_ctzll(rest)], list);
    kept->filled[class] = 0;
    RS_ASSERT(list->bytes - bytes == kept->bytes[class]);
    RS_ASSERT(list->count - count == kept->count[class]);
    (void)bytes;
    (void)count;
    kept->bytes[class] = kept->count[class] = 0;
}

static bool check_class(const struct rs_kept_blocks *kept, enum rs_kept_class class)
{
    size_t bytes = 0, count = 0;

    for (unsigned i = 0; i < RS_KEPT_BINS; i++) {
        unsigned bin = class * RS_KEPT_BINS + i;
        for (const struct rs_block_record *freed = kept->bins[bin]; freed;
             freed = freed->next, count++) {
            bytes += freed->upstream_bytes;
            if (rs_kept_bin(freed->upstream_bytes, class) != bin || freed->is_ordered ||
                !(kept->filled[class] & (uint64_t)1 << i))
                return false;
        }
    }
    return bytes == kept->bytes[class] && count == kept->count[class];
}

bool rs_kept_check(const struct rs_kept_blocks *kept)
{
    return check_class(kept, RS_KEPT_SMALL) && check_class(kept, RS_KEPT_LARGE);
}

/* ---- ready blocks ---- */

enum {
    KEPT_DIVISOR = 64,      /* a shard keeps 1/64 of the held bytes in each class, ... */
    KEPT_BYTES = 1 << 20,   /* ... but at least 1 MiB */
    KEPT_LARGE_DIVISOR = 4, /* the largest block kept is up to 1/4 of that, ... */
    /* ... and up to 1 MiB: a larger one would stand in the way of larger blocks. */
    KEPT_LARGE = 1 << 20,
    PLENTY_DIVISOR = 16, /* where upstream has plenty, a shard keeps 1/16 of the held bytes, ... */
    PLENTY_IDLE_DIVISOR = 4,   /* ... but at most 1/4 of upstream's idle bytes, ... */
    PLENTY_LARGE_DIVISOR = 32, /* ... with blocks of up to 1/32 of those idle bytes, ... */
    PLENTY_LARGE = 16 << 20,   /* ... and at most 16 MiB */
    SORT_COUNT = 16,           /* blocks that an allocation sorts when none of its size is kept */
    READY_COUNT = 4096, /* the most unsorted blocks of a shard, as the slow path gives all of them
                           upstream at once */
    /* If a shard's ready blocks exceed what it may keep, the thread that brings them back sorts
     * them itself, up to this many; if there are more, the new ones join the backlog. */
    SORT_AT_ONCE = 512,
    LARGER_COUNT = 4, /* the most blocks larger than room->largest_bytes that a shard keeps, for
                         host memory only; about as many become ready at once */
};

/* ---- the way upstream ---- */

/* Gives a block upstream.  Does nothing for memory that has ended with its context. */
static CUresult deallocate_upstream(struct rs_reuse *reuse, const struct rs_block_record *freed)
{
    const struct rs_allocation allocation = rs_freed_upstream(freed);

    if (reuse->memory_is_gone)
        return CUDA_SUCCESS;
    return rs_mr_deallocate(reuse->base.upstream[0], &allocation, NULL);
}

/* Gives the blocks of a list upstream; those that upstream refuses join reuse->refused.  Returns
 * the number of blocks that upstream took. */
static size_t give_list_upstream(struct rs_reuse *reuse, const struct rs_block_list *list)
{
    struct rs_block_list refused = {NULL, NULL, 0, 0};
    size_t count = list->count;
    struct rs_block_record *next;

    for (struct rs_block_record *freed = list->first; freed; freed = next) {
        next = freed->next;
        rs_block_hide(freed);
        if (RS_LIKELY(deallocate_upstream(reuse, freed) == CUDA_SUCCESS))
            rs_block_record_give(freed);
        else
            rs_block_list_push(&refused, freed);
    }
    RS_ASSERT(refused.count <= count && refused.bytes <= list->bytes);
    count -= refused.count;
    if (RS_UNLIKELY(refused.first)) {
        rs_spinlock_lock(&reuse->refused_lock);
        rs_block_list_append(&reuse->refused, &refused);
        rs_spinlock_unlock(&reuse->refused_lock);
    }
    return count;
}

/* Counts ready blocks that a thread is about to carry upstream.  They are in no list and not in
 * quarantine, and another thread must not take them for live ones.  The caller holds the lock of
 * the list that they leave. */
static void begin_giving(struct rs_reuse *reuse, size_t size_bytes)
{
    atomic_fetch_add(&reuse->giving_bytes, size_bytes);
}

static bool give_in_hand(struct rs_reuse *reuse, const struct rs_block_list *list)
{
    size_t size_bytes = list->bytes, given = give_list_upstream(reuse, list), before;

    if (given > 0)
        atomic_fetch_add_explicit(&reuse->given, given, memory_order_release);
    before = atomic_fetch_sub(&reuse->giving_bytes, size_bytes);
    RS_ASSERT(before >= size_bytes);
    (void)before;
    return given > 0;
}

static bool return_refused(struct rs_reuse *reuse)
{
    struct rs_block_list refused = {NULL, NULL, 0, 0};

    rs_spinlock_lock(&reuse->refused_lock);
    rs_block_list_append(&refused, &reuse->refused);
    begin_giving(reuse, refused.bytes);
    rs_spinlock_unlock(&reuse->refused_lock);
    return give_in_hand(reuse, &refused);
}

/* ---- what a shard keeps ---- */

static struct rs_reuse_room kept_room(struct rs_reuse *reuse)
{
    size_t held = rs_reuse_held_bytes(reuse), idle = rs_mr_idle_bytes_best(reuse->base.upstream[0]);
    size_t plenty_bytes = rs_min(held / PLENTY_DIVISOR, idle / PLENTY_IDLE_DIVISOR);
    size_t largest_bytes = rs_max(KEPT_LARGE, rs_min(PLENTY_LARGE, idle / PLENTY_LARGE_DIVISOR));
    struct rs_reuse_room room = {rs_max(KEPT_BYTES, rs_max(held / KEPT_DIVISOR, plenty_bytes)), 0};

    room.largest_bytes = rs_min(largest_bytes, room.limit_bytes / KEPT_LARGE_DIVISOR);
    return room;
}

/* Moves the shard's kept blocks of the class `from` and of the larger class to a list.  The caller
 * holds the shard's lock. */
static void empty_kept(struct rs_reuse_shard *shard, enum rs_kept_class from,
                       struct rs_block_list *list)
{
    if (from == RS_KEPT_SMALL)
        empty_class(&shard->kept, RS_KEPT_SMALL, list);
    empty_class(&shard->kept, RS_KEPT_LARGE, list);
}

static struct rs_reuse_quantity kept_by(const struct rs_reuse_shard *shard)
{
    const struct rs_kept_blocks *kept = &shard->kept;

    return (struct rs_reuse_quantity){kept->bytes[RS_KEPT_SMALL] + kept->bytes[RS_KEPT_LARGE],
                                      kept->count[RS_KEPT_SMALL] + kept->count[RS_KEPT_LARGE]};
}

/* True when the shard may keep one more block that is larger than room->largest_bytes.  Each kept
 * block splits upstream's free memory, so a shard keeps only a few such blocks, all of one size,
 * and no other blocks beside them. */
static bool has_room_for_larger(const struct rs_reuse_shard *shard, size_t size_bytes)
{
    struct rs_reuse_quantity kept = kept_by(shard);

    return kept.blocks < LARGER_COUNT && kept.bytes == kept.blocks * size_bytes;
}

/* Makes room in the shard for a block that is to be kept.  If there is none, moves all kept
 * blocks of its class to `rest`, which goes upstream; for a block larger than
 * room->largest_bytes, those of both classes.  All go, since blocks of sizes that are no longer
 * asked for would stay for ever. */
static void make_room_to_keep(struct rs_reuse_shard *shard, size_t size_bytes,
                              const struct rs_reuse_room *room, struct rs_block_list *rest)
{
    if (size_bytes > room->largest_bytes) {
        if (!has_room_for_larger(shard, size_bytes))
            empty_kept(shard, RS_KEPT_SMALL, rest);
    } else if (!rs_reuse_has_room(shard, size_bytes, room)) {
        empty_class(&shard->kept, rs_kept_class(size_bytes), rest);
    }
}

/* Keeps a ready block in its shard, or adds it to the list `rest`, which goes upstream.  Of the
 * blocks larger than room->largest_bytes only those of host memory are kept.  The caller holds the
 * shard's lock. */
static void keep_or_not(struct rs_reuse *reuse, struct rs_reuse_shard *shard,
                        struct rs_block_record *freed, const struct rs_reuse_room *room,
                        struct rs_block_list *rest)
{
    size_t size_bytes = freed->upstream_bytes;

    if (!reuse->keeps_blocks || (size_bytes > room->largest_bytes && !reuse->is_eager) ||
        atomic_load(&reuse->on_slow_path) > 0) {
        rs_block_list_push(rest, freed);
        return;
    }
    make_room_to_keep(shard, size_bytes, room, rest);
    rs_kept_put(&shard->kept, freed);
}

/* Keeps up to `count` ready blocks of a shard in its bins; those that are not kept are added to
 * `rest`, which goes upstream.  The caller holds the shard's lock. */
RS_HOT static void sort_locked(struct rs_reuse *reuse, struct rs_reuse_shard *shard,
                               const struct rs_reuse_room *room, size_t count,
                               struct rs_block_list *rest)
{
    bool keeps = reuse->keeps_blocks && atomic_load(&reuse->on_slow_path) == 0;

    for (; count > 0 && shard->ready.first; count--) {
        struct rs_block_record *freed = rs_block_list_pop(&shard->ready);
        if (RS_LIKELY(keeps && rs_reuse_has_room(shard, freed->upstream_bytes, room)))
            rs_kept_put(&shard->kept, freed);
        else
            keep_or_not(reuse, shard, freed, room, rest);
    }
}

/* Brings a shard's own ready blocks back to it, for its threads to sort.  Sorts all of them here
 * while a thread is on the slow path.  Does so too when they are more than the shard may keep,
 * since the shard's threads may never allocate again.  When there are too many to be sorted here,
 * as after a long operation, the new ones stay in `list`. */
static void bring_back(struct rs_reuse *reuse, struct rs_reuse_shard *shard,
                       struct rs_block_list *list, const struct rs_reuse_room *room,
                       struct rs_block_list *rest)
{
    size_t count;
    bool on_slow_path, fits;

    rs_spinlock_lock(&shard->lock);
    shard->room = *room;
    count = shard->ready.count + list->count;
    on_slow_path = atomic_load(&reuse->on_slow_path) > 0;
    fits = count <= READY_COUNT && shard->ready.bytes + list->bytes <= room->limit_bytes;
    if (on_slow_path || fits || count <= SORT_AT_ONCE)
        rs_block_list_append(&shard->ready, list);
    if (on_slow_path || (!fits && count <= SORT_AT_ONCE))
        sort_locked(reuse, shard, room, SIZE_MAX, rest);
    RS_ASSERT_SLOW(rs_kept_check(&shard->kept));
    rs_spinlock_unlock(&shard->lock);
}

/* Keeps ready blocks of a list in their shards, and adds those that go upstream to `rest`. */
static void keep_some(struct rs_reuse *reuse, const struct rs_block_list *list,
                      const struct rs_reuse_room *room, struct rs_block_list *rest)
{
    struct rs_reuse_shard *locked = NULL;
    struct rs_block_record *next;

    for (struct rs_block_record *freed = list->first; freed; freed = next) {
        struct rs_reuse_shard *home = &reuse->shards[freed->home];
        RS_ASSERT(freed->home < rs_reuse_shards_used(reuse) && !freed->is_ordered);
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

struct rs_reuse_quantity rs_reuse_kept(struct rs_reuse *reuse)
{
    static const char name[] = "reuse";
    struct rs_reuse_quantity sum = {0, 0}, kept;

    if (!rs_spinlock_lock_bounded(&reuse->refused_lock, name))
        return sum;
    sum = (struct rs_reuse_quantity){reuse->refused.bytes, reuse->refused.count};
    rs_spinlock_unlock(&reuse->refused_lock);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        if (!rs_spinlock_lock_bounded(&shard->lock, name))
            continue;
        kept = kept_by(shard);
        sum.bytes += kept.bytes + shard->ready.bytes;
        sum.blocks += kept.blocks + shard->ready.count;
        rs_spinlock_unlock(&shard->lock);
    }
    return sum;
}

/* Stores own_bytes only when it changes, since every free reads its cache line. */
static void note_own_bytes(struct rs_reuse *reuse, const struct rs_reuse_room *room)
{
    size_t own_bytes = reuse->keeps_blocks ? rs_min(room->largest_bytes, PLENTY_LARGE) : 0;

    if (own_bytes != atomic_load_explicit(&reuse->own_bytes, memory_order_relaxed))
        atomic_store_explicit(&reuse->own_bytes, own_bytes, memory_order_relaxed);
}

void rs_reuse_give_ready(struct rs_reuse *reuse, struct rs_reuse_batch *batch)
{
    struct rs_block_list rest = {NULL, NULL, 0, 0};
    struct rs_reuse_quantity size = rs_reuse_batch_size(reuse, batch);
    struct rs_reuse_room room = kept_room(reuse);

    note_own_bytes(reuse, &room);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        struct rs_block_list *own = &batch->own[i];
        if (own->first)
            bring_back(reuse, &reuse->shards[i], own, &room, &rest);
        if (own->first) {
            RS_ASSERT(size.bytes >= own->bytes && size.blocks >= own->count);
            size.bytes -= own->bytes;
            size.blocks -= own->count;
            rs_reuse_add_backlog(reuse, own);
        }
    }
    keep_some(reuse, &batch->rest, &room, &rest);
    (void)give_list_upstream(reuse, &rest);
    /* The blocks count as having left the quarantine only now that they are kept or upstream.
     * Another thread that found them in neither place would take the memory for exhausted. */
    rs_reuse_count_left(reuse, size.bytes, size.blocks);
    batch->rest = (struct rs_block_list){NULL, NULL, 0, 0}; /* the other lists were emptied above */
    RS_ASSERT_SLOW(rs_reuse_batch_is_empty(reuse, batch));
}

void rs_reuse_give_upstream(struct rs_reuse *reuse, const struct rs_block_list *list)
{
    struct rs_reuse_quantity size = {list->bytes, list->count};

    (void)give_list_upstream(reuse, list);
    rs_reuse_count_left(reuse, size.bytes, size.blocks);
}

RS_HOT void rs_reuse_sort_ready(struct rs_reuse *reuse)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);
    struct rs_block_list rest = {NULL, NULL, 0, 0};
    struct rs_reuse_room room = kept_room(reuse);

    rs_spinlock_lock(&shard->lock);
    sort_locked(reuse, shard, &room, SORT_COUNT, &rest);
    if (rest.first)
        begin_giving(reuse, rest.bytes);
    RS_ASSERT_SLOW(rs_kept_check(&shard->kept));
    rs_spinlock_unlock(&shard->lock);
    if (!rest.first)
        return;
    rs_request_begin();
    (void)give_in_hand(reuse, &rest);
    rs_request_end();
}

/* ---- the slow path ---- */

bool rs_reuse_give_kept(struct rs_reuse *reuse, enum rs_kept_class from)
{
    struct rs_block_list all = {NULL, NULL, 0, 0};
    size_t before;

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        before = all.bytes;
        empty_kept(shard, from, &all);
        rs_block_list_append(&all, &shard->ready);
        begin_giving(reuse, all.bytes - before);
        rs_spinlock_unlock(&shard->lock);
    }
    return give_in_hand(reuse, &all);
}

/* No kept block is missed: a thread that keeps a block reads on_slow_path under the shard's lock,
 * and rs_reuse_give_kept takes that lock after the increment. */
bool rs_reuse_begin_slow_path(struct rs_reuse *reuse, enum rs_kept_class from)
{
    bool returned;

    atomic_fetch_add(&reuse->on_slow_path, 1);
    returned = return_refused(reuse);
    return rs_reuse_give_kept(reuse, from) || returned;
}

void rs_reuse_end_slow_path(struct rs_reuse *reuse)
{
    unsigned before = atomic_fetch_sub(&reuse->on_slow_path, 1);

    RS_ASSERT(before > 0);
    (void)before;
}
