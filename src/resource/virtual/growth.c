/* SPDX-License-Identifier: Apache-2.0 */
/* Growth: a request that no free block serves gets a hole, which is void addresses with the free
 * memory on either side.  The memory for the hole is taken from wherever whole granules are free,
 * and only the missing rest from the driver. */
#include "driver/driver.h"
#include "resource/segment.h"
#include "resource/virtual/virtual.h"

#include <stdlib.h>

/* ---- holes; all under the lock ---- */

struct hole {
    struct rs_block *block; /* void */
    size_t gap_bytes;       /* bytes of `block` that need memory */
    size_t high_bytes; /* bytes of the free block above, in whole granules, that the request needs
                          too */
    bool uses_low;
};

/* Computes the hole that the request needs if it begins in the free block below `block`, or in
 * `block`, and ends in `block` or in the free block above; keeps it in *best if it needs less
 * memory. */
static void try_hole(const struct rs_virtual *vm, const struct rs_block_request *request,
                     struct rs_block *block, struct hole *best)
{
    struct hole hole = {.block = block};
    size_t low_bytes = 0, lead_bytes, rest_bytes;

    if (!block || !block->is_void)
        return;
    if (block->before && block->before->is_free) {
        lead_bytes = rs_virtual_lead_bytes(vm, block->before->address, request);
        if (block->before->size_bytes > lead_bytes)
            low_bytes = block->before->size_bytes - lead_bytes;
    }
    hole.uses_low = low_bytes > 0;
    rest_bytes = request->rounded_bytes - rs_min(request->rounded_bytes - 1, low_bytes);
    if (!rs_round_up(rest_bytes, vm->granule_bytes, &hole.gap_bytes))
        return;
    if (hole.gap_bytes > block->size_bytes) {
        if (!block->after || !block->after->is_free ||
            rest_bytes - block->size_bytes > block->after->size_bytes)
            return;
        hole.high_bytes = hole.gap_bytes - block->size_bytes;
        hole.gap_bytes = block->size_bytes;
    }
    if (!best->block || hole.gap_bytes < best->gap_bytes)
        *best = hole;
}

/* Finds the best of the holes that need no search: beside the largest free block, the smallest void
 * block that fits the request by itself, and the largest one. */
static struct hole find_hole(const struct rs_virtual *vm, const struct rs_block_request *request)
{
    const struct rs_block *largest =
        rs_block_index_largest(&vm->blocks.free_blocks[RS_BLOCKS_COMMON]);
    struct hole best = {.block = NULL};

    if (largest) {
        try_hole(vm, request, largest->after, &best);
        try_hole(vm, request, largest->before, &best);
    }
    try_hole(vm, request, rs_block_index_best_fit(&vm->voids, request->rounded_bytes), &best);
    try_hole(vm, request, rs_block_index_largest(&vm->voids), &best);
    return best;
}

/* Makes the hole's blocks busy, as the move's destination.  A record must be in reserve. */
static void take_hole(struct rs_virtual *vm, const struct hole *hole, struct rs_virtual_move *move)
{
    RS_ASSERT(hole->gap_bytes > 0 && hole->gap_bytes <= hole->block->size_bytes);
    RS_ASSERT(hole->gap_bytes % vm->granule_bytes == 0);
    move->gap = hole->block;
    rs_virtual_remove_void(vm, move->gap);
    move->gap->is_busy = true;
    if (move->gap->size_bytes > hole->gap_bytes)
        rs_virtual_put_void(vm, rs_blocks_cut(&vm->blocks, move->gap, hole->gap_bytes));
    if (hole->uses_low) {
        move->low = move->gap->before;
        RS_ASSERT(move->low->is_free);
        rs_virtual_take_free(vm, move->low);
    }
    if (hole->high_bytes > 0) {
        move->high = move->gap->after;
        RS_ASSERT(move->high->is_free);
        rs_virtual_take_free(vm, move->high);
        if (move->high->size_bytes > hole->high_bytes) /* the rest of the block may be a source */
            rs_virtual_put_free(vm, rs_blocks_cut(&vm->blocks, move->high, hole->high_bytes));
    }
}

/* ---- memory for a hole; all under the lock ---- */

/* Makes room among the spares for every charged granule and `more`.  False when out of host memory.
 */
static bool reserve_spares(struct rs_virtual *vm, size_t more)
{
    size_t room = vm->charged_granules + more;
    CUmemGenericAllocationHandle *spares;

    if (room <= vm->spare_room)
        return true;
    room += room / 2;
    spares = realloc(vm->spares, room * sizeof(spares[0]));
    if (!spares)
        return false;
    vm->spares = spares;
    vm->spare_room = room;
    return true;
}

/* Finds the memory for a gap of `granules`: spares first, then free granules, then new ones. */
static CUresult gather(struct rs_virtual *vm, struct rs_virtual_move *move, size_t granules,
                       enum rs_virtual_means means)
{
    size_t spares = rs_min(vm->spare_count, granules);

