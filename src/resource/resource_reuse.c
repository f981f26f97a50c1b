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
 *
 * Host memory is sealed at each free that is not small and looked at by the next such allocation,
 * so that a loop over one buffer stays in the processor's caches.
 *
 * A block that was freed in the order of a stream may be handed out at once to an allocation in the
 * order of the same stream.  Until then it waits with the others, in a list of its own, and leaves
 * the quarantine by whichever way opens first. */
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "driver/fence.h"
#include "driver/stream_order.h"
#include "resource/account.h"
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
    KEPT_BIN_BITS = 7,
    KEPT_BINS = 1 << KEPT_BIN_BITS, /* by size */
    KEPT_LOOK = 4,                  /* so many of a bin are looked at */
    KEPT_COUNT = 512,
    KEPT_SHARE = 64,        /* this share of what is held, ... */
    KEPT_BYTES = 1 << 20,   /* ... or so much; */
    KEPT_LARGE_SHARE = 4,   /* no block larger than this share of that, ... */
    KEPT_LARGE = 1 << 20,   /* ... nor than this: it would stand in the way of larger ones */
    LAZY_SHARE = 8,         /* a free of so large a share of what is held ... */
    LAZY_EPOCHS = 4,        /* ... retires only when so many epochs are sealed */
    EAGER_BYTES = 64 << 10, /* of host memory, a free of so much seals at once */
    /* Blocks that can be found by their stream; what does not fit only waits for its fence. */
    ORDERED_SET_BITS = 6,
    ORDERED_SETS = 1 << ORDERED_SET_BITS, /* by stream and size class */
    ORDERED_WAYS = 16,
    ORDERED_WASTE = 8, /* a found block is at most an eighth larger than what is asked for */
};

static const struct timespec nap = {.tv_nsec = NAP_NS};
static const uint64_t last_wait_ns = 30ull * 1000 * 1000 * 1000; /* before out-of-memory */

struct list;

/* A live or freed block of the program's; taken at allocation, so that a free needs no memory.  It
 * is the token. */
struct freed {
    struct freed *next, *before; /* before: in a list of ordered blocks only, as is the next */
    struct list *in;
    struct {
        CUdeviceptr address;
        size_t size_bytes;
        void *token;
    } upstream;
    union {
        unsigned long long stream; /* of a live block: that it was allocated on, as in
                                      rs_stream_key; 0: not known */
        void *holder;              /* of a freed one that has_holder: its holder's record */
    };
    uint32_t slot; /* of an ordered block: where it can be found, plus one; 0: nowhere */
    uint16_t home; /* the shard whose slab it belongs to */
    bool has_holder;
};

_Static_assert(sizeof(struct freed) <= RS_RECORD_BYTES,
               "a freed block's record is a slab's record");

struct list {
    struct freed *first, *last;
    size_t bytes, count;
};

/* Clean blocks by their exact size, the latest first. */
struct kept {
    struct freed *bins[KEPT_BINS];
    size_t bytes, count;
};

/* Threads are spread over shards, so that their frees do not meet. */
struct shard {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock; /* protects the shard */
    struct rs_record_slab records;
    struct list open;
    struct kept kept;
    ptrdiff_t live_bytes; /* allocated minus freed through this shard; may be negative */
    _Atomic bool is_used; /* by any thread, ever; without the lock */
};

/* Blocks freed in the order of a stream.  The lock protects these lists everywhere, those of sealed
 * epochs too, as an allocation takes blocks out of the middle; it is taken after reuse->lock. */
struct slot {
    unsigned long long stream; /* as in rs_stream_key */
    struct freed *block;       /* NULL: empty */
};

struct ordered {
    _Alignas(2 * RS_CACHE_LINE) struct rs_mutex lock;
    struct list open;
    ptrdiff_t live_bytes;             /* taken back minus freed; as a shard's */
    uint64_t reuses;                  /* taken back */
    _Atomic bool is_used;             /* by any free, ever; without the lock */
    unsigned char turn[ORDERED_SETS]; /* which way is emptied next */
    struct slot slots[ORDERED_SETS][ORDERED_WAYS];
};

struct epoch {
    struct epoch *next;
    struct list blocks;
    struct list ordered;
    CUevent event;
    bool timed_out; /* was waited for in vain, and is not waited for again */
};

