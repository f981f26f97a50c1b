/* SPDX-License-Identifier: Apache-2.0 */
/* Maps address ranges to their owners; a look-up by any address inside a range finds the range.
 *
 * Look-ups take no lock and write no shared memory.  Insertion may need host memory and can fail;
 * removal needs none and cannot.  Starts of ranges are multiples of 512 bytes.  Ranges do not
 * overlap, with one exception: a range stays in the map for a while after the driver has taken its
 * memory back.  Meanwhile the driver may give any part of that memory to a new range, which then
 * overlaps the old one (rs_address_map_find_inside_if). */
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

/* Returns an empty map, or NULL when out of host memory.  A map is made once and lives as long
 * as the process; only tests destroy theirs, when no other thread uses it. */
struct rs_address_map *rs_address_map_create(void);
void rs_address_map_destroy(struct rs_address_map *map);

/* Makes the map at *place, unless another thread has made it, and returns it.  NULL when out of
 * host memory. */
struct rs_address_map *rs_address_map_create_at(_Atomic(struct rs_address_map *) *place);

/* Enters a range of size_bytes (> 0); `owner` is not NULL.  A range that already starts at `start`
 * is replaced: the driver gave that address out again, so the old owner had lost it.  Returns false
 * when out of host memory, or when `start` is 2^57 or more, which no device has.  Thread safe. */
bool rs_address_map_insert(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                           void *owner);

/* Inserts as rs_address_map_insert does.  Returns the owner of the range that it replaced; `owner`
 * itself if no range started there, NULL if the insertion failed. */
void *rs_address_map_replace(struct rs_address_map *map, uint64_t start, uint64_t size_bytes,
                             void *owner);

/* Removes the range that starts at `start` if `owner` owns it (NULL: whoever owns it).  Returns
 * false when there is no such range.  Thread safe. */
bool rs_address_map_remove(struct rs_address_map *map, uint64_t start, void *owner);

/* Removes the range as rs_address_map_remove does, but only if is_right(data, owner) returns true.
 * `owner` is not NULL. is_right is called under the shard's lock, even if `owner` does not own the
 * range; then its result does not matter.  An owner that is in the map stays in it from that call
 * to the removal, so is_right may read what changes only while the owner is not in the map.  It
 * must be short and must not call the map. */
bool rs_address_map_remove_if(struct rs_address_map *map, uint64_t start, void *owner,
                              bool (*is_right)(void *data, void *owner), void *data);

/* Finds the range that starts exactly at `start`.  Returns false, with *range unchanged, when
 * there is none.  Thread safe, like all look-ups below. */
bool rs_address_map_find(struct rs_address_map *map, uint64_t start, struct rs_range *range);

/* Returns the owner of the range that starts exactly at `start`, or NULL: faster than
 * rs_address_map_find when the size is not needed. */
void *rs_address_map_owner(struct rs_address_map *map, uint64_t start);

/* Prefetches the cache line that rs_address_map_owner will read for `start`. */
void rs_address_map_prefetch(struct rs_address_map *map, uint64_t start);

/* Finds the range that contains `address`, which need not be its start.  Returns false, with
 * *range unchanged, when there is none. */
bool rs_address_map_find_inside(struct rs_address_map *map, uint64_t address,
                                struct rs_range *range);

/* Finds as rs_address_map_find_inside does, in a map where ranges may have lost their memory.  The
 * search goes down from the address and asks counts(range, is_inside) about each range that it
 * meets; is_inside tells whether the range contains the address.  If the result is false, the
 * search skips the range.  If it is true, the search ends, and returns is_inside.  So `counts`
 * returns true only for a range that still has its memory: then no range with memory that starts
 * further below can contain the address.  NULL instead of `counts`: no range is skipped. */
bool rs_address_map_find_inside_if(struct rs_address_map *map, uint64_t address,
                                   bool (*counts)(const struct rs_range *range, bool is_inside),
                                   struct rs_range *range);

/* Calls visit for every range, from the last address down, with no lock held: visit may remove
 * the range that it is given.  A range that is entered or removed meanwhile may be missed.
 * Stops when visit returns false. */
void rs_address_map_each(struct rs_address_map *map,
                         bool (*visit)(void *data, const struct rs_range *range), void *data);
