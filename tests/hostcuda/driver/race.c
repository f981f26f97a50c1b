/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/race.h"

#include "driver/config.h"
#include "driver/entry_table.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/race_map.h"
#include "hostcuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRINT_MAX   20
#define EXIT_STATUS 66
#define FREED_MAX   8192 /* freed blocks to remember when nothing can be wrong with them any more */

struct hc_clock hc_host_clock;

static struct hc_race_map noted;  /* blocks that a pool handed out, told by notes */
static struct hc_race_map driver; /* blocks of the driver itself */
static atomic_ullong report_count;
static _Atomic(const char *) last_report;
static uint64_t *slot_ticks; /* of free slots: where the last owner stopped */
static bool *slot_used;
static unsigned slot_count;

/* ---- reports ---- */

static void say(const char *what, const struct hc_race_block *block, const struct hc_site *now,
                const struct hc_site *before)
{
    unsigned long long number = atomic_fetch_add(&report_count, 1) + 1;
    atomic_store(&last_report, what);
    if (number > PRINT_MAX)
        return;
    char now_text[400], before_text[400], allocate_text[400], free_text[400];
    hc_site_print(now, now_text, sizeof(now_text));
    hc_site_print(&block->allocate_site, allocate_text, sizeof(allocate_text));
    hc_site_print(&block->free_site, free_text, sizeof(free_text));
    if (before)
        hc_site_print(before, before_text, sizeof(before_text));
    dprintf(STDERR_FILENO,
            "hostcuda: race: %s, block %#zx of %zu bytes\n    now:       %s\n%s%s%s    "
            "allocated: %s\n%s%s%s",
            what, (size_t)block->begin, (size_t)(block->end - block->begin), now_text,
            before ? "    earlier:   " : "", before ? before_text : "", before ? "\n" : "",
            allocate_text, block->is_freed ? "    freed:     " : "",
            block->is_freed ? free_text : "", block->is_freed ? "\n" : "");
}

HC_API unsigned long long hostcuda_race_count(void)
{
    return atomic_load(&report_count);
}

HC_API const char *hostcuda_race_last(void)
{
    return atomic_load(&last_report);
}

HC_API void hostcuda_race_reset(void)
{
    atomic_store(&last_report, NULL);
    atomic_store(&report_count, 0);
}

__attribute__((destructor)) static void finish(void)
{
    unsigned long long count = atomic_load(&report_count);
    if (!count)
        return;
    dprintf(STDERR_FILENO, "hostcuda: race: %llu reports\n", count);
    _exit(EXIT_STATUS);
}

/* ---- clocks ---- */

void hc_race_host_knows(const struct hc_clock *clock)
{
    if (hc_config.race)
        hc_clock_join(&hc_host_clock, clock);
}

/* A slot may change hands when the program has seen the end of its owner before. */
unsigned hc_race_slot_take(uint64_t *tick)
{
    *tick = 0;
    if (!hc_config.race)
        return 0;
    unsigned slot = 0;
    while (slot < slot_count &&
           (slot_used[slot] || slot_ticks[slot] > hc_clock_get(&hc_host_clock, slot)))
        slot++;
    if (slot == slot_count) {
        slot_count++;
        slot_ticks = realloc(slot_ticks, slot_count * sizeof(*slot_ticks));
        slot_used = realloc(slot_used, slot_count * sizeof(*slot_used));
        if (!slot_ticks || !slot_used)
            abort();
        slot_ticks[slot] = 0;
    }
    slot_used[slot] = true;
    *tick = slot_ticks[slot];
    return slot;
}

void hc_race_slot_give(unsigned slot, uint64_t tick)
{
    if (!hc_config.race)
        return;
    slot_ticks[slot] = tick;
    slot_used[slot] = false;
}

/* The block's first operation that is not within the clock, or NULL. */
static const struct hc_race_access *find_unordered(const struct hc_race_block *block,
                                                   const struct hc_clock *clock)
{
    for (unsigned i = 0; i < block->access_count; i++) {
        if (block->accesses[i].tick > hc_clock_get(clock, block->accesses[i].slot))
            return &block->accesses[i];
    }
    return NULL;
}

/* ---- use ---- */

/* A pool may fill its freed blocks; the next owner must wait for that as for any other work. */
static bool is_owner(const struct hc_site *site)
{
    return hc_config.race_owner && hc_site_is_in(site, hc_config.race_owner);
}

