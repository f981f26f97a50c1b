/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/arena_heap.h"

#include "base/counter.h"
#include "base/lock.h"
#include "base/size.h"
#include "base/thread_slot.h"
#include "heap/alignment.h"

#include <stdio.h>
#include <stdlib.h>

enum { SUPERBLOCK_UNITS = RS_SUPERBLOCK_BYTES / RS_SPAN_UNIT };

/* A span is small below the larger of two bounds: 1/2048 of the held bytes, and 1/8 of the
 * largest span so far; the second counts only from 32 MiB on. */
enum { HELD_DIVISOR = 2048, LARGEST_DIVISOR = 8, LARGEST_BYTES = 32 << 20 };

/* A span of the global arena, lent to a thread's arena, which cuts it.  It stays there until it is
 * empty: a live block leads to the same lock all its life, so any thread frees it unsearched. */
struct superblock {
    struct superblock *next, *previous;
    struct thread_arena *home;
    struct rs_span *lent;  /* the span in the global arena */
    struct rs_span *first; /* the first span of the range in the thread's arena */
    size_t live_count;
};

_Static_assert(sizeof(struct superblock) <= RS_RECORD_BYTES, "a superblock is one record");

struct superblock_list {
    struct superblock *first;
    size_t count;
};

/* An arena of a thread, freed with the heap.  When its thread ends, it waits for another. */
struct thread_arena {
    struct rs_mutex lock; /* protects the fields below */
    struct rs_span_set spans;
    struct superblock_list used, empty;
    bool is_abandoned;         /* its thread has ended */
    _Atomic size_t live_bytes; /* written under the lock, read without it */
    uint64_t allocations;
    struct thread_arena *next_abandoned; /* protected by the heap's lock */
    struct thread_arena *next;           /* in the list of all arenas; constant */
    char apart[2 * RS_CACHE_LINE];       /* padding: two threads' arenas share no cache line */
};

struct rs_arena_heap {
    struct rs_slot_owner threads;
    _Atomic(struct thread_arena *) arenas; /* all arenas, newest first */
    _Atomic uint64_t moves, drains;
    _Atomic size_t held_bytes, live_bytes; /* written under the lock, read without it; live_bytes:
                                              of blocks that are not in a superblock */
    struct rs_mutex lock;                  /* the global arena's; protects the fields below */
    struct rs_span_set spans;
    struct rs_arena_range *ranges;
    struct thread_arena *abandoned;
    size_t lent_bytes, peak_lent_bytes;
    uint32_t largest_units; /* the largest span lent so far */
    uint64_t allocations;
};

static void note_move(struct rs_arena_heap *heap)
{
    atomic_fetch_add(&heap->moves, 1);
}

/* ---- the global arena; under its lock ---- */

/* True when the span is small beside all held memory or beside the largest span so far.  Small
 * spans, some of which live long, are taken from the upper end, so that the memory left for
 * large ones stays one piece. */
static bool is_small(const struct rs_arena_heap *heap, uint32_t units)
{
    size_t of_held_bytes = rs_counter_get(&heap->held_bytes) / HELD_DIVISOR;
    size_t of_largest_bytes = rs_span_bytes(heap->largest_units) / LARGEST_DIVISOR;

    if (of_largest_bytes < LARGEST_BYTES)
        of_largest_bytes = 0;
    return rs_span_bytes(units) < rs_max(of_held_bytes, of_largest_bytes);
}

static struct rs_span *lend(struct rs_arena_heap *heap, uint32_t units, enum rs_span_fit fit)
{
    struct rs_span *span = NULL;

    RS_ASSERT_HELD(&heap->lock);
    if (rs_span_reserve(&heap->spans))
        span = is_small(heap, units) ? rs_span_take_last(&heap->spans, units, fit)
                                     : rs_span_take(&heap->spans, units, fit);
    if (span) {
        heap->largest_units = units > heap->largest_units ? units : heap->largest_units;
        heap->lent_bytes += rs_span_bytes(units);
        heap->peak_lent_bytes = rs_max(heap->peak_lent_bytes, heap->lent_bytes);
        RS_ASSERT(heap->lent_bytes <= rs_counter_get(&heap->held_bytes));
    }
    return span;
}

