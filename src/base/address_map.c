/* SPDX-License-Identifier: Apache-2.0 */
/* Two structures describe the same ranges.
 *
 * By start: 64 shards, each an open-addressing hash table with linear probing.  Writers of a shard
 * take its spinlock; readers only check that its sequence number is even and did not change while
 * they looked, and look again if it did.  A table that was outgrown stays mapped, so a late reader
 * reads stale slots, never freed memory, and then sees the new sequence number.  Its slots move to
 * the new one a few at each insertion: all at once took an insertion milliseconds where a shard had
 * some ten thousand.  Meanwhile a range is in one of the two; a moved or removed slot of the old
 * one stays marked, so that searches go on past it.
 *
 * By address: per GiB, a bitmap of starts at 512-byte steps with two levels of summary above it.
 * The nearest start at or below an address is the only range that can hold it.
 *
 * A shard owns whole words of the bitmap (32 KiB of addresses), so that one lock serves both.  Bits
 * of a summary are hints: set whenever something is below, cleared late or never.
 *
 * Slots and bits are atomics because readers race with writers by design; a fence would do instead
 * of acquire loads and release stores, but ThreadSanitizer does not know fences. */
#include "base/address_map.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/lock.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ADDRESS_BITS = 57, /* of a GPU with five-level page tables */
    UNIT_BITS = 9,     /* starts are multiples of 512 */
    WORD_BITS = 6,     /* 64 bits in a word, at every level */
    REGION_BITS = 30,
    REGION_WORDS = 1 << (REGION_BITS - UNIT_BITS - WORD_BITS),
    GROUP_WORDS = REGION_WORDS >> WORD_BITS,
    TOP_WORDS = GROUP_WORDS >> WORD_BITS,

    LEAF_BITS = 14, /* regions of a leaf */
    ROOT_BITS = ADDRESS_BITS - REGION_BITS - LEAF_BITS,

    SHARD_BITS = 6,
    SHARD_COUNT = 1 << SHARD_BITS,
    FIRST_TABLE_BITS = 6,
    EMPTIED_BITS = 3,
    EMPTIED_COUNT = 1 << EMPTIED_BITS,
    MOVE_SLOTS =
        8,     /* at each insertion; a table has doubled its count before all have been asked */
    MOVED = 2, /* a key that no start has: of a slot of an outgrown table */
};

/* 2^64 / golden ratio: consecutive and evenly spaced keys spread evenly. */
static const uint64_t hash_factor = 0x9e3779b97f4a7c15u;

struct slot {
    _Atomic uint64_t start_and_one; /* 0: free.  Starts have their low bits clear, 0 included. */
    _Atomic uint64_t size_bytes;
    _Atomic(void *) owner;
    uint64_t unused; /* two slots in a cache line, none across two */
};

struct table {
    struct table *older;
    size_t mapped_bytes; /* 0: part of the map's own mapping */
    alignas(RS_CACHE_LINE) struct slot slots[];
};

struct shard {
    /* Held for some ten instructions, or for a table's growth. */
    alignas(2 * RS_CACHE_LINE) struct rs_spinlock lock; /* pairs of lines are fetched together */
    atomic_uint sequence;                               /* odd while slots change */
    _Atomic uintptr_t table;    /* a struct table * with log2 of its slots below */
    _Atomic uintptr_t outgrown; /* the one before, while slots of it are to be moved; or 0 */
    size_t moved;               /* its first so many slots have been */
    atomic_size_t count;        /* in both */
    /* Words of the bitmap (number + 1) that became empty and still stand in the summary: a program
     * that allocates and frees at one place does not pay for the summary every time. */
    uint64_t emptied[EMPTIED_COUNT];
};

struct region {
    _Atomic uint64_t words[REGION_WORDS]; /* a bit for each start; written under the shard's lock */
    _Atomic uint64_t groups[GROUP_WORDS]; /* a bit for each word; hint, cleared late */
    _Atomic uint64_t top[TOP_WORDS];      /* a bit for each group; hint, never cleared */
};

struct leaf {
    _Atomic(struct region *) regions[1 << LEAF_BITS];
};