static void use(struct hc_race_block *block, const struct hc_stream *stream,
                const struct hc_site *site)
{
    if (block->is_freed && !is_owner(site))
        say("use after free", block, site, NULL);
    else if (!block->is_freed && block->allocated.is_set &&
             hc_clock_get(&stream->clock, block->allocated.slot) < block->allocated.tick)
        say("use before the allocation is ordered", block, site, NULL);
    hc_race_block_access(block, stream->slot, stream->tick, site);
}

/* A copy has the program's own buffers too, also on a thread's stack, where device memory may have
 * been: what a pool took from malloc (on a device that reaches pageable memory), or addresses that
 * were reserved and given back.  Kernels are given blocks only. */
static bool may_be_a_buffer(const struct hc_work *work, const struct hc_range *range)
{
    return work->type != CU_GRAPH_NODE_TYPE_KERNEL && !hc_memory_is_known(range->address);
}

/* Uses the blocks in the range; true if there was one. */
static bool use_range(struct hc_race_map *map, const struct hc_range *range,
                      const struct hc_stream *stream, const struct hc_site *site, bool only_live)
{
    bool found = false;
    /* A pool may be at work in one part of what was a block, and hand out another. */
    if (is_owner(site)) {
        hc_race_map_split_freed(map, range->address);
        hc_race_map_split_freed(map, range->address + range->bytes);
    }
    unsigned at = hc_race_map_at(map, range->address);
    for (; at < map->count && map->blocks[at]->begin < range->address + range->bytes; at++) {
        if (!only_live || !map->blocks[at]->is_freed)
            use(map->blocks[at], stream, site);
        found = true;
    }
    return found;
}

void hc_race_tick(struct hc_stream *stream, const struct hc_work *work)
{
    if (!hc_config.race)
        return;
    hc_clock_set(&stream->clock, stream->slot, ++stream->tick);
    if (!work->range_count)
        return;
    struct hc_site site;
    hc_site_take(&site);
    for (unsigned i = 0; i < work->range_count; i++) {
        bool only_live = may_be_a_buffer(work, &work->ranges[i]);
        /* A noted block says more than the driver's block around it. */
        if (!use_range(&noted, &work->ranges[i], stream, &site, only_live))
            use_range(&driver, &work->ranges[i], stream, &site, only_live);
    }
}

/* ---- allocation and free ---- */

/* Forgets freed blocks that can no longer be reused too early, when there are very many. */
static void trim(struct hc_race_map *map)
{
    static unsigned at;
    for (unsigned i = 0; map->count > FREED_MAX && i < 64; i++) {
        at = (at + 1) % map->count;
        const struct hc_race_block *block = map->blocks[at];
        if (block->is_freed && !find_unordered(block, &hc_host_clock))
            hc_race_map_clear(map, block->begin, block->end);
    }
}

static void allocate(struct hc_race_map *map, uintptr_t begin, size_t bytes,
                     const struct hc_stream *stream)
{
    const struct hc_clock *clock = stream ? &stream->clock : &hc_host_clock;
    uintptr_t end = begin + bytes;
    struct hc_site site;
    hc_site_take(&site);
    unsigned at = hc_race_map_at(map, begin);
    for (; at < map->count && map->blocks[at]->begin < end; at++) {
        const struct hc_race_block *block = map->blocks[at];
        const struct hc_race_access *access = find_unordered(block, clock);
        if (!block->is_freed)
            say("memory handed out twice", block, &site, NULL);
        else if (access)
            say("reuse before earlier work is ordered", block, &site, &access->site);
    }
    hc_race_map_clear(map, begin, end);
    struct hc_race_block *block = hc_race_map_add(map, begin, end);
    block->allocate_site = site;
    if (stream)
        block->allocated = (struct hc_race_point){true, stream->slot, stream->tick};
    trim(map);
}

static void release(struct hc_race_map *map, uintptr_t begin, const struct hc_stream *stream)
{
    struct hc_race_block *block = hc_race_map_base(map, begin);
    if (!block || block->is_freed)
        return;
    hc_site_take(&block->free_site);
    if (stream) {
        const struct hc_race_access *access = find_unordered(block, &stream->clock);
        if (access)
            say("free before earlier work is ordered", block, &block->free_site, &access->site);
    }
    block->is_freed = true;
}