struct reuse {
    struct rs_mr base;
    const struct rs_place *place;
    enum reuse_mode mode;
    bool has_fences, keeps_blocks;
    bool is_eager;        /* host memory: the block used last is still in the processor's caches */
    size_t initial_bytes; /* held upstream when this was made */

    struct rs_mutex lock; /* protects what follows; no driver call that waits is made under it */
    struct epoch *first, **end; /* sealed, oldest first */
    struct epoch *spare;        /* with their events */
    size_t peak_live_bytes;

    _Atomic size_t quarantined_bytes, quarantined_count;
    _Atomic unsigned in_need; /* threads that upstream has nothing for: nothing is kept meanwhile */
    _Atomic uint64_t retired_epochs, sealed_epochs, waits, wait_ns, full_waits, timeouts;

    struct shard shards[SHARDS];
    struct ordered ordered;
};

static struct reuse *reuse_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct reuse, base);
}

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- lists ---- */

static void list_push(struct list *list, struct freed *freed)
{
    freed->next = NULL;
    if (list->last)
        list->last->next = freed;
    else
        list->first = freed;
    list->last = freed;
    list->bytes += freed->upstream.size_bytes;
    list->count++;
}

static void list_append(struct list *list, struct list *tail)
{
    if (!tail->first)
        return;
    if (list->last)
        list->last->next = tail->first;
    else
        list->first = tail->first;
    list->last = tail->last;
    list->bytes += tail->bytes;
    list->count += tail->count;
    *tail = (struct list){NULL, NULL, 0, 0};
}

/* ---- shards ---- */

static struct shard *shard_of_thread(struct reuse *reuse, unsigned *index)
{
    static _Atomic unsigned threads;
    static __thread unsigned mine; /* plus one */

    if (RS_UNLIKELY(!mine))
        mine = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % SHARDS;
    *index = mine - 1;
    if (RS_UNLIKELY(!atomic_load_explicit(&reuse->shards[mine - 1].is_used, memory_order_relaxed)))
        atomic_store(&reuse->shards[mine - 1].is_used, true);
    return &reuse->shards[mine - 1];
}

static unsigned kept_bin(size_t size_bytes)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - KEPT_BIN_BITS));
}

/* Under the shard's lock, as are the next two. */
static struct freed *kept_take(struct kept *kept, size_t size_bytes)
{
    struct freed **at = &kept->bins[kept_bin(size_bytes)], *found;

    for (unsigned i = 0; i < KEPT_LOOK && *at; i++, at = &(*at)->next) {
        if ((*at)->upstream.size_bytes != size_bytes)
            continue;
        found = *at;
        *at = found->next;
        kept->bytes -= size_bytes;
        kept->count--;
        return found;
    }
    return NULL;
}

static void kept_put(struct kept *kept, struct freed *freed)
{
    struct freed **bin = &kept->bins[kept_bin(freed->upstream.size_bytes)];

    freed->next = *bin;
    *bin = freed;
    kept->bytes += freed->upstream.size_bytes;
    kept->count++;
}

static void kept_empty(struct kept *kept, struct list *list)
{
    for (unsigned i = 0; i < KEPT_BINS && kept->count > 0; i++) {
        for (struct freed *freed = kept->bins[i], *next; freed; freed = next) {
            next = freed->next;
            list_push(list, freed);
            kept->count--;
        }
        kept->bins[i] = NULL;
    }
    kept->bytes = 0;
}

/* A clean block of that size (*is_kept), or a record for one, which is counted as live from now on.
 */
static struct freed *take_kept_or_record(struct reuse *reuse, size_t size_bytes, bool *is_kept)
{
    unsigned home;
    struct shard *shard = shard_of_thread(reuse, &home);
    struct freed *record;

    rs_mutex_lock(&shard->lock);
    record = kept_take(&shard->kept, size_bytes);
    *is_kept = record;
    if (!record)
        record = rs_record_slab_take(&shard->records);
    shard->live_bytes += record ? (ptrdiff_t)size_bytes : 0;
    rs_mutex_unlock(&shard->lock);
    if (record && !*is_kept) {
        record->home = (uint16_t)home;
        record->slot = 0;
        record->stream = 0;
        record->has_holder = false;
    }
    return record;
}

static void give_record(struct reuse *reuse, struct freed *record)
{
    struct shard *home = &reuse->shards[record->home];

    rs_mutex_lock(&home->lock);
    rs_record_slab_give(&home->records, record);
    rs_mutex_unlock(&home->lock);
}

