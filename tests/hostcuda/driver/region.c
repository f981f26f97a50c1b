/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/region.h"

#include "driver/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A block of 2 MiB that small allocations share. */
struct hc_slab {
    struct hc_slab *next, **link;
    size_t block;
    size_t used_units;
    size_t largest_hint; /* no gap in here is larger; grows only by a free */
    struct hc_alloc *owner[HC_UNITS];
};

struct hc_block {
    struct hc_alloc *large; /* every block of a large allocation points to it */
    struct hc_slab *slab;
    bool retired; /* quarantined: never placed again */
};

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static bool is_free(const struct hc_block *block)
{
    return !block->large && !block->slab && !block->retired;
}

/* Addresses that begin with a block; nothing is behind them yet. 0 if there are none. */
static uintptr_t reserve(size_t bytes)
{
    char *raw = mmap(NULL, bytes + HC_BLOCK_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return raw == MAP_FAILED ? 0 : round_up((uintptr_t)raw, HC_BLOCK_BYTES);
}

static bool map(int fd, uintptr_t base, size_t bytes)
{
    if (mmap((void *)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             fd, 0) == MAP_FAILED)
        return false;
    madvise((void *)base, bytes, MADV_DONTFORK);
    madvise((void *)base, bytes, MADV_DONTDUMP);
    return true;
}

bool hc_region_open(struct hc_region *region, size_t bytes, size_t capacity_bytes, bool is_guarded)
{
    bytes = round_up(bytes, HC_BLOCK_BYTES);
    int fd = memfd_create("hostcuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        return false;
    uintptr_t base = reserve(bytes);
    uintptr_t bytes_at = is_guarded ? reserve(bytes) : base;
    if (!base || !bytes_at || !map(fd, bytes_at, bytes))
        return false;
    region->blocks = calloc(bytes / HC_BLOCK_BYTES, sizeof(*region->blocks));
    if (!region->blocks)
        return false;
    region->base = base;
    region->bytes_at = bytes_at;
    region->bytes = bytes;
    region->capacity_bytes = capacity_bytes;
    region->fd = fd;
    region->block_count = bytes / HC_BLOCK_BYTES;
    region->last_freed = SIZE_MAX;
    return true;
}

static bool run_is_free(const struct hc_region *region, size_t first, size_t count)
{
    if (first >= region->block_count || count > region->block_count - first)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!is_free(&region->blocks[first + i]))
            return false;
    }
    return true;
}

static size_t first_fit(const struct hc_region *region, size_t from, size_t count)
{
    size_t run = 0;
    for (size_t i = from; i < region->block_count; i++) {
        run = is_free(&region->blocks[i]) ? run + 1 : 0;
        if (run == count)
            return i + 1 - count;
    }
    return SIZE_MAX;
}

static size_t place(struct hc_region *region, size_t count)
{
    size_t at = SIZE_MAX;
    if (hc_config.placement == HC_NEVER_AGAIN)
        at = first_fit(region, region->next_fresh, count);
    else if (hc_config.placement == HC_SAME_AGAIN && run_is_free(region, region->last_freed, count))
        at = region->last_freed;
    if (at == SIZE_MAX) /* the plain rule, and what is left when all addresses were used once */
        at = first_fit(region, region->first_free, count);
    return at;
}

/* Takes count blocks within the capacity; SIZE_MAX if there are none. */
static size_t take_blocks(struct hc_region *region, size_t count)
{
    size_t bytes = count * HC_BLOCK_BYTES;
    if (region->used_bytes > region->capacity_bytes ||
        bytes > region->capacity_bytes - region->used_bytes)
        return SIZE_MAX;
    size_t at = place(region, count);
    if (at == SIZE_MAX)
        return SIZE_MAX;
    region->used_bytes += bytes;
    region->next_fresh = at + count;
    return at;
}

static void advance_first_free(struct hc_region *region)
{
    while (region->first_free < region->block_count &&
           !is_free(&region->blocks[region->first_free]))
        region->first_free++;
}

static void give_blocks(struct hc_region *region, size_t first, size_t count)
{
    void *memory = hc_region_bytes(region, region->base + first * HC_BLOCK_BYTES);
    /* The pages go back to the host; the mapping stays, so that work of another context that still
     * runs on them cannot take the process down. */
    madvise(memory, count * HC_BLOCK_BYTES, MADV_REMOVE);
    for (size_t i = 0; i < count; i++) {
        region->blocks[first + i].large = NULL;
        region->blocks[first + i].slab = NULL;
        region->blocks[first + i].retired = hc_config.quarantine;
    }
    region->used_bytes -= count * HC_BLOCK_BYTES;
    region->last_freed = first;
    if (first < region->first_free)
        region->first_free = first;
    if (hc_config.quarantine)
        mprotect(memory, count * HC_BLOCK_BYTES, PROT_NONE);
}

static bool take_large(struct hc_region *region, struct hc_alloc *alloc)
{
    if (alloc->size > region->bytes)
        return false;
    size_t count = round_up(alloc->size, HC_BLOCK_BYTES) / HC_BLOCK_BYTES;
    size_t at = take_blocks(region, count);
    if (at == SIZE_MAX)
        return false;
    for (size_t i = 0; i < count; i++)
        region->blocks[at + i].large = alloc;
    advance_first_free(region);
    alloc->base = region->base + at * HC_BLOCK_BYTES;
    alloc->reserved_bytes = count * HC_BLOCK_BYTES;
    return true;
}