static void take_back(struct rs_arena_heap *heap, struct rs_span *span)
{
    RS_ASSERT_HELD(&heap->lock);
    RS_ASSERT(heap->lent_bytes >= rs_span_bytes(span->units));
    heap->lent_bytes -= rs_span_bytes(span->units);
    span->owner = NULL;
    rs_span_give(&heap->spans, span);
}

/* ---- blocks of the global arena itself ---- */

static struct rs_span *take_global(struct rs_arena_heap *heap, uint32_t units, enum rs_span_fit fit)
{
    struct rs_span *block;

    rs_mutex_lock(&heap->lock);
    block = lend(heap, units, fit);
    if (block) {
        rs_counter_add(&heap->live_bytes, rs_span_bytes(units));
        heap->allocations++;
    }
    rs_mutex_unlock(&heap->lock);
    return block;
}

static void give_global(struct rs_arena_heap *heap, struct rs_span *block)
{
    rs_mutex_lock(&heap->lock);
    rs_counter_subtract(&heap->live_bytes, rs_span_bytes(block->units));
    take_back(heap, block);
    rs_mutex_unlock(&heap->lock);
}

/* ---- superblocks; under the lock of the thread's arena ---- */

static void list_add(struct superblock_list *list, struct superblock *superblock)
{
    superblock->previous = NULL;
    superblock->next = list->first;
    if (superblock->next)
        superblock->next->previous = superblock;
    list->first = superblock;
    list->count++;
}

static void list_remove(struct superblock_list *list, struct superblock *superblock)
{
    RS_ASSERT(list->count > 0);
    RS_ASSERT((superblock->previous ? superblock->previous->next : list->first) == superblock);
    *(superblock->previous ? &superblock->previous->next : &list->first) = superblock->next;
    if (superblock->next)
        superblock->next->previous = superblock->previous;
    list->count--;
}

/* Borrows a superblock.  The caller holds the arena's lock throughout: whoever looks at the
 * global arena first and at this arena next finds the superblock in one of them. */
static bool borrow_superblock(struct rs_arena_heap *heap, struct thread_arena *arena)
{
    struct superblock *superblock;
    struct rs_span *lent;

    RS_ASSERT_HELD(&arena->lock);
    if (!rs_span_reserve(&arena->spans))
        return false;
    rs_mutex_lock(&heap->lock);
    lent = lend(heap, SUPERBLOCK_UNITS, RS_SPAN_ANYWHERE);
    if (!lent) {
        rs_mutex_unlock(&heap->lock);
        return false;
    }
    superblock = rs_record_slab_take(&arena->spans.records);
    lent->owner = superblock;
    rs_mutex_unlock(&heap->lock);
    *superblock = (struct superblock){.home = arena, .lent = lent};
    superblock->first = rs_span_add(&arena->spans, lent->address, lent->units, superblock);
    list_add(&arena->empty, superblock);
    return true;
}

/* Returns all empty superblocks of the arena to the global arena.  Returns their number. */
static size_t return_empty(struct rs_arena_heap *heap, struct thread_arena *arena)
{
    size_t count = arena->empty.count;

    RS_ASSERT_HELD(&arena->lock);
    if (count == 0)
        return 0;
    rs_mutex_lock(&heap->lock);
    while (arena->empty.first) {
        struct superblock *superblock = arena->empty.first;
        RS_ASSERT(superblock->live_count == 0 && superblock->home == arena);
        list_remove(&arena->empty, superblock);
        take_back(heap, superblock->lent);
        rs_span_remove(&arena->spans, superblock->first);
        rs_record_slab_give(&arena->spans.records, superblock);
    }
    rs_mutex_unlock(&heap->lock);
    note_move(heap);
    return count;
}