/* The allocation failed. */
static void untake_record(struct reuse *reuse, struct freed *record, size_t size_bytes)
{
    struct shard *home = &reuse->shards[record->home];

    rs_mutex_lock(&home->lock);
    home->live_bytes -= (ptrdiff_t)size_bytes;
    rs_record_slab_give(&home->records, record);
    rs_mutex_unlock(&home->lock);
}

/* ---- blocks freed in the order of a stream ---- */

static void ordered_link(struct list *list, struct freed *freed)
{
    freed->before = list->last;
    freed->in = list;
    list_push(list, freed);
}

static void ordered_unlink(struct freed *freed)
{
    struct list *list = freed->in;

    if (freed->before)
        freed->before->next = freed->next;
    else
        list->first = freed->next;
    if (freed->next)
        freed->next->before = freed->before;
    else
        list->last = freed->before;
    list->bytes -= freed->upstream.size_bytes;
    list->count--;
    freed->in = NULL;
}

/* From now on the block is not found by its stream. */
static void ordered_hide(struct ordered *ordered, struct freed *freed)
{
    if (freed->slot)
        ordered->slots[(freed->slot - 1) / ORDERED_WAYS][(freed->slot - 1) % ORDERED_WAYS].block =
            NULL;
    freed->slot = 0;
}

/* Eight classes per doubling of the size. */
static unsigned size_class(size_t size_bytes)
{
    size_t units = (size_bytes - 1) / RS_BLOCK_ALIGNMENT + 1;
    unsigned shift;

    if (units < ORDERED_WASTE)
        return (unsigned)units;
    shift = 60 - (unsigned)__builtin_clzl(units); /* leaves four bits, the highest set */
    return shift * ORDERED_WASTE + (unsigned)(units >> shift);
}

static unsigned ordered_set(unsigned long long stream, unsigned class)
{
    return (unsigned)(((stream << 10) + class) * 0x9e3779b97f4a7c15u >> (64 - ORDERED_SET_BITS));
}

static void ordered_show(struct ordered *ordered, struct freed *freed, unsigned long long stream)
{
    unsigned set = ordered_set(stream, size_class(freed->upstream.size_bytes)), way;
    struct slot *slots = ordered->slots[set];

    for (way = 0; way < ORDERED_WAYS && slots[way].block; way++)
        ;
    if (way == ORDERED_WAYS) {
        way = ordered->turn[set]++ % ORDERED_WAYS;
        ordered_hide(ordered, slots[way].block);
    }
    slots[way] = (struct slot){stream, freed};
    freed->slot = set * ORDERED_WAYS + way + 1;
}

static struct freed *smaller(struct freed *a, struct freed *b)
{
    return a && (!b || a->upstream.size_bytes <= b->upstream.size_bytes) ? a : b;
}

static struct freed *ordered_find(struct ordered *ordered, unsigned long long stream,
                                  unsigned class, size_t size_bytes)
{
    const struct slot *slots = ordered->slots[ordered_set(stream, class)];
    struct freed *best = NULL;

    for (unsigned way = 0; way < ORDERED_WAYS; way++) {
        struct freed *block = slots[way].block;
        if (block && slots[way].stream == stream && block->upstream.size_bytes >= size_bytes &&
            block->upstream.size_bytes - size_bytes <= size_bytes / ORDERED_WASTE)
            best = smaller(best, block);
    }
    return best;
}

/* A block that was freed in the order of this stream, counted as live again; NULL when there is
 * none that fits. */
static struct freed *ordered_take(struct reuse *reuse, size_t size_bytes, unsigned long long stream)
{
    struct ordered *ordered = &reuse->ordered;
    unsigned class = size_class(size_bytes);
    struct freed *block;

    if (!atomic_load_explicit(&ordered->is_used, memory_order_relaxed))
        return NULL;
    rs_mutex_lock(&ordered->lock);
    block = ordered_find(ordered, stream, class, size_bytes);
    block = smaller(block, ordered_find(ordered, stream, class + 1, size_bytes));
    if (block) {
        ordered_hide(ordered, block);
        ordered_unlink(block);
        ordered->live_bytes += (ptrdiff_t)block->upstream.size_bytes;
        ordered->reuses++;
    }
    rs_mutex_unlock(&ordered->lock);
    if (!block)
        return NULL;
    atomic_fetch_sub_explicit(&reuse->quarantined_bytes, block->upstream.size_bytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&reuse->quarantined_count, 1, memory_order_relaxed);
    return block;
}

