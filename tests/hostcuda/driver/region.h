/* SPDX-License-Identifier: Apache-2.0 */
/* A range of addresses from which the driver serves one kind of memory: small requests in steps of
 * 512 bytes from blocks of 2 MiB, requests above 1 MiB in whole blocks. The caller holds the lock.
 */
#pragma once

#include "driver/alloc.h"

#define HC_BLOCK_BYTES ((size_t)2 << 20)
#define HC_UNIT_BYTES  ((size_t)512)
#define HC_UNITS       (HC_BLOCK_BYTES / HC_UNIT_BYTES)
#define HC_SMALL_BYTES ((size_t)1 << 20)

struct hc_slab;
struct hc_block;

struct hc_region {
    uintptr_t base;
    size_t bytes;
    size_t capacity_bytes; /* most bytes in use; SIZE_MAX: no limit */
    size_t used_bytes;     /* bytes of blocks in use, and bytes that other modules charged */
    uintptr_t bytes_at;    /* where the memory is mapped for the driver's own use */
    int fd;                /* the memory behind it: offset 0 is base */
    struct hc_block *blocks;
    size_t block_count;
    size_t first_free; /* no free block is below */
    size_t next_fresh; /* for HC_NEVER_AGAIN */
    size_t last_freed; /* for HC_SAME_AGAIN */
    struct hc_slab *slabs;
};

/* Reserves addresses; memory is taken when it is touched. is_guarded: the program faults when it
 * accesses the memory itself. False if the host refuses. */
bool hc_region_open(struct hc_region *region, size_t bytes, size_t capacity_bytes, bool is_guarded);

/* Places alloc->size bytes and sets base and reserved_bytes; false if the capacity is used up. */
bool hc_region_take(struct hc_region *region, struct hc_alloc *alloc);

/* Returns an allocation's range to the region. */
void hc_region_give(struct hc_region *region, struct hc_alloc *alloc);

/* The allocation whose requested range holds the address, or NULL. */
struct hc_alloc *hc_region_find(const struct hc_region *region, uintptr_t address);

/* The mapping that holds an allocation of the region: its own blocks, or the one of 2 MiB that it
 * shares with other small ones. */
uintptr_t hc_region_mapping(const struct hc_region *region, const struct hc_alloc *alloc,
                            size_t *bytes);

/* True if every block that the range touches is in use: what the device checks on an access. */
bool hc_region_is_mapped(const struct hc_region *region, uintptr_t address, size_t bytes);

static inline bool hc_region_holds(const struct hc_region *region, uintptr_t address)
{
    return address - region->base < region->bytes;
}

/* Returns the driver's own mapping of an address of the region. */
static inline void *hc_region_bytes(const struct hc_region *region, uintptr_t address)
{
    return (void *)(address - region->base + region->bytes_at);
}
