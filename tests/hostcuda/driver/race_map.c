/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/race_map.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *memory)
{
    if (!memory) {
        perror("hostcuda: race detector");
        abort();
    }
    return memory;
}

unsigned hc_race_map_at(const struct hc_race_map *map, uintptr_t address)
{
    unsigned low = 0, high = map->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (map->blocks[middle]->end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void insert(struct hc_race_map *map, unsigned at, struct hc_race_block *block)
{
    if (map->count == map->room) {
        map->room = map->room ? 2 * map->room : 64;
        map->blocks = checked(realloc(map->blocks, map->room * sizeof(*map->blocks)));
    }
    memmove(&map->blocks[at + 1], &map->blocks[at], (map->count - at) * sizeof(*map->blocks));
    map->blocks[at] = block;
    map->count++;
}

struct hc_race_block *hc_race_map_add(struct hc_race_map *map, uintptr_t begin, uintptr_t end)
{
    unsigned at = hc_race_map_at(map, begin);
    assert(at == map->count || map->blocks[at]->begin >= end);
    struct hc_race_block *block = checked(calloc(1, sizeof(*block)));
    block->begin = begin;
    block->end = end;
    insert(map, at, block);
    return block;
}

static void drop(struct hc_race_map *map, unsigned at)
{
    free(map->blocks[at]->accesses);
    free(map->blocks[at]);
    map->count--;
    memmove(&map->blocks[at], &map->blocks[at + 1], (map->count - at) * sizeof(*map->blocks));
}

static struct hc_race_block *copy_of(const struct hc_race_block *block)
{
    struct hc_race_block *copy = checked(malloc(sizeof(*copy)));
    *copy = *block;
    copy->accesses = checked(malloc((block->access_count + 1) * sizeof(*copy->accesses)));
    if (block->access_count)
        memcpy(copy->accesses, block->accesses, block->access_count * sizeof(*copy->accesses));
    return copy;
}

void hc_race_map_clear(struct hc_race_map *map, uintptr_t begin, uintptr_t end)
{
    unsigned at = hc_race_map_at(map, begin);
    while (at < map->count && map->blocks[at]->begin < end) {
        struct hc_race_block *block = map->blocks[at];
        if (block->begin < begin && block->end > end) {
            struct hc_race_block *rest = copy_of(block);
            rest->begin = end;
            block->end = begin;
            insert(map, at + 1, rest);
            return;
        }
        if (block->begin < begin) {
            block->end = begin;
            at++;
        } else if (block->end > end) {
            block->begin = end;
            return;
        } else {
            drop(map, at);
        }
    }
}

void hc_race_map_split_freed(struct hc_race_map *map, uintptr_t address)
{
    unsigned at = hc_race_map_at(map, address);
    if (at == map->count || !map->blocks[at]->is_freed || map->blocks[at]->begin >= address)
        return;
    struct hc_race_block *rest = copy_of(map->blocks[at]);
    rest->begin = address;
    map->blocks[at]->end = address;
    insert(map, at + 1, rest);
}

struct hc_race_block *hc_race_map_base(const struct hc_race_map *map, uintptr_t begin)
{
    unsigned at = hc_race_map_at(map, begin);
    return at < map->count && map->blocks[at]->begin == begin ? map->blocks[at] : NULL;
}

void hc_race_block_access(struct hc_race_block *block, unsigned slot, uint64_t tick,
                          const struct hc_site *site)
{
    unsigned at = 0;
    while (at < block->access_count && block->accesses[at].slot != slot)
        at++;
    if (at == block->access_count) {
        block->accesses = checked(realloc(block->accesses, (at + 1) * sizeof(*block->accesses)));
        block->access_count++;
    }
    block->accesses[at] = (struct hc_race_access){slot, tick, *site};
}