/* Moves a list of ordered blocks, which stay ordered.  False when it was empty. */
static bool ordered_move(struct reuse *reuse, struct list *from, struct list *to)
{
    bool any;

    if (!atomic_load(&reuse->ordered.is_used))
        return false;
    rs_mutex_lock(&reuse->ordered.lock);
    any = from->first;
    for (struct freed *freed = from->first; freed; freed = from->first) {
        ordered_unlink(freed);
        ordered_link(to, freed);
    }
    rs_mutex_unlock(&reuse->ordered.lock);
    return any;
}

/* Moves a list of ordered blocks to others, which wait or go upstream: nobody can take them back.
 */
static void ordered_drain(struct reuse *reuse, struct list *from, struct list *to)
{
    if (!atomic_load(&reuse->ordered.is_used))
        return;
    rs_mutex_lock(&reuse->ordered.lock);
    for (struct freed *freed = from->first; freed; freed = from->first) {
        ordered_hide(&reuse->ordered, freed);
        ordered_unlink(freed);
        list_push(to, freed);
    }
    rs_mutex_unlock(&reuse->ordered.lock);
}

static bool ordered_has_open(struct reuse *reuse)
{
    bool found;

    rs_mutex_lock(&reuse->ordered.lock);
    found = reuse->ordered.open.first;
    rs_mutex_unlock(&reuse->ordered.lock);
    return found;
}

static ptrdiff_t ordered_live_bytes(struct reuse *reuse)
{
    ptrdiff_t live_bytes = 0;

    if (!atomic_load(&reuse->ordered.is_used))
        return 0;
    rs_mutex_lock(&reuse->ordered.lock);
    live_bytes = reuse->ordered.live_bytes;
    rs_mutex_unlock(&reuse->ordered.lock);
    return live_bytes;
}

/* ---- all of the open lists ---- */

/* Takes all open lists (where wanted) but the ordered one, and notes how much is live.  Under
 * reuse->lock. */
static struct list gather(struct reuse *reuse, bool take)
{
    struct list all = {NULL, NULL, 0, 0};
    ptrdiff_t live = ordered_live_bytes(reuse);

    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &reuse->shards[i];
        if (!atomic_load(&shard->is_used))
            continue;
        rs_mutex_lock(&shard->lock);
        if (take)
            list_append(&all, &shard->open);
        live += shard->live_bytes;
        rs_mutex_unlock(&shard->lock);
    }
    if (live > 0)
        reuse->peak_live_bytes = rs_max(reuse->peak_live_bytes, (size_t)live);
    return all;
}

static void put_back(struct reuse *reuse, struct list *list)
{
    unsigned index;
    struct shard *shard = shard_of_thread(reuse, &index);

    rs_mutex_lock(&shard->lock);
    list_append(&shard->open, list);
    rs_mutex_unlock(&shard->lock);
}

/* ---- clean blocks ---- */

/* By the context, of the memories of this stack: what its stacks of other kinds hold is no measure
 * of what this one may. */
static size_t held_bytes(const struct reuse *reuse)
{
    return rs_account_held_bytes_of(reuse->place->account, reuse->base.upstream[0]->memories);
}

static void forget_holder(const struct reuse *reuse, struct freed *freed)
{
    if (freed->has_holder)
        reuse->place->forget_holder(reuse->place, freed->holder);
    freed->has_holder = false;
}

static CUresult deallocate_upstream(struct reuse *reuse, const struct freed *freed)
{
    const struct rs_allocation allocation = {freed->upstream.address, freed->upstream.size_bytes,
                                             freed->upstream.token, NULL};

    return rs_mr_deallocate(reuse->base.upstream[0], &allocation, NULL);
}

static void give_list_upstream(struct reuse *reuse, const struct list *list)
{
    struct freed *next;

    for (struct freed *freed = list->first; freed; freed = next) {
        next = freed->next;
        forget_holder(reuse, freed);
        /* Fails only when a driver call beneath does, for a context that is broken anyhow. */
        (void)deallocate_upstream(reuse, freed);
        give_record(reuse, freed);
    }
}

/* Keeps a clean block in its shard, or adds it to those that go upstream; with it, when the shard
 * has no more room, all that is there: sizes that are no longer asked for would stay for ever.
 * Under the shard's lock. */