static size_t gap_in(const struct hc_slab *slab, size_t units, size_t *largest)
{
    size_t run = 0;
    *largest = 0;
    for (size_t i = 0; i < HC_UNITS;) {
        const struct hc_alloc *owner = slab->owner[i];
        if (owner) {
            i += owner->reserved_bytes / HC_UNIT_BYTES;
            run = 0;
            continue;
        }
        i++;
        if (++run == units)
            return i - units;
        if (run > *largest)
            *largest = run;
    }
    return SIZE_MAX;
}

static struct hc_slab *slab_open(struct hc_region *region)
{
    struct hc_slab *slab = calloc(1, sizeof(*slab));
    if (!slab)
        return NULL;
    slab->block = take_blocks(region, 1);
    if (slab->block == SIZE_MAX) {
        free(slab);
        return NULL;
    }
    slab->largest_hint = HC_UNITS;
    region->blocks[slab->block].slab = slab;
    advance_first_free(region);
    /* At the end: first fit prefers the oldest. */
    struct hc_slab **link = &region->slabs;
    while (*link)
        link = &(*link)->next;
    slab->link = link;
    *link = slab;
    return slab;
}

static void slab_close(struct hc_region *region, struct hc_slab *slab)
{
    *slab->link = slab->next;
    if (slab->next)
        slab->next->link = slab->link;
    give_blocks(region, slab->block, 1);
    free(slab);
}

static void slab_take(struct hc_region *region, struct hc_slab *slab, size_t unit, size_t units,
                      struct hc_alloc *alloc)
{
    for (size_t i = 0; i < units; i++)
        slab->owner[unit + i] = alloc;
    slab->used_units += units;
    alloc->base = region->base + slab->block * HC_BLOCK_BYTES + unit * HC_UNIT_BYTES;
    alloc->reserved_bytes = units * HC_UNIT_BYTES;
}

static bool take_small(struct hc_region *region, struct hc_alloc *alloc)
{
    size_t units = round_up(alloc->size, HC_UNIT_BYTES) / HC_UNIT_BYTES;
    for (struct hc_slab *slab = region->slabs; slab; slab = slab->next) {
        if (slab->largest_hint < units || HC_UNITS - slab->used_units < units)
            continue;
        size_t largest;
        size_t unit = gap_in(slab, units, &largest);
        if (unit != SIZE_MAX) {
            slab_take(region, slab, unit, units, alloc);
            return true;
        }
        slab->largest_hint = largest;
    }
    struct hc_slab *slab = slab_open(region);
    if (!slab)
        return false;
    slab_take(region, slab, 0, units, alloc);
    return true;
}

bool hc_region_take(struct hc_region *region, struct hc_alloc *alloc)
{
    assert(alloc->size > 0);
    /* In quarantine no two allocations share a page: each can be made to fault by itself. */
    return alloc->size <= HC_SMALL_BYTES && !hc_config.quarantine ? take_small(region, alloc)
                                                                  : take_large(region, alloc);
}

static void give_small(struct hc_region *region, struct hc_slab *slab, struct hc_alloc *alloc)
{
    size_t unit = (alloc->base - region->base) % HC_BLOCK_BYTES / HC_UNIT_BYTES;
    size_t units = alloc->reserved_bytes / HC_UNIT_BYTES;
    for (size_t i = 0; i < units; i++) {
        assert(slab->owner[unit + i] == alloc);
        slab->owner[unit + i] = NULL;
    }
    slab->used_units -= units;
    slab->largest_hint = HC_UNITS;
    if (!slab->used_units)
        slab_close(region, slab);
}

void hc_region_give(struct hc_region *region, struct hc_alloc *alloc)
{
    size_t first = (alloc->base - region->base) / HC_BLOCK_BYTES;
    if (hc_config.poison)
        memset(hc_region_bytes(region, alloc->base), 0xDB, alloc->reserved_bytes);
    if (region->blocks[first].slab)
        give_small(region, region->blocks[first].slab, alloc);
    else
        give_blocks(region, first, alloc->reserved_bytes / HC_BLOCK_BYTES);
}

struct hc_alloc *hc_region_find(const struct hc_region *region, uintptr_t address)
{
    if (!hc_region_holds(region, address))
        return NULL;
    size_t offset = address - region->base;
    const struct hc_block *block = &region->blocks[offset / HC_BLOCK_BYTES];
    struct hc_alloc *alloc = block->large;
    if (block->slab)
        alloc = block->slab->owner[offset % HC_BLOCK_BYTES / HC_UNIT_BYTES];
    return alloc && address - alloc->base < alloc->size ? alloc : NULL;
}

uintptr_t hc_region_mapping(const struct hc_region *region, const struct hc_alloc *alloc,
                            size_t *bytes)
{
    size_t first = (alloc->base - region->base) / HC_BLOCK_BYTES;
    *bytes = region->blocks[first].slab ? HC_BLOCK_BYTES : alloc->reserved_bytes;
    return region->base + first * HC_BLOCK_BYTES;
}

bool hc_region_is_mapped(const struct hc_region *region, uintptr_t address, size_t bytes)
{
    size_t first = (address - region->base) / HC_BLOCK_BYTES;
    size_t last = (address - region->base + (bytes ? bytes - 1 : 0)) / HC_BLOCK_BYTES;
    for (size_t i = first; i <= last; i++) {
        if (i >= region->block_count)
            return false;
        const struct hc_block *block = &region->blocks[i];
        if (!block->large && !block->slab)
            return false;
    }
    return true;
}