struct rs_address_map {
    struct shard shards[SHARD_COUNT];
    _Atomic uint64_t largest_bytes; /* how far below an address its range can start */
    _Atomic(struct leaf *) leaves[1 << ROOT_BITS];
    alignas(RS_CACHE_LINE) unsigned char first_tables[SHARD_COUNT]
                                                     [sizeof(struct table) +
                                                      (sizeof(struct slot) << FIRST_TABLE_BITS)];
};

_Static_assert(sizeof(struct table) == RS_CACHE_LINE,
               "a table's address has six low bits to spare");
_Static_assert(sizeof(struct slot) == RS_CACHE_LINE / 2, "slots do not straddle cache lines");

/* Not malloc: the pages of a region are touched only where there are ranges, and a hook may run
 * while the program's own allocator holds its locks. */
static void *map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* ---- shards ---- */

static uint64_t word_number(uint64_t start)
{
    return start >> (UNIT_BITS + WORD_BITS);
}

static struct shard *shard_of(struct rs_address_map *map, uint64_t start)
{
    return &map->shards[(word_number(start) * hash_factor) >> (64 - SHARD_BITS)];
}

/* Between these two, slots change.  Every store in between releases, so that a reader that sees one
 * sees the odd number too. */
static void write_begin(struct shard *shard)
{
    unsigned sequence = atomic_load_explicit(&shard->sequence, memory_order_relaxed);

    RS_ASSERT(sequence % 2 == 0);
    atomic_store_explicit(&shard->sequence, sequence + 1, memory_order_relaxed);
}

static void write_end(struct shard *shard)
{
    unsigned sequence = atomic_load_explicit(&shard->sequence, memory_order_relaxed);

    atomic_store_explicit(&shard->sequence, sequence + 1, memory_order_release);
}

/* ---- tables ---- */

struct view {
    struct slot *slots;
    size_t mask;
    unsigned shift; /* of a hash, to give a slot's number */
};

static struct view view_of(uintptr_t table)
{
    unsigned bits = table % RS_CACHE_LINE;

    return (struct view){
        .slots = ((struct table *)(table - bits))->slots,
        .mask = ((size_t)1 << bits) - 1,
        .shift = 64 - bits,
    };
}

static struct view view_locked(struct shard *shard)
{
    return view_of(atomic_load_explicit(&shard->table, memory_order_relaxed));
}

/* The product's top bits tell starts in different words apart by what follows the bits that chose
 * the shard, so a shard's starts spread over all of its slots. */
static size_t home_of(const struct view *view, uint64_t start)
{
    return (size_t)(((start >> UNIT_BITS) * hash_factor) >> view->shift);
}

static uint64_t slot_key(const struct slot *slot)
{
    return atomic_load_explicit(&slot->start_and_one, memory_order_acquire);
}

/* The slot of `start`, or the free slot where it belongs.  Under the lock; a table always has a
 * free slot. */
static size_t slot_locked(const struct view *view, uint64_t start)
{
    size_t i = home_of(view, start);
    uint64_t key;

    while ((key = slot_key(&view->slots[i])) != 0 && key != start + 1)
        i = (i + 1) & view->mask;
    return i;
}

static void slot_write(struct slot *slot, const struct rs_range *range)
{
    atomic_store_explicit(&slot->size_bytes, range->size_bytes, memory_order_release);
    atomic_store_explicit(&slot->owner, range->owner, memory_order_release);
    atomic_store_explicit(&slot->start_and_one, range->start + 1, memory_order_release);
}

static void slot_read(const struct slot *slot, struct rs_range *range)
{
    range->start = slot_key(slot) - 1;
    range->size_bytes = atomic_load_explicit(&slot->size_bytes, memory_order_acquire);
    range->owner = atomic_load_explicit(&slot->owner, memory_order_acquire);
}

static bool is_range(uint64_t key)
{
    return key != 0 && key != MOVED;
}

/* Moves some more slots of the outgrown table.  A home's number doubles with the table's size, so
 * they come to lie side by side again.  Between write_begin and write_end. */
