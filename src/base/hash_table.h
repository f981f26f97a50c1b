/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from 64-bit keys to pointers: open addressing, no lock of its own.  Only
 * rs_hash_reserve and rs_hash_put may need host memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_hash_slot {
    uint64_t key; /* 0: empty */
    void *value;
};

/* A zeroed struct is an empty table. */
struct rs_hash_table {
    struct rs_hash_slot *slots;
    size_t slot_count, count;
};

/* Makes room for `more` further keys, so that putting them cannot fail.  Returns false when out
 * of host memory. */
bool rs_hash_reserve(struct rs_hash_table *table, size_t more);

/* Enters a key (not 0), or replaces its value, which cannot fail.  Returns false only when a single
 * slot is left, at which searches end, and there is no host memory for a larger table.  It cannot
 * fail for the keys that rs_hash_reserve has made room for. */
bool rs_hash_put(struct rs_hash_table *table, uint64_t key, void *value);

/* Returns the key's value, or NULL when the key is absent. */
void *rs_hash_get(const struct rs_hash_table *table, uint64_t key);

/* Removes the key.  Returns its value, or NULL when the key is absent. */
void *rs_hash_take(struct rs_hash_table *table, uint64_t key);

/* Returns the value in a slot (below slot_count), or NULL when the slot is empty: for walking the
 * table. rs_hash_take may move another key into the slot of the one that it takes, so a walk that
 * takes a key must look at the same slot again. */
void *rs_hash_at(const struct rs_hash_table *table, size_t slot);

/* Returns a hash of bytes, for equal bytes the same in all processes (FNV-1a). */
static inline uint64_t rs_hash_bytes(const void *bytes, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

/* Frees the slots; the table is empty and usable. */
void rs_hash_clear(struct rs_hash_table *table);