static void keep_or_not(struct reuse *reuse, struct shard *shard, struct freed *freed,
                        size_t limit_bytes, struct list *rest)
{
    size_t size_bytes = freed->upstream.size_bytes;

    if (!reuse->keeps_blocks || size_bytes > KEPT_LARGE ||
        size_bytes > limit_bytes / KEPT_LARGE_SHARE || atomic_load(&reuse->in_need) > 0) {
        list_push(rest, freed);
        return;
    }
    if (shard->kept.bytes + size_bytes > limit_bytes || shard->kept.count >= KEPT_COUNT)
        kept_empty(&shard->kept, rest);
    kept_put(&shard->kept, freed);
}

/* Of a list of clean blocks, those that go upstream. */
static struct list keep_some(struct reuse *reuse, const struct list *list)
{
    size_t limit_bytes = rs_max(KEPT_BYTES, held_bytes(reuse) / KEPT_SHARE);
    struct list rest = {NULL, NULL, 0, 0};
    struct shard *locked = NULL;
    struct freed *next;

    for (struct freed *freed = list->first; freed; freed = next) {
        struct shard *home = &reuse->shards[freed->home];
        next = freed->next;
        if (locked && locked != home)
            rs_mutex_unlock(&locked->lock);
        if (locked != home)
            rs_mutex_lock(&home->lock);
        locked = home;
        keep_or_not(reuse, home, freed, limit_bytes, &rest);
    }
    if (locked)
        rs_mutex_unlock(&locked->lock);
    return rest;
}

/* Gives all that is kept upstream.  False when that is nothing. */
static bool give_kept_upstream(struct reuse *reuse)
{
    struct list all = {NULL, NULL, 0, 0};

    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &reuse->shards[i];
        if (!atomic_load(&shard->is_used))
            continue;
        rs_mutex_lock(&shard->lock);
        kept_empty(&shard->kept, &all);
        rs_mutex_unlock(&shard->lock);
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
    for (unsigned i = 0; i < SHARDS; i++) {
        rs_mutex_lock(&reuse->shards[i].lock);
        bytes += reuse->shards[i].kept.bytes;
        *count += reuse->shards[i].kept.count;
        rs_mutex_unlock(&reuse->shards[i].lock);
    }
    return bytes;
}