/* ---- blocks of threads' arenas ---- */

static struct rs_span *take_locked(struct rs_arena_heap *heap, struct thread_arena *arena,
                                   uint32_t units, bool may_borrow)
{
    struct rs_span *block;

    if (!rs_span_reserve(&arena->spans))
        return NULL;
    block = rs_span_take(&arena->spans, units, RS_SPAN_ANYWHERE);
    if (!block && may_borrow && borrow_superblock(heap, arena) && rs_span_reserve(&arena->spans))
        block = rs_span_take(&arena->spans, units, RS_SPAN_ANYWHERE);
    return block;
}

static struct rs_span *take_from(struct rs_arena_heap *heap, struct thread_arena *arena,
                                 uint32_t units, bool may_borrow)
{
    struct rs_span *block;

    rs_mutex_lock(&arena->lock);
    block = take_locked(heap, arena, units, may_borrow);
    if (block) {
        struct superblock *superblock = block->owner;
        RS_ASSERT_SLOW(superblock->home == arena);
        if (superblock->live_count++ == 0) {
            list_remove(&arena->empty, superblock);
            list_add(&arena->used, superblock);
        }
        rs_counter_add(&arena->live_bytes, rs_span_bytes(units));
        arena->allocations++;
    }
    rs_mutex_unlock(&arena->lock);
    return block;
}

/* Frees a block.  A superblock that becomes empty stays for the thread's next requests, as in
 * RMM; if the thread has ended, it returns to the global arena. */
static void give_to(struct rs_arena_heap *heap, struct superblock *superblock,
                    struct rs_span *block)
{
    struct thread_arena *arena = superblock->home;

    rs_mutex_lock(&arena->lock);
    rs_counter_subtract(&arena->live_bytes, rs_span_bytes(block->units));
    rs_span_give(&arena->spans, block);
    RS_ASSERT(superblock->live_count > 0);
    if (--superblock->live_count == 0) {
        list_remove(&arena->used, superblock);
        list_add(&arena->empty, superblock);
        if (arena->is_abandoned)
            (void)return_empty(heap, arena);
    }
    rs_mutex_unlock(&arena->lock);
}

/* ---- threads ---- */

/* A thread has ended: its empty superblocks return to the global arena, and its arena waits for
 * the next new thread. */
static void abandon(struct rs_arena_heap *heap, struct thread_arena *arena)
{
    rs_mutex_lock(&arena->lock);
    RS_ASSERT(!arena->is_abandoned); /* two threads would adopt it */
    arena->is_abandoned = true;
    (void)return_empty(heap, arena);
    rs_mutex_unlock(&arena->lock);
    rs_mutex_lock(&heap->lock);
    arena->next_abandoned = heap->abandoned;
    heap->abandoned = arena;
    rs_mutex_unlock(&heap->lock);
}

static void end_of_thread(struct rs_slot_owner *owner, void *object)
{
    abandon(RS_CONTAINER_OF(owner, struct rs_arena_heap, threads), object);
}

static struct thread_arena *adopt(struct rs_arena_heap *heap)
{
    struct thread_arena *arena;

    rs_mutex_lock(&heap->lock);
    arena = heap->abandoned;
    if (arena)
        heap->abandoned = arena->next_abandoned;
    rs_mutex_unlock(&heap->lock);
    if (!arena)
        return NULL;
    rs_mutex_lock(&arena->lock);
    RS_ASSERT(arena->is_abandoned && arena->empty.count == 0);
    arena->is_abandoned = false;
    rs_mutex_unlock(&arena->lock);
    return arena;
}

static struct thread_arena *make_arena(struct rs_arena_heap *heap)
{
    struct thread_arena *arena = calloc(1, sizeof(*arena));