void hc_race_driver_allocates(uintptr_t address, size_t bytes)
{
    if (!hc_config.race)
        return;
    hc_race_map_clear(&driver, address, address + bytes); /* the driver itself is trusted */
    hc_race_map_clear(&noted, address, address + bytes);
    allocate(&driver, address, bytes, NULL);
}

/* Blocks of a pool inside memory that goes back to the driver. */
static void end_noted(uintptr_t begin, uintptr_t end, const struct hc_site *site)
{
    unsigned at = hc_race_map_at(&noted, begin);
    for (; at < noted.count && noted.blocks[at]->begin < end; at++) {
        const struct hc_race_block *block = noted.blocks[at];
        const struct hc_race_access *access = find_unordered(block, &hc_host_clock);
        if (!block->is_freed && block->begin != begin)
            say("memory of a live block given back to the driver", block, site, NULL);
        else if (access)
            say("memory given back to the driver before earlier work is ordered", block, site,
                &access->site);
    }
}

void hc_race_driver_frees(uintptr_t address, size_t bytes, enum hc_race_end why)
{
    if (!hc_config.race)
        return;
    struct hc_race_block *block = hc_race_map_base(&driver, address);
    struct hc_site site;
    hc_site_take(&site);
    if (why == HC_RACE_FREE)
        end_noted(address, address + bytes, &site);
    hc_race_map_clear(&noted, address, address + bytes);
    if (!block)
        return;
    const struct hc_race_access *access = find_unordered(block, &hc_host_clock);
    if (why == HC_RACE_FREE && !block->is_freed && access)
        say("free while other work uses the memory", block, &site, &access->site);
    if (!block->is_freed)
        block->free_site = site;
    block->is_freed = true;
    trim(&driver);
}

void hc_race_stream_allocates(const struct hc_stream *stream, uintptr_t address, size_t bytes)
{
    if (!hc_config.race)
        return;
    hc_race_map_clear(&driver, address, address + bytes);
    hc_race_map_clear(&noted, address, address + bytes);
    allocate(&driver, address, bytes, stream);
}

void hc_race_stream_frees(const struct hc_stream *stream, uintptr_t address)
{
    if (hc_config.race)
        release(&driver, address, stream);
}

/* ---- notes of a program about its pools ---- */

static void note_allocate(const void *pointer, size_t bytes, void *stream, bool is_ordered)
{
    struct hc_stream *on = NULL;
    if (!hc_config.race || !pointer || !bytes)
        return;
    HC_LOCKED();
    if (is_ordered && hc_stream_of((CUstream)stream, &on))
        return;
    /* It stands in the stream like an operation: after all that the host knows, too. */
    if (on)
        hc_clock_join(&on->clock, &hc_host_clock);
    allocate(&noted, (uintptr_t)pointer, bytes, on);
}

static void note_free(const void *pointer, void *stream, bool is_ordered)
{
    struct hc_stream *on = NULL;
    if (!hc_config.race || !pointer)
        return;
    HC_LOCKED();
    if (is_ordered && hc_stream_of((CUstream)stream, &on))
        return;
    struct hc_race_block *block = hc_race_map_base(&noted, (uintptr_t)pointer);
    if (block && block->is_freed)
        block->repeated_frees++;
    release(&noted, (uintptr_t)pointer, on);
}

HC_API void hostcuda_note_allocate(const void *pointer, size_t bytes)
{
    note_allocate(pointer, bytes, NULL, false);
}

HC_API void hostcuda_note_free(const void *pointer)
{
    note_free(pointer, NULL, false);
}

HC_API void hostcuda_note_allocate_on(const void *pointer, size_t bytes, void *stream)
{
    note_allocate(pointer, bytes, stream, true);
}

HC_API void hostcuda_note_free_on(const void *pointer, void *stream)
{
    note_free(pointer, stream, true);
}

HC_API void hostcuda_note_free_failed(const void *pointer)
{
    if (!hc_config.race)
        return;
    HC_LOCKED();
    struct hc_race_block *block = hc_race_map_base(&noted, (uintptr_t)pointer);
    if (!block)
        return;
    if (block->repeated_frees)
        block->repeated_frees--; /* it failed because an earlier free had freed the block */
    else
        block->is_freed = false;
}
