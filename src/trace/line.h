/* SPDX-License-Identifier: Apache-2.0 */
/* Storage for call sites, kept as long as the process lives (trace/call_site.c): each line of text
 * and each site is stored once, so that equal ones have the same address. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>

enum { RS_LINE_BYTES_MAX = 1024 }; /* the longest line */

/* The header of anything that is stored once; the contents follow it. */
struct rs_once {
    const struct rs_once *next; /* the next one in the same bucket of the table */
    uint64_t hash;
    size_t bytes; /* the length of the contents */
};

struct rs_line {
    struct rs_once once;
    char text[]; /* ended by a zero byte, which once.bytes does not count */
};

/* Returns the line with this text, which has at most RS_LINE_BYTES_MAX bytes; NULL when the memory
 * is used up.  Thread safe. */
const struct rs_line *rs_line_of(const char *text, size_t length_bytes);

static inline uint64_t rs_line_mix(uint64_t hash, uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)(one ^ hash) * (other ^ 11400714819323198485u);

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* ---- pairs of words that many threads enter and look up without a lock ---- */

/* A key and its value in a small cache without a lock. The first word is the key xor the value, so
 * that a reader notices a pair whose two words were written by two threads. The pairs of one cache
 * line form a set, and a key may be in any pair of its set; a pair with the value 0 is free. */
struct rs_pair {
    _Atomic uint64_t key_xor_value, value;
};

enum { RS_PAIRS = RS_CACHE_LINE / sizeof(struct rs_pair) };

/* Returns the key's value; 0 when the set does not have the key. */
RS_HOT_INLINE uint64_t rs_pair_find(const struct rs_pair set[RS_PAIRS], uint64_t key)
{
    for (unsigned i = 0; i < RS_PAIRS; i++) {
        uint64_t mixed = atomic_load_explicit(&set[i].key_xor_value, memory_order_relaxed);
        uint64_t value = atomic_load_explicit(&set[i].value, memory_order_acquire);
        if (RS_LIKELY((mixed ^ value) == key) && value)
            return value;
    }
    return 0;
}

/* Enters a value (not 0).  If no pair of the set is free, it replaces pair number `replaced`. */
void rs_pair_enter(struct rs_pair set[RS_PAIRS], unsigned replaced, uint64_t key, uint64_t value);
