/* SPDX-License-Identifier: Apache-2.0 */
/* virtual: one reserved range of addresses with physical memory mapped behind parts of it.
 *
 * The range is cut into blocks without gaps, as pool's chunks are (blocks.h): handed out, free, or
 * void, which is addresses without memory.  Physical memory comes in granules of one size, each
 * mapped at a multiple of that size.  A request that no free block serves gets a hole: void
 * addresses with what is free on either side.  Its memory is taken from wherever whole granules are
 * free, and only what is missing then from the driver.  So free memory is never too scattered for a
 * request, and what is held is not more than what was ever live at once and the ends of granules.
 *
 * Moving a granule unmaps addresses.  That is done to free blocks alone, which no work uses: where
 * no `reuse` stands above to see to that, all work of the context is waited for, as cudaFree does.
 *
 * What a call of the driver is about is busy: in no index, so that nobody else touches it and no
 * lock is held meanwhile.  None of these calls needs a current context, and what they made
 * outlives it (cuda-measured.md), so it is given back when the context has ended.
 *
 * Which other devices reach the memory is a property of each mapping, which cuCtxEnablePeerAccess
 * does not change: so it is told again for every mapping when a peer comes or goes, and nothing is
 * mapped or unmapped meanwhile. */
#include "base/lock.h"
#include "base/log.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "resource/account.h"
#include "resource/alignment.h"
#include "resource/blocks.h"
#include "resource/report.h"
#include "resource/segment.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct virtual_config {
    size_t granularity, initial_size, maximum_size;
    uint64_t reserve;
};

/* A reservation.  Its first block lives as long as it does (blocks.h). */
struct region {
    struct rs_block first_block;
    struct region *next;
    CUdeviceptr base;
    size_t size_bytes;
    CUmemGenericAllocationHandle handles[]; /* of the granule mapped there; 0: none.  Those of busy
                                               blocks belong to whoever made them busy */
};

struct vm {
    struct rs_mr base;
    const struct rs_place *place;
    CUmemAllocationProp properties;
    size_t granule_bytes, reserve_bytes;
    size_t initial_granules, maximum_granules;

    struct rs_mutex lock;   /* protects what follows; never held around a driver call */
    pthread_cond_t settled; /* driver calls ended: look again */
    struct rs_blocks blocks;
    struct rs_block_index voids;
    _Atomic(struct region *) regions;     /* newest first; looked at without the lock too */
    CUmemGenericAllocationHandle *spares; /* granules mapped nowhere: of a move that failed */
    size_t spare_count, spare_room;       /* room for every granule there is */

    size_t charged_granules; /* against the maximum: held and being asked for */
    size_t held_granules, peak_held_granules;
    size_t stuck_bytes; /* addresses that the driver would neither make usable nor unmap */

    unsigned calls;     /* under way */
    size_t ahead_bytes; /* that a growth under way will leave for others who wait for it */
    uint64_t changes;   /* goes up when memory may have become free */
    bool is_still;      /* nothing is mapped or unmapped: access is being changed */
    bool ended;         /* with its context: nothing is served any more */
    bool released;
    uint64_t driver_allocations, driver_frees, driver_refusals, moved_granules;
    uint64_t allocations, failures;
};

static struct vm *vm_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct vm, base);
}

/* ---- blocks without memory; all under the lock ---- */

static struct region *region_of(const struct vm *vm, CUdeviceptr address)
{
    struct region *region = atomic_load_explicit(&vm->regions, memory_order_acquire);

    while (address - region->base >= region->size_bytes)
        region = region->next;
    return region;
}

/* Where the handle of the granule at that address is kept. */
static CUmemGenericAllocationHandle *handles_of(const struct vm *vm, struct region *region,
                                                CUdeviceptr address)
{
    return &region->handles[(address - region->base) / vm->granule_bytes];
}

static void remove_void(struct vm *vm, struct rs_block *block)
{
    RS_ASSERT(block->is_void);
    rs_block_index_remove(&vm->voids, block);
    block->is_void = false;
}

