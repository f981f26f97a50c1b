/* SPDX-License-Identifier: Apache-2.0 */
/* Two structures describe the same ranges.
 *
 * By start: 64 shards, each an open-addressing hash table with linear probing.  Writers of a shard
 * take its spinlock.  Readers take no lock: they look again if the shard's sequence number is odd,
 * or has changed while they looked.  An outgrown table stays mapped, so a reader that still uses it
 * reads stale slots, never unmapped memory; then it sees the new sequence number and looks again.
 * The slots of an outgrown table move to the new table a few at each insertion: moving all at once
 * took milliseconds in a shard of some ten thousand ranges.  Meanwhile each range is in exactly one
 * of the two tables.  A slot of the old table whose range was moved or removed is marked MOVED and
 * not freed, so that searches go on past it.
 *
 * By address: a bitmap of starts (start_bitmap.h).  The nearest start at or below an address
 * belongs to the only range that can contain it.
 *
 * A shard owns whole words of the bitmap (32 KiB of addresses), so its lock covers both structures.
 *
 * Slots and bits are atomics because readers race with writers by design.  Fences would do instead
 * of acquire loads and release stores, but ThreadSanitizer does not understand fences. */
#include "base/address_map.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/start_bitmap.h"

#include <stdalign.h>
#include <string.h>

enum {
    SHARD_BITS = 6,
    SHARD_COUNT = 1 << SHARD_BITS,
    FIRST_TABLE_BITS = 6,
    EMPTIED_BITS = 3,
    EMPTIED_COUNT = 1 << EMPTIED_BITS,
    MOVE_SLOTS = 8, /* slots visited per insertion: enough to empty the old table before the new one
                       must grow */
    MOVED = 2,      /* key of an outgrown table's slot whose range has left it; no start + 1 is 2 */
};

/* 2^64 divided by the golden ratio: the high bits of the products spread evenly, also for
 * consecutive and evenly spaced keys. */
static const uint64_t hash_factor = 0x9e3779b97f4a7c15u;

struct slot {
    /* start + 1, since a range may start at address 0; 0: the slot is free */
    _Atomic uint64_t start_and_one;
    _Atomic uint64_t size_bytes;
    _Atomic(void *) owner;
    uint64_t unused; /* padding: a cache line has two slots, and no slot lies in two lines */
};

struct table {
    struct table *older;
    size_t mapped_bytes; /* 0: the table is part of the map's own mapping */
    alignas(RS_CACHE_LINE) struct slot slots[];
};

struct shard {
    /* The lock is held for some ten instructions, or while a table grows.  No two shards share a
     * pair of cache lines, since the processor fetches lines in pairs. */
    alignas(2 * RS_CACHE_LINE) struct rs_spinlock lock;
    atomic_uint sequence;    /* odd while slots change */
    _Atomic uintptr_t table; /* a struct table *; its low 6 bits: log2 of the slot count */
    /* The table before the present one, while it has slots to move; else 0. */
    _Atomic uintptr_t outgrown;
    size_t moved;                    /* slots of the outgrown table that have been visited */
    atomic_size_t count;             /* ranges in both tables */
    uint64_t emptied[EMPTIED_COUNT]; /* words of the bitmap that became empty, see
                                        rs_start_bitmap_clear */
};

struct rs_address_map {
    struct shard shards[SHARD_COUNT];
    _Atomic uint64_t largest_bytes; /* size of the largest range so far: a range that contains an
                                       address starts less than largest_bytes below that address */
    struct rs_start_bitmap starts;
    alignas(RS_CACHE_LINE) unsigned char first_tables[SHARD_COUNT]
                                                     [sizeof(struct table) +
                                                      (sizeof(struct slot) << FIRST_TABLE_BITS)];
};

_Static_assert(sizeof(struct table) == RS_CACHE_LINE,
               "a table's address has six low bits to spare");
_Static_assert(sizeof(struct slot) == RS_CACHE_LINE / 2, "slots do not straddle cache lines");

/* ---- shards ---- */

static struct shard *shard_of(struct rs_address_map *map, uint64_t start)
{
    return &map->shards[(rs_start_word(start) * hash_factor) >> (64 - SHARD_BITS)];
}

