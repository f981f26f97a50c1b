/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks freed in the order of a stream, in sets of slots by stream and size class. */
#include "resource/reuse/ordered_blocks.h"

#include "resource/resource.h"

enum { WASTE = 8 /* a block found is at most 1/8 larger than the request */ };

static void link_block(struct rs_block_list *list, struct rs_block_record *freed)
{
    freed->before = list->last;
    freed->in = list;
    rs_block_list_push(list, freed);
}

static void unlink_block(struct rs_block_record *freed)
{
    struct rs_block_list *list = freed->in;

    RS_ASSERT(list && list->count > 0 && list->bytes >= freed->upstream_bytes);
    RS_ASSERT(freed->before ? freed->before->next == freed : list->first == freed);
    RS_ASSERT(freed->next ? freed->next->before == freed : list->last == freed);
    if (freed->before)
        freed->before->next = freed->next;
    else
        list->first = freed->next;
    if (freed->next)
        freed->next->before = freed->before;
    else
        list->last = freed->before;
    list->bytes -= freed->upstream_bytes;
    list->count--;
    freed->in = NULL;
}

/* Takes the block out of its slot: allocations in its stream's order no longer find it. */
static void hide(struct rs_ordered_blocks *ordered, struct rs_block_record *freed)
{
    unsigned slot = freed->slot - 1;

    if (!freed->slot)
        return;
    RS_ASSERT(ordered->slots[slot / RS_ORDERED_WAYS][slot % RS_ORDERED_WAYS].block == freed);
    ordered->slots[slot / RS_ORDERED_WAYS][slot % RS_ORDERED_WAYS].block = NULL;
    freed->slot = 0;
}

/* Eight classes per doubling of the size. */
static unsigned size_class(size_t size_bytes)
{
    size_t units = (size_bytes - 1) / RS_BLOCK_ALIGNMENT + 1;
    unsigned shift;

    if (units < WASTE)
        return (unsigned)units;
    /* Leaves four bits, of which the highest is set. */
    shift = 60 - (unsigned)__builtin_clzl(units);
    return shift * WASTE + (unsigned)(units >> shift);
}

static unsigned set_of(unsigned long long stream, unsigned class)
{
    return (unsigned)(((stream << 10) + class) * 0x9e3779b97f4a7c15u >> (64 - RS_ORDERED_SET_BITS));
}

static void show(struct rs_ordered_blocks *ordered, struct rs_block_record *freed,
                 unsigned long long stream)
{
    unsigned set = set_of(stream, size_class(freed->upstream_bytes)), way;
    struct rs_ordered_slot *slots = ordered->slots[set];

    RS_ASSERT(!freed->slot);
    for (way = 0; way < RS_ORDERED_WAYS && slots[way].block; way++)
        ;
    if (way == RS_ORDERED_WAYS) {
        way = ordered->turn[set]++ % RS_ORDERED_WAYS;
        hide(ordered, slots[way].block);
    }
    slots[way] = (struct rs_ordered_slot){stream, freed};
    freed->slot = set * RS_ORDERED_WAYS + way + 1;
}

static struct rs_block_record *smaller(struct rs_block_record *a, struct rs_block_record *b)
{
    return a && (!b || a->upstream_bytes <= b->upstream_bytes) ? a : b;
}

static struct rs_block_record *find(struct rs_ordered_blocks *ordered, unsigned long long stream,
                                    unsigned class, size_t size_bytes)
{
    const struct rs_ordered_slot *slots = ordered->slots[set_of(stream, class)];
    struct rs_block_record *best = NULL;

    for (unsigned way = 0; way < RS_ORDERED_WAYS; way++) {
        struct rs_block_record *block = slots[way].block;
        if (block && slots[way].stream == stream && block->upstream_bytes >= size_bytes &&
            block->upstream_bytes - size_bytes <= size_bytes / WASTE)
            best = smaller(best, block);
    }
    return best;
}

static bool is_used(struct rs_ordered_blocks *ordered)
{
    return atomic_load_explicit(&ordered->is_used, memory_order_acquire);
}

