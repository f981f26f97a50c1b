/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that goes back to the driver: free memory at a trim, and all of it when the context has
 * ended.  None of these calls needs a current context.  The reservations and granules of `virtual`
 * outlive the context (MEASURED.md), so they are given back when it has ended. */
#include "driver/driver.h"
#include "ledger/account.h"
#include "resource/segment.h"
#include "resource/virtual/virtual.h"

#include <stdlib.h>
#include <string.h>

/* ---- a trim ---- */

/* Leaves the move at most `granules`; the others are free again.  False when this needs a record
 * and none is in reserve. */
static bool limit_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t granules)
{
    while (move->source_granules > granules) {
        struct rs_block *block = move->sources;
        size_t surplus = move->source_granules - granules;
        size_t count = block->size_bytes / vm->granule_bytes;

        RS_ASSERT(count > 0 && count <= move->source_granules);
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

/* Picks the granules that a trim gives back: all free ones, except for keep_bytes and the initial
 * size.  False when there are none. */
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
    size_t released = 0, in_hand_bytes = 0;

    if (gather_surplus(vm, &move, keep_bytes)) {
        in_hand_bytes = (move.source_granules + move.handle_count) * vm->granule_bytes;
        rs_account_begin_return(vm->environment->account, in_hand_bytes);
        rs_virtual_begin_call(vm);
        rs_mutex_unlock(&vm->lock);
        mode = rs_capture_relax();
        (void)rs_virtual_unmap_sources(vm, &move);
        released = move.handle_count;
        move.handle_count = rs_virtual_release_granules(vm, vm->environment->account, move.handles,
                                                        move.handle_count);
        released -= move.handle_count;
        rs_capture_restore(mode);
        rs_mutex_lock(&vm->lock);
        rs_virtual_end_call(vm);
    }
    RS_ASSERT(released <= vm->held_granules && vm->held_granules <= vm->charged_granules);
    vm->charged_granules -= released;
    rs_counter_subtract(&vm->held_granules, released);
    vm->driver_frees += released;
    rs_virtual_settle(vm, &move, false);
    rs_account_end_return(vm->environment->account, in_hand_bytes);
    return released * vm->granule_bytes;
}

/* ---- the end of the context ---- */

/* Unmaps a run of mapped granules and gives them back.  Granules that are unmapped, but that the
 * driver does not take, become spares, so that none is unmapped twice.  False when the run is still
 * mapped. */
static bool release_run(struct rs_virtual *vm, struct rs_account *account, CUdeviceptr address,
                        CUmemGenericAllocationHandle *handles, size_t count)
{
    size_t kept;

    if (rs_driver.cuMemUnmap(address, count * vm->granule_bytes) != CUDA_SUCCESS)
        return false;
    kept = rs_virtual_release_granules(vm, account, handles, count);
    memcpy(vm->spares + vm->spare_count, handles, kept * sizeof(handles[0]));
    vm->spare_count += kept;
    memset(handles, 0, count * sizeof(handles[0]));
    return true;
}

/* Unmaps and releases all memory of a region, and gives its addresses back.  False when the driver
 * did not take all. */
static bool release_region(struct rs_virtual *vm, struct rs_account *account,
                           struct rs_virtual_region *region)
{
    size_t count = region->size_bytes / vm->granule_bytes, end;
    bool all = true;

    if (region->is_returned)
        return true;
    for (size_t i = 0; i < count; i = end) {
        end = i + 1;
        if (!region->handles[i])
            continue;
        while (end < count && region->handles[end])
            end++;
        all = release_run(vm, account, region->base + i * vm->granule_bytes, &region->handles[i],
                          end - i) &&
              all;
    }
    region->is_returned =
        all && rs_driver.cuMemAddressFree(region->base, region->size_bytes) == CUDA_SUCCESS;
    return region->is_returned;
}

/* Releases all regions and spares.  True when none is left. */
static bool release_all(struct rs_virtual *vm, struct rs_account *account)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    bool all = true;

    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        all = release_region(vm, account, region) && all;
    vm->spare_count = rs_virtual_release_granules(vm, account, vm->spares, vm->spare_count);
    rs_capture_restore(mode);
    return all && vm->spare_count == 0;
}

/* Tries again after the context's end.  The account lost these bytes with the context
 * (rs_account_lose), so none is credited. */
static bool release_late(struct rs_unfinished *unfinished)
{
    return release_all(RS_CONTAINER_OF(unfinished, struct rs_virtual, unfinished), NULL);
}

void rs_virtual_release_everything(struct rs_virtual *vm)
{
    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        rs_segment_remove(vm->environment, region->base);
    if (!release_all(vm, vm->environment->account))
        rs_unfinished_add(&vm->unfinished, release_late);
}