    if (!arena)
        return NULL;
    rs_mutex_init(&arena->lock, RS_RANK_RESOURCE_PART);
    arena->next = atomic_load(&heap->arenas);
    while (!atomic_compare_exchange_weak(&heap->arenas, &arena->next, arena))
        ;
    return arena;
}

/* Returns the calling thread's arena, or NULL when it can have none; the global arena serves it
 * then. */
static struct thread_arena *arena_of_thread(struct rs_arena_heap *heap)
{
    struct thread_arena *arena = rs_slot_get(&heap->threads);

    if (RS_LIKELY(arena))
        return arena;
    arena = adopt(heap);
    if (!arena)
        arena = make_arena(heap);
    if (!arena || rs_slot_set(&heap->threads, arena))
        return arena;
    abandon(heap, arena); /* the end of this thread would go unnoticed */
    return NULL;
}

/* ---- the heap ---- */

struct rs_arena_heap *rs_arena_heap_create(void)
{
    struct rs_arena_heap *heap = calloc(1, sizeof(*heap));

    if (!heap)
        return NULL;
    rs_mutex_init(&heap->lock, RS_RANK_ARENA_GLOBAL);
    rs_slot_owner_enter(&heap->threads, end_of_thread);
    return heap;
}

void rs_arena_heap_destroy(struct rs_arena_heap *heap)
{
    struct thread_arena *arena, *next;

    rs_slot_owner_remove(&heap->threads);
    for (arena = atomic_load(&heap->arenas); arena; arena = next) {
        next = arena->next;
        rs_span_set_destroy(&arena->spans);
        rs_mutex_destroy(&arena->lock);
        free(arena);
    }
    rs_span_set_destroy(&heap->spans);
    rs_mutex_destroy(&heap->lock);
    free(heap);
}

bool rs_arena_range_prepare(struct rs_arena_heap *heap, struct rs_arena_range *range)
{
    rs_mutex_lock(&heap->lock);
    range->first = rs_record_slab_take(&heap->spans.records);
    rs_mutex_unlock(&heap->lock);
    return range->first;
}

void rs_arena_range_unprepare(struct rs_arena_heap *heap, struct rs_arena_range *range)
{
    rs_mutex_lock(&heap->lock);
    rs_record_slab_give(&heap->spans.records, range->first);
    rs_mutex_unlock(&heap->lock);
}

void rs_arena_heap_add(struct rs_arena_heap *heap, struct rs_arena_range *range,
                       CUdeviceptr address, size_t size_bytes)
{
    RS_ASSERT(size_bytes % RS_SPAN_UNIT == 0 && size_bytes <= rs_span_bytes(RS_SPAN_UNITS_MAX));
    rs_mutex_lock(&heap->lock);
    rs_record_slab_give(&heap->spans.records, range->first); /* rs_span_add takes it again */
    range->first = rs_span_add(&heap->spans, address, (uint32_t)(size_bytes / RS_SPAN_UNIT), NULL);
    range->previous = NULL;
    range->next = heap->ranges;
    if (range->next)
        range->next->previous = range;
    heap->ranges = range;
    rs_counter_add(&heap->held_bytes, size_bytes);
    rs_mutex_unlock(&heap->lock);
    note_move(heap);
}

bool rs_arena_heap_remove(struct rs_arena_heap *heap, struct rs_arena_range *range)
{
    bool is_whole;

    rs_mutex_lock(&heap->lock);
    is_whole = rs_span_is_whole(range->first);
    if (is_whole) {
        RS_ASSERT((range->previous ? range->previous->next : heap->ranges) == range);
        rs_counter_subtract(&heap->held_bytes, rs_span_bytes(range->first->units));
        rs_span_remove(&heap->spans, range->first);
        range->first = rs_record_slab_take(&heap->spans.records); /* that of rs_span_remove */
        *(range->previous ? &range->previous->next : &heap->ranges) = range->next;
        if (range->next)
            range->next->previous = range->previous;
    }
    rs_mutex_unlock(&heap->lock);
    return is_whole;
}