struct rs_block_record *rs_ordered_take(struct rs_ordered_blocks *ordered, size_t size_bytes,
                                        unsigned long long stream)
{
    unsigned class = size_class(size_bytes);
    struct rs_block_record *block;

    if (!is_used(ordered))
        return NULL;
    rs_mutex_lock(&ordered->lock);
    block = find(ordered, stream, class, size_bytes);
    block = smaller(block, find(ordered, stream, class + 1, size_bytes));
    if (block) {
        RS_ASSERT(block->upstream_bytes >= size_bytes);
        hide(ordered, block);
        unlink_block(block);
        ordered->live_bytes += (ptrdiff_t)block->upstream_bytes;
        ordered->reuses++;
    }
    rs_mutex_unlock(&ordered->lock);
    return block;
}

size_t rs_ordered_push(struct rs_ordered_blocks *ordered, struct rs_block_record *freed,
                       unsigned long long stream, size_t *open_bytes)
{
    size_t count;

    atomic_store(&ordered->is_used, true);
    rs_mutex_lock(&ordered->lock);
    ordered->live_bytes -= (ptrdiff_t)freed->upstream_bytes;
    link_block(&ordered->open, freed);
    show(ordered, freed, stream);
    count = ordered->open.count;
    *open_bytes = ordered->open.bytes;
    rs_mutex_unlock(&ordered->lock);
    return count;
}

bool rs_ordered_move(struct rs_ordered_blocks *ordered, struct rs_block_list *from,
                     struct rs_block_list *to)
{
    bool any;

    if (!is_used(ordered))
        return false;
    rs_mutex_lock(&ordered->lock);
    any = from->first;
    for (struct rs_block_record *freed = from->first; freed; freed = from->first) {
        unlink_block(freed);
        link_block(to, freed);
    }
    RS_ASSERT(from->bytes == 0 && from->count == 0 && !from->last);
    rs_mutex_unlock(&ordered->lock);
    return any;
}

void rs_ordered_drain(struct rs_ordered_blocks *ordered, struct rs_block_list *from,
                      struct rs_block_list *to)
{
    if (!is_used(ordered))
        return;
    rs_mutex_lock(&ordered->lock);
    for (struct rs_block_record *freed = from->first; freed; freed = from->first) {
        hide(ordered, freed);
        unlink_block(freed);
        rs_block_list_push(to, freed);
    }
    RS_ASSERT(from->bytes == 0 && from->count == 0 && !from->last);
    rs_mutex_unlock(&ordered->lock);
}

size_t rs_ordered_open_count(struct rs_ordered_blocks *ordered)
{
    size_t count;

    rs_mutex_lock(&ordered->lock);
    count = ordered->open.count;
    rs_mutex_unlock(&ordered->lock);
    return count;
}

ptrdiff_t rs_ordered_live_bytes(struct rs_ordered_blocks *ordered)
{
    ptrdiff_t live_bytes;

    if (!is_used(ordered))
        return 0;
    rs_mutex_lock(&ordered->lock);
    live_bytes = ordered->live_bytes;
    rs_mutex_unlock(&ordered->lock);
    return live_bytes;
}

uint64_t rs_ordered_reuses(struct rs_ordered_blocks *ordered)
{
    uint64_t reuses;

    if (!rs_mutex_lock_bounded(&ordered->lock, "reuse"))
        return 0;
    reuses = ordered->reuses;
    rs_mutex_unlock(&ordered->lock);
    return reuses;
}

bool rs_ordered_check(const struct rs_ordered_blocks *ordered, const struct rs_block_list *list,
                      size_t *bytes, size_t *blocks)
{
    const struct rs_block_record *before = NULL;
    size_t sum = 0, count = 0;

    for (const struct rs_block_record *freed = list->first; freed;
         before = freed, freed = freed->next) {
        unsigned slot = freed->slot - 1;
        if (freed->in != list || freed->before != before ||
            (freed->slot &&
             ordered->slots[slot / RS_ORDERED_WAYS][slot % RS_ORDERED_WAYS].block != freed))
            return false;
        sum += freed->upstream_bytes;
        count++;
    }
    *bytes += sum;
    *blocks += count;
    return list->last == before && list->bytes == sum && list->count == count;
}