/* Blocks that no work uses any more leave the quarantine. */
static void give_clean(struct reuse *reuse, struct list *list)
{
    struct list rest = keep_some(reuse, list);

    give_list_upstream(reuse, &rest);
    /* Now, not before: whoever finds nothing in quarantine and nothing upstream is out of memory.
     */
    atomic_fetch_sub_explicit(&reuse->quarantined_bytes, list->bytes, memory_order_release);
    atomic_fetch_sub_explicit(&reuse->quarantined_count, list->count, memory_order_release);
    *list = (struct list){NULL, NULL, 0, 0};
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
    struct list open;
    bool fenced = false, any;

    if (epoch) {
        open = gather(reuse, true);
        any = ordered_move(reuse, &reuse->ordered.open, &epoch->ordered) || open.first;
        fenced = any && rs_fence_record(reuse->place->context, epoch->event);
        if (fenced) {
            epoch->blocks = open;
            epoch->timed_out = false;
            epoch->next = NULL;
            *reuse->end = epoch;
            reuse->end = &epoch->next;
            count(&reuse->sealed_epochs, 1);
        } else {
            put_back(reuse, &open);
            (void)ordered_move(reuse, &epoch->ordered, &reuse->ordered.open);
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

/* Takes the blocks of the epochs whose fences are done, oldest first.  *oldest is the state of the
 * fence that is the oldest then: RS_FENCE_DONE when there is none left. */
static struct list retire_locked(struct reuse *reuse, enum rs_fence_state *oldest)
{
    struct list clean = {NULL, NULL, 0, 0};

    *oldest = RS_FENCE_DONE;
    while (reuse->first) {
        *oldest = rs_fence_query(reuse->place->context, reuse->first->event);
        if (*oldest != RS_FENCE_DONE)
            break;
        struct epoch *epoch = reuse->first;
        reuse->first = epoch->next;
        if (!reuse->first)
            reuse->end = &reuse->first;
        list_append(&clean, &epoch->blocks);
        ordered_drain(reuse, &epoch->ordered, &clean);
        spare_epoch(reuse, epoch);
        count(&reuse->retired_epochs, 1);
    }
    return clean;
}

/* True when there was something to retire. */
static bool retire_and_look(struct reuse *reuse, enum rs_fence_state *oldest)
{
    struct list clean;

    rs_mutex_lock(&reuse->lock);
    clean = retire_locked(reuse, oldest);
    rs_mutex_unlock(&reuse->lock);
    if (!clean.first)
        return false;
    give_clean(reuse, &clean);
    return true;
}

/* What a free does when it is time: seals and retires, unless somebody is about it.  That may be
 * this very thread, when a tool's callback from a driver call of ours frees.  A free of a large
 * block leaves retiring to others while only a few epochs are sealed: asking for a fence costs as
 * much as all the rest of it. */
static void seal_and_retire_in_passing(struct reuse *reuse, bool is_large)
{
    struct list clean = {NULL, NULL, 0, 0};
    enum rs_fence_state oldest;
    uint64_t pending;

    if (!rs_mutex_try_lock(&reuse->lock))
        return;
    pending = atomic_load_explicit(&reuse->sealed_epochs, memory_order_relaxed) -
              atomic_load_explicit(&reuse->retired_epochs, memory_order_relaxed);
    if (!is_large || pending >= LAZY_EPOCHS)
        clean = retire_locked(reuse, &oldest); /* first: a fence is not done as it is recorded */
    (void)seal_locked(reuse);
    rs_mutex_unlock(&reuse->lock);
    if (clean.first)
        give_clean(reuse, &clean);
}

static bool retire(struct reuse *reuse)
{
    enum rs_fence_state oldest;

    return retire_and_look(reuse, &oldest);
}

static bool has_open(struct reuse *reuse)
{
    bool found = ordered_has_open(reuse);

    for (unsigned i = 0; i < SHARDS && !found; i++) {
        rs_mutex_lock(&reuse->shards[i].lock);
        found = reuse->shards[i].open.first;
        rs_mutex_unlock(&reuse->shards[i].lock);
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
    struct list clean;
    CUresult result;

    rs_mutex_lock(&reuse->lock);
    clean = gather(reuse, true);
    ordered_drain(reuse, &reuse->ordered.open, &clean);
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
    (void)gather(reuse, false);
    allowed_bytes = reuse->peak_live_bytes + reuse->initial_bytes;
    rs_mutex_unlock(&reuse->lock);
    return held_bytes(reuse) + size_bytes <= allowed_bytes;
}

static bool has_quarantine(const struct reuse *reuse)
{
    return atomic_load_explicit(&reuse->quarantined_count, memory_order_acquire) > 0;
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
    struct freed *block;

    if (!rs_round_up(asked_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return false;
    *size_bytes = rounded_bytes;
    if (reuse->mode == MODE_WAIT || !rs_stream_key(stream, reuse->place->context, key))
        return false;
    block = ordered_take(reuse, rounded_bytes, *key);
    if (!block)
        return false;
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

/* A block of the shard's, or one from upstream; for an allocation on the stream of that key. */
static CUresult allocate_any(struct reuse *reuse, size_t size_bytes, size_t upstream_bytes,
                             unsigned long long key, bool only_held, struct rs_allocation *out)
{
    struct rs_allocation upstream;
    void *holder = NULL;
    bool is_kept;
    struct freed *record = take_kept_or_record(reuse, upstream_bytes, &is_kept);
    CUresult result;

    if (!record)
        return only_held ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
    if (!is_kept) {
        result = allocate_from_upstream(reuse, upstream_bytes, only_held, &upstream);
        if (result != CUDA_SUCCESS) {
            untake_record(reuse, record, upstream_bytes);
            return result;
        }
        record->upstream.address = upstream.address;
        record->upstream.size_bytes = upstream.size_bytes;
        record->upstream.token = upstream.token;
    } else if (size_bytes != upstream_bytes) {
        forget_holder(reuse, record);
    } else if (record->has_holder) {
        holder = record->holder;
    }
    record->has_holder = false;
    record->stream = key;
    *out = (struct rs_allocation){record->upstream.address, size_bytes, record, holder};
    return CUDA_SUCCESS;
}

static CUresult reuse_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                               struct rs_allocation *out)
{
    struct reuse *reuse = reuse_of(mr);
    size_t upstream_bytes = size_bytes;
    unsigned long long key = 0;

    if (reuse->is_eager && size_bytes >= EAGER_BYTES)
        (void)retire(reuse);
    if (RS_UNLIKELY(stream) && allocate_in_order(reuse, &upstream_bytes, stream, &key, out))
        return CUDA_SUCCESS;
    return allocate_any(reuse, size_bytes, upstream_bytes, key, false, out);
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

static void count_as_quarantined(struct reuse *reuse, const struct freed *record)
{
    atomic_fetch_add_explicit(&reuse->quarantined_bytes, record->upstream.size_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&reuse->quarantined_count, 1, memory_order_relaxed);
}

/* Enters a freed block into the open list of the thread's shard.  True when it is time to seal. */
static bool open_push(struct reuse *reuse, struct freed *record)
{
    unsigned index;
    struct shard *shard = shard_of_thread(reuse, &index);
    size_t limit_bytes = rs_max(SEAL_BYTES, held_bytes(reuse) / SEAL_SHARE), opened;
    bool full;

    count_as_quarantined(reuse, record);
    rs_mutex_lock(&shard->lock);
    shard->live_bytes -= (ptrdiff_t)record->upstream.size_bytes;
    list_push(&shard->open, record);
    opened = shard->open.count;
    full = shard->open.bytes >= limit_bytes || opened >= SEAL_COUNT;
    rs_mutex_unlock(&shard->lock);
    return full || (reuse->has_fences && opened % SCARCE_EVERY == 1 && is_scarce(reuse));
}

/* The same for a block freed in the order of a stream. */
static bool ordered_push(struct reuse *reuse, struct freed *record, unsigned long long stream)
{
    struct ordered *ordered = &reuse->ordered;
    size_t limit_bytes = rs_max(SEAL_BYTES, held_bytes(reuse) / SEAL_SHARE), opened;
    bool full;

    atomic_store(&ordered->is_used, true);
    count_as_quarantined(reuse, record);
    rs_mutex_lock(&ordered->lock);
    ordered->live_bytes -= (ptrdiff_t)record->upstream.size_bytes;
    ordered_link(&ordered->open, record);
    ordered_show(ordered, record, stream);
    opened = ordered->open.count;
    full = ordered->open.bytes >= limit_bytes || opened >= SEAL_COUNT;
    rs_mutex_unlock(&ordered->lock);
    return full || (reuse->has_fences && opened % SCARCE_EVERY == 1 && is_scarce(reuse));
}

/* As cudaFree: nothing of it is touched any more when this returns. */
static CUresult deallocate_waiting(struct reuse *reuse, struct freed *record)
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
static void keep_holder(struct reuse *reuse, struct freed *record,
                        const struct rs_allocation *allocation, bool in_order)
{
    record->has_holder =
        allocation->holder && !in_order && allocation->size_bytes == record->upstream.size_bytes;
    if (record->has_holder)
        record->holder = allocation->holder;
    else if (allocation->holder)
        reuse->place->forget_holder(reuse->place, allocation->holder);
}

static CUresult reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                 CUstream stream)
{
    struct reuse *reuse = reuse_of(mr);
    struct freed *record = allocation->token;
    size_t size_bytes = record->upstream.size_bytes; /* the record is another's after the push */
    unsigned long long key;
    bool time_to_seal, in_order;

    if (reuse->mode == MODE_WAIT)
        return deallocate_waiting(reuse, record);
    in_order = RS_UNLIKELY(stream) &&
               rs_stream_key_to_free(stream, reuse->place->context, record->stream, &key);
    keep_holder(reuse, record, allocation, in_order);
    time_to_seal = in_order ? ordered_push(reuse, record, key) : open_push(reuse, record);
    time_to_seal = time_to_seal || (reuse->is_eager && size_bytes >= EAGER_BYTES);
    if (!time_to_seal)
        return CUDA_SUCCESS;
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

    return kept_bytes(reuse, &count) +
           atomic_load_explicit(&reuse->quarantined_bytes, memory_order_relaxed);
}

static size_t reuse_free_blocks(struct rs_mr *mr)
{
    struct reuse *reuse = reuse_of(mr);
    size_t count;

    (void)kept_bytes(reuse, &count);
    return count + atomic_load_explicit(&reuse->quarantined_count, memory_order_relaxed);
}

static void reuse_report(struct rs_mr *mr, struct rs_report *report)
{
    struct reuse *reuse = reuse_of(mr);
    size_t count;

#define ADD(name, kind, unit, field)                                                               \
    rs_report_add(report, "reuse", name, RS_COUNTER_##kind, RS_UNIT_##unit,                        \
                  atomic_load_explicit(&reuse->field, memory_order_relaxed))
    ADD("quarantined", LIVE, BYTES, quarantined_bytes);
    ADD("quarantined_blocks", LIVE, COUNT, quarantined_count);
    rs_report_add(report, "reuse", "kept", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  kept_bytes(reuse, &count));
    ADD("epochs_sealed", TOTAL, COUNT, sealed_epochs);
    ADD("epochs_retired", TOTAL, COUNT, retired_epochs);
    ADD("waits", TOTAL, COUNT, waits);
    ADD("waits_in_vain", TOTAL, COUNT, timeouts);
    ADD("full_waits", TOTAL, COUNT, full_waits);
    ADD("waited", TOTAL, NANOSECONDS, wait_ns);
#undef ADD
    if (!atomic_load(&reuse->ordered.is_used))
        return;
    rs_mutex_lock(&reuse->ordered.lock);
    rs_report_add(report, "reuse", "stream_reuses", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                  reuse->ordered.reuses);
    rs_mutex_unlock(&reuse->ordered.lock);
}

/* Adds what is in a list of ordered blocks.  False when it contradicts itself. */
static bool ordered_check(const struct ordered *ordered, const struct list *list, size_t *bytes,
                          size_t *blocks)
{
    const struct freed *before = NULL;
    size_t sum = 0, count = 0;

    for (const struct freed *freed = list->first; freed; before = freed, freed = freed->next) {
        unsigned slot = freed->slot - 1;
        if (freed->in != list || freed->before != before ||
            (freed->slot &&
             ordered->slots[slot / ORDERED_WAYS][slot % ORDERED_WAYS].block != freed))
            return false;
        sum += freed->upstream.size_bytes;
        count++;
    }
    *bytes += sum;
    *blocks += count;
    return list->last == before && list->bytes == sum && list->count == count;
}

/* Under the shard's lock. */
static bool kept_check(const struct kept *kept)
{
    size_t bytes = 0, count = 0;

    for (unsigned i = 0; i < KEPT_BINS; i++) {
        for (const struct freed *freed = kept->bins[i]; freed; freed = freed->next, count++) {
            bytes += freed->upstream.size_bytes;
            if (kept_bin(freed->upstream.size_bytes) != i || freed->slot)
                return false;
        }
    }
    return bytes == kept->bytes && count == kept->count;
}

static bool reuse_check(struct rs_mr *mr)
{
    struct reuse *reuse = reuse_of(mr);
    size_t bytes = 0, blocks = 0;
    bool good = true;

    rs_mutex_lock(&reuse->lock);
    for (unsigned i = 0; i < SHARDS; i++) {
        rs_mutex_lock(&reuse->shards[i].lock);
        bytes += reuse->shards[i].open.bytes;
        blocks += reuse->shards[i].open.count;
        good = kept_check(&reuse->shards[i].kept) && good;
        rs_mutex_unlock(&reuse->shards[i].lock);
    }
    rs_mutex_lock(&reuse->ordered.lock);
    good = ordered_check(&reuse->ordered, &reuse->ordered.open, &bytes, &blocks) && good;
    for (struct epoch *epoch = reuse->first; epoch; epoch = epoch->next) {
        bytes += epoch->blocks.bytes;
        blocks += epoch->blocks.count;
        good = ordered_check(&reuse->ordered, &epoch->ordered, &bytes, &blocks) && good;
    }
    rs_mutex_unlock(&reuse->ordered.lock);
    /* Blocks on their way upstream are in no list and still counted. */
    good = good && bytes <= atomic_load(&reuse->quarantined_bytes) &&
           blocks <= atomic_load(&reuse->quarantined_count);
    rs_mutex_unlock(&reuse->lock);
    return good;
}

static void destroy_epochs(struct reuse *reuse, struct epoch *epoch, bool memory_is_gone)
{
    while (epoch) {
        struct epoch *next = epoch->next;
        if (!memory_is_gone) {
            ordered_drain(reuse, &epoch->ordered, &epoch->blocks);
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
    for (unsigned i = 0; i < SHARDS; i++) {
        rs_record_slab_destroy(&reuse->shards[i].records);
        rs_mutex_destroy(&reuse->shards[i].lock);
    }
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
    reuse->end = &reuse->first;
    reuse->initial_bytes = held_bytes(reuse);
    rs_mutex_init(&reuse->lock);
    rs_mutex_init(&reuse->ordered.lock);
    for (unsigned i = 0; i < SHARDS; i++)
        rs_mutex_init(&reuse->shards[i].lock);
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