/* Gives up alignment last: an unaligned range without room to spare can still serve the request. */
static struct rs_span *take_large(struct rs_arena_heap *heap, uint32_t units)
{
    struct rs_span *block = take_global(heap, units, RS_SPAN_ALIGNED);

    if (!block && rs_arena_heap_drain(heap) > 0)
        block = take_global(heap, units, RS_SPAN_ALIGNED);
    return block ? block : take_global(heap, units, RS_SPAN_ANYWHERE);
}

/* Looks further where the thread's arena cannot borrow a superblock: in pieces of the global
 * arena smaller than one, then in other threads' superblocks.  (RMM waits for the device at this
 * point and moves all threads' superblocks to the global arena; it finds the same room.) */
static struct rs_span *take_small(struct rs_arena_heap *heap, uint32_t units)
{
    struct thread_arena *mine = arena_of_thread(heap);
    struct rs_span *block = mine ? take_from(heap, mine, units, true) : NULL;

    if (!block)
        block = take_global(heap, units, RS_SPAN_ANYWHERE);
    for (struct thread_arena *other = atomic_load(&heap->arenas); other && !block;
         other = other->next)
        if (other != mine)
            block = take_from(heap, other, units, false);
    return block;
}

struct rs_span *rs_arena_heap_take(struct rs_arena_heap *heap, size_t size_bytes, uint32_t units)
{
    return size_bytes >= RS_LARGE_BYTES || units > SUPERBLOCK_UNITS ? take_large(heap, units)
                                                                    : take_small(heap, units);
}

void rs_arena_heap_give(struct rs_arena_heap *heap, struct rs_span *block)
{
    RS_ASSERT(!rs_span_is_free(block));
    if (block->owner)
        give_to(heap, block->owner, block);
    else
        give_global(heap, block);
}

size_t rs_arena_heap_drain(struct rs_arena_heap *heap)
{
    size_t count = 0;

    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next) {
        rs_mutex_lock(&arena->lock);
        count += return_empty(heap, arena);
        rs_mutex_unlock(&arena->lock);
    }
    atomic_fetch_add_explicit(&heap->drains, count > 0, memory_order_relaxed);
    RS_ASSERT_SLOW(rs_arena_heap_check(heap));
    return count;
}

uint64_t rs_arena_heap_moves(struct rs_arena_heap *heap)
{
    return atomic_load(&heap->moves);
}

static size_t live_bytes(struct rs_arena_heap *heap)
{
    size_t bytes = rs_counter_get(&heap->live_bytes);

    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next)
        bytes += rs_counter_get(&arena->live_bytes);
    return bytes;
}

size_t rs_arena_heap_free_bytes(struct rs_arena_heap *heap)
{
    size_t live = live_bytes(heap), held = rs_counter_get(&heap->held_bytes);

    return held > live ? held - live : 0; /* held may fall between the two reads */
}

/* ---- what can be seen of it ---- */

size_t rs_arena_heap_free_spans(struct rs_arena_heap *heap)
{
    size_t count;

    rs_mutex_lock(&heap->lock);
    count = heap->spans.free_count;
    rs_mutex_unlock(&heap->lock);
    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next) {
        rs_mutex_lock(&arena->lock);
        count += arena->spans.free_count;
        rs_mutex_unlock(&arena->lock);
    }
    return count;
}