    move->handles = malloc(granules * sizeof(move->handles[0]));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(move->records); i++)
        if (!(move->records[i] = rs_record_slab_take(&vm->blocks.records)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    if (!move->handles)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (means != RS_VIRTUAL_NEW)
        rs_virtual_collect_sources(vm, move, granules - spares);
    RS_ASSERT(spares + move->source_granules <= granules);
    move->create_granules = granules - spares - move->source_granules;
    if (move->create_granules > 0 && means == RS_VIRTUAL_HELD)
        return CUDA_ERROR_NOT_READY;
    if (move->create_granules > vm->maximum_granules - vm->charged_granules ||
        !reserve_spares(vm, move->create_granules))
        return CUDA_ERROR_OUT_OF_MEMORY;
    rs_virtual_take_spares(vm, move, spares);
    return CUDA_SUCCESS;
}

/* ---- growth ---- */

/* Called once when the resource is made, and again only when live blocks are so scattered that no
 * hole is left for a request. */
CUresult rs_virtual_add_region(struct rs_virtual *vm, size_t least_bytes)
{
    size_t size_bytes = rs_max(least_bytes, vm->reserve_bytes);
    size_t count = size_bytes / vm->granule_bytes;
    struct rs_virtual_region *region =
        calloc(1, sizeof(*region) + count * sizeof(region->handles[0]));
    CUstreamCaptureMode mode;
    CUresult result;

    if (!region)
        return CUDA_ERROR_OUT_OF_MEMORY;
    region->size_bytes = size_bytes;
    rs_virtual_begin_call(vm);
    rs_mutex_unlock(&vm->lock);
    mode = rs_capture_relax();
    result = rs_driver.cuMemAddressReserve(&region->base, size_bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS &&
        !rs_segment_add_lasting(vm->environment, region->base, size_bytes)) {
        (void)rs_driver.cuMemAddressFree(region->base, size_bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    rs_capture_restore(mode);
    rs_mutex_lock(&vm->lock);
    rs_virtual_end_call(vm);
    if (result != CUDA_SUCCESS) {
        free(region);
        return result;
    }
    region->first_block =
        (struct rs_block){.address = region->base, .size_bytes = region->size_bytes};
    region->next = atomic_load_explicit(&vm->regions, memory_order_relaxed);
    atomic_store_explicit(&vm->regions, region, memory_order_release);
    rs_virtual_put_void(vm, &region->first_block);
    return CUDA_SUCCESS;
}

CUresult rs_virtual_grow(struct rs_virtual *vm, const struct rs_block_request *request,
                         enum rs_virtual_means means, bool *disturbed)
{
    struct rs_virtual_move move = {.gap = NULL};
    size_t free_bytes, region_bytes, ahead_bytes;
    uint64_t begun;
    struct hole hole;
    CUresult result;

    RS_ASSERT(!vm->is_still);
    *disturbed = false;
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    free_bytes = rs_virtual_idle_bytes(vm);
    hole = find_hole(vm, request);
    if (means == RS_VIRTUAL_HELD && (!hole.block || hole.gap_bytes > free_bytes))
        return CUDA_ERROR_NOT_READY;
    if (!hole.block) {
        if (!rs_round_up(request->rounded_bytes, vm->granule_bytes, &region_bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = rs_virtual_add_region(vm, region_bytes);
        if (result != CUDA_SUCCESS)
            return result;
        hole = find_hole(vm, request);
    }
    if (!hole.block || !rs_record_slab_reserve(&vm->blocks.records))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *disturbed = vm->calls > 0;
    take_hole(vm, &hole, &move);
    result = gather(vm, &move, hole.gap_bytes / vm->granule_bytes, means);
    if (result != CUDA_SUCCESS) {
        rs_virtual_settle(vm, &move, false);
        return result;
    }
    ahead_bytes = hole.gap_bytes > request->rounded_bytes && vm->ahead_bytes == 0
                      ? hole.gap_bytes - request->rounded_bytes
                      : 0;
    vm->ahead_bytes += ahead_bytes;
    RS_ASSERT(move.create_granules <= vm->maximum_granules - vm->charged_granules);
    vm->charged_granules += move.create_granules;
    rs_virtual_begin_call(vm);
    begun = vm->begun;
    rs_mutex_unlock(&vm->lock);
    result = rs_virtual_move_memory(vm, &move);
    rs_mutex_lock(&vm->lock);
    rs_virtual_end_call(vm);
    *disturbed = *disturbed || vm->begun != begun;
    if (ahead_bytes > 0)
        vm->ahead_bytes = 0;
    RS_ASSERT(move.created <= move.create_granules);
    vm->charged_granules -= move.create_granules - move.created;
    rs_counter_add(&vm->held_granules, move.created);
    RS_ASSERT(vm->held_granules <= vm->charged_granules);
    vm->peak_held_granules = rs_max(vm->peak_held_granules, rs_counter_get(&vm->held_granules));
    vm->driver_allocations += move.created;
    vm->driver_refusals += move.created < move.create_granules;
    if (result == CUDA_SUCCESS)
        vm->moved_granules += move.source_granules;
    rs_virtual_settle(vm, &move, result == CUDA_SUCCESS);
    return result;
}
