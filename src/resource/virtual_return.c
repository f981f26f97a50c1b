/* SPDX-License-Identifier: Apache-2.0 */
/* What goes back to the driver: free memory at a trim, and everything when the context has ended.
 * None of these calls needs a current context, and what `virtual` made outlives it
 * (cuda-measured.md), so it is given back when the context has ended. */
#include "driver/driver.h"
#include "resource/segment.h"
#include "resource/virtual.h"

#include <stdlib.h>

/* ---- a trim ---- */

/* Leaves the move no more than that many granules; the others are free again.  False when it takes
 * a record that there is not. */
static bool limit_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t granules)
{
    while (move->source_granules > granules) {
        struct rs_block *block = move->sources;
        size_t surplus = move->source_granules - granules;
        size_t count = block->size_bytes / vm->granule_bytes;

        if (count > surplus) {
            if (!rs_record_slab_reserve(&vm->blocks.records))
                return false;
            rs_virtual_put_free(
                vm, rs_blocks_cut(&vm->blocks, block, (count - surplus) * vm->granule_bytes));
            move->source_granules -= surplus;
            continue;
        }
        move->sources = block->left;
        move->source_granules -= count;
        rs_virtual_put_free(vm, block);
    }
    return true;
}

/* Picks what a trim gives back: all that is free but keep_bytes and the initial size.  False when
 * that is nothing. */
static bool gather_surplus(struct rs_virtual *vm, struct rs_virtual_move *move, size_t keep_bytes)
{
    size_t keep = keep_bytes / vm->granule_bytes + (keep_bytes % vm->granule_bytes != 0);
    size_t count, spares;

    rs_virtual_collect_sources(vm, move, SIZE_MAX);
    count = move->source_granules + vm->spare_count;
    count -= rs_min(count, keep);
    count = rs_min(count, vm->held_granules - rs_min(vm->held_granules, vm->initial_granules));
    spares = rs_min(vm->spare_count, count);
    if (count == 0 || !limit_sources(vm, move, count - spares))
        return false;
    move->handles = malloc(count * sizeof(move->handles[0]));
    if (!move->handles)
        return false;
    rs_virtual_take_spares(vm, move, spares);
    return true;
}

size_t rs_virtual_trim(struct rs_virtual *vm, size_t keep_bytes)
{
    struct rs_virtual_move move = {.gap = NULL};
    CUstreamCaptureMode mode;
    size_t released = 0;

    if (gather_surplus(vm, &move, keep_bytes)) {
        rs_virtual_begin_call(vm);
        rs_mutex_unlock(&vm->lock);
        mode = rs_capture_relax();
        (void)rs_virtual_unmap_sources(vm, &move);
        released = move.handle_count;
        move.handle_count = rs_virtual_release_granules(vm, move.handles, move.handle_count);
        released -= move.handle_count;
        rs_capture_restore(mode);
        rs_mutex_lock(&vm->lock);
        rs_virtual_end_call(vm);
    }
    vm->charged_granules -= released;
    rs_counter_subtract(&vm->held_granules, released);
    vm->driver_frees += released;
    rs_virtual_settle(vm, &move, false);
    return released * vm->granule_bytes;
}

/* ---- the end of the context ---- */

/* Unmaps and releases all memory of a region and gives its addresses back.  Errors mean that the
 * driver is gone, and the memory with it, or that it keeps what nobody can use. */
static void release_region(struct rs_virtual *vm, struct rs_virtual_region *region)
{
    size_t count = region->size_bytes / vm->granule_bytes, end;

    rs_segment_remove(vm->place, region->base);
    for (size_t i = 0; i < count; i = end) {
        end = i + 1;
        if (!region->handles[i])
            continue;
        while (end < count && region->handles[end])
            end++;
        (void)rs_driver.cuMemUnmap(region->base + i * vm->granule_bytes,
                                   (end - i) * vm->granule_bytes);
        (void)rs_virtual_release_granules(vm, &region->handles[i], end - i);
    }
    (void)rs_driver.cuMemAddressFree(region->base, region->size_bytes);
}

void rs_virtual_release_everything(struct rs_virtual *vm)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        release_region(vm, region);
    (void)rs_virtual_release_granules(vm, vm->spares, vm->spare_count);
    rs_capture_restore(mode);
}