/* Returns the element of shard->emptied for the word of `start`. */
static uint64_t *emptied_of(struct shard *shard, uint64_t start)
{
    return &shard
                ->emptied[(rs_start_word(start) * hash_factor) >> (64 - SHARD_BITS - EMPTIED_BITS) &
                          (EMPTIED_COUNT - 1)];
}

/* Slots change only between write_begin and write_end.  Every store in between has release order,
 * so a reader that sees one of them sees the odd sequence number too. */
static void write_begin(struct shard *shard)
{
    unsigned sequence = atomic_load_explicit(&shard->sequence, memory_order_relaxed);

    RS_ASSERT_HELD(&shard->lock);
    RS_ASSERT(sequence % 2 == 0);
    atomic_store_explicit(&shard->sequence, sequence + 1, memory_order_relaxed);
}

static void write_end(struct shard *shard)
{
    unsigned sequence = atomic_load_explicit(&shard->sequence, memory_order_relaxed);

    RS_ASSERT_SLOW(sequence % 2 == 1);
    atomic_store_explicit(&shard->sequence, sequence + 1, memory_order_release);
}

/* ---- tables ---- */

struct view {
    struct slot *slots;
    size_t mask;
    unsigned shift; /* a hash, shifted right by this, is a slot's number */
};

static struct view view_of_table(uintptr_t table)
{
    unsigned bits = table % RS_CACHE_LINE;

    RS_ASSERT_SLOW(bits >= FIRST_TABLE_BITS);
    return (struct view){
        .slots = ((struct table *)(table - bits))->slots,
        .mask = ((size_t)1 << bits) - 1,
        .shift = 64 - bits,
    };
}

static struct view view_locked(struct shard *shard)
{
    return view_of_table(atomic_load_explicit(&shard->table, memory_order_relaxed));
}

/* Returns the slot at which the search for `start` begins. shard_of chose the shard by the highest
 * 6 bits of word * hash_factor.  The product here is 64 times that, plus a term for the bit within
 * the word.  So those 6 bits, which are equal for all starts of a shard, have overflowed, and the
 * bits below them choose the slot. */
static size_t home_of_start(const struct view *view, uint64_t start)
{
    return (size_t)(((start >> RS_START_UNIT_BITS) * hash_factor) >> view->shift);
}

static uint64_t slot_key(const struct slot *slot)
{
    return atomic_load_explicit(&slot->start_and_one, memory_order_acquire);
}

/* Returns the slot of `start`, or the free slot where it belongs.  The caller holds the lock.  A
 * table always has a free slot, which ends the search. */
