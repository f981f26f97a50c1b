/* SPDX-License-Identifier: Apache-2.0 */
/* The bitmap of starts: a region per GiB, mapped when the first range starts in it. */
#include "base/start_bitmap.h"

#include "base/memory.h"

/* Returns the number of the highest set bit (the lowest bit is 0) of a word that is not 0. */
static unsigned highest_bit(uint64_t word)
{
    return 63 - (unsigned)__builtin_clzll(word);
}

/* Returns what the element points to, after making it (zeroed) if it is missing; NULL when out of
 * host memory. */
static void *make_element(_Atomic(void *) *element, size_t bytes)
{
    void *present = atomic_load_explicit(element, memory_order_acquire), *made;

    if (present)
        return present;
    made = rs_map_zeroed(bytes);
    if (made && !atomic_compare_exchange_strong_explicit(
                    element, &present, made, memory_order_acq_rel, memory_order_acquire)) {
        munmap(made, bytes); /* another thread was first */
        return present;
    }
    return made;
}

struct rs_start_region *rs_start_region_make(struct rs_start_bitmap *bitmap, uint64_t number)
{
    struct rs_start_leaf *leaf =
        make_element(&bitmap->leaves[number >> RS_START_LEAF_BITS], sizeof(*leaf));

    return leaf ? make_element(&leaf->regions[number % (1u << RS_START_LEAF_BITS)],
                               sizeof(struct rs_start_region))
                : NULL;
}

void rs_start_summary_clear(struct rs_start_bitmap *bitmap, uint64_t number)
{
    struct rs_start_region *region = rs_start_region_find(
        bitmap, number >> (RS_START_REGION_BITS - RS_START_UNIT_BITS - RS_START_WORD_BITS));
    uint64_t word = number % RS_START_REGION_WORDS;

    if (rs_start_load(&region->words[word]) == 0)
        atomic_fetch_and_explicit(&region->groups[word >> RS_START_WORD_BITS], ~rs_start_bit(word),
                                  memory_order_relaxed);
}

/* Finds the last start in those words of `group` whose bits are set in `mask`, and stores its
 * number in the region in *unit.  Returns false when there is none. */
static bool group_last(struct rs_start_region *region, uint64_t group, uint64_t mask,
                       uint64_t *unit)
{
    for (mask &= rs_start_load(&region->groups[group]); mask != 0;
         mask &= ~rs_start_bit(highest_bit(mask))) {
        uint64_t word = (group << RS_START_WORD_BITS) + highest_bit(mask);
        uint64_t starts = rs_start_load(&region->words[word]);
        if (starts != 0) {
            *unit = (word << RS_START_WORD_BITS) + highest_bit(starts);
            return true;
        }
    }
    return false;
}

static bool top_last(struct rs_start_region *region, uint64_t top, uint64_t mask, uint64_t *unit)
{
    for (mask &= rs_start_load(&region->top[top]); mask != 0;
         mask &= ~rs_start_bit(highest_bit(mask)))
        if (group_last(region, (top << RS_START_WORD_BITS) + highest_bit(mask), UINT64_MAX, unit))
            return true;
    return false;
}

/* Finds the last start of the region at or before *unit, and stores it in *unit.  Returns false
 * when there is none. */
static bool region_last(struct rs_start_region *region, uint64_t *unit)
{
    uint64_t word = *unit >> RS_START_WORD_BITS;
    uint64_t group = word >> RS_START_WORD_BITS;
    uint64_t top = group >> RS_START_WORD_BITS;
    uint64_t starts =
        rs_start_load(&region->words[word]) & (rs_start_bit(*unit) | (rs_start_bit(*unit) - 1));

    if (starts != 0) {
        *unit = (word << RS_START_WORD_BITS) + highest_bit(starts);
        return true;
    }
    if (group_last(region, group, rs_start_bit(word) - 1, unit) ||
        top_last(region, top, rs_start_bit(group) - 1, unit))
        return true;
    while (top-- > 0)
        if (top_last(region, top, UINT64_MAX, unit))
            return true;
    return false;
}

bool rs_start_bitmap_last(struct rs_start_bitmap *bitmap, uint64_t from, uint64_t *address)
{
    uint64_t first = from >> RS_START_REGION_BITS, number = *address >> RS_START_REGION_BITS;
    uint64_t unit =
        (*address >> RS_START_UNIT_BITS) % ((uint64_t)RS_START_REGION_WORDS << RS_START_WORD_BITS);

    RS_ASSERT_SLOW(from <= *address && *address >> RS_START_ADDRESS_BITS == 0);
    RS_ASSERT_SLOW((from | *address) % (1u << RS_START_UNIT_BITS) == 0);
    for (;;) {
        struct rs_start_region *region = rs_start_region_find(bitmap, number);
        if (region && region_last(region, &unit)) {
            *address = (number << RS_START_REGION_BITS) + (unit << RS_START_UNIT_BITS);
            return *address >= from;
        }
        /* A missing leaf is 16 TiB without ranges: skip it. */
        if (!rs_start_leaf_find(bitmap, number))
            number &= ~(((uint64_t)1 << RS_START_LEAF_BITS) - 1);
        if (number <= first)
            return false;
        number--;
        unit = ((uint64_t)RS_START_REGION_WORDS << RS_START_WORD_BITS) - 1;
    }
}

static void leaf_destroy(struct rs_start_leaf *leaf)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(leaf->regions); i++) {
        struct rs_start_region *region =
            atomic_load_explicit(&leaf->regions[i], memory_order_relaxed);
        if (region)
            munmap(region, sizeof(*region));
    }
    munmap(leaf, sizeof(*leaf));
}

void rs_start_bitmap_destroy(struct rs_start_bitmap *bitmap)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(bitmap->leaves); i++) {
        struct rs_start_leaf *leaf = atomic_load_explicit(&bitmap->leaves[i], memory_order_relaxed);
        if (leaf)
            leaf_destroy(leaf);
    }
}
