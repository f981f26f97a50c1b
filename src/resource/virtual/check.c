/* SPDX-License-Identifier: Apache-2.0 */
/* The check of the invariants of `virtual`. */
#include "resource/virtual/virtual.h"

struct sums {
    size_t live_bytes, busy_bytes, free_blocks, void_blocks, granules;
};

/* True when either all granules of a block are mapped or none.  Counts those that begin in it. */
static bool block_memory_check(const struct rs_virtual *vm, struct rs_virtual_region *region,
                               const struct rs_block *block, struct sums *sums)
{
    size_t first = (block->address - region->base) / vm->granule_bytes;
    size_t end = (block->address - region->base + block->size_bytes - 1) / vm->granule_bytes;

    if (block->is_void && (block->address - region->base) % vm->granule_bytes != 0)
        return false;
    for (size_t i = first; i <= end; i++) {
        if ((region->handles[i] == 0) != block->is_void)
            return false;
        sums->granules +=
            region->handles[i] != 0 && region->base + i * vm->granule_bytes >= block->address;
    }
    return true;
}

/* Checks one region from end to end: no gap, no overlap, no two neighbours that should have merged.
 */
static bool region_check(const struct rs_virtual *vm, struct rs_virtual_region *region,
                         struct sums *sums)
{
    CUdeviceptr address = region->base;
    const struct rs_block *before = NULL;

    for (const struct rs_block *block = &region->first_block; block; block = block->after) {
        if (block->address != address || block->before != before || block->size_bytes == 0 ||
            address % RS_BLOCK_ALIGNMENT != 0 ||
            block->is_free + block->is_void + block->is_busy > 1 ||
            (before &&
             ((before->is_free && block->is_free) || (before->is_void && block->is_void))))
            return false;
        if (!block->is_busy && !block_memory_check(vm, region, block, sums))
            return false;
        sums->free_blocks += block->is_free;
        sums->void_blocks += block->is_void;
        if (block->is_busy)
            sums->busy_bytes += block->size_bytes;
        else if (!block->is_free && !block->is_void)
            sums->live_bytes += block->size_bytes;
        address += block->size_bytes;
        before = block;
    }
    return address == region->base + region->size_bytes;
}

bool rs_virtual_check(const struct rs_virtual *vm)
{
    struct sums sums = {0};
    size_t free_blocks, void_blocks;

    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        if (!region_check(vm, region, &sums))
            return false;
    if (!rs_block_index_check(&vm->blocks.free_blocks[RS_BLOCKS_COMMON], &free_blocks) ||
        !rs_block_index_check(&vm->voids, &void_blocks) || free_blocks != sums.free_blocks ||
        void_blocks != sums.void_blocks || sums.live_bytes != vm->blocks.live_bytes ||
        vm->charged_granules > vm->maximum_granules || vm->charged_granules < vm->held_granules ||
        vm->spare_room < vm->spare_count)
        return false;
    if (vm->calls > 0)
        return true;
    return sums.busy_bytes == vm->stuck_bytes && vm->charged_granules == vm->held_granules &&
           vm->ahead_bytes == 0 &&
           (vm->stuck_bytes > 0 || sums.granules + vm->spare_count == vm->held_granules);
}