static size_t slot_locked(const struct view *view, uint64_t start)
{
    size_t i = home_of_start(view, start);
    uint64_t key;

    while ((key = slot_key(&view->slots[i])) != 0 && key != start + 1) {
        i = (i + 1) & view->mask;
        /* Without a free slot the search would never end. */
        RS_ASSERT_SLOW(i != home_of_start(view, start));
    }
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

/* Visits the next `count` slots of the outgrown table and moves their ranges to the shard's present
 * table.  Home slots that are close together in the old table are so in the new one too.  Called
 * between write_begin and write_end. */
static void move_some(struct shard *shard, uintptr_t outgrown, size_t count)
{
    struct view old = view_of_table(outgrown), view = view_locked(shard);
    size_t end = shard->moved + rs_min(count, old.mask + 1 - shard->moved);

    RS_ASSERT(shard->moved <= old.mask && view.mask > old.mask);
    for (; shard->moved < end; shard->moved++) {
        struct slot *slot = &old.slots[shard->moved];
        struct rs_range range;
        if (!is_range(slot_key(slot)))
            continue;
        slot_read(slot, &range);
        RS_ASSERT_SLOW(slot_key(&view.slots[slot_locked(&view, range.start)]) == 0);
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

/* Returns the slot of `start` in the outgrown table; NULL when there is no such table, or `start`
 * is not in it. */
static struct slot *outgrown_slot(struct shard *shard, uint64_t start)
{
    struct view view;
    struct slot *slot;

    if (RS_LIKELY(!outgrown_locked(shard)))
        return NULL;
    view = view_of_table(outgrown_locked(shard));
    slot = &view.slots[slot_locked(&view, start)];
    return slot_key(slot) ? slot : NULL;
}

/* True when the shard's two tables have as many ranges as shard->count says, and each range has a
 * size and a possible start. */
__attribute__((unused)) static bool shard_check(struct shard *shard)
{
    uintptr_t tables[] = {atomic_load(&shard->table), outgrown_locked(shard)};
    size_t count = 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(tables) && tables[i]; i++) {
        struct view view = view_of_table(tables[i]);
        for (size_t at = 0; at <= view.mask; at++) {
            struct rs_range range;
            if (!is_range(slot_key(&view.slots[at])))
                continue;
            slot_read(&view.slots[at], &range);
            if (range.size_bytes == 0 || (range.start >> RS_START_ADDRESS_BITS))
                return false;
            count++;
        }
    }
    return count == atomic_load_explicit(&shard->count, memory_order_relaxed);
}

/* Doubles the shard's table.  Returns false when out of host memory. */
static bool table_grow(struct shard *shard)
{
    uintptr_t old_word = atomic_load_explicit(&shard->table, memory_order_relaxed);
    unsigned old_bits = old_word % RS_CACHE_LINE;
    size_t bytes = sizeof(struct table) + (sizeof(struct slot) << (old_bits + 1));
    struct table *table = rs_map_zeroed(bytes);

    if (!table)
        return false;
    /* No huge pages, since zeroing one of 2 MiB takes 0.1 ms. */
    (void)madvise(table, bytes, MADV_NOHUGEPAGE);
    table->older = (struct table *)(old_word - old_bits);
    table->mapped_bytes = bytes;
    write_begin(shard);
    if (outgrown_locked(shard)) /* an earlier growth failed and came late, so too few insertions
                                   have followed it to move all slots */
        move_some(shard, outgrown_locked(shard), SIZE_MAX);
    RS_ASSERT(!outgrown_locked(shard)); /* else ranges are left in a third table */
    shard->moved = 0;
    atomic_store_explicit(&shard->outgrown, old_word, memory_order_release);
    atomic_store_explicit(&shard->table, (uintptr_t)table + old_bits + 1, memory_order_release);
    write_end(shard);
    return true;
}

/* Makes room for one more range.  Probes are short while the table is at most half full.  If there
 * is no memory for a larger table, the table is filled further, as long as one slot stays free, at
 * which searches end.  Returns false when there is no memory and only that slot is free. */
static bool table_reserve(struct shard *shard)
{
    size_t count = atomic_load_explicit(&shard->count, memory_order_relaxed);
    struct view view = view_locked(shard);

    if (RS_LIKELY(count < (view.mask + 1) / 2))
        return true;
    return table_grow(shard) || count < view.mask;
}

/* Empties slot i and closes the hole.  If the hole lies between a later entry and that entry's
 * home, a search for the entry would end at the hole, so the entry moves into it.  Then the entry's
 * old slot is the hole. */
static void table_close(const struct view *view, size_t i)
{
    struct rs_range range;

    RS_ASSERT_SLOW(slot_key(&view->slots[i]) != 0);
    for (size_t j = (i + 1) & view->mask; slot_key(&view->slots[j]) != 0;
         j = (j + 1) & view->mask) {
        slot_read(&view->slots[j], &range);
        if (((j - home_of_start(view, range.start)) & view->mask) < ((j - i) & view->mask))
            continue; /* the entry's home lies after the hole */
        slot_write(&view->slots[i], &range);
        i = j;
    }
    atomic_store_explicit(&view->slots[i].start_and_one, 0, memory_order_release);
}

/* ---- the map ---- */

struct rs_address_map *rs_address_map_create(void)
{
    struct rs_address_map *map = rs_map_zeroed(sizeof(*map));

    if (!map)
        return NULL;
    for (size_t i = 0; i < SHARD_COUNT; i++) {
        rs_spinlock_init(&map->shards[i].lock, RS_RANK_TABLE);
        atomic_store_explicit(&map->shards[i].table,
                              (uintptr_t)map->first_tables[i] + FIRST_TABLE_BITS,
                              memory_order_relaxed);
    }
    return map;
}

struct rs_address_map *rs_address_map_create_at(_Atomic(struct rs_address_map *) *place)
{
    struct rs_address_map *created = rs_address_map_create(), *map = NULL;

    if (!created || atomic_compare_exchange_strong(place, &map, created))
        return created;
    rs_address_map_destroy(created);
    return map;
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
    rs_start_bitmap_destroy(&map->starts);
    for (size_t i = 0; i < SHARD_COUNT; i++) {
        RS_ASSERT_SLOW(shard_check(&map->shards[i]));
        shard_destroy(&map->shards[i]);
    }
    munmap(map, sizeof(*map));
}

static void note_size(struct rs_address_map *map, uint64_t size_bytes)
{
    uint64_t largest = atomic_load_explicit(&map->largest_bytes, memory_order_relaxed);

    while (RS_UNLIKELY(size_bytes > largest))
        if (atomic_compare_exchange_weak_explicit(&map->largest_bytes, &largest, size_bytes,
                                                  memory_order_relaxed, memory_order_relaxed))
            return;
}

/* Changes the owner and size of the range that starts at range->start. Returns the owner before. */
RS_COLD static void *replace_locked(struct shard *shard, const struct rs_range *range)
{
    struct view view = view_locked(shard);
    struct slot *slot = outgrown_slot(shard, range->start);
    void *before;

    if (!slot)
        slot = &view.slots[slot_locked(&view, range->start)];
    before = atomic_load_explicit(&slot->owner, memory_order_relaxed);
    write_begin(shard);
    slot_write(slot, range);
    write_end(shard);
    return before;
}

/* Does what rs_address_map_replace does.  The caller holds the shard's lock. */
static void *insert_locked(struct shard *shard, struct rs_start_region *region,
                           const struct rs_range *range)
{
    struct view view = view_locked(shard);
    struct slot *slot = &view.slots[slot_locked(&view, range->start)];

    if (RS_UNLIKELY(slot_key(slot) != 0 || outgrown_slot(shard, range->start)))
        return replace_locked(shard, range);
    if (!table_reserve(shard))
        return NULL;
    atomic_store_explicit(&shard->count,
                          atomic_load_explicit(&shard->count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    write_begin(shard);
    if (RS_UNLIKELY(outgrown_locked(shard))) { /* table_reserve may have made a new table */
        move_some(shard, outgrown_locked(shard), MOVE_SLOTS);
        view = view_locked(shard);
        slot = &view.slots[slot_locked(&view, range->start)];
    }
    slot_write(slot, range);
    write_end(shard);
    rs_start_bitmap_set(region, range->start);
    return range->owner;
}

bool rs_address_map_insert(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                           void *owner)
{
    return rs_address_map_replace(map, start, size_bytes, owner);
}

void *rs_address_map_replace(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                             void *owner)
{
    struct rs_range range = {start, size_bytes, owner};
    struct shard *shard = shard_of(map, start);
    struct rs_start_region *region;
    void *before;

    RS_ASSERT(start % (1u << RS_START_UNIT_BITS) == 0 && size_bytes > 0);
    if (RS_UNLIKELY(start >> RS_START_ADDRESS_BITS))
        return NULL; /* no device has such an address */
    region = rs_start_bitmap_region(&map->starts, start);
    if (RS_UNLIKELY(!region))
        return NULL;
    note_size(map, size_bytes);
    rs_spinlock_lock(&shard->lock);
    before = insert_locked(shard, region, &range);
    rs_spinlock_unlock(&shard->lock);
    return before;
}

/* Does what rs_address_map_remove does.  The caller holds the shard's lock. */
static bool remove_locked(struct rs_address_map *map, struct shard *shard, uint64_t start,
                          void *owner)
{
    struct view view = view_locked(shard);
    struct slot *old = outgrown_slot(shard, start);
    struct slot *slot = old ? old : &view.slots[slot_locked(&view, start)];
    bool found;

    found = slot_key(slot) != 0 &&
            (!owner || atomic_load_explicit(&slot->owner, memory_order_relaxed) == owner);
    if (found) {
        write_begin(shard);
        if (RS_UNLIKELY(old))
            atomic_store_explicit(&old->start_and_one, MOVED, memory_order_release);
        else
            table_close(&view, (size_t)(slot - view.slots));
        write_end(shard);
        rs_start_bitmap_clear(&map->starts, emptied_of(shard, start), start);
        RS_ASSERT_SLOW(atomic_load_explicit(&shard->count, memory_order_relaxed) > 0);
        atomic_store_explicit(&shard->count,
                              atomic_load_explicit(&shard->count, memory_order_relaxed) - 1,
                              memory_order_relaxed);
    }
    return found;
}

bool rs_address_map_remove(struct rs_address_map *map, uint64_t start, void *owner)
{
    struct shard *shard = shard_of(map, start);
    bool found;

    rs_spinlock_lock(&shard->lock);
    found = remove_locked(map, shard, start, owner);
    rs_spinlock_unlock(&shard->lock);
    return found;
}

bool rs_address_map_remove_if(struct rs_address_map *map, uint64_t start, void *owner,
                              bool (*is_right)(void *data, void *owner), void *data)
{
    struct shard *shard = shard_of(map, start);
    bool found;

    rs_spinlock_lock(&shard->lock);
    found = is_right(data, owner) && remove_locked(map, shard, start, owner);
    rs_spinlock_unlock(&shard->lock);
    return found;
}

/* Looks once in one table.  The result counts only if the shard's sequence number has not changed
 * meanwhile, which the caller checks.  The number of steps is bounded, since a reader may meet no
 * free slot while a writer changes the table. */
static bool look_once(uintptr_t table, uint64_t start, struct rs_range *range)
{
    struct view view = view_of_table(table);
    size_t i = home_of_start(&view, start);

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

    if (start % (1u << RS_START_UNIT_BITS) != 0)
        return false;
    for (unsigned turn = 0;; rs_pause(turn++)) {
        unsigned before = atomic_load_explicit(&shard->sequence, memory_order_acquire);
        struct rs_range seen;
        uintptr_t outgrown;
        bool found;

        if (before % 2 != 0)
            continue;
        found = look_once(atomic_load_explicit(&shard->table, memory_order_acquire), start, &seen);
        if (RS_UNLIKELY(!found) &&
            (outgrown = atomic_load_explicit(&shard->outgrown, memory_order_acquire)))
            found = look_once(outgrown, start, &seen);
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
        view_of_table(atomic_load_explicit(&shard_of(map, start)->table, memory_order_relaxed));

    __builtin_prefetch(&view.slots[home_of_start(&view, start)]);
}

/* Looks only at the home slot of `start`, where most ranges are.  If the range is not there, or the
 * shard is changing, it calls rs_address_map_find. */
RS_HOT void *rs_address_map_owner(struct rs_address_map *map, uint64_t start)
{
    struct shard *shard = shard_of(map, start);
    unsigned before = atomic_load_explicit(&shard->sequence, memory_order_acquire);
    struct view view = view_of_table(atomic_load_explicit(&shard->table, memory_order_acquire));
    const struct slot *slot = &view.slots[home_of_start(&view, start)];
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
    return rs_address_map_find_inside_if(map, address, NULL, range);
}

bool rs_address_map_find_inside_if(struct rs_address_map *map, uint64_t address,
                                   bool (*counts)(const struct rs_range *range, bool is_inside),
                                   struct rs_range *range)
{
    uint64_t unit_mask = ~(((uint64_t)1 << RS_START_UNIT_BITS) - 1);
    uint64_t largest = atomic_load_explicit(&map->largest_bytes, memory_order_relaxed);
    uint64_t from = address < largest ? 0 : (address - largest + 1) & unit_mask;
    uint64_t start = address & unit_mask;
    struct rs_range seen;

    if (address >> RS_START_ADDRESS_BITS)
        return false;
    while (largest != 0 && rs_start_bitmap_last(&map->starts, from, &start)) {
        RS_ASSERT_SLOW(start >= from && start <= address);
        if (rs_address_map_find(map, start, &seen)) {
            bool is_inside = address - seen.start < seen.size_bytes;
            if (!counts || counts(&seen, is_inside)) {
                if (is_inside)
                    *range = seen;
                return is_inside;
            }
        }
        if (start == from) /* no range that starts below `from` can contain the address */
            return false;
        start -= (uint64_t)1 << RS_START_UNIT_BITS;
    }
    return false;
}

/* Walks the bitmap and not the tables, whose slots move while ranges are removed. */
void rs_address_map_each(struct rs_address_map *map,
                         bool (*visit)(void *data, const struct rs_range *range), void *data)
{
    const uint64_t unit = (uint64_t)1 << RS_START_UNIT_BITS;
    struct rs_range range;

    for (uint64_t start = ((uint64_t)1 << RS_START_ADDRESS_BITS) - unit;
         rs_start_bitmap_last(&map->starts, 0, &start); start -= unit) {
        if (rs_address_map_find(map, start, &range) && !visit(data, &range))
            return;
        if (start == 0)
            return;
    }
}