/* Makes a block void that is in no index, merged with void neighbours. */
static void put_void(struct vm *vm, struct rs_block *block)
{
    struct rs_block *after = block->after, *before = block->before;

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

static void put_free(struct vm *vm, struct rs_block *block)
{
    block->is_busy = false;
    rs_blocks_put(&vm->blocks, block);
}

static void take_free(struct vm *vm, struct rs_block *block)
{
    rs_blocks_remove_free(&vm->blocks, block);
    block->is_busy = true;
}

/* ---- driver calls; without the lock ---- */

enum { PEERS_MAX = 64 /* as many as place->peers has bits */ };

/* Who may use new memory: the device itself, and those that were allowed to before. */
static CUresult set_access(const struct vm *vm, CUdeviceptr address, size_t size_bytes)
{
    CUmemAccessDesc access[1 + PEERS_MAX] = {
        {vm->properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    size_t count = 1;

    for (uint64_t peers = rs_place_peers(vm->place); peers; peers &= peers - 1) {
        access[count] = access[0];
        access[count++].location.id = __builtin_ctzll(peers);
    }
    return rs_driver.cuMemSetAccess(address, size_bytes, access, count);
}

static CUresult create_granule(const struct vm *vm, CUmemGenericAllocationHandle *handle)
{
    struct rs_account *account = vm->place->account;
    CUresult result;

    if (!rs_account_take(account, vm->granule_bytes, RS_MEMORY_DEVICE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_driver.cuMemCreate(handle, vm->granule_bytes, &vm->properties, 0);
    if (result != CUDA_SUCCESS)
        rs_account_untake(account, vm->granule_bytes, RS_MEMORY_DEVICE);
    return result;
}

/* Gives granules that are mapped nowhere back.  Those that the driver does not take stay, at the
 * beginning; returns how many those are. */
static size_t release_granules(const struct vm *vm, CUmemGenericAllocationHandle *handles,
                               size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (rs_driver.cuMemRelease(handles[i]) == CUDA_SUCCESS)
            rs_account_give(vm->place->account, vm->granule_bytes, RS_MEMORY_DEVICE);
        else
            handles[kept++] = handles[i];
    }
    return kept;
}

/* ---- moves ---- */

/* Free memory on its way to other addresses, or back to the driver.  Its blocks are busy. */
struct move {
    struct rs_block *low, *gap, *high; /* where it goes: gap gets memory, the others have it */
    struct rs_block *sources;          /* whose memory it is, linked by .left; ... */
    size_t unmapped_sources;           /* ... so many of them have lost it */
    size_t source_granules;
    size_t create_granules, created; /* to be asked for; got */
    void *records[2];                /* in reserve for the split behind a growth */
    CUmemGenericAllocationHandle *handles;
    size_t handle_count; /* granules mapped nowhere, that belong to this move */
    bool gap_is_stuck;
};

/* Makes free granules busy, those of the largest blocks first, until the move has `wanted` of them
 * or there are no more.  Under the lock. */
static void collect_sources(struct vm *vm, struct move *move, size_t wanted)
{
    struct rs_blocks *blocks = &vm->blocks;
    size_t granule_bytes = vm->granule_bytes;
    struct rs_block *block, *without = NULL;

    while (move->source_granules < wanted && rs_record_slab_reserve(&blocks->records) &&
           (block = rs_block_index_largest(&blocks->free_blocks[RS_BLOCKS_COMMON])) &&
           block->size_bytes >= granule_bytes) {
        CUdeviceptr base = region_of(vm, block->address)->base;
        size_t lead_bytes = (size_t)(-(block->address - base) & (granule_bytes - 1));
        size_t whole_bytes, lacking = wanted - move->source_granules;

        take_free(vm, block);
        if (block->size_bytes - lead_bytes < granule_bytes) {
            block->left = without; /* it covers no whole granule; a smaller one may */
            without = block;
            continue;
        }
        if (lead_bytes > 0) {
            struct rs_block *lead = block;
            block = rs_blocks_cut(blocks, lead, lead_bytes);
            block->is_busy = true;
            put_free(vm, lead);
        }
        whole_bytes = rs_round_down(block->size_bytes, granule_bytes);
        if (whole_bytes / granule_bytes > lacking)
            whole_bytes = lacking * granule_bytes;
        if (block->size_bytes > whole_bytes)
            put_free(vm, rs_blocks_cut(blocks, block, whole_bytes));
        block->left = move->sources;
        move->sources = block;
        move->source_granules += whole_bytes / granule_bytes;
    }
    while (without) {
        block = without;
        without = block->left;
        put_free(vm, block);
    }
}

/* Puts the sources back: as void where they were unmapped.  Under the lock. */
static void put_sources(struct vm *vm, struct move *move)
{
    while (move->sources) {
        struct rs_block *block = move->sources;
        move->sources = block->left;
        if (move->unmapped_sources > 0) {
            move->unmapped_sources--;
            put_void(vm, block);
        } else {
            put_free(vm, block);
        }
    }
}

/* Unmaps the sources; their granules are the move's then.  Without the lock. */
static CUresult unmap_sources(struct vm *vm, struct move *move)
{
    const struct rs_place *place = vm->place;
    CUresult result = CUDA_SUCCESS;

    if (move->sources && !place->frees_are_clean)
        result = rs_sentinel_wait(place->sentinel, place->context);
    for (struct rs_block *block = move->sources; block && result == CUDA_SUCCESS;
         block = block->left) {
        struct region *region = region_of(vm, block->address);
        CUmemGenericAllocationHandle *handles = handles_of(vm, region, block->address);
        result = rs_driver.cuMemUnmap(block->address, block->size_bytes);
        if (result != CUDA_SUCCESS)
            break;
        move->unmapped_sources++;
        for (size_t i = 0; i < block->size_bytes / vm->granule_bytes; i++) {
            move->handles[move->handle_count++] = handles[i];
            handles[i] = 0;
        }
    }
    return result;
}

/* Maps the move's granules into its gap.  Without the lock. */
static CUresult map_gap(struct vm *vm, struct move *move)
{
    CUdeviceptr address = move->gap->address;
    CUmemGenericAllocationHandle *handles = handles_of(vm, region_of(vm, address), address);
    size_t mapped_bytes = 0, count;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < move->handle_count && result == CUDA_SUCCESS; i++) {
        result =
            rs_driver.cuMemMap(address + mapped_bytes, vm->granule_bytes, 0, move->handles[i], 0);
        if (result == CUDA_SUCCESS)
            mapped_bytes += vm->granule_bytes;
    }
    if (result == CUDA_SUCCESS)
        result = set_access(vm, address, mapped_bytes);
    if (result != CUDA_SUCCESS && mapped_bytes > 0)
        move->gap_is_stuck = rs_driver.cuMemUnmap(address, mapped_bytes) != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS && !move->gap_is_stuck)
        return result;
    count = mapped_bytes / vm->granule_bytes;
    move->handle_count -= count;
    memcpy(handles, move->handles, count * sizeof(handles[0]));
    memmove(move->handles, move->handles + count, move->handle_count * sizeof(handles[0]));
    return result;
}

/* Creates what the move lacks; gives it back when not all of it can be had.  Without the lock. */
static CUresult create_granules(struct vm *vm, struct move *move)
{
    CUmemGenericAllocationHandle *handles = move->handles + move->handle_count;
    CUresult result = CUDA_SUCCESS;
    size_t count = 0;

    while (count < move->create_granules && result == CUDA_SUCCESS) {
        result = create_granule(vm, &handles[count]);
        count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        count = release_granules(vm, handles, count);
    move->created = count;
    move->handle_count += count;
    return result;
}

/* All driver calls of a growth, so ordered that what fails often fails before anything was moved.
 * Without the lock. */
static CUresult move_memory(struct vm *vm, struct move *move)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result = create_granules(vm, move);

    if (result == CUDA_SUCCESS)
        result = unmap_sources(vm, move);
    if (result == CUDA_SUCCESS)
        result = map_gap(vm, move);
    rs_capture_restore(mode);
    return result;
}

/* ---- holes; all under the lock ---- */

struct hole {
    struct rs_block *block; /* void */
    size_t gap_bytes;       /* of it that need memory */
    bool uses_low, uses_high;
};

/* What the request would take if it began in the free block below `block`, or there, and ended
 * there or in the free block above; kept when that is less than `best` takes. */
static void try_hole(const struct vm *vm, const struct rs_block_request *request,
                     struct rs_block *block, struct hole *best)
{
    struct hole hole = {.block = block};
    size_t low_bytes = 0, lead_bytes, rest_bytes;

    if (!block || !block->is_void)
        return;
    if (block->before && block->before->is_free) {
        lead_bytes = rs_lead_bytes(block->before->address, request->alignment);
        if (block->before->size_bytes > lead_bytes)
            low_bytes = block->before->size_bytes - lead_bytes;
    }
    hole.uses_low = low_bytes > 0;
    rest_bytes = request->rounded_bytes - rs_min(request->rounded_bytes - 1, low_bytes);
    if (!rs_round_up(rest_bytes, vm->granule_bytes, &hole.gap_bytes))
        return;
    if (hole.gap_bytes > block->size_bytes) {
        hole.uses_high = block->after && block->after->is_free &&
                         rest_bytes - block->size_bytes <= block->after->size_bytes;
        hole.gap_bytes = block->size_bytes;
        if (!hole.uses_high)
            return;
    }
    if (!best->block || hole.gap_bytes < best->gap_bytes)
        *best = hole;
}

/* Not the best of all holes, but of those that are found without a search: beside the largest free
 * block, the smallest that fits by itself, and the largest. */
static struct hole find_hole(const struct vm *vm, const struct rs_block_request *request)
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

/* ---- growth ---- */

static void end_call(struct vm *vm)
{
    vm->calls--;
    pthread_cond_broadcast(&vm->settled);
}

/* Makes the hole's blocks the move's.  A record must be in reserve. */
static void take_hole(struct vm *vm, const struct hole *hole, struct move *move)
{
    move->gap = hole->block;
    remove_void(vm, move->gap);
    move->gap->is_busy = true;
    if (move->gap->size_bytes > hole->gap_bytes)
        put_void(vm, rs_blocks_cut(&vm->blocks, move->gap, hole->gap_bytes));
    if (hole->uses_low) {
        move->low = move->gap->before;
        take_free(vm, move->low);
    }
    if (hole->uses_high) {
        move->high = move->gap->after;
        take_free(vm, move->high);
    }
}

/* Room among the spares for every granule there is and `more`. */
static bool reserve_spares(struct vm *vm, size_t more)
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

/* Finds the memory for a gap of that many granules: spares, what is free, and new. */
static CUresult gather(struct vm *vm, struct move *move, size_t granules, bool may_create)
{
    size_t spares = rs_min(vm->spare_count, granules);

    move->handles = malloc(granules * sizeof(move->handles[0]));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(move->records); i++)
        if (!(move->records[i] = rs_record_slab_take(&vm->blocks.records)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    if (!move->handles)
        return CUDA_ERROR_OUT_OF_MEMORY;
    collect_sources(vm, move, granules - spares);
    move->create_granules = granules - spares - move->source_granules;
    if (move->create_granules > 0 && !may_create)
        return CUDA_ERROR_NOT_READY;
    if (move->create_granules > vm->maximum_granules - vm->charged_granules ||
        !reserve_spares(vm, move->create_granules))
        return CUDA_ERROR_OUT_OF_MEMORY;
    vm->spare_count -= spares;
    memcpy(move->handles, vm->spares + vm->spare_count, spares * sizeof(move->handles[0]));
    move->handle_count = spares;
    return CUDA_SUCCESS;
}

/* The end of a move, or of one that was never begun: every block gets a state again. */
static void settle(struct vm *vm, struct move *move, bool has_moved)
{
    put_sources(vm, move);
    if (has_moved)
        put_free(vm, move->gap);
    else if (move->gap_is_stuck)
        vm->stuck_bytes += move->gap->size_bytes;
    else if (move->gap)
        put_void(vm, move->gap);
    if (move->low)
        put_free(vm, move->low);
    if (move->high)
        put_free(vm, move->high);
    for (size_t i = 0; i < move->handle_count; i++)
        vm->spares[vm->spare_count++] = move->handles[i];
    for (size_t i = 0; i < RS_ARRAY_LENGTH(move->records); i++)
        if (move->records[i])
            rs_record_slab_give(&vm->blocks.records, move->records[i]);
    free(move->handles);
}

/* Reserves more addresses; the lock is released meanwhile.  For the first time when the resource is
 * made; again only when live blocks are so scattered that no hole is left for a request. */
static CUresult add_region(struct vm *vm, size_t least_bytes)
{
    size_t size_bytes = rs_max(least_bytes, vm->reserve_bytes);
    size_t count = size_bytes / vm->granule_bytes;
    struct region *region = calloc(1, sizeof(*region) + count * sizeof(region->handles[0]));
    CUstreamCaptureMode mode;
    CUresult result;

    if (!region)
        return CUDA_ERROR_OUT_OF_MEMORY;
    region->size_bytes = size_bytes;
    vm->calls++;
    rs_mutex_unlock(&vm->lock);
    mode = rs_capture_relax();
    result = rs_driver.cuMemAddressReserve(&region->base, size_bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS && !rs_segment_add(vm->place, region->base, size_bytes)) {
        (void)rs_driver.cuMemAddressFree(region->base, size_bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    rs_capture_restore(mode);
    rs_mutex_lock(&vm->lock);
    end_call(vm);
    if (result != CUDA_SUCCESS) {
        free(region);
        return result;
    }
    region->first_block =
        (struct rs_block){.address = region->base, .size_bytes = region->size_bytes};
    region->next = atomic_load_explicit(&vm->regions, memory_order_relaxed);
    atomic_store_explicit(&vm->regions, region, memory_order_release);
    put_void(vm, &region->first_block);
    return CUDA_SUCCESS;
}

/* Makes a free block for the request.  The lock is held at entry and exit, not in between; on
 * success the block is there.  CUDA_ERROR_NOT_READY when that would need new memory and it may not
 * be created. */
static CUresult grow(struct vm *vm, const struct rs_block_request *request, bool may_create)
{
    struct move move = {.gap = NULL};
    size_t free_bytes, region_bytes, ahead_bytes;
    struct hole hole;
    CUresult result;

    if (vm->is_still && !may_create)
        return CUDA_ERROR_NOT_READY;
    while (vm->is_still)
        pthread_cond_wait(&vm->settled, &vm->lock.native);
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    free_bytes = vm->held_granules * vm->granule_bytes - vm->blocks.live_bytes;
    hole = find_hole(vm, request);
    if (!may_create && (!hole.block || hole.gap_bytes > free_bytes))
        return CUDA_ERROR_NOT_READY;
    if (!hole.block) {
        if (!rs_round_up(request->rounded_bytes, vm->granule_bytes, &region_bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = add_region(vm, region_bytes);
        if (result != CUDA_SUCCESS)
            return result;
        hole = find_hole(vm, request);
    }
    if (!hole.block || !rs_record_slab_reserve(&vm->blocks.records))
        return CUDA_ERROR_OUT_OF_MEMORY;
    take_hole(vm, &hole, &move);
    result = gather(vm, &move, hole.gap_bytes / vm->granule_bytes, may_create);
    if (result != CUDA_SUCCESS) {
        settle(vm, &move, false);
        return result;
    }
    ahead_bytes = hole.gap_bytes > request->rounded_bytes && vm->ahead_bytes == 0
                      ? hole.gap_bytes - request->rounded_bytes
                      : 0;
    vm->ahead_bytes += ahead_bytes;
    vm->charged_granules += move.create_granules;
    vm->calls++;
    rs_mutex_unlock(&vm->lock);
    result = move_memory(vm, &move);
    rs_mutex_lock(&vm->lock);
    end_call(vm);
    if (ahead_bytes > 0)
        vm->ahead_bytes = 0;
    vm->charged_granules -= move.create_granules - move.created;
    vm->held_granules += move.created;
    vm->peak_held_granules = rs_max(vm->peak_held_granules, vm->held_granules);
    vm->driver_allocations += move.created;
    vm->driver_refusals += move.created < move.create_granules;
    if (result == CUDA_SUCCESS)
        vm->moved_granules += move.source_granules;
    settle(vm, &move, result == CUDA_SUCCESS);
    return result;
}

/* ---- the end of the context ---- */

/* Unmaps and releases all memory of a region and gives its addresses back.  Errors mean that the
 * driver is gone, and the memory with it, or that it keeps what nobody can use. */
static void release_region(struct vm *vm, struct region *region)
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
        (void)release_granules(vm, &region->handles[i], end - i);
    }
    (void)rs_driver.cuMemAddressFree(region->base, region->size_bytes);
}

static void release_everything(struct vm *vm)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    for (struct region *region = atomic_load(&vm->regions); region; region = region->next)
        release_region(vm, region);
    (void)release_granules(vm, vm->spares, vm->spare_count);
    rs_capture_restore(mode);
}

/* Ends a turn with the lock.  When the context has ended, the last one whose driver calls were
 * under way releases what there is: nobody takes or moves memory any more. */
static void leave(struct vm *vm)
{
    bool last = vm->ended && vm->calls == 0 && !vm->released;

    vm->released = vm->released || last;
    rs_mutex_unlock(&vm->lock);
    if (last)
        release_everything(vm);
}

/* ---- the resource ---- */

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500, ROUNDS_MAX = 16 };

/* Waits for the end of another thread's driver calls, at most for a while: they may wait for the
 * GPU, and the GPU for this thread. */
static void wait_until_settled(struct vm *vm, long milliseconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&vm->settled, &vm->lock.native, &until);
}

/* True when another thread's growth will leave room for this request and was waited for. */
static bool waited_for_growth(struct vm *vm, const struct rs_block_request *request)
{
    if (vm->ahead_bytes < request->rounded_bytes)
        return false;
    vm->ahead_bytes -= request->rounded_bytes;
    wait_until_settled(vm, GROWTH_WAIT_MS);
    return true;
}

/* Not aligned is better than not at all. */
static bool take_at_last(struct vm *vm, struct rs_block_request *request, struct rs_allocation *out)
{
    if (!rs_record_slab_reserve(&vm->blocks.records))
        return false;
    if (rs_blocks_take(&vm->blocks, request, out))
        return true;
    request->any_alignment = true;
    return rs_blocks_take(&vm->blocks, request, out);
}

/* Finds a block, growing as needed.  The lock is held at entry and exit.  The rounds are bounded as
 * other threads could for ever take what became free. */
static CUresult allocate_locked(struct vm *vm, struct rs_block_request *request,
                                struct rs_allocation *out)
{
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        uint64_t changes = vm->changes;
        CUresult result;

        if (vm->ended)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (!rs_record_slab_reserve(&vm->blocks.records))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (rs_blocks_take(&vm->blocks, request, out))
            return CUDA_SUCCESS;
        if (round == 0 && waited_for_growth(vm, request))
            continue;
        result = grow(vm, request, true);
        if (vm->ended)
            continue;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
        /* After a failure too: others may have freed. */
        if (take_at_last(vm, request, out))
            return CUDA_SUCCESS;
        if (vm->changes != changes)
            continue;
        if (vm->calls == 0)
            break;
        wait_until_settled(vm, SETTLE_WAIT_MS);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The same, and once more when the device's other stacks gave back what they merely kept.  The lock
 * is held at entry and exit. */
static CUresult allocate_or_reclaim(struct vm *vm, struct rs_block_request *request,
                                    struct rs_allocation *out)
{
    CUresult result = allocate_locked(vm, request, out);
    size_t granules = (request->rounded_bytes - 1) / vm->granule_bytes + 1, returned;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !vm->place->reclaim ||
        granules > vm->maximum_granules - vm->charged_granules)
        return result; /* past its own maximum, which nobody else stands in the way of */
    rs_mutex_unlock(&vm->lock);
    returned = vm->place->reclaim(vm->place, request->rounded_bytes);
    rs_mutex_lock(&vm->lock);
    return returned > 0 ? allocate_locked(vm, request, out) : result;
}

static CUresult virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                 struct rs_allocation *out)
{
    struct vm *vm = vm_of(mr);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct rs_block_request request;
    bool is_a_size = rs_block_request_init(&request, size_bytes, RS_BLOCK_ALIGNMENT, false);

    (void)stream; /* blocks are retired: good for every stream (resource_reuse.c) */
    RS_ASSERT(size_bytes > 0);
    rs_mutex_lock(&vm->lock);
    if (is_a_size && (request.rounded_bytes - 1) / vm->granule_bytes < vm->maximum_granules)
        result = allocate_or_reclaim(vm, &request, out);
    vm->allocations += result == CUDA_SUCCESS;
    vm->failures += result != CUDA_SUCCESS;
    leave(vm);
    return result;
}

/* Also by moving what is free: that costs as much as new memory, and takes none. */
static CUresult virtual_allocate_held(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                      struct rs_allocation *out)
{
    struct vm *vm = vm_of(mr);
    CUresult result = CUDA_ERROR_NOT_READY;
    struct rs_block_request request;

    (void)stream;
    if (!rs_block_request_init(&request, size_bytes, RS_BLOCK_ALIGNMENT, false))
        return result;
    rs_mutex_lock(&vm->lock);
    if (!vm->ended && rs_record_slab_reserve(&vm->blocks.records) &&
        (rs_blocks_take(&vm->blocks, &request, out) ||
         (grow(vm, &request, false) == CUDA_SUCCESS && !vm->ended &&
          rs_record_slab_reserve(&vm->blocks.records) &&
          rs_blocks_take(&vm->blocks, &request, out)))) {
        result = CUDA_SUCCESS;
        vm->allocations++;
    }
    leave(vm);
    return result;
}

static CUresult virtual_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                   CUstream stream)
{
    struct vm *vm = vm_of(mr);
    struct rs_block *block = allocation->token;

    (void)stream;
    rs_mutex_lock(&vm->lock);
    RS_ASSERT(!block->is_free && block->address == allocation->address);
    if (!vm->ended)
        rs_blocks_give(&vm->blocks, block);
    vm->changes++;
    rs_mutex_unlock(&vm->lock);
    return CUDA_SUCCESS;
}

