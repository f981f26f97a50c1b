/* SPDX-License-Identifier: Apache-2.0 */
/* Address ranges to their owners: any address inside a range finds it.
 *
 * Look-ups take no lock and write no shared memory.  Insertion may need host memory and can fail;
 * removal never does.  Ranges do not overlap and their starts are multiples of 512. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_address_map;

struct rs_range {
    uint64_t start;
    uint64_t size_bytes;
    void *owner;
};

/* NULL when out of memory.  A map is made once and lives as long as the process; tests destroy
 * theirs when no other thread uses it. */
struct rs_address_map *rs_address_map_create(void);
void rs_address_map_destroy(struct rs_address_map *map);

/* Enters a range.  A range that already starts there is replaced: the driver gave that address out
 * again, so the old owner had lost it.  False when out of host memory.  Thread safe. */
bool rs_address_map_insert(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                           void *owner);

/* Removes the range that starts there if `owner` (any, when NULL) owns it.  Thread safe. */
bool rs_address_map_remove(struct rs_address_map *map, uint64_t start, void *owner);

/* The range that starts exactly at `start`. */
bool rs_address_map_find(struct rs_address_map *map, uint64_t start, struct rs_range *range);

/* The owner of the range that starts there, or NULL: rs_address_map_find for who needs no more. */
void *rs_address_map_owner(struct rs_address_map *map, uint64_t start);

/* The owner of that range will be asked for soon: fetches what the answer lies in. */
void rs_address_map_prefetch(struct rs_address_map *map, uint64_t start);

/* The range that holds `address`. */
bool rs_address_map_find_inside(struct rs_address_map *map, uint64_t address,
                                struct rs_range *range);

/* Calls visit for every range, in no order, with no lock held: visit may remove the range it is
 * shown.  Ranges entered or removed meanwhile may be missed.
 * Stops when it returns false. */
void rs_address_map_each(struct rs_address_map *map,
                         bool (*visit)(void *data, const struct rs_range *range), void *data);

size_t rs_address_map_count(struct rs_address_map *map);
