/* SPDX-License-Identifier: Apache-2.0 */
/* The quarantine: freed blocks that work may still use.  They gather in open lists, one pair per
 * shard, which an epoch or a full wait takes as one batch.  Blocks freed in the order of a stream
 * are in slots instead.  The counts of the quarantine also cover blocks on their way upstream,
 * which are in no list and no slot. */
#include "resource/resource.h"
#include "resource/reuse/reuse.h"

/* ---- counts ---- */

static size_t load(const _Atomic size_t *size)
{
    return atomic_load_explicit(size, memory_order_acquire);
}

static struct rs_reuse_quantity entered(const struct rs_reuse *reuse)
{
    struct rs_reuse_quantity sum = {load(&reuse->ordered_bytes), load(&reuse->ordered_count)};

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        sum.bytes += load(&reuse->shards[i].entered_bytes);
        sum.blocks += load(&reuse->shards[i].entered_count);
    }
    return sum;
}

bool rs_reuse_has_quarantine(const struct rs_reuse *reuse)
{
    size_t left = load(&reuse->left_count);

    return entered(reuse).blocks != left;
}

uint64_t rs_reuse_progress(const struct rs_reuse *reuse)
{
    return entered(reuse).blocks + load(&reuse->left_count) + load(&reuse->given);
}

struct rs_reuse_quantity rs_reuse_quarantined(const struct rs_reuse *reuse)
{
    struct rs_reuse_quantity sum = entered(reuse);
    size_t left_bytes = load(&reuse->left_bytes), left_count = load(&reuse->left_count);

    return (struct rs_reuse_quantity){sum.bytes > left_bytes ? sum.bytes - left_bytes : 0,
                                      sum.blocks > left_count ? sum.blocks - left_count : 0};
}

/* ---- batches ---- */

const struct rs_reuse_batch rs_reuse_no_batch;

void rs_reuse_batch_append(const struct rs_reuse *reuse, struct rs_reuse_batch *batch,
                           struct rs_reuse_batch *tail)
{
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++)
        rs_block_list_append(&batch->own[i], &tail->own[i]);
    rs_block_list_append(&batch->rest, &tail->rest);
}

/* ---- all of the open lists ---- */

size_t rs_reuse_gather(struct rs_reuse *reuse, struct rs_reuse_batch *batch)
{
    ptrdiff_t live = reuse->ordered.live_bytes;

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        RS_ASSERT(shard->published_bytes <= shard->open.bytes + shard->open_rest.bytes);
        if (batch) {
            rs_block_list_append(&batch->own[i], &shard->open);
            rs_block_list_append(&batch->rest, &shard->open_rest);
            atomic_fetch_sub_explicit(&reuse->open_bytes, shard->published_bytes,
                                      memory_order_relaxed);
            shard->published_bytes = 0;
        }
        live += shard->live_bytes;
        rs_spinlock_unlock(&shard->lock);
    }
    if (live <= 0)
        return 0;
    atomic_store_explicit(
        &reuse->peak_live_bytes,
        rs_max(atomic_load_explicit(&reuse->peak_live_bytes, memory_order_relaxed), (size_t)live),
        memory_order_relaxed);
    return (size_t)live;
}

void rs_reuse_put_back(struct rs_reuse *reuse, struct rs_reuse_batch *batch)
{
    struct rs_reuse_shard *shard = rs_reuse_shard_of_thread(reuse);

    RS_ASSERT(batch->rest.first || batch->rest.count == 0);
    rs_spinlock_lock(&shard->lock);
    rs_block_list_append(&shard->open_rest, &batch->rest);
    rs_spinlock_unlock(&shard->lock);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        if (!batch->own[i].first)
            continue;
        rs_spinlock_lock(&reuse->shards[i].lock);
        rs_block_list_append(&reuse->shards[i].open, &batch->own[i]);
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
}

/* Lowers the open bytes that the shard has published to those that it has.  The caller holds the
 * shard's lock. */
static void publish_less(struct rs_reuse *reuse, struct rs_reuse_shard *shard)
{
    size_t open_bytes = shard->open.bytes + shard->open_rest.bytes;
    size_t less_bytes = shard->published_bytes - rs_min(shard->published_bytes, open_bytes);

    shard->published_bytes -= less_bytes;
    atomic_fetch_sub_explicit(&reuse->open_bytes, less_bytes, memory_order_relaxed);
}

