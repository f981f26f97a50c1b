/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to pointers: open addressing, no lock of its own.  Putting may need host memory; taking
 * never does. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_hash_slot {
    uint64_t key; /* 0: empty */
    void *value;
};

/* All zero at first. */
struct rs_hash_table {
    struct rs_hash_slot *slots;
    size_t slot_count, count;
};

/* Makes room for `more` further keys, so that putting them cannot fail.  False when out of host
 * memory. */
bool rs_hash_reserve(struct rs_hash_table *table, size_t more);

/* Enters a key (not 0) or replaces its value.  False when out of host memory. */
bool rs_hash_put(struct rs_hash_table *table, uint64_t key, void *value);

/* The key's value, or NULL. */
void *rs_hash_get(const struct rs_hash_table *table, uint64_t key);

/* Removes the key and returns its value, or NULL. */
void *rs_hash_take(struct rs_hash_table *table, uint64_t key);

/* The value in a slot below slot_count, or NULL: for walking.  Taking a key while walking may move
 * another one into its slot: look at the slot again then. */
void *rs_hash_at(const struct rs_hash_table *table, size_t slot);

void rs_hash_clear(struct rs_hash_table *table);