/* Leaves the move no more than that many granules; the others are free again.  False when it takes
 * a record that there is not. */
static bool limit_sources(struct vm *vm, struct move *move, size_t granules)
{
    while (move->source_granules > granules) {
        struct rs_block *block = move->sources;
        size_t surplus = move->source_granules - granules;
        size_t count = block->size_bytes / vm->granule_bytes;

        if (count > surplus) {
            if (!rs_record_slab_reserve(&vm->blocks.records))
                return false;
            put_free(vm, rs_blocks_cut(&vm->blocks, block, (count - surplus) * vm->granule_bytes));
            move->source_granules -= surplus;
            continue;
        }
        move->sources = block->left;
        move->source_granules -= count;
        put_free(vm, block);
    }
    return true;
}

/* Picks what a trim gives back: all that is free but keep_bytes and the initial size.  False when
 * that is nothing. */
static bool gather_surplus(struct vm *vm, struct move *move, size_t keep_bytes)
{
    size_t keep = keep_bytes / vm->granule_bytes + (keep_bytes % vm->granule_bytes != 0);
    size_t count, spares;

    collect_sources(vm, move, SIZE_MAX);
    count = move->source_granules + vm->spare_count;
    count -= rs_min(count, keep);
    count = rs_min(count, vm->held_granules - rs_min(vm->held_granules, vm->initial_granules));
    spares = rs_min(vm->spare_count, count);
    if (count == 0 || !limit_sources(vm, move, count - spares))
        return false;
    move->handles = malloc(count * sizeof(move->handles[0]));
    if (!move->handles)
        return false;
    vm->spare_count -= spares;
    memcpy(move->handles, vm->spares + vm->spare_count, spares * sizeof(move->handles[0]));
    move->handle_count = spares;
    return true;
}