/* This only tries to take the lock, as each free does (rs_reuse_advance). */
bool rs_reuse_take_back(struct rs_reuse *reuse, struct rs_block_record *record)
{
    size_t size_bytes = 0;

    if (!rs_mutex_try_lock(&reuse->lock))
        return false;
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse) && size_bytes == 0; i++) {
        struct rs_reuse_shard *shard = &reuse->shards[i];
        rs_spinlock_lock(&shard->lock);
        if (rs_block_list_remove(&shard->open, record) ||
            rs_block_list_remove(&shard->open_rest, record)) {
            size_bytes = record->upstream_bytes;
            shard->live_bytes += (ptrdiff_t)size_bytes;
            record->stream = 0;
            publish_less(reuse, shard);
        }
        rs_spinlock_unlock(&shard->lock);
    }
    if (size_bytes > 0)
        rs_reuse_count_left(reuse, size_bytes, 1);
    rs_mutex_unlock(&reuse->lock);
    return size_bytes > 0;
}

size_t rs_reuse_open_count(struct rs_reuse *reuse)
{
    size_t count = rs_ordered_open_count(&reuse->ordered);

    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        count += reuse->shards[i].open.count + reuse->shards[i].open_rest.count;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    return count;
}

/* ---- blocks freed in the order of a stream ---- */

enum { WASTE = 8 /* a block that serves a request is at most 1/8 larger than it */ };

/* Empties the slot, so that allocations in the order of its stream no longer find its block.
 * Returns that block, or NULL if there was none. */
static struct rs_block_record *empty(struct rs_ordered_blocks *ordered,
                                     struct rs_ordered_slot *slot)
{
    struct rs_block_record *block = slot->block;

    if (!block)
        return NULL;
    RS_ASSERT(block->is_ordered);
    slot->block = NULL;
    block->is_ordered = false;
    if (slot->seal >= ordered->sealed) {
        RS_ASSERT(ordered->open.blocks > 0 && ordered->open.bytes >= block->upstream_bytes);
        ordered->open.bytes -= block->upstream_bytes;
        ordered->open.blocks--;
    }
    return block;
}

/* Returns the class of a size; there are eight classes per doubling of the size. */
static unsigned size_class(size_t size_bytes)
{
    size_t units = (size_bytes - 1) / RS_BLOCK_ALIGNMENT + 1;
    unsigned shift;

    if (units < WASTE)
        return (unsigned)units;
    /* The shift leaves four bits of `units`, the highest of which is set. */
    shift = 60 - (unsigned)__builtin_clzl(units);
    return shift * WASTE + (unsigned)(units >> shift);
}

static unsigned set_of_order(unsigned long long stream, unsigned class)
{
    return (unsigned)(((stream << 10) + class) * 0x9e3779b97f4a7c15u >> (64 - RS_ORDERED_SET_BITS));
}

/* Looks in one size class for a block that serves an allocation on the stream.  Returns the slot of
 * the smallest one, or `best` (which may be NULL) if that has a smaller block or none is found. */
static struct rs_ordered_slot *find_ordered(struct rs_ordered_blocks *ordered,
                                            unsigned long long stream, unsigned class,
                                            size_t size_bytes, struct rs_ordered_slot *best)
{
    struct rs_ordered_slot *slots = ordered->slots[set_of_order(stream, class)];

    for (unsigned way = 0; way < RS_ORDERED_WAYS; way++) {
        const struct rs_block_record *block = slots[way].block;
        if (block && slots[way].stream == stream && block->upstream_bytes >= size_bytes &&
            block->upstream_bytes - size_bytes <= size_bytes / WASTE &&
            (!best || block->upstream_bytes < best->block->upstream_bytes))
            best = &slots[way];
    }
    return best;
}

/* Adds to the live bytes.  The caller holds the lock, so a plain store suffices. */
static void add_ordered_live(struct rs_ordered_blocks *ordered, ptrdiff_t bytes)
{
    atomic_store_explicit(&ordered->live_bytes, ordered->live_bytes + bytes, memory_order_relaxed);
}

static bool is_used(struct rs_ordered_blocks *ordered)
{
    return atomic_load_explicit(&ordered->is_used, memory_order_acquire);
}

struct rs_block_record *rs_ordered_take(struct rs_ordered_blocks *ordered, size_t size_bytes,
                                        unsigned long long stream)
{
    unsigned class = size_class(size_bytes);
    struct rs_block_record *block = NULL;
    struct rs_ordered_slot *slot;

    if (!is_used(ordered))
        return NULL;
    rs_mutex_lock(&ordered->lock);
    slot = find_ordered(ordered, stream, class, size_bytes, NULL);
    slot = find_ordered(ordered, stream, class + 1, size_bytes, slot);
    if (slot) {
        block = empty(ordered, slot);
        RS_ASSERT(block && block->upstream_bytes >= size_bytes);
        add_ordered_live(ordered, (ptrdiff_t)block->upstream_bytes);
        atomic_store_explicit(&ordered->reuses, ordered->reuses + 1, memory_order_relaxed);
    }
    rs_mutex_unlock(&ordered->lock);
    return block;
}

