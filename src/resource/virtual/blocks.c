/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of `virtual`.  The range is cut into blocks without gaps: blocks with memory, live or
 * free (blocks.h), and void blocks, which are addresses without memory. */
#include "base/lock.h"
#include "heap/alignment.h"
#include "resource/virtual/virtual.h"

void rs_virtual_remove_void(struct rs_virtual *vm, struct rs_block *block)
{
    RS_ASSERT(block->is_void);
    rs_block_index_remove(&vm->voids, block);
    block->is_void = false;
}

void rs_virtual_put_void(struct rs_virtual *vm, struct rs_block *block)
{
    struct rs_block *after = block->after, *before = block->before;

    RS_ASSERT(!block->is_free && !block->is_void);
    RS_ASSERT(block->size_bytes % vm->granule_bytes == 0);
    block->is_busy = false;
    if (after && after->is_void) {
        rs_virtual_remove_void(vm, after);
        rs_blocks_merge(&vm->blocks, block, after);
    }
    if (before && before->is_void) {
        rs_virtual_remove_void(vm, before);
        rs_blocks_merge(&vm->blocks, before, block);
        block = before;
    }
    block->is_void = true;
    rs_block_index_insert(&vm->voids, block);
}

void rs_virtual_put_free(struct rs_virtual *vm, struct rs_block *block)
{
    RS_ASSERT(!block->is_free && !block->is_void);
    block->is_busy = false;
    rs_blocks_put(&vm->blocks, block);
}

void rs_virtual_take_free(struct rs_virtual *vm, struct rs_block *block)
{
    RS_ASSERT(block->is_free && !block->is_busy);
    rs_blocks_remove_free(&vm->blocks, block);
    block->is_busy = true;
}

struct rs_virtual_region *rs_virtual_region_of(const struct rs_virtual *vm, CUdeviceptr address)
{
    struct rs_virtual_region *region = atomic_load_explicit(&vm->regions, memory_order_acquire);

    while (address - region->base >= region->size_bytes) {
        RS_ASSERT(region->next); /* every address of a block lies in some region */
        region = region->next;
    }
    return region;
}

/* ---- where a request begins ----
 *
 * Any block that touches a granule pins it.  A block that begins just where it fits may touch one
 * granule more than its size needs, and where nearly all memory is live that granule is missing. So
 * with granules of the driver's own size, a block begins where it touches no extra granule: then
 * live blocks pin at most the bytes that each would take from the driver by itself.  The bytes
 * skipped before it are free, and serve smaller blocks.  With larger granules this would cost more
 * than it saves. */

size_t rs_virtual_lead_bytes(const struct rs_virtual *vm, CUdeviceptr address,
                             const struct rs_block_request *request)
{
    size_t lead_bytes = rs_lead_bytes(address, request->alignment), granule = vm->granule_bytes;
    size_t offset, tail_bytes;

    if (granule > RS_DRIVER_GRANULARITY)
        return lead_bytes;
    offset = (address + lead_bytes - rs_virtual_region_of(vm, address)->base) & (granule - 1);
    tail_bytes = ((request->rounded_bytes - 1) & (granule - 1)) + 1;
    return offset + tail_bytes > granule ? lead_bytes + granule - offset : lead_bytes;
}

static void hand_out(struct rs_virtual *vm, struct rs_block *block, size_t lead_bytes,
                     const struct rs_block_request *request, struct rs_allocation *out)
{
    struct rs_blocks *blocks = &vm->blocks;

    RS_ASSERT(lead_bytes < block->size_bytes && block->size_bytes - lead_bytes >= request->bytes);
    rs_blocks_remove_free(blocks, block);
    if (lead_bytes > 0) {
        struct rs_block *lead = block;
        block = rs_blocks_cut(blocks, lead, lead_bytes);
        rs_blocks_insert_free(blocks, lead);
    }
    if (block->size_bytes > request->rounded_bytes)
        rs_blocks_insert_free(blocks, rs_blocks_cut(blocks, block, request->rounded_bytes));
    rs_counter_add(&blocks->live_bytes, block->size_bytes);
    blocks->peak_live_bytes = rs_max(blocks->peak_live_bytes, rs_counter_get(&blocks->live_bytes));
    *out = (struct rs_allocation){block->address, request->bytes, block, NULL};
}

/* Takes the smallest free block of least_bytes or more, if the request can begin in it at its right
 * place.  *next_bytes: a size that every larger free block has at least; 0: there is none. */
static bool take_from(struct rs_virtual *vm, const struct rs_block_request *request,
                      size_t least_bytes, size_t *next_bytes, struct rs_allocation *out)
{
    struct rs_block *block =
        rs_block_index_best_fit(&vm->blocks.free_blocks[RS_BLOCKS_COMMON], least_bytes);
    size_t lead_bytes;

    *next_bytes = 0;
    if (!block)
        return false;
    lead_bytes = rs_virtual_lead_bytes(vm, block->address, request);
    *next_bytes = block->size_bytes + 1;
    if (block->size_bytes - request->bytes < lead_bytes)
        return false;
    hand_out(vm, block, lead_bytes, request, out);
    return true;
}

bool rs_virtual_take(struct rs_virtual *vm, const struct rs_block_request *request,
                     struct rs_allocation *out)
{
    enum { PROBES_MAX = 8 }; /* then a block that is large enough wherever the request begins */
    size_t least_bytes = request->bytes, ample_bytes;

    if (vm->granule_bytes > RS_DRIVER_GRANULARITY)
        return rs_blocks_take(&vm->blocks, request, out);
    for (unsigned probe = 0; probe < PROBES_MAX && least_bytes > 0; probe++)
        if (take_from(vm, request, least_bytes, &least_bytes, out))
            return true;
    return least_bytes > 0 &&
           !__builtin_add_overflow(request->rounded_bytes, vm->granule_bytes + request->alignment,
                                   &ample_bytes) &&
           take_from(vm, request, ample_bytes, &least_bytes, out);
}

/* Reads the live bytes first, as rs_counter_idle does. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm)
{
    size_t live_bytes = rs_counter_get(&vm->blocks.live_bytes);
    size_t held_bytes = rs_counter_get(&vm->held_granules) * vm->granule_bytes;

    return held_bytes > live_bytes ? held_bytes - live_bytes : 0;
}