/* The lock is held at entry and exit, not in between. */
static size_t trim(struct vm *vm, size_t keep_bytes)
{
    struct move move = {.gap = NULL};
    CUstreamCaptureMode mode;
    size_t released = 0;

    if (gather_surplus(vm, &move, keep_bytes)) {
        vm->calls++;
        rs_mutex_unlock(&vm->lock);
        mode = rs_capture_relax();
        (void)unmap_sources(vm, &move);
        released = move.handle_count;
        move.handle_count = release_granules(vm, move.handles, move.handle_count);
        released -= move.handle_count;
        rs_capture_restore(mode);
        rs_mutex_lock(&vm->lock);
        end_call(vm);
        vm->changes++;
    }
    vm->charged_granules -= released;
    vm->held_granules -= released;
    vm->driver_frees += released;
    settle(vm, &move, false);
    return released * vm->granule_bytes;
}

static size_t virtual_trim(struct rs_mr *mr, size_t keep_bytes)
{
    struct vm *vm = vm_of(mr);
    size_t released_bytes = 0;

    rs_mutex_lock(&vm->lock);
    if (!vm->ended && !vm->is_still)
        released_bytes = trim(vm, keep_bytes);
    leave(vm);
    return released_bytes;
}

/* Calls `visit` for each run of mapped granules, until one fails.  Nothing is mapped or unmapped
 * meanwhile. */
