/* SPDX-License-Identifier: Apache-2.0 */
/* The path of an allocation through `virtual`: finds a free block, or makes one, while other
 * threads do the same.
 *
 * A request that no free block serves gets a hole: void addresses, together with the free memory on
 * either side.  Memory for the void addresses comes from wherever whole granules are free, and only
 * the missing rest from the driver. */
#include "base/lock.h"
#include "base/request.h"
#include "driver/driver.h"
#include "resource/segment.h"
#include "resource/virtual/virtual.h"

#include <stdlib.h>

/* ---- blocks ---- */

/* Takes a void block out of its index. */
static void remove_void(struct rs_virtual *vm, struct rs_block *block)
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
        remove_void(vm, after);
        rs_blocks_merge(&vm->blocks, block, after);
    }
    if (before && before->is_void) {
        remove_void(vm, before);
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
 * A live block pins every granule that it touches.  If it began at the first aligned address, it
 * could touch one granule more than its size needs, and that granule may be missing when nearly all
 * memory is live.  So with granules of the driver's own size, a block begins where it touches no
 * extra granule.  Live blocks then pin no more bytes than separate driver allocations would take.
 * The bytes that are skipped stay free, and serve smaller blocks.  With larger granules this would
 * cost more than it saves. */

/* Returns how many bytes after `address` the request may begin: at the first place that has its
 * alignment and touches no extra granule. */
static size_t lead_bytes_at(const struct rs_virtual *vm, CUdeviceptr address,
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

/* Tries the smallest free block of least_bytes or more.  Returns false if the request does not fit
 * there, beginning where lead_bytes_at says.  *next_bytes: the least_bytes with which to try the
 * next larger block; 0 when there is no block of least_bytes. */
static bool take_from(struct rs_virtual *vm, const struct rs_block_request *request,
                      size_t least_bytes, size_t *next_bytes, struct rs_allocation *out)
{
    struct rs_block *block =
        rs_block_index_best_fit(&vm->blocks.free_blocks[RS_BLOCKS_COMMON], least_bytes);
    size_t lead_bytes;

    *next_bytes = 0;
    if (!block)
        return false;
    lead_bytes = lead_bytes_at(vm, block->address, request);
    *next_bytes = block->size_bytes + 1;
    if (block->size_bytes - request->bytes < lead_bytes)
        return false;
    rs_blocks_hand_out(&vm->blocks, block, lead_bytes, request, out);
    return true;
}

/* Hands out a part of a free block.  Two records must be in reserve (rs_record_slab_reserve).
 * Returns false when no block fits. */
static bool take_free_part(struct rs_virtual *vm, const struct rs_block_request *request,
                           struct rs_allocation *out)
{
    /* How many blocks are tried before one that is large enough wherever the request begins. */
    enum { PROBES_MAX = 8 };
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

/* Reads the live bytes first; rs_counter_idle says why. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm)
{
    size_t live_bytes = rs_counter_get(&vm->blocks.live_bytes);
    size_t held_bytes = rs_counter_get(&vm->held_granules) * vm->granule_bytes;

    return held_bytes > live_bytes ? held_bytes - live_bytes : 0;
}

/* ---- holes; the caller holds the lock ---- */

struct hole {
    struct rs_block *block; /* the void block */
    size_t gap_bytes;       /* bytes of `block` that need memory */
    size_t high_bytes; /* bytes, in whole granules, of the free block above that are used too */
    bool uses_low;     /* the free block below is used too */
};

/* Computes the hole that the request needs at the void block `block`, together with the free blocks
 * below and above it.  Stores the hole in *best if it needs less memory than *best. */
static void try_hole(const struct rs_virtual *vm, const struct rs_block_request *request,
                     struct rs_block *block, struct hole *best)
{
    struct hole hole = {.block = block};
    size_t low_bytes = 0, lead_bytes, rest_bytes;

    if (!block || !block->is_void)
        return;
    if (block->before && block->before->is_free) {
        lead_bytes = lead_bytes_at(vm, block->before->address, request);
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

/* Returns the best hole of a few void blocks that need no search: those beside the largest free
 * block, the smallest one that fits the request by itself, and the largest one. */
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

/* Makes the hole's blocks busy, as the destination of the move.  A record must be in reserve. */
static void fill_hole(struct rs_virtual *vm, const struct hole *hole, struct rs_virtual_move *move)
{
    RS_ASSERT(hole->gap_bytes > 0 && hole->gap_bytes <= hole->block->size_bytes);
    RS_ASSERT(hole->gap_bytes % vm->granule_bytes == 0);
    move->gap = hole->block;
    remove_void(vm, move->gap);
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
        if (move->high->size_bytes > hole->high_bytes) /* the rest of the block stays free */
            rs_virtual_put_free(vm, rs_blocks_cut(&vm->blocks, move->high, hole->high_bytes));
    }
}

/* ---- memory for a hole; the caller holds the lock ---- */

/* Makes the array of spares long enough for all charged granules and `more`.  Returns false when
 * out of host memory. */
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

/* Finds the memory for a gap of `granules`: first spares, then free granules, then new ones. */
static CUresult gather_granules(struct rs_virtual *vm, struct rs_virtual_move *move,
                                size_t granules, enum rs_virtual_means means)
{
    size_t spares = rs_min(vm->spare_count, granules);

    move->handles = malloc(granules * sizeof(move->handles[0]));
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

/* This is called when the resource is made.  After that it is called only if live blocks are so
 * scattered that there is no hole for a request. */
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
    mode = rs_virtual_begin_calls(vm);
    result = rs_driver.cuMemAddressReserve(&region->base, size_bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS &&
        !rs_segment_add(vm->base.environment, region->base, size_bytes, true)) {
        (void)rs_driver.cuMemAddressFree(region->base, size_bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    rs_virtual_end_calls(vm, mode);
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
    CUstreamCaptureMode mode;
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
    fill_hole(vm, &hole, &move);
    result = gather_granules(vm, &move, hole.gap_bytes / vm->granule_bytes, means);
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
    begun = vm->begun + 1;
    mode = rs_virtual_begin_calls(vm);
    result = rs_virtual_move_memory(vm, &move);
    rs_virtual_end_calls(vm, mode);
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

/* ---- the path of an allocation ---- */

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500, ROUNDS_MAX = 64 };

/* A request and the state of its attempts. */
struct asking {
    struct rs_block_request request;
    bool is_alone;  /* this request has set vm->is_reserved */
    bool disturbed; /* other threads disturbed its last growth (rs_virtual_grow) */
};

/* Waits for the end of another thread's driver calls.  The wait is bounded: those calls may wait
 * for the GPU, and the GPU may wait for this thread. */
static void wait_for_other_calls(struct rs_virtual *vm, long milliseconds)
{
    uint64_t until_ns = rs_clock_ns() + (uint64_t)milliseconds * 1000000;

    (void)rs_condition_wait_until_ns(&vm->settled, &vm->base.lock, until_ns);
}

/* If another thread's growth will leave room for this request, waits for that growth, 20 ms at
 * most, and returns true. */
static bool waited_for_growth(struct rs_virtual *vm, const struct rs_block_request *request)
{
    if (vm->ahead_bytes < request->rounded_bytes)
        return false;
    vm->ahead_bytes -= request->rounded_bytes;
    wait_for_other_calls(vm, GROWTH_WAIT_MS);
    return true;
}

/* Waits up to this time for driver calls of other threads, or for GPU work.  Returns false, without
 * a wait, when the request's patience is over. */
static bool wait_patiently(struct rs_virtual *vm, long milliseconds)
{
    if (rs_request_patience_ns() == 0)
        return false;
    wait_for_other_calls(vm, milliseconds);
    return true;
}

/* Takes any block that fits, even one in a bad place or misaligned, which is better than a refusal.
 * Returns false when there is none. */
static bool take_at_last(struct rs_virtual *vm, struct rs_block_request *request,
                         struct rs_allocation *out)
{
    if (!rs_record_slab_reserve(&vm->blocks.records))
        return false;
    if (take_free_part(vm, request, out))
        return true;
    request->any_alignment = true;
    return rs_blocks_take(&vm->blocks, request, out);
}

/* Waits until no thread changes peer access and no other thread needs all free memory.  Returns
 * false when this takes too long. */
static bool wait_until_free_to_grow(struct rs_virtual *vm, struct asking *asking)
{
    while (vm->is_still || (vm->is_reserved && !asking->is_alone))
        if (!wait_patiently(vm, SETTLE_WAIT_MS))
            return false;
    return true;
}

/* Grows.  Without `reuse` above, GPU work may still use the free memory, which then cannot be moved
 * yet.  In that case new memory serves the request.  If there is none, this waits for the work and
 * tries the free memory again.  It does not wait if the end of the work cannot be known: an old
 * driver has no fences, and a stream that captures may be this very thread's. */
static CUresult grow_or_wait(struct rs_virtual *vm, struct asking *asking)
{
    CUresult result, moved;

    do {
        moved = rs_virtual_grow(vm, &asking->request, RS_VIRTUAL_HELD_AND_NEW, &asking->disturbed);
        if (vm->ended || (moved != CUDA_ERROR_NOT_READY && moved != CUDA_ERROR_NOT_SUPPORTED))
            return moved;
        if (!wait_until_free_to_grow(vm, asking))
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = rs_virtual_grow(vm, &asking->request, RS_VIRTUAL_NEW, &asking->disturbed);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && moved == CUDA_ERROR_NOT_READY && !vm->ended &&
             wait_patiently(vm, GROWTH_WAIT_MS) && wait_until_free_to_grow(vm, asking));
    return result;
}

/* Makes one attempt to serve the request.  The caller holds the lock. */
static CUresult attempt(struct rs_virtual *vm, struct asking *asking, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    asking->disturbed = false;
    if (!wait_until_free_to_grow(vm, asking))
        return result;
    rs_virtual_loosen(vm);
    if (!wait_until_free_to_grow(vm, asking))
        return result;
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!rs_record_slab_reserve(&vm->blocks.records))
        return result;
    if (take_free_part(vm, &asking->request, out))
        return CUDA_SUCCESS;
    result = grow_or_wait(vm, asking);
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    /* This is done after a failure too, since other threads may have freed memory. */
    return take_at_last(vm, &asking->request, out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Lets no other thread begin a growth, and waits for the driver calls under way.  Otherwise two
 * threads that move memory could both fail, because each has granules that the other lacks.
 * Returns false when the wait takes too long. */
static bool be_alone(struct rs_virtual *vm, struct asking *asking)
{
    if (!wait_until_free_to_grow(vm, asking))
        return false;
    RS_ASSERT(!vm->is_still && (!vm->is_reserved || asking->is_alone));
    vm->is_reserved = asking->is_alone = true;
    while (vm->calls > 0)
        if (!wait_patiently(vm, SETTLE_WAIT_MS))
            return false;
    return true;
}

/* Finds a block, growing as needed.  After a refusal it tries again alone (be_alone), if other
 * threads were taking or moving memory meanwhile.  The rounds are bounded, since trims also move
 * memory and may begin at any time.  The caller holds the lock. */
static CUresult attempt_undisturbed(struct rs_virtual *vm, struct asking *asking,
                                    struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (rs_record_slab_reserve(&vm->blocks.records) && !vm->ended) {
        if (take_free_part(vm, &asking->request, out))
            return CUDA_SUCCESS;
        (void)waited_for_growth(vm, &asking->request);
    }
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        result = attempt(vm, asking, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !asking->disturbed || !be_alone(vm, asking))
            break;
    }
    if (asking->is_alone) {
        vm->is_reserved = asking->is_alone = false;
        pthread_cond_broadcast(&vm->settled);
    }
    return result;
}

/* Calls attempt_undisturbed, and repeats it after the device's stacks have given back idle memory.
 * The caller holds the lock. */
static CUresult allocate_or_reclaim(struct rs_virtual *vm, struct asking *asking,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    size_t rounded_bytes = asking->request.rounded_bytes;
    size_t granules = (rounded_bytes - 1) / vm->granule_bytes + 1;
    const struct rs_environment *environment = vm->base.environment;
    struct rs_refusal refusal = {.size_bytes = rounded_bytes};
    CUresult result;
    bool again;

    do {
        refusal.releases = rs_account_releases(environment->account);
        result = attempt_undisturbed(vm, asking, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !environment->reclaim ||
            rs_effort_is_ahead(effort) || granules > vm->maximum_granules - vm->charged_granules)
            return result; /* for a request past the maximum of this resource, memory of other
                              stacks would not help */
        rs_request.is_short = true;
        rs_mutex_unlock(&vm->base.lock);
        again = environment->reclaim(environment, &refusal, !environment->frees_are_ready);
        rs_mutex_lock(&vm->base.lock);
    } while (again);
    return result;
}

static CUresult allocate_growing_or_moving(struct rs_virtual *vm, size_t size_bytes,
                                           enum rs_effort effort, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct asking asking = {.is_alone = false};
    bool is_a_size = rs_block_request_init(&asking.request, size_bytes, RS_BLOCK_ALIGNMENT, false);

    RS_ASSERT(size_bytes > 0);
    rs_request_begin();
    rs_mutex_lock(&vm->base.lock);
    if (is_a_size && (asking.request.rounded_bytes - 1) / vm->granule_bytes < vm->maximum_granules)
        result = rs_effort_result_of_driver(allocate_or_reclaim(vm, &asking, effort, out));
    vm->allocations += result == CUDA_SUCCESS;
    vm->failures += result != CUDA_SUCCESS;
    RS_ASSERT(!asking.is_alone);
    RS_ASSERT_SLOW(vm->base.ops.is_sound(&vm->base));
    rs_virtual_leave(vm);
    rs_request_end();
    return result;
}

/* Serves the request from held memory.  The caller holds the lock. */
static bool take_or_move(struct rs_virtual *vm, const struct rs_block_request *request,
                         struct rs_allocation *out)
{
    bool disturbed;

    if (vm->ended || !rs_record_slab_reserve(&vm->blocks.records))
        return false;
    if (take_free_part(vm, request, out))
        return true;
    if (vm->is_still || vm->is_reserved ||
        rs_virtual_grow(vm, request, RS_VIRTUAL_HELD, &disturbed) != CUDA_SUCCESS || vm->ended)
        return false;
    return rs_record_slab_reserve(&vm->blocks.records) && take_free_part(vm, request, out);
}

static CUresult allocate_without_new(struct rs_virtual *vm, size_t size_bytes,
                                     struct rs_allocation *out)
{
    struct rs_block_request request;
    bool taken;

    if (!rs_block_request_init(&request, size_bytes, RS_BLOCK_ALIGNMENT, false))
        return CUDA_ERROR_NOT_READY;
    rs_mutex_lock(&vm->base.lock);
    taken = take_or_move(vm, &request, out);
    vm->allocations += taken;
    rs_virtual_leave(vm);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Ignores the stream: `reuse` above has made sure that no work uses a free block any more. */
CUresult rs_virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out)
{
    (void)stream;
    return rs_effort_is_held(effort)
               ? allocate_without_new(RS_MR_AS(rs_virtual, mr), size_bytes, out)
               : allocate_growing_or_moving(RS_MR_AS(rs_virtual, mr), size_bytes, effort, out);
}