static void move_some(struct shard *shard, uintptr_t outgrown, size_t count)
{
    struct view old = view_of(outgrown), view = view_locked(shard);
    size_t end = shard->moved + rs_min(count, old.mask + 1 - shard->moved);

    for (; shard->moved < end; shard->moved++) {
        struct slot *slot = &old.slots[shard->moved];
        struct rs_range range;
        if (!is_range(slot_key(slot)))
            continue;
        slot_read(slot, &range);
        slot_write(&view.slots[slot_locked(&view, range.start)], &range);
        atomic_store_explicit(&slot->start_and_one, MOVED, memory_order_release);
    }
    if (end > old.mask)
        atomic_store_explicit(&shard->outgrown, 0, memory_order_release);
}

static uintptr_t outgrown_locked(struct shard *shard)
{
    return atomic_load_explicit(&shard->outgrown, memory_order_relaxed);
}

/* The slot of `start` in the outgrown table, or NULL. */
static struct slot *outgrown_slot(struct shard *shard, uint64_t start)
{
    struct view view;
    struct slot *slot;

    if (RS_LIKELY(!outgrown_locked(shard)))
        return NULL;
    view = view_of(outgrown_locked(shard));
    slot = &view.slots[slot_locked(&view, start)];
    return slot_key(slot) ? slot : NULL;
}

/* Doubles the shard's table. */
static bool table_grow(struct shard *shard)
{
    uintptr_t old_word = atomic_load_explicit(&shard->table, memory_order_relaxed);
    unsigned old_bits = old_word % RS_CACHE_LINE;
    size_t bytes = sizeof(struct table) + (sizeof(struct slot) << (old_bits + 1));
    struct table *table = map_zeroed(bytes);

    if (!table)
        return false;
    (void)madvise(table, bytes, MADV_NOHUGEPAGE); /* to zero 2 MiB takes 0.1 ms */
    table->older = (struct table *)(old_word - old_bits);
    table->mapped_bytes = bytes;
    write_begin(shard);
    if (outgrown_locked(shard)) /* host memory was short, and the old table too full */
        move_some(shard, outgrown_locked(shard), SIZE_MAX);
    shard->moved = 0;
    atomic_store_explicit(&shard->outgrown, old_word, memory_order_release);
    atomic_store_explicit(&shard->table, (uintptr_t)table + old_bits + 1, memory_order_release);
    write_end(shard);
    return true;
}

/* Makes room for one more.  Half full is where probes are still short; when there is no memory to
 * grow, a fuller table is better than a refusal, as long as one slot stays free to end searches. */
static bool table_reserve(struct shard *shard)
{
    size_t count = atomic_load_explicit(&shard->count, memory_order_relaxed);
    struct view view = view_locked(shard);

    if (RS_LIKELY(count < (view.mask + 1) / 2))
        return true;
    return table_grow(shard) || count < view.mask;
}

/* Closes the hole at i: entries after it that it would cut off from their home move back. */
static void table_close(const struct view *view, size_t i)
{
    struct rs_range range;

    for (size_t j = (i + 1) & view->mask; slot_key(&view->slots[j]) != 0;
         j = (j + 1) & view->mask) {
        slot_read(&view->slots[j], &range);
        if (((j - home_of(view, range.start)) & view->mask) < ((j - i) & view->mask))
            continue; /* its home is after the hole */
        slot_write(&view->slots[i], &range);
        i = j;
    }
    atomic_store_explicit(&view->slots[i].start_and_one, 0, memory_order_release);
}

/* ---- regions ---- */