static CUresult each_mapped(const struct vm *vm,
                            CUresult (*visit)(const void *data, CUdeviceptr address,
                                              size_t size_bytes),
                            const void *data)
{
    CUresult result = CUDA_SUCCESS;

    for (struct region *region = atomic_load(&vm->regions); region; region = region->next) {
        size_t count = region->size_bytes / vm->granule_bytes, end;
        for (size_t i = 0; i < count && result == CUDA_SUCCESS; i = end) {
            for (end = i; end < count && region->handles[end]; end++)
                ;
            if (end > i)
                result = visit(data, region->base + i * vm->granule_bytes,
                               (end - i) * vm->granule_bytes);
            end += end == i;
        }
    }
    return result;
}

static CUresult set_peer_access(const void *data, CUdeviceptr address, size_t size_bytes)
{
    return rs_driver.cuMemSetAccess(address, size_bytes, data, 1);
}

/* Calls that are under way end first, and none begins meanwhile, so that no mapping is missed: one
 * made later follows place->peers. */
static CUresult virtual_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    struct vm *vm = vm_of(mr);
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
        .flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };
    CUresult result = CUDA_SUCCESS;

    rs_mutex_lock(&vm->lock);
    while (vm->is_still)
        pthread_cond_wait(&vm->settled, &vm->lock.native);
    vm->is_still = true;
    while (vm->calls > 0)
        pthread_cond_wait(&vm->settled, &vm->lock.native);
    if (!vm->ended) {
        vm->calls++; /* the end of the context waits */
        rs_mutex_unlock(&vm->lock);
        result = each_mapped(vm, set_peer_access, &access);
        rs_mutex_lock(&vm->lock);
        vm->calls--;
    }
    vm->is_still = false;
    pthread_cond_broadcast(&vm->settled);
    leave(vm);
    return result;
}