void rs_arena_heap_state(struct rs_arena_heap *heap, struct rs_arena_heap_state *state)
{
    static const char name[] = "arena";

    *state = (struct rs_arena_heap_state){0};
    if (!rs_mutex_lock_bounded(&heap->lock, name))
        return;
    *state = (struct rs_arena_heap_state){
        .held_bytes = rs_counter_get(&heap->held_bytes),
        .live_bytes = rs_counter_get(&heap->live_bytes),
        .lent_bytes = heap->lent_bytes,
        .peak_lent_bytes = heap->peak_lent_bytes,
        .largest_free_bytes = rs_span_bytes(rs_span_largest(&heap->spans, RS_SPAN_ANYWHERE)),
        .allocations = heap->allocations,
        .drains = atomic_load_explicit(&heap->drains, memory_order_relaxed),
    };
    rs_mutex_unlock(&heap->lock);
    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next) {
        if (!rs_mutex_lock_bounded(&arena->lock, name))
            continue;
        state->live_bytes += rs_counter_get(&arena->live_bytes);
        state->superblocks += arena->used.count + arena->empty.count;
        state->thread_arenas += !arena->is_abandoned;
        state->allocations += arena->allocations;
        rs_mutex_unlock(&arena->lock);
    }
}

static void add_sums(struct rs_span_sums *sums, const struct rs_span_sums *more)
{
    sums->free_spans += more->free_spans;
    sums->taken_spans += more->taken_spans;
    sums->free_units += more->free_units;
    sums->taken_units += more->taken_units;
}

static bool superblock_check(const struct thread_arena *arena, const struct superblock *superblock,
                             struct rs_span_sums *sums)
{
    struct rs_span_sums own = {0};
    const struct rs_span *first = superblock->first;
    bool good = superblock->home == arena && superblock->lent->owner == superblock &&
                superblock->lent->address == first->address && !first->before &&
                rs_span_range_check(first, &own) && own.taken_spans == superblock->live_count &&
                own.free_units + own.taken_units == SUPERBLOCK_UNITS;

    for (const struct rs_span *span = first; span && good; span = span->after)
        good = span->owner == superblock;
    add_sums(sums, &own);
    return good;
}

static bool list_check(const struct thread_arena *arena, const struct superblock_list *list,
                       bool is_empty, struct rs_span_sums *sums)
{
    size_t count = 0;

    for (const struct superblock *superblock = list->first; superblock;
         superblock = superblock->next, count++)
        if ((superblock->next && superblock->next->previous != superblock) ||
            (superblock->live_count == 0) != is_empty || !superblock_check(arena, superblock, sums))
            return false;
    return count == list->count;
}

static bool tree_holds(const struct rs_span_set *set, const struct rs_span_sums *sums)
{
    struct rs_span_sums tree;

    return rs_span_tree_check(set, &tree) && tree.free_spans == sums->free_spans &&
           tree.free_spans == set->free_count && tree.free_units == sums->free_units;
}

static bool arena_check(struct thread_arena *arena)
{
    struct rs_span_sums sums = {0};
    bool good;

    rs_mutex_lock(&arena->lock);
    good = list_check(arena, &arena->used, false, &sums) &&
           list_check(arena, &arena->empty, true, &sums) && tree_holds(&arena->spans, &sums) &&
           rs_span_bytes((uint32_t)sums.taken_units) == rs_counter_get(&arena->live_bytes) &&
           !(arena->is_abandoned && arena->empty.count > 0);
    rs_mutex_unlock(&arena->lock);
    return good;
}

static bool global_check(struct rs_arena_heap *heap)
{
    struct rs_span_sums sums = {0};
    size_t superblock_bytes = 0;

    for (const struct rs_arena_range *range = heap->ranges; range; range = range->next) {
        if ((range->next && range->next->previous != range) || range->first->before ||
            !rs_span_range_check(range->first, &sums))
            return false;
        for (const struct rs_span *span = range->first; span; span = span->after) {
            if (span->owner && (rs_span_is_free(span) || span->units != SUPERBLOCK_UNITS))
                return false;
            superblock_bytes += span->owner ? rs_span_bytes(span->units) : 0;
        }
    }
    return tree_holds(&heap->spans, &sums) && sums.taken_units * RS_SPAN_UNIT == heap->lent_bytes &&
           (sums.taken_units + sums.free_units) * RS_SPAN_UNIT ==
               rs_counter_get(&heap->held_bytes) &&
           heap->lent_bytes == rs_counter_get(&heap->live_bytes) + superblock_bytes;
}