static uint64_t load(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static uint64_t bit(uint64_t number)
{
    return (uint64_t)1 << (number % 64);
}

/* Number of the highest set bit of a word that is not 0. */
static unsigned highest(uint64_t word)
{
    return 63 - (unsigned)__builtin_clzll(word);
}

static unsigned lowest(uint64_t word)
{
    return (unsigned)__builtin_ctzll(word);
}

static struct leaf *leaf_find(struct rs_address_map *map, uint64_t number)
{
    return atomic_load_explicit(&map->leaves[number >> LEAF_BITS], memory_order_acquire);
}

static struct region *region_find(struct rs_address_map *map, uint64_t number)
{
    struct leaf *leaf = leaf_find(map, number);

    return leaf ? atomic_load_explicit(&leaf->regions[number % (1u << LEAF_BITS)],
                                       memory_order_acquire)
                : NULL;
}

static struct leaf *leaf_make(struct rs_address_map *map, uint64_t number)
{
    struct leaf *present = leaf_find(map, number);
    struct leaf *made;

    if (present)
        return present;
    made = map_zeroed(sizeof(*made));
    if (made &&
        !atomic_compare_exchange_strong_explicit(&map->leaves[number >> LEAF_BITS], &present, made,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        munmap(made, sizeof(*made)); /* another thread was first */
        return present;
    }
    return made;
}

__attribute__((noinline)) static struct region *region_make(struct rs_address_map *map,
                                                            uint64_t number)
{
    struct leaf *leaf = leaf_make(map, number);
    struct region *present = NULL, *made;

    if (!leaf)
        return NULL;
    made = map_zeroed(sizeof(*made));
    if (made && !atomic_compare_exchange_strong_explicit(&leaf->regions[number % (1u << LEAF_BITS)],
                                                         &present, made, memory_order_acq_rel,
                                                         memory_order_acquire)) {
        munmap(made, sizeof(*made));
        return present;
    }
    return made;
}

static void hint_set(_Atomic uint64_t *word, uint64_t mask)
{
    if (RS_UNLIKELY(!(load(word) & mask)))
        atomic_fetch_or_explicit(word, mask, memory_order_relaxed);
}

/* Under the lock of the start's shard, like the next two. */
static void region_mark(struct region *region, uint64_t start)
{
    uint64_t unit = (start >> UNIT_BITS) % ((uint64_t)REGION_WORDS << WORD_BITS);
    uint64_t word = unit >> WORD_BITS;
    uint64_t group = word >> WORD_BITS;

    atomic_store_explicit(&region->words[word], load(&region->words[word]) | bit(unit),
                          memory_order_relaxed);
    hint_set(&region->groups[group], bit(word));
    hint_set(&region->top[group >> WORD_BITS], bit(group));
}

static void summary_clear(struct rs_address_map *map, uint64_t number)
{
    struct region *region = region_find(map, number >> (REGION_BITS - UNIT_BITS - WORD_BITS));
    uint64_t word = number % REGION_WORDS;

    if (load(&region->words[word]) == 0)
        atomic_fetch_and_explicit(&region->groups[word >> WORD_BITS], ~bit(word),
                                  memory_order_relaxed);
}

static void region_unmark(struct rs_address_map *map, struct shard *shard, uint64_t start)
{
    struct region *region = region_find(map, start >> REGION_BITS);
    uint64_t number = word_number(start);
    _Atomic uint64_t *word = &region->words[number % REGION_WORDS];
    uint64_t left = load(word) & ~bit(start >> UNIT_BITS);
    uint64_t *emptied;
    uint64_t evicted;

    atomic_store_explicit(word, left, memory_order_relaxed);
    if (left != 0)
        return;
    emptied = &shard->emptied[(number * hash_factor) >> (64 - SHARD_BITS - EMPTIED_BITS) &
                              (EMPTIED_COUNT - 1)];
    if (*emptied == number + 1)
        return;
    evicted = *emptied;
    *emptied = number + 1;
    if (evicted != 0)
        summary_clear(map, evicted - 1);
}

/* The last start in the words of `group` that `mask` allows. */
static bool group_last(struct region *region, uint64_t group, uint64_t mask, uint64_t *unit)
{
    for (mask &= load(&region->groups[group]); mask != 0; mask &= ~bit(highest(mask))) {
        uint64_t word = (group << WORD_BITS) + highest(mask);
        uint64_t starts = load(&region->words[word]);
        if (starts != 0) {
            *unit = (word << WORD_BITS) + highest(starts);
            return true;
        }
    }
    return false;
}

static bool top_last(struct region *region, uint64_t top, uint64_t mask, uint64_t *unit)
{
    for (mask &= load(&region->top[top]); mask != 0; mask &= ~bit(highest(mask)))
        if (group_last(region, (top << WORD_BITS) + highest(mask), UINT64_MAX, unit))
            return true;
    return false;
}

/* The last start at or before *unit, into *unit. */
static bool region_last(struct region *region, uint64_t *unit)
{
    uint64_t word = *unit >> WORD_BITS;
    uint64_t group = word >> WORD_BITS;
    uint64_t top = group >> WORD_BITS;
    uint64_t starts = load(&region->words[word]) & (bit(*unit) | (bit(*unit) - 1));

    if (starts != 0) {
        *unit = (word << WORD_BITS) + highest(starts);
        return true;
    }
    if (group_last(region, group, bit(word) - 1, unit) ||
        top_last(region, top, bit(group) - 1, unit))
        return true;
    while (top-- > 0)
        if (top_last(region, top, UINT64_MAX, unit))
            return true;
    return false;
}

/* The last start in [from, *address], into *address.  Both are multiples of 512. */
static bool map_last(struct rs_address_map *map, uint64_t from, uint64_t *address)
{
    uint64_t first = from >> REGION_BITS, number = *address >> REGION_BITS;
    uint64_t unit = (*address >> UNIT_BITS) % ((uint64_t)REGION_WORDS << WORD_BITS);

    for (;;) {
        struct region *region = region_find(map, number);
        if (region && region_last(region, &unit)) {
            *address = (number << REGION_BITS) + (unit << UNIT_BITS);
            return *address >= from;
        }
        /* A leaf that is missing spans 16 TiB without ranges. */
        if (!leaf_find(map, number))
            number &= ~(((uint64_t)1 << LEAF_BITS) - 1);
        if (number <= first)
            return false;
        number--;
        unit = ((uint64_t)REGION_WORDS << WORD_BITS) - 1;
    }
}

/* ---- the map ---- */

struct rs_address_map *rs_address_map_create(void)
{
    struct rs_address_map *map = map_zeroed(sizeof(*map));

    if (!map)
        return NULL;
    for (size_t i = 0; i < SHARD_COUNT; i++)
        atomic_store_explicit(&map->shards[i].table,
                              (uintptr_t)map->first_tables[i] + FIRST_TABLE_BITS,
                              memory_order_relaxed);
    return map;
}

static void leaf_destroy(struct leaf *leaf)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(leaf->regions); i++) {
        struct region *region = atomic_load_explicit(&leaf->regions[i], memory_order_relaxed);
        if (region)
            munmap(region, sizeof(*region));
    }
    munmap(leaf, sizeof(*leaf));
}