static size_t idle_bytes(const struct vm *vm)
{
    return vm->held_granules * vm->granule_bytes - vm->blocks.live_bytes;
}

static size_t virtual_idle_bytes(struct rs_mr *mr)
{
    struct vm *vm = vm_of(mr);
    size_t bytes;

    rs_mutex_lock(&vm->lock);
    bytes = idle_bytes(vm);
    rs_mutex_unlock(&vm->lock);
    return bytes;
}

/* Addresses without memory behind them are not counted unless others are in the same block. */
static size_t virtual_free_blocks(struct rs_mr *mr)
{
    struct vm *vm = vm_of(mr);
    size_t blocks;

    rs_mutex_lock(&vm->lock);
    blocks = idle_bytes(vm) > 0 ? vm->blocks.free_block_count : 0;
    rs_mutex_unlock(&vm->lock);
    return blocks;
}

static void virtual_report(struct rs_mr *mr, struct rs_report *report)
{
    struct vm *vm = vm_of(mr);
    const char *name = mr->descriptor->name;
    size_t reserved_bytes = 0;

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    rs_mutex_lock(&vm->lock);
    for (struct region *region = atomic_load(&vm->regions); region; region = region->next)
        reserved_bytes += region->size_bytes;
    ADD("reserved", LIVE, BYTES, reserved_bytes);
    ADD("held", LIVE, BYTES, vm->held_granules * vm->granule_bytes);
    ADD("held_peak", PEAK, BYTES, vm->peak_held_granules * vm->granule_bytes);
    ADD("live", LIVE, BYTES, vm->blocks.live_bytes);
    ADD("live_peak", PEAK, BYTES, vm->blocks.peak_live_bytes);
    ADD("free", LIVE, BYTES, idle_bytes(vm));
    ADD("largest_free", PEAK, BYTES, rs_blocks_largest_free_bytes(&vm->blocks));
    ADD("moved", TOTAL, BYTES, vm->moved_granules * vm->granule_bytes);
    ADD("driver_allocations", TOTAL, COUNT, vm->driver_allocations);
    ADD("driver_frees", TOTAL, COUNT, vm->driver_frees);
    ADD("driver_refusals", TOTAL, COUNT, vm->driver_refusals);
    ADD("allocations", TOTAL, COUNT, vm->allocations);
    ADD("failures", TOTAL, COUNT, vm->failures);
    rs_mutex_unlock(&vm->lock);
#undef ADD
}

