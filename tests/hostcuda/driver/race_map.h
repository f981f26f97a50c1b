/* SPDX-License-Identifier: Apache-2.0 */
/* The race detector's memory: blocks, live and freed, by address. The caller holds the lock. */
#pragma once

#include "driver/site.h"

#include <stdbool.h>
#include <stdint.h>

/* The latest operation of one stream on a block. */
struct hc_race_access {
    unsigned slot;
    uint64_t tick;
    struct hc_site site;
};

/* A place in a stream's order. */
struct hc_race_point {
    bool is_set;
    unsigned slot;
    uint64_t tick;
};

struct hc_race_block {
    uintptr_t begin, end;
    bool is_freed;
    unsigned repeated_frees;        /* frees of a freed block whose answers are not known yet */
    struct hc_race_point allocated; /* place of its allocation; set for stream-ordered memory */
    struct hc_site allocate_site, free_site;
    struct hc_race_access *accesses;
    unsigned access_count;
};

struct hc_race_map {
    struct hc_race_block **blocks; /* sorted, none overlaps another */
    unsigned count, room;
};

/* Returns the index of the first block that ends after the address. */
unsigned hc_race_map_at(const struct hc_race_map *map, uintptr_t address);

/* Adds a live block of that range, in which there must be no other block. */
struct hc_race_block *hc_race_map_add(struct hc_race_map *map, uintptr_t begin, uintptr_t end);

/* Forgets the parts of blocks that lie in the range. */
void hc_race_map_clear(struct hc_race_map *map, uintptr_t begin, uintptr_t end);

/* Splits a freed block at an address inside it; both parts keep all its accesses. */
void hc_race_map_split_freed(struct hc_race_map *map, uintptr_t address);

/* The block that begins there, or NULL. */
struct hc_race_block *hc_race_map_base(const struct hc_race_map *map, uintptr_t begin);

void hc_race_block_access(struct hc_race_block *block, unsigned slot, uint64_t tick,
                          const struct hc_site *site);
