/* SPDX-License-Identifier: Apache-2.0 */
/* Moves: physical memory leaves free blocks for other addresses, or goes back to the driver.
 *
 * A move unmaps addresses, so no work may use them any more.  `reuse` above guarantees that for
 * free blocks.  Without it, a move is possible only when all work of the context is done.  The wait
 * for that is very short (ask_whether_idle), since the work may wait for this very thread. */
#include "driver/driver.h"
#include "driver/fence.h"
#include "resource/segment.h"
#include "resource/virtual/virtual.h"

#include <stdlib.h>
#include <string.h>

/* Returns where the handle of the granule at `address` is stored. */
static CUmemGenericAllocationHandle *
handles_of(const struct rs_virtual *vm, struct rs_virtual_region *region, CUdeviceptr address)
{
    return &region->handles[(address - region->base) / vm->granule_bytes];
}

/* ---- driver calls; without the lock ---- */

enum { PEERS_MAX = 64 /* the number of bits of environment->peers */ };

/* Lets the device itself, and the peers allowed so far, use new memory. */
static CUresult give_access(const struct rs_virtual *vm, CUdeviceptr address, size_t size_bytes)
{
    CUmemAccessDesc access[1 + PEERS_MAX] = {
        {vm->properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    size_t count = 1;

    for (uint64_t peers = rs_environment_peers(vm->base.environment); peers; peers &= peers - 1) {
        access[count] = access[0];
        access[count++].location.id = __builtin_ctzll(peers);
    }
    return rs_driver.cuMemSetAccess(address, size_bytes, access, count);
}

/* Creates one granule, and charges it to the account (rs_account_take).  It does not count as taken
 * until create_granules has all granules of the move, since until then it may have to go back. */
static CUresult create_granule(const struct rs_virtual *vm, CUmemGenericAllocationHandle *handle)
{
    struct rs_account *account = vm->base.environment->account;
    CUresult result;

    if (!rs_account_take(account, vm->granule_bytes, vm->granule_bytes, RS_MEMORY_DEVICE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_driver.cuMemCreate(handle, vm->granule_bytes, &vm->properties, 0);
    if (result != CUDA_SUCCESS)
        rs_account_untake(account, vm->granule_bytes, vm->granule_bytes, RS_MEMORY_DEVICE);
    return result;
}

/* Gives unmapped granules back to the driver.  The granules that the driver refuses are moved to
 * the beginning of `handles`; returns their number.  account: the account to credit; NULL after it
 * has ended with its context. */
static size_t release_granules(const struct rs_virtual *vm, struct rs_account *account,
                               CUmemGenericAllocationHandle *handles, size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (rs_driver.cuMemRelease(handles[i]) == CUDA_SUCCESS)
            rs_account_give(account, vm->granule_bytes, vm->granule_bytes, RS_MEMORY_DEVICE);
        else
            handles[kept++] = handles[i];
    }
    return kept;
}

/* ---- sources; the caller holds the lock ---- */

void rs_virtual_take_spares(struct rs_virtual *vm, struct rs_virtual_move *move, size_t count)
{
    RS_ASSERT(count <= vm->spare_count && move->handle_count == 0);
    vm->spare_count -= count;
    memcpy(move->handles, vm->spares + vm->spare_count, count * sizeof(move->handles[0]));
    move->handle_count = count;
}

void rs_virtual_collect_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t wanted)
{
    struct rs_blocks *blocks = &vm->blocks;
    size_t granule_bytes = vm->granule_bytes;
    struct rs_block *block, *without = NULL;

    while (move->source_granules < wanted && rs_record_slab_reserve(&blocks->records) &&
           (block = rs_block_index_largest(&blocks->free_blocks[RS_BLOCKS_COMMON])) &&
           block->size_bytes >= granule_bytes) {
        CUdeviceptr base = rs_virtual_region_of(vm, block->address)->base;
        size_t lead_bytes = (size_t)(-(block->address - base) & (granule_bytes - 1));
        size_t whole_bytes, lacking = wanted - move->source_granules;

        rs_virtual_take_free(vm, block);
        if (block->size_bytes - lead_bytes < granule_bytes) {
            /* This block covers no whole granule.  A smaller block may, as it begins elsewhere. */
            block->left = without;
            without = block;
            continue;
        }
        if (lead_bytes > 0) {
            struct rs_block *lead = block;
            block = rs_blocks_cut(blocks, lead, lead_bytes);
            block->is_busy = true;
            rs_virtual_put_free(vm, lead);
        }
        whole_bytes = rs_round_down(block->size_bytes, granule_bytes);
        if (whole_bytes / granule_bytes > lacking)
            whole_bytes = lacking * granule_bytes;
        if (block->size_bytes > whole_bytes)
            rs_virtual_put_free(vm, rs_blocks_cut(blocks, block, whole_bytes));
        block->left = move->sources;
        move->sources = block;
        move->source_granules += whole_bytes / granule_bytes;
    }
    while (without) {
        block = without;
        without = block->left;
        rs_virtual_put_free(vm, block);
    }
}

/* Ends the use of the sources: those that were unmapped become void, the others free again. */
static void put_sources(struct rs_virtual *vm, struct rs_virtual_move *move)
{
    while (move->sources) {
        struct rs_block *block = move->sources;
        move->sources = block->left;
        if (move->unmapped_sources > 0) {
            move->unmapped_sources--;
            rs_virtual_put_void(vm, block);
        } else {
            rs_virtual_put_free(vm, block);
        }
    }
    RS_ASSERT(move->unmapped_sources == 0);
}

/* ---- the steps of a move; without the lock ---- */

/* Waits at most 0.5 ms for all work that the context was given so far.  Returns CUDA_SUCCESS when
 * it is done, CUDA_ERROR_NOT_READY when not, and CUDA_ERROR_NOT_SUPPORTED when that cannot be known
 * or the work has failed. */
static CUresult ask_whether_idle(CUcontext context)
{
    enum { IDLE_NS = 500 * 1000 };
    enum rs_fence_state state = rs_context_idle(context, IDLE_NS);

    return state == RS_FENCE_DONE      ? CUDA_SUCCESS
           : state == RS_FENCE_PENDING ? CUDA_ERROR_NOT_READY
                                       : CUDA_ERROR_NOT_SUPPORTED;
}

/* Unmaps the sources, whose granules then belong to the move.  Returns CUDA_ERROR_NOT_READY when
 * work may still use the sources, and CUDA_ERROR_NOT_SUPPORTED when that cannot be known; then they
 * stay mapped.  No new work can use them meanwhile, since they are busy. */
static CUresult unmap_sources(struct rs_virtual *vm, struct rs_virtual_move *move)
{
    const struct rs_environment *environment = vm->base.environment;
    CUresult result = CUDA_SUCCESS;

    if (move->sources && !environment->frees_are_ready)
        result = ask_whether_idle(environment->context);
    for (struct rs_block *block = move->sources; block && result == CUDA_SUCCESS;
         block = block->left) {
        struct rs_virtual_region *region = rs_virtual_region_of(vm, block->address);
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

/* Maps the move's granules into its gap.  Called without the lock. */
static CUresult map_gap(struct rs_virtual *vm, struct rs_virtual_move *move)
{
    CUdeviceptr address = move->gap->address;
    CUmemGenericAllocationHandle *handles =
        handles_of(vm, rs_virtual_region_of(vm, address), address);
    size_t mapped_bytes = 0, count;
    CUresult result = CUDA_SUCCESS;

    RS_ASSERT(move->gap->is_busy);
    RS_ASSERT(move->handle_count * vm->granule_bytes == move->gap->size_bytes);
    for (size_t i = 0; i < move->handle_count && result == CUDA_SUCCESS; i++) {
        result =
            rs_driver.cuMemMap(address + mapped_bytes, vm->granule_bytes, 0, move->handles[i], 0);
        if (result == CUDA_SUCCESS)
            mapped_bytes += vm->granule_bytes;
    }
    if (result == CUDA_SUCCESS)
        result = give_access(vm, address, mapped_bytes);
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

/* Creates the granules that the move lacks.  If the driver refuses one, gives the others back.
 * Called without the lock. */
static CUresult create_granules(struct rs_virtual *vm, struct rs_virtual_move *move)
{
    CUmemGenericAllocationHandle *handles = move->handles + move->handle_count;
    CUresult result = CUDA_SUCCESS;
    size_t count = 0, asked_bytes;

    while (count < move->create_granules && result == CUDA_SUCCESS) {
        result = create_granule(vm, &handles[count]);
        count += result == CUDA_SUCCESS;
    }
    asked_bytes = count * vm->granule_bytes;
    if (result != CUDA_SUCCESS)
        count = release_granules(vm, vm->base.environment->account, handles, count);
    rs_account_settle(vm->base.environment->account, (struct rs_amount){.asked_bytes = asked_bytes},
                      (struct rs_amount){.asked_bytes = 0}, RS_MEMORY_DEVICE);
    move->created = count;
    move->handle_count += count;
    return result;
}

/* Gives the created granules back after the driver has refused to map them for lack of memory.  In
 * move->handles they follow the first `before` ones.  If they became spares, each reclaim would
 * give them back, and so the request would be repeated for ever. */
static void release_created(struct rs_virtual *vm, struct rs_virtual_move *move, size_t before)
{
    CUmemGenericAllocationHandle *created = move->handles + before;
    size_t after = move->handle_count - before - move->created;
    size_t kept = release_granules(vm, vm->base.environment->account, created, move->created);

    memmove(created + kept, created + move->created, after * sizeof(created[0]));
    move->handle_count -= move->created - kept;
    move->created = kept;
}

/* Does first what fails most often, so that a failure leaves the memory where it was. */
CUresult rs_virtual_move_memory(struct rs_virtual *vm, struct rs_virtual_move *move)
{
    size_t before = move->handle_count;
    CUresult result = create_granules(vm, move);

    if (result == CUDA_SUCCESS)
        result = unmap_sources(vm, move);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_gap(vm, move);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !move->gap_is_stuck)
        release_created(vm, move, before);
    return result;
}

/* ---- stuck blocks ---- */

/* Returns how many bytes at the beginning of a stuck block are mapped. */
static size_t stuck_mapped_bytes(const struct rs_virtual *vm, const struct rs_block *block,
                                 const CUmemGenericAllocationHandle *handles)
{
    size_t bytes = 0;

    while (bytes < block->size_bytes && handles[bytes / vm->granule_bytes])
        bytes += vm->granule_bytes;
    return bytes;
}

/* Adds a block to the stuck ones.  The caller holds the lock. */
static void put_stuck(struct rs_virtual *vm, struct rs_block *block)
{
    RS_ASSERT(block->is_busy);
    block->left = vm->stuck;
    vm->stuck = block;
    vm->stuck_bytes += block->size_bytes;
}

/* Called when a stuck block has been unmapped: makes it void, and its granules spares.  The caller
 * holds the lock. */
static void put_loosened(struct rs_virtual *vm, struct rs_block *block,
                         CUmemGenericAllocationHandle *handles, size_t count)
{
    RS_ASSERT(vm->spare_count + count <= vm->spare_room);
    memcpy(vm->spares + vm->spare_count, handles, count * sizeof(handles[0]));
    vm->spare_count += count;
    memset(handles, 0, count * sizeof(handles[0]));
    rs_virtual_put_void(vm, block);
}

static void loosen_one(struct rs_virtual *vm, struct rs_block *block)
{
    CUmemGenericAllocationHandle *handles =
        handles_of(vm, rs_virtual_region_of(vm, block->address), block->address);
    size_t mapped_bytes = stuck_mapped_bytes(vm, block, handles);
    CUstreamCaptureMode mode;
    CUresult result;

    mode = rs_virtual_begin_calls(vm);
    result = rs_driver.cuMemUnmap(block->address, mapped_bytes);
    rs_virtual_end_calls(vm, mode);
    if (result == CUDA_SUCCESS)
        put_loosened(vm, block, handles, mapped_bytes / vm->granule_bytes);
    else
        put_stuck(vm, block);
}

void rs_virtual_loosen(struct rs_virtual *vm)
{
    size_t count = 0;

    for (const struct rs_block *block = vm->stuck; block; block = block->left)
        count++;
    for (; count > 0 && vm->stuck && !vm->ended && !vm->is_still; count--) {
        struct rs_block *block = vm->stuck;
        vm->stuck = block->left;
        RS_ASSERT(vm->stuck_bytes >= block->size_bytes);
        vm->stuck_bytes -= block->size_bytes;
        loosen_one(vm, block);
    }
}

/* ---- the end of a move ---- */

CUstreamCaptureMode rs_virtual_begin_calls(struct rs_virtual *vm)
{
    vm->calls++;
    vm->begun++;
    rs_mutex_unlock(&vm->base.lock);
    return rs_capture_relax();
}

void rs_virtual_end_calls(struct rs_virtual *vm, CUstreamCaptureMode mode)
{
    rs_capture_restore(mode);
    rs_mutex_lock(&vm->base.lock);
    RS_ASSERT(vm->calls > 0);
    vm->calls--;
    pthread_cond_broadcast(&vm->settled);
}

void rs_virtual_settle(struct rs_virtual *vm, struct rs_virtual_move *move, bool has_moved)
{
    RS_ASSERT(!has_moved || move->handle_count == 0);
    RS_ASSERT(vm->spare_count + move->handle_count <= vm->spare_room);
    put_sources(vm, move);
    if (has_moved)
        rs_virtual_put_free(vm, move->gap);
    else if (move->gap_is_stuck)
        put_stuck(vm, move->gap);
    else if (move->gap)
        rs_virtual_put_void(vm, move->gap);
    if (move->low)
        rs_virtual_put_free(vm, move->low);
    if (move->high)
        rs_virtual_put_free(vm, move->high);
    for (size_t i = 0; i < move->handle_count; i++)
        vm->spares[vm->spare_count++] = move->handles[i];
    free(move->handles);
}

/* ---- memory goes back to the driver: free memory at a trim, and all memory after the context's
 * end, which addresses and granules outlive (MEASURED.md).  These driver calls need no current
 * context. ---- */

/* Picks the granules that a trim gives back: all free ones, except for keep_bytes and
 * (keep_initial) the initial size.  First collects all free granules to count them, and puts them
 * back.  Then collects as many as go back.  Returns false when there are none, or no host memory.
 */
static bool gather_surplus(struct rs_virtual *vm, struct rs_virtual_move *move, size_t keep_bytes,
                           bool keep_initial)
{
    size_t least = keep_initial ? rs_min(vm->held_granules, vm->initial_granules) : 0;
    size_t keep = keep_bytes / vm->granule_bytes + (keep_bytes % vm->granule_bytes != 0);
    size_t count, spares;

    rs_virtual_collect_sources(vm, move, SIZE_MAX);
    count = move->source_granules + vm->spare_count;
    count -= rs_min(count, keep);
    count = rs_min(count, vm->held_granules - least);
    spares = rs_min(vm->spare_count, count);
    put_sources(vm, move);
    move->source_granules = 0;
    rs_virtual_collect_sources(vm, move, count - spares);
    count = move->source_granules + spares;
    if (count == 0)
        return false;
    move->handles = malloc(count * sizeof(move->handles[0]));
    if (!move->handles)
        return false;
    rs_virtual_take_spares(vm, move, spares);
    return true;
}

size_t rs_virtual_trim(struct rs_virtual *vm, size_t keep_bytes, bool keep_initial)
{
    struct rs_virtual_move move = {.gap = NULL};
    CUstreamCaptureMode mode;
    size_t released = 0, in_hand_bytes = 0;

    if (gather_surplus(vm, &move, keep_bytes, keep_initial)) {
        in_hand_bytes = (move.source_granules + move.handle_count) * vm->granule_bytes;
        rs_account_begin_return(vm->base.environment->account, in_hand_bytes);
        mode = rs_virtual_begin_calls(vm);
        (void)unmap_sources(vm, &move);
        released = move.handle_count;
        move.handle_count =
            release_granules(vm, vm->base.environment->account, move.handles, move.handle_count);
        released -= move.handle_count;
        rs_virtual_end_calls(vm, mode);
    }
    RS_ASSERT(released <= vm->held_granules && vm->held_granules <= vm->charged_granules);
    vm->charged_granules -= released;
    rs_counter_subtract(&vm->held_granules, released);
    vm->driver_frees += released;
    rs_virtual_settle(vm, &move, false);
    rs_account_end_return(vm->base.environment->account, in_hand_bytes);
    return released * vm->granule_bytes;
}

/* Unmaps a run of mapped granules and gives them back.  Unmapped granules that the driver refuses
 * become spares, so that no granule is unmapped twice.  Returns false when the driver refuses to
 * unmap the run. */
static bool release_run(struct rs_virtual *vm, struct rs_account *account, CUdeviceptr address,
                        CUmemGenericAllocationHandle *handles, size_t count)
{
    size_t kept;

    if (rs_driver.cuMemUnmap(address, count * vm->granule_bytes) != CUDA_SUCCESS)
        return false;
    kept = release_granules(vm, account, handles, count);
    memcpy(vm->spares + vm->spare_count, handles, kept * sizeof(handles[0]));
    vm->spare_count += kept;
    memset(handles, 0, count * sizeof(handles[0]));
    return true;
}

/* Gives all memory of a region back, and then its addresses.  Returns false when the driver has
 * refused any of it. */
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

/* Gives all regions and spares back.  Returns true when none is left. */
static bool release_all(struct rs_virtual *vm, struct rs_account *account)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    bool all = true;

    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        all = release_region(vm, account, region) && all;
    vm->spare_count = release_granules(vm, account, vm->spares, vm->spare_count);
    rs_capture_restore(mode);
    return all && vm->spare_count == 0;
}

/* Credits no account: the bytes left the account when the context ended (rs_account_lose). */
bool rs_virtual_finish(struct rs_mr *mr)
{
    return release_all(RS_MR_AS(rs_virtual, mr), NULL);
}

void rs_virtual_release_everything(struct rs_virtual *vm)
{
    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        rs_segment_remove(vm->base.environment, region->base);
    if (!release_all(vm, vm->base.environment->account))
        rs_mr_add_unfinished(&vm->base);
}
