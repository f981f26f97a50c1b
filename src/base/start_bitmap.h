/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses ranges start at, as a bitmap: the nearest start at or below any address is found
 * in it.
 *
 * Per GiB, a bit for each 512 bytes with two levels of summary above.  Bits of a summary are hints:
 * set whenever something is below, cleared late or never.  Readers take no lock.  Writers of one
 * word (32 KiB of addresses) hold one lock of the caller's. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RS_START_ADDRESS_BITS = 57, /* of a GPU with five-level page tables */
    RS_START_UNIT_BITS = 9,     /* starts are multiples of 512 */
    RS_START_WORD_BITS = 6,     /* 64 bits in a word, at every level */
    RS_START_REGION_BITS = 30,
    RS_START_LEAF_BITS = 14, /* regions of a leaf */
    RS_START_ROOT_BITS = RS_START_ADDRESS_BITS - RS_START_REGION_BITS - RS_START_LEAF_BITS,
};

enum {
    RS_START_REGION_WORDS = 1 << (RS_START_REGION_BITS - RS_START_UNIT_BITS - RS_START_WORD_BITS),
    RS_START_GROUP_WORDS = RS_START_REGION_WORDS >> RS_START_WORD_BITS,
    RS_START_TOP_WORDS = RS_START_GROUP_WORDS >> RS_START_WORD_BITS,
};

/* Of a GiB; its pages are touched only where there are ranges. */
struct rs_start_region {
    /* A bit for each start; written under the word's lock. */
    _Atomic uint64_t words[RS_START_REGION_WORDS];
    _Atomic uint64_t groups[RS_START_GROUP_WORDS]; /* a bit for each word; hint, cleared late */
    _Atomic uint64_t top[RS_START_TOP_WORDS];      /* a bit for each group; hint, never cleared */
};

struct rs_start_leaf {
    _Atomic(struct rs_start_region *) regions[1 << RS_START_LEAF_BITS];
};

/* All zero at the beginning. */
struct rs_start_bitmap {
    _Atomic(struct rs_start_leaf *) leaves[1 << RS_START_ROOT_BITS];
};

/* Which word has the bit of that start. */
static inline uint64_t rs_start_word(uint64_t start)
{
    return start >> (RS_START_UNIT_BITS + RS_START_WORD_BITS);
}

static inline uint64_t rs_start_load(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline uint64_t rs_start_bit(uint64_t number)
{
    return (uint64_t)1 << (number % 64);
}

static inline struct rs_start_leaf *rs_start_leaf_find(struct rs_start_bitmap *bitmap,
                                                       uint64_t number)
{
    return atomic_load_explicit(&bitmap->leaves[number >> RS_START_LEAF_BITS],
                                memory_order_acquire);
}

static inline struct rs_start_region *rs_start_region_find(struct rs_start_bitmap *bitmap,
                                                           uint64_t number)
{
    struct rs_start_leaf *leaf = rs_start_leaf_find(bitmap, number);

    return leaf ? atomic_load_explicit(&leaf->regions[number % (1u << RS_START_LEAF_BITS)],
                                       memory_order_acquire)
                : NULL;
}

/* For a number that has none yet; NULL when out of host memory. */
struct rs_start_region *rs_start_region_make(struct rs_start_bitmap *bitmap, uint64_t number);

/* Of that start, made where there is none; NULL when out of host memory. */
static inline struct rs_start_region *rs_start_bitmap_region(struct rs_start_bitmap *bitmap,
                                                             uint64_t start)
{
    struct rs_start_region *region = rs_start_region_find(bitmap, start >> RS_START_REGION_BITS);

    return RS_LIKELY(region) ? region : rs_start_region_make(bitmap, start >> RS_START_REGION_BITS);
}

static inline void rs_start_hint_set(_Atomic uint64_t *word, uint64_t mask)
{
    if (RS_UNLIKELY(!(rs_start_load(word) & mask)))
        atomic_fetch_or_explicit(word, mask, memory_order_relaxed);
}

/* Under the word's lock, like the next. */
static inline void rs_start_bitmap_set(struct rs_start_region *region, uint64_t start)
{
    uint64_t unit =
        (start >> RS_START_UNIT_BITS) % ((uint64_t)RS_START_REGION_WORDS << RS_START_WORD_BITS);
    uint64_t word = unit >> RS_START_WORD_BITS;
    uint64_t group = word >> RS_START_WORD_BITS;

    RS_ASSERT_SLOW(!(rs_start_load(&region->words[word]) & rs_start_bit(unit)));
    atomic_store_explicit(&region->words[word],
                          rs_start_load(&region->words[word]) | rs_start_bit(unit),
                          memory_order_relaxed);
    rs_start_hint_set(&region->groups[group], rs_start_bit(word));
    rs_start_hint_set(&region->top[group >> RS_START_WORD_BITS], rs_start_bit(group));
}

/* Clears the word of that number from the summary, if it is still empty. */
void rs_start_summary_clear(struct rs_start_bitmap *bitmap, uint64_t number);

/* The start was set.  *emptied is a word of the same lock that became empty and still stands in the
 * summary (number + 1), or 0; it is cleared from there only when another word takes its place, so
 * that a program that allocates and frees at one place does not pay for the summary every time. */
static inline void rs_start_bitmap_clear(struct rs_start_bitmap *bitmap, uint64_t *emptied,
                                         uint64_t start)
{
    struct rs_start_region *region = rs_start_region_find(bitmap, start >> RS_START_REGION_BITS);
    uint64_t number = rs_start_word(start);
    _Atomic uint64_t *word = &region->words[number % RS_START_REGION_WORDS];
    uint64_t left = rs_start_load(word) & ~rs_start_bit(start >> RS_START_UNIT_BITS);
    uint64_t evicted;

    RS_ASSERT_SLOW(rs_start_load(word) & rs_start_bit(start >> RS_START_UNIT_BITS));
    atomic_store_explicit(word, left, memory_order_relaxed);
    if (left != 0 || *emptied == number + 1)
        return;
    evicted = *emptied;
    *emptied = number + 1;
    if (evicted != 0)
        rs_start_summary_clear(bitmap, evicted - 1);
}

/* The last start in [from, *address], into *address.  Both are multiples of 512. */
bool rs_start_bitmap_last(struct rs_start_bitmap *bitmap, uint64_t from, uint64_t *address);

/* Calls visit for every start, by address.  Stops when it returns false. */
void rs_start_bitmap_each(struct rs_start_bitmap *bitmap, bool (*visit)(void *data, uint64_t start),
                          void *data);

/* Gives back what the bitmap has mapped. */
void rs_start_bitmap_destroy(struct rs_start_bitmap *bitmap);
