/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash_table.h"

#include "base/check.h"

#include <stdlib.h>

enum { FIRST_SLOTS = 256 };

/* Returns the slot at which the search for a key begins.  The slot count is a power of two.  At
 * most half of the slots are full, or more while there is no host memory for a larger table. */
static size_t home_of_key(const struct rs_hash_table *table, uint64_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 17) & (table->slot_count - 1);
}

static size_t slot_of_key(const struct rs_hash_table *table, uint64_t key)
{
    size_t at = home_of_key(table, key);

    while (table->slots[at].key && table->slots[at].key != key)
        at = (at + 1) & (table->slot_count - 1);
    return at;
}

/* True when the search for each key ends at the slot that has it, and table->count is the number of
 * keys. */
__attribute__((unused)) static bool table_check(const struct rs_hash_table *table)
{
    size_t count = 0;

    for (size_t at = 0; at < table->slot_count; at++) {
        uint64_t key = table->slots[at].key;
        if (key && slot_of_key(table, key) != at)
            return false;
        count += key != 0;
    }
    return count == table->count;
}

static bool grow_table(struct rs_hash_table *table, size_t slot_count)
{
    struct rs_hash_table larger = {calloc(slot_count, sizeof(*larger.slots)), slot_count,
                                   table->count};

    if (!larger.slots)
        return false;
    for (size_t i = 0; i < table->slot_count; i++)
        if (table->slots[i].key)
            larger.slots[slot_of_key(&larger, table->slots[i].key)] = table->slots[i];
    free(table->slots);
    *table = larger;
    RS_ASSERT_SLOW(table_check(table));
    return true;
}

bool rs_hash_reserve(struct rs_hash_table *table, size_t more)
{
    size_t slot_count = table->slot_count ? table->slot_count : FIRST_SLOTS;

    while ((table->count + more) * 2 > slot_count)
        slot_count *= 2;
    RS_ASSERT(rs_is_power_of_two(slot_count)); /* home_of_key masks by slot_count - 1 */
    return slot_count == table->slot_count || grow_table(table, slot_count);
}

bool rs_hash_put(struct rs_hash_table *table, uint64_t key, void *value)
{
    size_t at;

    RS_ASSERT(key != 0);
    if (!rs_hash_reserve(table, 1) && table->count + 1 >= table->slot_count &&
        !rs_hash_get(table, key))
        return false; /* the last empty slot must stay, since a search ends there */
    at = slot_of_key(table, key);
    table->count += table->slots[at].key == 0;
    table->slots[at] = (struct rs_hash_slot){key, value};
    RS_ASSERT(table->count < table->slot_count);
    return true;
}

void *rs_hash_get(const struct rs_hash_table *table, uint64_t key)
{
    return table->slot_count && key ? table->slots[slot_of_key(table, key)].value : NULL;
}

/* Closes the gap that a removed entry leaves.  If the gap lies between a later entry and that
 * entry's home, a search for the entry would end at the gap, so the entry moves into it.  Then the
 * entry's old slot is the gap. */
static void close_gap(struct rs_hash_table *table, size_t gap)
{
    size_t mask = table->slot_count - 1;

    for (size_t at = (gap + 1) & mask; table->slots[at].key; at = (at + 1) & mask) {
        size_t home = home_of_key(table, table->slots[at].key);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue;
        table->slots[gap] = table->slots[at];
        gap = at;
    }
    table->slots[gap] = (struct rs_hash_slot){0, NULL};
}

void *rs_hash_take(struct rs_hash_table *table, uint64_t key)
{
    size_t at;
    void *value;

    if (!table->slot_count || !key)
        return NULL;
    at = slot_of_key(table, key);
    value = table->slots[at].value;
    if (table->slots[at].key) {
        RS_ASSERT(table->count > 0);
        table->count--;
        close_gap(table, at);
        RS_ASSERT_SLOW(table_check(table));
    }
    return value;
}

void *rs_hash_at(const struct rs_hash_table *table, size_t slot)
{
    RS_ASSERT(slot < table->slot_count);
    return table->slots[slot].value;
}

void rs_hash_clear(struct rs_hash_table *table)
{
    free(table->slots);
    *table = (struct rs_hash_table){NULL, 0, 0};
}
