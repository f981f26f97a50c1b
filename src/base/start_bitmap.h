/* SPDX-License-Identifier: Apache-2.0 */
/* A bitmap of the addresses at which ranges start.  It finds the nearest start at or below any
 * address.
 *
 * A region of 1 GiB has one bit per 512 bytes, and two levels of summary above.  A summary bit is a
 * hint: it is set whenever a bit below it is set, and cleared late or never.  Readers take no lock.
 * All writers of one word (32 KiB of addresses) hold the same lock, which is a lock of the
 * caller's. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>

enum {
    RS_START_ADDRESS_BITS = 57, /* address bits of a GPU with five-level page tables */
    RS_START_UNIT_BITS = 9,     /* starts are multiples of 512 bytes */
    RS_START_WORD_BITS = 6,     /* a word has 64 bits, at every level */
    RS_START_REGION_BITS = 30,  /* a region spans 1 GiB */
    RS_START_LEAF_BITS = 14,    /* a leaf has 2^14 regions, 16 TiB */
    RS_START_ROOT_BITS = RS_START_ADDRESS_BITS - RS_START_REGION_BITS - RS_START_LEAF_BITS,
};

enum {
    RS_START_REGION_WORDS = 1 << (RS_START_REGION_BITS - RS_START_UNIT_BITS - RS_START_WORD_BITS),
    RS_START_GROUP_WORDS = RS_START_REGION_WORDS >> RS_START_WORD_BITS,
    RS_START_TOP_WORDS = RS_START_GROUP_WORDS >> RS_START_WORD_BITS,
};

/* The bitmap of one GiB; its pages take memory only where ranges start. */
struct rs_start_region {
    /* One bit per 512 bytes, set if a range starts there; written under the word's lock. */
    _Atomic uint64_t words[RS_START_REGION_WORDS];
    _Atomic uint64_t groups[RS_START_GROUP_WORDS]; /* one bit per word; a hint, cleared late */
    _Atomic uint64_t top[RS_START_TOP_WORDS];      /* one bit per group; a hint, never cleared */
};

/* The lower level of the two-level table of regions: its elements point to regions, and the
 * bitmap's elements point to leaves. */
struct rs_start_leaf {
    _Atomic(void *) regions[1 << RS_START_LEAF_BITS];
};

/* A zeroed struct is an empty bitmap. */
struct rs_start_bitmap {
    _Atomic(void *) leaves[1 << RS_START_ROOT_BITS];
};

/* Returns the number of the word that has the bit of `start`. */
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

/* Makes the region with that number, which rs_start_region_find has not found.  Returns the region,
 * even if another thread made it first; NULL when out of host memory. */
struct rs_start_region *rs_start_region_make(struct rs_start_bitmap *bitmap, uint64_t number);

/* Returns the region that `start` lies in, made if it is missing; NULL when out of host memory. */
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

/* Sets the bit of `start` in its region.  The caller holds the word's lock. */
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

/* Clears the summary bit of the word with that number, if the word is still empty.  The caller
 * holds the word's lock. */
void rs_start_summary_clear(struct rs_start_bitmap *bitmap, uint64_t number);

/* Clears the bit of `start`, which is set.  The caller holds the word's lock.  If the word becomes
 * empty, its summary bit stays set at first, and *emptied keeps the word's number + 1 (0: none).
 * The summary bit is cleared when another word under the same lock takes the place in *emptied.  So
 * a program that allocates and frees at one address does not change the summary each time. */
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

/* Finds the last start in [from, *address] and stores it in *address.  Both are multiples of
 * 512.  Returns false when there is none. */
bool rs_start_bitmap_last(struct rs_start_bitmap *bitmap, uint64_t from, uint64_t *address);

/* Unmaps everything that the bitmap has mapped.  No other thread uses it any more. */
void rs_start_bitmap_destroy(struct rs_start_bitmap *bitmap);