struct sums {
    size_t live_bytes, busy_bytes, free_blocks, void_blocks, granules;
};

/* True when all granules of a block are mapped, or none; those that begin in it are counted. */
static bool block_memory_check(const struct vm *vm, struct region *region,
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

/* One reservation from end to end: no gap, no overlap, no two blocks side by side that should be
 * one. */
static bool region_check(const struct vm *vm, struct region *region, struct sums *sums)
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

static bool check_locked(const struct vm *vm)
{
    struct sums sums = {0};
    size_t free_blocks, void_blocks;

    for (struct region *region = atomic_load(&vm->regions); region; region = region->next)
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

static bool virtual_check(struct rs_mr *mr)
{
    struct vm *vm = vm_of(mr);
    bool good;

    rs_mutex_lock(&vm->lock);
    good = vm->ended || check_locked(vm);
    rs_mutex_unlock(&vm->lock);
    return good;
}

static void virtual_context_ended(struct rs_mr *mr)
{
    struct vm *vm = vm_of(mr);

    rs_mutex_lock(&vm->lock);
    vm->ended = true;
    leave(vm);
}

static void virtual_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct vm *vm = vm_of(mr);
    struct region *region = atomic_load(&vm->regions), *next;

    if (!memory_is_gone && !vm->released)
        release_everything(vm);
    for (; region; region = next) {
        next = region->next;
        free(region);
    }
    free(vm->spares);
    rs_record_slab_destroy(&vm->blocks.records);
    pthread_cond_destroy(&vm->settled);
    rs_mutex_destroy(&vm->lock);
    free(vm);
}

/* ---- creation ---- */

/* Takes the initial size, or what there is of it: less than asked for is worth a line but no error,
 * as the device may be shared, and memory is added on demand. */
static CUresult take_initial(struct vm *vm, size_t initial_bytes)
{
    char asked[RS_SIZE_TEXT_BYTES], got[RS_SIZE_TEXT_BYTES];
    size_t ask_bytes = vm->initial_granules * vm->granule_bytes;
    size_t free_bytes = rs_round_down(vm->place->free_bytes, vm->granule_bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    while (ask_bytes > 0 && result == CUDA_ERROR_OUT_OF_MEMORY) {
        struct rs_block_request request;
        (void)rs_block_request_init(&request, ask_bytes, RS_BLOCK_ALIGNMENT, false);
        result = grow(vm, &request, true);
        /* What was free is nearer to the wish than its half. */
        ask_bytes = rs_max(rs_round_down(ask_bytes / 2, vm->granule_bytes),
                           free_bytes < ask_bytes ? free_bytes : 0);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (vm->held_granules < vm->initial_granules)
        rs_log("virtual: %s asked for, %s are free: starting with that, growing on demand",
               rs_size_format(initial_bytes, asked),
               rs_size_format(vm->held_granules * vm->granule_bytes, got));
    return CUDA_SUCCESS;
}

static CUmemAllocationProp properties_of(const struct rs_place *place)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = place->device},
    };
    int capable = 0;

    /* As cudaMalloc's memory is. */
    if (rs_driver.cuDeviceGetAttribute(&capable,
                                       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                       place->device) == CUDA_SUCCESS &&
        capable)
        properties.allocFlags.gpuDirectRDMACapable = 1;
    return properties;
}