bool rs_arena_heap_check(struct rs_arena_heap *heap)
{
    bool good;

    rs_mutex_lock(&heap->lock);
    good = global_check(heap);
    rs_mutex_unlock(&heap->lock);
    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next)
        good = arena_check(arena) && good;
    return good;
}

/* ---- the dump ---- */

enum { LINE_BYTES = 200 };

struct dump {
    void (*write)(void *data, const char *line);
    void *data;
};

static void dump_set(const struct dump *dump, const char *what, const struct rs_span_set *set,
                     size_t free_bytes)
{
    char line[LINE_BYTES], free_text[RS_SIZE_TEXT_BYTES], largest_text[RS_SIZE_TEXT_BYTES];
    size_t largest_bytes = rs_span_bytes(rs_span_largest(set, RS_SPAN_ANYWHERE));
    double whole = free_bytes ? (double)largest_bytes / (double)free_bytes : 1;

    snprintf(line, sizeof(line), "%s: free %s, largest free %s, fragmentation %.0f %%\n", what,
             rs_size_format(free_bytes, free_text), rs_size_format(largest_bytes, largest_text),
             100 * (1 - whole));
    dump->write(dump->data, line);
}

static void dump_global(const struct dump *dump, struct rs_arena_heap *heap)
{
    char line[LINE_BYTES], text[RS_SIZE_TEXT_BYTES];

    dump_set(dump, "global arena", &heap->spans,
             rs_counter_get(&heap->held_bytes) - heap->lent_bytes);
    for (const struct rs_arena_range *range = heap->ranges; range; range = range->next)
        for (const struct rs_span *span = range->first; span; span = span->after) {
            snprintf(line, sizeof(line), "  %#llx %s %s\n", (unsigned long long)span->address,
                     rs_size_format(rs_span_bytes(span->units), text),
                     rs_span_is_free(span) ? "free"
                     : span->owner         ? "superblock"
                                           : "block");
            dump->write(dump->data, line);
        }
}

static void dump_superblocks(const struct dump *dump, const struct superblock_list *list)
{
    char line[LINE_BYTES], text[RS_SIZE_TEXT_BYTES];

    for (const struct superblock *superblock = list->first; superblock;
         superblock = superblock->next) {
        struct rs_span_sums sums = {0};
        (void)rs_span_range_check(superblock->first, &sums);
        snprintf(line, sizeof(line), "  superblock %#llx: %zu blocks, free %s in %u pieces\n",
                 (unsigned long long)superblock->lent->address, superblock->live_count,
                 rs_size_format(rs_span_bytes((uint32_t)sums.free_units), text), sums.free_spans);
        dump->write(dump->data, line);
    }
}

static void dump_arena(const struct dump *dump, struct thread_arena *arena)
{
    size_t superblocks = arena->used.count + arena->empty.count;

    dump_set(dump, arena->is_abandoned ? "arena of a thread that ended" : "arena of a thread",
             &arena->spans, superblocks * RS_SUPERBLOCK_BYTES - rs_counter_get(&arena->live_bytes));
    dump_superblocks(dump, &arena->used);
    dump_superblocks(dump, &arena->empty);
}

void rs_arena_heap_dump(struct rs_arena_heap *heap, void (*write)(void *data, const char *line),
                        void *data)
{
    const struct dump dump = {write, data};

    rs_mutex_lock(&heap->lock);
    dump_global(&dump, heap);
    rs_mutex_unlock(&heap->lock);
    for (struct thread_arena *arena = atomic_load(&heap->arenas); arena; arena = arena->next) {
        rs_mutex_lock(&arena->lock);
        dump_arena(&dump, arena);
        rs_mutex_unlock(&arena->lock);
    }
}