struct rs_block_record *rs_ordered_push(struct rs_ordered_blocks *ordered,
                                        struct rs_block_record *freed, unsigned long long stream,
                                        struct rs_reuse_quantity *open)
{
    unsigned set = set_of_order(stream, size_class(freed->upstream_bytes)), way;
    struct rs_ordered_slot *slots = ordered->slots[set];
    struct rs_block_record *replaced;

    RS_ASSERT(!freed->is_ordered);
    atomic_store(&ordered->is_used, true);
    rs_mutex_lock(&ordered->lock);
    for (way = 0; way < RS_ORDERED_WAYS && slots[way].block; way++)
        ;
    if (way == RS_ORDERED_WAYS)
        way = ordered->turn[set]++ % RS_ORDERED_WAYS;
    replaced = empty(ordered, &slots[way]);
    freed->is_ordered = true;
    slots[way] = (struct rs_ordered_slot){stream, freed, ordered->begun};
    ordered->filled |= (uint64_t)1 << set;
    add_ordered_live(ordered, -(ptrdiff_t)freed->upstream_bytes);
    ordered->open.bytes += freed->upstream_bytes;
    ordered->open.blocks++;
    *open = ordered->open;
    rs_mutex_unlock(&ordered->lock);
    return replaced;
}

/* Returns the bytes and the number of the ordered blocks whose seal number is `first` or more. */
static struct rs_reuse_quantity count_from(const struct rs_ordered_blocks *ordered, uint64_t first)
{
    struct rs_reuse_quantity sum = {0, 0};

    for (uint64_t sets = ordered->filled; sets; sets &= sets - 1)
        for (unsigned way = 0; way < RS_ORDERED_WAYS; way++) {
            const struct rs_ordered_slot *slot = &ordered->slots[__builtin_ctzll(sets)][way];
            if (slot->block && slot->seal >= first) {
                RS_ASSERT_SLOW(slot->block->is_ordered);
                sum.bytes += slot->block->upstream_bytes;
                sum.blocks++;
            }
        }
    return sum;
}

uint64_t rs_ordered_begin_seal(struct rs_ordered_blocks *ordered)
{
    RS_MUTEX_GUARD(&ordered->lock);

    return ordered->open.blocks > 0 ? ++ordered->begun : 0;
}

size_t rs_ordered_end_seal(struct rs_ordered_blocks *ordered, uint64_t seal)
{
    size_t before_bytes;
    RS_MUTEX_GUARD(&ordered->lock);

    RS_ASSERT(seal == ordered->begun && seal > ordered->sealed);
    before_bytes = ordered->open.bytes;
    ordered->sealed = seal;
    ordered->open = count_from(ordered, seal);
    RS_ASSERT(before_bytes >= ordered->open.bytes);
    return before_bytes - ordered->open.bytes;
}

/* Moves up to `most` of a set's blocks whose seal numbers are from `first` to below `end` to a
 * list.  Returns how many it moved. */
static size_t drain_set(struct rs_ordered_blocks *ordered, unsigned set, uint64_t first,
                        uint64_t end, size_t most, struct rs_block_list *to)
{
    size_t moved = 0;
    bool is_empty = true;

    for (unsigned way = 0; way < RS_ORDERED_WAYS; way++) {
        struct rs_ordered_slot *slot = &ordered->slots[set][way];
        if (slot->block && slot->seal >= first && slot->seal < end && moved < most) {
            rs_block_list_push(to, empty(ordered, slot));
            moved++;
        }
        is_empty = is_empty && !slot->block;
    }
    if (is_empty)
        ordered->filled &= ~((uint64_t)1 << set);
    return moved;
}

bool rs_ordered_drain(struct rs_ordered_blocks *ordered, uint64_t first, uint64_t end, size_t most,
                      struct rs_block_list *to)
{
    size_t moved = 0;

    if (!is_used(ordered))
        return false;
    RS_MUTEX_GUARD(&ordered->lock);
    /* The caller asks for ready blocks, or for the open ones. */
    RS_ASSERT(end <= ordered->sealed || first == ordered->sealed);
    for (uint64_t sets = ordered->filled; sets && moved < most; sets &= sets - 1)
        moved += drain_set(ordered, (unsigned)__builtin_ctzll(sets), first, end, most - moved, to);
    return moved == most;
}

size_t rs_ordered_open_count(struct rs_ordered_blocks *ordered)
{
    RS_MUTEX_GUARD(&ordered->lock);

    return ordered->open.blocks;
}

bool rs_ordered_check(const struct rs_ordered_blocks *ordered, struct rs_reuse_quantity *sum)
{
    struct rs_reuse_quantity all = count_from(ordered, 0);
    struct rs_reuse_quantity open = count_from(ordered, ordered->sealed);

    sum->bytes += all.bytes;
    sum->blocks += all.blocks;
    return open.bytes == ordered->open.bytes && open.blocks == ordered->open.blocks &&
           ordered->sealed <= ordered->begun;
}