static void shard_destroy(struct shard *shard)
{
    uintptr_t word = atomic_load_explicit(&shard->table, memory_order_relaxed);
    struct table *table = (struct table *)(word - word % RS_CACHE_LINE);

    while (table->mapped_bytes != 0) {
        struct table *older = table->older;
        munmap(table, table->mapped_bytes);
        table = older;
    }
}

void rs_address_map_destroy(struct rs_address_map *map)
{
    if (!map)
        return;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(map->leaves); i++) {
        struct leaf *leaf = atomic_load_explicit(&map->leaves[i], memory_order_relaxed);
        if (leaf)
            leaf_destroy(leaf);
    }
    for (size_t i = 0; i < SHARD_COUNT; i++)
        shard_destroy(&map->shards[i]);
    munmap(map, sizeof(*map));
}

static void note_size(struct rs_address_map *map, uint64_t size_bytes)
{
    uint64_t largest = load(&map->largest_bytes);

    while (RS_UNLIKELY(size_bytes > largest))
        if (atomic_compare_exchange_weak_explicit(&map->largest_bytes, &largest, size_bytes,
                                                  memory_order_relaxed, memory_order_relaxed))
            return;
}

static bool insert_locked(struct shard *shard, struct region *region, const struct rs_range *range)
{
    struct view view = view_locked(shard);
    size_t i = slot_locked(&view, range->start);
    struct slot *slot = &view.slots[i], *old = outgrown_slot(shard, range->start);
    bool is_new = slot_key(slot) == 0 && !old;

    if (is_new) {
        if (!table_reserve(shard))
            return false;
        atomic_store_explicit(&shard->count,
                              atomic_load_explicit(&shard->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
    write_begin(shard);
    if (RS_UNLIKELY(outgrown_locked(shard)))
        move_some(shard, outgrown_locked(shard), MOVE_SLOTS);
    if (is_new || old) { /* the table may be another, and slots have moved into it */
        view = view_locked(shard);
        slot = &view.slots[slot_locked(&view, range->start)];
        if ((old = outgrown_slot(shard, range->start)))
            slot = old;
    }
    slot_write(slot, range);
    write_end(shard);
    if (is_new)
        region_mark(region, range->start);
    return true;
}

bool rs_address_map_insert(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                           void *owner)
{
    struct rs_range range = {start, size_bytes, owner};
    struct shard *shard = shard_of(map, start);
    struct region *region;
    bool done;

    RS_ASSERT(start % (1u << UNIT_BITS) == 0 && size_bytes > 0);
    if (RS_UNLIKELY(start >> ADDRESS_BITS))
        return false; /* no device has such addresses */
    region = region_find(map, start >> REGION_BITS);
    if (RS_UNLIKELY(!region) && !(region = region_make(map, start >> REGION_BITS)))
        return false;
    note_size(map, size_bytes);
    rs_spinlock_lock(&shard->lock);
    done = insert_locked(shard, region, &range);
    rs_spinlock_unlock(&shard->lock);
    return done;
}

bool rs_address_map_remove(struct rs_address_map *map, uint64_t start, void *owner)
{
    struct shard *shard = shard_of(map, start);
    struct view view;
    struct slot *slot, *old;
    bool found;

    rs_spinlock_lock(&shard->lock);
    view = view_locked(shard);
    old = outgrown_slot(shard, start);
    slot = old ? old : &view.slots[slot_locked(&view, start)];
    found = slot_key(slot) != 0 &&
            (!owner || atomic_load_explicit(&slot->owner, memory_order_relaxed) == owner);
    if (found) {
        write_begin(shard);
        if (RS_UNLIKELY(old))
            atomic_store_explicit(&old->start_and_one, MOVED, memory_order_release);
        else
            table_close(&view, (size_t)(slot - view.slots));
        write_end(shard);
        region_unmark(map, shard, start);
        atomic_store_explicit(&shard->count,
                              atomic_load_explicit(&shard->count, memory_order_relaxed) - 1,
                              memory_order_relaxed);
    }
    rs_spinlock_unlock(&shard->lock);
    return found;
}

/* One look; what it finds counts only if the sequence number stayed.  A reader may meet a table in
 * the middle of a move and find no free slot, so steps are counted. */
static bool look(uintptr_t table, uint64_t start, struct rs_range *range)
{
    struct view view = view_of(table);
    size_t i = home_of(&view, start);

    for (size_t steps = 0; steps <= view.mask; steps++, i = (i + 1) & view.mask) {
        uint64_t key = slot_key(&view.slots[i]);
        if (key == start + 1) {
            slot_read(&view.slots[i], range);
            return true;
        }
        if (key == 0)
            return false;
    }
    return false;
}

bool rs_address_map_find(struct rs_address_map *map, uint64_t start, struct rs_range *range)
{
    struct shard *shard = shard_of(map, start);

    if (start % (1u << UNIT_BITS) != 0)
        return false;
    for (unsigned turn = 0;; rs_pause(turn++)) {
        unsigned before = atomic_load_explicit(&shard->sequence, memory_order_acquire);
        struct rs_range seen;
        uintptr_t outgrown;
        bool found;

        if (before % 2 != 0)
            continue;
        found = look(atomic_load_explicit(&shard->table, memory_order_acquire), start, &seen);
        if (RS_UNLIKELY(!found) &&
            (outgrown = atomic_load_explicit(&shard->outgrown, memory_order_acquire)))
            found = look(outgrown, start, &seen);
        if (RS_UNLIKELY(atomic_load_explicit(&shard->sequence, memory_order_relaxed) != before))
            continue;
        if (found)
            *range = seen;
        return found;
    }
}

RS_HOT void rs_address_map_prefetch(struct rs_address_map *map, uint64_t start)
{
    struct view view =
        view_of(atomic_load_explicit(&shard_of(map, start)->table, memory_order_relaxed));

    __builtin_prefetch(&view.slots[home_of(&view, start)]);
}

/* A look at the one slot where a start mostly is; all else takes the long way. */
RS_HOT void *rs_address_map_owner(struct rs_address_map *map, uint64_t start)
{
    struct shard *shard = shard_of(map, start);
    unsigned before = atomic_load_explicit(&shard->sequence, memory_order_acquire);
    struct view view = view_of(atomic_load_explicit(&shard->table, memory_order_acquire));
    const struct slot *slot = &view.slots[home_of(&view, start)];
    uint64_t key = slot_key(slot);
    void *owner = atomic_load_explicit(&slot->owner, memory_order_acquire);
    struct rs_range range;

    if (RS_LIKELY(
            !(RS_DIFFER(key, start + 1) | before % 2 |
              RS_DIFFER(atomic_load_explicit(&shard->sequence, memory_order_relaxed), before))))
        return owner;
    return rs_address_map_find(map, start, &range) ? range.owner : NULL;
}

bool rs_address_map_find_inside(struct rs_address_map *map, uint64_t address,
                                struct rs_range *range)
{
    uint64_t unit_mask = ~(((uint64_t)1 << UNIT_BITS) - 1);
    uint64_t largest = load(&map->largest_bytes);
    uint64_t from = address < largest ? 0 : (address - largest + 1) & unit_mask;
    uint64_t start = address & unit_mask;
    struct rs_range seen;

    if (address >> ADDRESS_BITS)
        return false;
    while (largest != 0 && map_last(map, from, &start)) {
        if (rs_address_map_find(map, start, &seen)) {
            if (address - seen.start >= seen.size_bytes)
                return false;
            *range = seen;
            return true;
        }
        if (start == from) /* removed just now */
            return false;
        start -= (uint64_t)1 << UNIT_BITS;
    }
    return false;
}

/* ---- iteration: by address, as slots move while others are removed ---- */

struct visitor {
    struct rs_address_map *map;
    bool (*visit)(void *data, const struct rs_range *range);
    void *data;
};

static bool word_each(const struct visitor *visitor, uint64_t first_start, uint64_t starts)
{
    for (; starts != 0; starts &= starts - 1) {
        struct rs_range range;
        if (rs_address_map_find(visitor->map, first_start + ((uint64_t)lowest(starts) << UNIT_BITS),
                                &range) &&
            !visitor->visit(visitor->data, &range))
            return false;
    }
    return true;
}

static bool region_each(const struct visitor *visitor, struct region *region, uint64_t base)
{
    for (uint64_t group = 0; group < GROUP_WORDS; group++) {
        uint64_t words = load(&region->groups[group]);
        for (; words != 0; words &= words - 1) {
            uint64_t word = (group << WORD_BITS) + lowest(words);
            if (!word_each(visitor, base + (word << (UNIT_BITS + WORD_BITS)),
                           load(&region->words[word])))
                return false;
        }
    }
    return true;
}

void rs_address_map_each(struct rs_address_map *map,
                         bool (*visit)(void *data, const struct rs_range *range), void *data)
{
    struct visitor visitor = {map, visit, data};

    for (uint64_t i = 0; i < RS_ARRAY_LENGTH(map->leaves); i++) {
        struct leaf *leaf = atomic_load_explicit(&map->leaves[i], memory_order_acquire);
        for (uint64_t j = 0; leaf && j < RS_ARRAY_LENGTH(leaf->regions); j++) {
            struct region *region = atomic_load_explicit(&leaf->regions[j], memory_order_acquire);
            if (region && !region_each(&visitor, region, ((i << LEAF_BITS) + j) << REGION_BITS))
                return;
        }
    }
}

size_t rs_address_map_count(struct rs_address_map *map)
{
    size_t count = 0;

    for (size_t i = 0; i < SHARD_COUNT; i++)
        count += atomic_load_explicit(&map->shards[i].count, memory_order_relaxed);
    return count;
}