static void init_locks(struct vm *vm)
{
    pthread_condattr_t monotonic;

    rs_mutex_init(&vm->lock);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&vm->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static const struct rs_mr_ops virtual_ops = {
    .allocate = virtual_allocate,
    .allocate_held = virtual_allocate_held,
    .deallocate = virtual_deallocate,
    .destroy = virtual_destroy,
    .context_ended = virtual_context_ended,
    .access_changed = virtual_access_changed,
    .trim = virtual_trim,
    .idle_bytes = virtual_idle_bytes,
    .free_blocks = virtual_free_blocks,
    .report = virtual_report,
    .check = virtual_check,
};

static void init_sizes(struct vm *vm, const struct virtual_config *settings)
{
    size_t maximum_bytes = rs_min(settings->maximum_size, vm->place->total_bytes);
    size_t reserve_bytes;

    vm->granule_bytes = settings->granularity;
    vm->initial_granules = (settings->initial_size + vm->granule_bytes - 1) / vm->granule_bytes;
    vm->maximum_granules = maximum_bytes / vm->granule_bytes;
    vm->initial_granules = rs_min(vm->initial_granules, vm->maximum_granules);
    if (__builtin_mul_overflow(vm->place->total_bytes, (size_t)settings->reserve, &reserve_bytes))
        reserve_bytes = vm->place->total_bytes;
    vm->reserve_bytes = rs_round_down(reserve_bytes, vm->granule_bytes);
    vm->reserve_bytes = rs_max(vm->reserve_bytes, vm->granule_bytes);
}

static int error_of(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

static int virtual_create(const struct rs_place *place, const void *config,
                          struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct virtual_config *settings = config;
    struct vm *vm = calloc(1, sizeof(*vm));
    CUresult result;

    if (!vm)
        return -ENOMEM;
    rs_mr_init(&vm->base, &virtual_ops, &rs_mr_descriptor_virtual, upstream);
    init_locks(vm);
    vm->place = place;
    vm->properties = properties_of(place);
    init_sizes(vm, settings);
    rs_mutex_lock(&vm->lock);
    result = add_region(vm, vm->granule_bytes);
    if (result == CUDA_SUCCESS && vm->initial_granules > 0 && place->first_on_device)
        result = take_initial(vm, settings->initial_size);
    rs_mutex_unlock(&vm->lock);
    if (result != CUDA_SUCCESS) {
        virtual_destroy(&vm->base, false);
        return error_of(result);
    }
    *out = &vm->base;
    return 0;
}

static bool is_supported(CUdevice device)
{
    int supported = 0;

    return rs_driver.cuMemAddressReserve && rs_driver.cuMemAddressFree && rs_driver.cuMemCreate &&
           rs_driver.cuMemRelease && rs_driver.cuMemMap && rs_driver.cuMemUnmap &&
           rs_driver.cuMemSetAccess && rs_driver.cuMemGetAllocationGranularity &&
           rs_driver.cuDeviceGetAttribute &&
           rs_driver.cuDeviceGetAttribute(&supported,
                                          CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          device) == CUDA_SUCCESS &&
           supported;
}

/* What only the device knows. */
static bool validate_at(const struct virtual_config *settings, const struct rs_place *place,
                        const struct rs_source *source, struct rs_complaints *complaints)
{
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];
    CUmemAllocationProp properties;
    size_t granularity = 0;

    if (!is_supported(place->device)) {
        rs_complain(complaints, source, NULL,
                    "'virtual' needs virtual memory management, which device %d or its driver "
                    "does not have",
                    (int)place->device);
        return false;
    }
    properties = properties_of(place);
    if (rs_driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
        granularity > 0 && settings->granularity % granularity != 0) {
        rs_complain(complaints, source, NULL,
                    "the granularity %s is not a multiple of the device's own, %s",
                    rs_size_format(settings->granularity, first),
                    rs_size_format(granularity, second));
        return false;
    }
    if (place->total_bytes && settings->granularity > place->total_bytes) {
        rs_complain(complaints, source, NULL,
                    "the granularity %s is larger than the device's memory of %s",
                    rs_size_format(settings->granularity, first),
                    rs_size_format_short(place->total_bytes, second));
        return false;
    }
    if (place->total_bytes && settings->initial_size > place->total_bytes) {
        rs_complain(complaints, source, NULL,
                    "the initial size %s is larger than the device's memory of %s",
                    rs_size_format(settings->initial_size, first),
                    rs_size_format_short(place->total_bytes, second));
        return false;
    }
    return true;
}

static bool virtual_validate(const void *config, const struct rs_place *place,
                             const struct rs_source *source, struct rs_complaints *complaints)
{
    const struct virtual_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    if (!rs_is_power_of_two(settings->granularity)) {
        rs_complain(complaints, source, NULL, "the granularity %s is not a power of two",
                    rs_size_format(settings->granularity, first));
        return false;
    }
    if (settings->maximum_size < settings->initial_size) {
        rs_complain(complaints, source, NULL, "the maximum size %s is below the initial size %s",
                    rs_size_format(settings->maximum_size, first),
                    rs_size_format(settings->initial_size, second));
        return false;
    }
    if (settings->maximum_size < settings->granularity) {
        rs_complain(complaints, source, NULL, "the maximum size %s is below the granularity %s",
                    rs_size_format(settings->maximum_size, first),
                    rs_size_format(settings->granularity, second));
        return false;
    }
    return !place || validate_at(settings, place, source, complaints);
}

/* The driver's calls cost about the same for 2 MiB as for 64 MiB (some 60 us for creating, mapping
 * and access, 30 for the way back: cuda-measured.md), so that small granules make growth and moves
 * slow, and large ones only leave more unused behind the last block. */
static const struct rs_option virtual_options[] = {
    RS_OPTION_SIZE_ROW(struct virtual_config, granularity, "32MiB",
                       "physical memory comes and moves in pieces of this size, a power of two",
                       .minimum = RS_DRIVER_GRANULARITY, .maximum = (uint64_t)1 << 34),
    RS_OPTION_SIZE_ROW(struct virtual_config, initial_size, "0",
                       "taken at the first allocation; stays when memory is trimmed",
                       .multiple_of = 256, .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_SIZE_ROW(struct virtual_config, maximum_size, "none",
                       "most bytes of physical memory, in whole pieces", .multiple_of = 256,
                       .none = true, .aliases = {{"maximum_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_COUNT_ROW(struct virtual_config, reserve, "4",
                        "addresses reserved at a time, as a multiple of the device's memory",
                        .minimum = 1, .maximum = 64),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_virtual = {
    .name = "virtual",
    .summary = "device memory mapped behind reserved addresses: free memory is moved to where a "
               "request needs it",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_AT_ONCE,
    .dies_with_context = false,
    .config_bytes = sizeof(struct virtual_config),
    .options = virtual_options,
    .validate = virtual_validate,
    .create = virtual_create,
};
