/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/import.h"

#include "base/address_map.h"
#include "base/check.h"
#include "base/lock.h"
#include "base/process.h"
#include "context/context.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "ipc/exporter.h"
#include "ipc/fetch.h"
#include "ipc/proof.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A driver allocation of another process, opened once in a context for all blocks inside; or the
 * memory around one block that was fetched. */
struct segment {
    bool is_fetched;
    CUipcMemHandle native; /* of an allocation */
    struct rs_fetched fetched;
    CUcontext context;
    /* Owns the context's memory; forget_ended runs before this record is recycled. */
    struct rs_context *owner;
    struct rs_proof proof; /* of the allocation, or of the context */
    CUdeviceptr base;
    size_t size_bytes;
    unsigned uses;
    struct segment *next;
};

struct opened {
    CUipcMemHandle handle;
    struct rs_exporter *exporter;
    struct segment *segment;
    uint32_t slot;
    CUdeviceptr address;
    size_t size_bytes;
    unsigned count;
    struct opened *next;
};

/* An address that the program opened by a handle of the driver's own.  A block of ours may begin at
 * the same address: the allocation was one block when that handle was made, and has been cut since.
 */
struct native {
    CUdeviceptr address;
    struct rs_proof proof;
    unsigned count;
    struct native *next;
};

static struct rs_mutex lock =
    RS_MUTEX_INIT(RS_RANK_RECORDS); /* protects the lists; no call under it waits */
static struct segment *segments;
static struct segment *dropped; /* pieces that nobody has open any more, still mapped */
static struct opened *blocks;
static struct native *natives;
static struct fetching *fetchings;

/* Copies of the lists for rs_import_find, which takes no lock. */
static _Atomic(struct rs_address_map *) block_map, segment_map;

static struct rs_address_map *map_or_create(_Atomic(struct rs_address_map *) *map)
{
    struct rs_address_map *made = atomic_load_explicit(map, memory_order_acquire);

    if (!made) {
        made = rs_address_map_create();
        atomic_store_explicit(map, made, memory_order_release);
    }
    return made;
}

/* A slot whose memory a thread fetches, without the lock; the slot's lock in the exporter's file
 * must stay meanwhile. */
struct fetching {
    struct rs_exporter *exporter;
    uint32_t slot;
    struct fetching *next;
};

/* One call of cuIpcOpenMemHandle. */
struct opening {
    CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned);
    unsigned flags;
    CUcontext context;
    struct rs_context *owner;
    const CUipcMemHandle *given;
    struct rs_ipc_handle handle; /* `given`, decoded */
};

/* ---- segments; the caller holds the lock ---- */

static struct segment *find_segment(const CUipcMemHandle *native, CUcontext context)
{
    struct segment *segment = segments;

    RS_ASSERT_HELD(&lock);
    while (segment && (segment->is_fetched || segment->context != context ||
                       memcmp(&segment->native, native, sizeof(*native)) != 0))
        segment = segment->next;
    return segment;
}

/* Removes a range from a map.  Where another record begins at the same address (the same memory,
 * opened in another context), the map gets that one instead. */
static void forget_range(_Atomic(struct rs_address_map *) *map, CUdeviceptr start, void *owner,
                         void *other, size_t other_bytes)
{
    if (!other || !rs_address_map_insert(atomic_load(map), start, other_bytes, other))
        (void)rs_address_map_remove(atomic_load(map), start, owner);
}

static void unlink_segment(struct segment *segment)
{
    struct segment **link = &segments, *other;

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(segment->uses == 0);
    while (*link != segment)
        link = &(*link)->next;
    *link = segment->next;
    for (other = segments; other && other->base != segment->base;)
        other = other->next;
    forget_range(&segment_map, segment->base, segment, other, other ? other->size_bytes : 0);
}

static struct segment *enter_segment(struct segment *segment)
{
    struct rs_address_map *map = map_or_create(&segment_map);

    RS_ASSERT_HELD(&lock);
    if (!map || !rs_address_map_insert(map, segment->base, segment->size_bytes, segment))
        return NULL;
    segment->next = segments;
    segments = segment;
    return segment;
}

/* Opens the driver's handle of a slot in the current context. */
static struct segment *open_segment(const struct opening *opening, const struct rs_ipc_slot *slot,
                                    CUresult *result)
{
    struct segment *segment = opening->owner ? calloc(1, sizeof(*segment)) : NULL;

    *result = segment ? opening->open(&segment->base, slot->native, opening->flags)
                      : CUDA_ERROR_OUT_OF_MEMORY;
    if (*result != CUDA_SUCCESS) {
        free(segment);
        return NULL;
    }
    segment->native = slot->native;
    segment->context = opening->context;
    segment->owner = opening->owner;
    segment->size_bytes = slot->allocation_bytes;
    segment->proof = rs_proof_of(segment->base);
    if (enter_segment(segment))
        return segment;
    (void)rs_driver.cuIpcCloseMemHandle(segment->base);
    free(segment);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return NULL;
}

/* Enters memory that was fetched; NULL when there is no memory for the record. */
static struct segment *enter_fetched(const struct opening *opening,
                                     const struct rs_fetched *fetched)
{
    struct segment *segment = calloc(1, sizeof(*segment));

    RS_ASSERT_HELD(&lock);
    if (!segment)
        return NULL;
    segment->is_fetched = true;
    segment->proof = rs_proof_of_context(opening->context);
    segment->fetched = *fetched;
    segment->context = opening->context;
    segment->owner = opening->owner;
    segment->base = fetched->base;
    segment->size_bytes = fetched->size_bytes;
    if (enter_segment(segment))
        return segment;
    free(segment);
    return NULL;
}

/* Releases the lock, and gives back what was dropped under it. */
static void unlock_and_drop(void)
{
    struct segment *segment = dropped, *next;

    dropped = NULL;
    rs_mutex_unlock(&lock);
    for (; segment; segment = next) {
        next = segment->next;
        (void)rs_fetched_drop(&segment->fetched);
        free(segment);
    }
}

/* Ends a segment of ended contexts, which is in no list any more.  The driver has closed an
 * allocation with its context; mapped memory and a pool's outlive it.  A pool's goes back at once:
 * the slot may be unlocked next, and then the exporter may free its own (ipc/pool.h). */
static void end_segment(struct segment *segment)
{
    RS_ASSERT_HELD(&lock);
    RS_ASSERT(segment->uses == 0);
    if (!segment->is_fetched || segment->fetched.pooled) {
        if (segment->is_fetched)
            (void)rs_fetched_drop(&segment->fetched);
        free(segment);
        return;
    }
    segment->next = dropped;
    dropped = segment;
}

/* ---- blocks; the caller holds the lock ---- */

static bool is_slot_used(const struct rs_exporter *exporter, uint32_t slot)
{
    const struct fetching *fetching = fetchings;
    const struct opened *block = blocks;

    RS_ASSERT_HELD(&lock);
    while (block && (block->exporter != exporter || block->slot != slot))
        block = block->next;
    while (fetching && (fetching->exporter != exporter || fetching->slot != slot))
        fetching = fetching->next;
    return block || fetching;
}

/* Unlocks the slot, unless the block is open in another context too. */
static void leave_slot(struct rs_exporter *exporter, uint32_t slot)
{
    if (!is_slot_used(exporter, slot))
        rs_exporter_unlock(exporter, slot);
}

static void unlink_block(struct opened *block)
{
    struct opened **link = &blocks, *other;

    RS_ASSERT_HELD(&lock);
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    for (other = blocks; other && other->address != block->address;)
        other = other->next;
    forget_range(&block_map, block->address, block, other, other ? other->size_bytes : 0);
}

/* Forgets a segment that ended with its context, and all blocks in it. */
static void forget_segment(struct segment *segment)
{
    struct opened *block = blocks, *next, *forgotten = NULL;

    for (; block; block = next) {
        next = block->next;
        if (block->segment != segment)
            continue;
        unlink_block(block);
        block->next = forgotten;
        forgotten = block;
        RS_ASSERT(segment->uses > 0);
        segment->uses--;
    }
    if (segment->uses == 0) { /* else a thread is closing a block of it */
        unlink_segment(segment);
        end_segment(segment);
    }
    for (; forgotten; forgotten = next) {
        next = forgotten->next;
        leave_slot(forgotten->exporter, forgotten->slot);
        rs_exporter_leave(forgotten->exporter);
        free(forgotten);
    }
}

/* True while the context in which the segment was opened exists. */
static bool is_segment_alive(const struct segment *segment)
{
    return atomic_load(&segment->owner->alive) && rs_proof_holds(&segment->proof);
}

static void forget_ended(void)
{
    struct segment *segment = segments, *next;

    for (; segment; segment = next) {
        next = segment->next;
        if (segment->uses > 0 && !is_segment_alive(segment))
            forget_segment(segment);
    }
    for (struct native **link = &natives; *link;) {
        struct native *native = *link;
        if (rs_proof_holds(&native->proof)) {
            link = &native->next;
            continue;
        }
        *link = native->next;
        free(native);
    }
}

static struct opened *find_opened(const CUipcMemHandle *handle, CUcontext context)
{
    struct opened *block = blocks;

    RS_ASSERT_HELD(&lock);
    while (block && (block->segment->context != context ||
                     memcmp(&block->handle, handle, sizeof(*handle)) != 0))
        block = block->next;
    return block;
}

static struct opened *enter_block(const struct opening *opening, struct rs_exporter *exporter,
                                  struct segment *segment, const struct rs_ipc_slot *slot)
{
    struct rs_address_map *map = map_or_create(&block_map);
    struct opened *block = malloc(sizeof(*block));

    RS_ASSERT_HELD(&lock);
    if (!map || !block ||
        !rs_address_map_insert(map, segment->base + slot->offset_bytes, slot->size_bytes, block)) {
        free(block);
        return NULL;
    }
    *block = (struct opened){
        .handle = *opening->given,
        .exporter = exporter,
        .segment = segment,
        .slot = opening->handle.slot,
        .address = segment->base + slot->offset_bytes,
        .size_bytes = slot->size_bytes,
        .next = blocks,
    };
    blocks = block;
    return block;
}

/* ---- opening ---- */

/* True when the block lies inside the opened allocation, whose size is the driver's answer, or the
 * exporter's where the driver gives none. */
static bool is_inside(const struct rs_ipc_slot *slot, CUdeviceptr base)
{
    CUdeviceptr start;
    size_t bytes;

    if (rs_driver.cuMemGetAddressRange_v2(&start, &bytes, base) != CUDA_SUCCESS)
        bytes = slot->allocation_bytes;
    return slot->offset_bytes <= bytes && slot->size_bytes <= bytes - slot->offset_bytes;
}

/* Opens the block of a slot: finds or opens its segment and enters the block. */
static struct opened *open_in_segment(const struct opening *opening, struct rs_exporter *exporter,
                                      const struct rs_ipc_slot *slot, CUresult *result)
{
    struct segment *segment = find_segment(&slot->native, opening->context);
    struct opened *block = NULL;

    if (!segment)
        segment = open_segment(opening, slot, result);
    if (!segment)
        return NULL;
    if (!is_inside(slot, segment->base))
        *result = rs_ipc_refuse(RS_IPC_REFUSED_SIZE);
    else if (!(block = enter_block(opening, exporter, segment, slot)))
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (block) {
        segment->uses++;
    } else if (segment->uses == 0) {
        unlink_segment(segment);
        (void)rs_driver.cuIpcCloseMemHandle(segment->base);
        free(segment);
    }
    return block;
}

/* ---- fetched memory ---- */

static bool is_described(const struct rs_ipc_slot *slot)
{
    return slot->allocation_bytes > 0 && slot->allocation_bytes % slot->descriptor_count == 0 &&
           slot->offset_bytes <= slot->allocation_bytes &&
           slot->size_bytes <= slot->allocation_bytes - slot->offset_bytes;
}

/* Fetches the memory of a slot without the lock, which the caller holds before and after. */
static CUresult fetch(const struct opening *opening, struct rs_exporter *exporter,
                      const struct rs_ipc_slot *slot, struct rs_fetched *fetched)
{
    struct fetching fetching = {exporter, opening->handle.slot, fetchings}, **link = &fetchings;
    CUresult result;

    RS_ASSERT_HELD(&lock);
    fetchings = &fetching;
    unlock_and_drop();
    result = rs_fetch(&opening->handle, slot, fetched);
    rs_mutex_lock(&lock);
    while (*link != &fetching)
        link = &(*link)->next;
    *link = fetching.next;
    if (result == CUDA_SUCCESS && !atomic_load(&opening->owner->alive)) {
        (void)rs_fetched_drop(fetched);
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return result;
}

/* Opens a block in memory that the exporter sends.  Another thread may have opened it while this
 * one fetched. */
static struct opened *open_fetched(const struct opening *opening, struct rs_exporter *exporter,
                                   const struct rs_ipc_slot *slot, CUresult *result)
{
    struct rs_fetched fetched;
    struct segment *segment = NULL;
    struct opened *block;

    *result = !opening->owner      ? CUDA_ERROR_OUT_OF_MEMORY
              : is_described(slot) ? fetch(opening, exporter, slot, &fetched)
                                   : rs_ipc_refuse(RS_IPC_REFUSED_SIZE);
    if (*result != CUDA_SUCCESS)
        return NULL;
    block = find_opened(opening->given, opening->context);
    if (!block && (segment = enter_fetched(opening, &fetched)))
        block = enter_block(opening, exporter, segment, slot);
    if (!block)
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (block && segment) {
        segment->uses++;
    } else if (segment) {
        unlink_segment(segment);
        end_segment(segment);
    } else {
        (void)rs_fetched_drop(&fetched); /* no work has used it */
    }
    if (block && !segment)
        rs_exporter_leave(exporter); /* the block has a use of its own */
    return block;
}

static struct opened *open_block(const struct opening *opening, CUresult *result)
{
    struct rs_exporter *exporter = rs_exporter_use(&opening->handle, result);
    struct opened *block = NULL;
    struct rs_ipc_slot slot;

    if (!exporter)
        return NULL;
    if (rs_exporter_lock(exporter, &opening->handle, &slot, result))
        block = slot.descriptor_count > 0 ? open_fetched(opening, exporter, &slot, result)
                                          : open_in_segment(opening, exporter, &slot, result);
    if (!block) {
        leave_slot(exporter, opening->handle.slot);
        rs_exporter_leave(exporter);
    }
    return block;
}

static CUresult open_ours(const struct opening *opening, CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    struct opened *block;

    rs_mutex_lock(&lock);
    forget_ended();
    block = find_opened(opening->given, opening->context);
    if (!block)
        block = open_block(opening, &result);
    if (block) {
        block->count++;
        *address = block->address;
    }
    unlock_and_drop();
    return result;
}

bool rs_import_open(CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *address,
                    const CUipcMemHandle *handle, unsigned flags, CUresult *result)
{
    struct opening opening = {.open = open, .flags = flags, .given = handle};

    if (!rs_ipc_is_ours(handle) || !open || !rs_driver.cuIpcCloseMemHandle)
        return false;
    *result = rs_driver.cuCtxGetCurrent(&opening.context);
    if (*result != CUDA_SUCCESS)
        return true;
    if (!opening.context)
        *result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!address || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (!rs_ipc_read(handle, &opening.handle))
        *result = rs_ipc_refuse(RS_IPC_REFUSED_HANDLE);
    else if (opening.handle.process == getpid() &&
             opening.handle.process_namespace == rs_process_namespace() &&
             opening.handle.start_ticks == rs_process_start_ticks(0))
        *result = CUDA_ERROR_INVALID_CONTEXT; /* the handle is of this process: the driver's error
                                                 for that */
    else {
        opening.owner = rs_context_owner();
        *result = open_ours(&opening, address);
    }
    return true;
}

/* ---- the driver's own handles ---- */

static struct native *find_native(CUdeviceptr address)
{
    struct native *native = natives;

    while (native && native->address != address)
        native = native->next;
    return native;
}

void rs_import_note_native(CUdeviceptr address)
{
    struct native *native;

    rs_mutex_lock(&lock);
    forget_ended();
    native = find_native(address);
    if (!native && (native = calloc(1, sizeof(*native)))) {
        native->address = address;
        native->proof = rs_proof_of(address);
        native->next = natives;
        natives = native;
    }
    if (native)
        native->count++;
    unlock_and_drop();
}

/* True when the address was opened by a handle of the driver's.  Of two opens at one address that
 * one is closed first, as closing ours too late does no harm.  The caller holds the lock. */
static bool close_native(CUdeviceptr address)
{
    struct native **link = &natives, *native = find_native(address);

    if (!native)
        return false;
    if (--native->count > 0)
        return true;
    while (*link != native)
        link = &(*link)->next;
    *link = native->next;
    free(native);
    return true;
}

/* ---- closing ---- */

/* Returns the open block at that address; of several, the one opened in the current context. */
static struct opened *find_at(CUdeviceptr address)
{
    struct opened *block, *found = NULL;
    CUcontext current = NULL;

    (void)rs_driver.cuCtxGetCurrent(&current);
    for (block = blocks; block; block = block->next)
        if (block->address == address && (!found || block->segment->context == current))
            found = block;
    return found;
}

/* Releases the block's use of its segment; the last use closes the driver's handle, or gives
 * fetched memory back.  The caller does not hold the lock, as the first of these driver calls
 * waits. */
static CUresult leave_segment(struct segment *segment)
{
    CUresult result = CUDA_SUCCESS;
    bool is_last;

    rs_mutex_lock(&lock);
    is_last = --segment->uses == 0;
    if (is_last)
        unlink_segment(segment);
    rs_mutex_unlock(&lock);
    if (is_last) {
        result = segment->is_fetched ? rs_fetched_drop(&segment->fetched)
                                     : rs_driver.cuIpcCloseMemHandle(segment->base);
        free(segment);
    }
    return result;
}

/* Closes a block.  The exporter may reuse the memory as soon as the slot is unlocked, so this
 * process waits for its own work first; the driver's close waits too, but only the last one is
 * called. */
static CUresult close_block(struct opened *block)
{
    struct segment *segment = block->segment;
    struct rs_context *owner = segment->owner;
    CUresult waited = rs_sentinel_wait(&owner->sentinel, owner->handle);
    CUresult result = CUDA_SUCCESS;

    /* Waiting takes 512 bytes of the device.  Where it has none, the slot stays locked until the
     * process ends; what was fetched stays as well, since no driver call waits before it goes. */
    if (waited != CUDA_ERROR_OUT_OF_MEMORY || !segment->is_fetched)
        result = leave_segment(segment);
    rs_mutex_lock(&lock);
    if (waited != CUDA_ERROR_OUT_OF_MEMORY) {
        leave_slot(block->exporter, block->slot);
        rs_exporter_leave(block->exporter);
    }
    rs_mutex_unlock(&lock);
    free(block);
    return result;
}

/* True when the address lies in an opened segment.  The driver must not see it: it would close the
 * whole segment. */
static bool is_in_segment(CUdeviceptr address)
{
    struct rs_range range;

    return rs_address_map_find_inside(atomic_load(&segment_map), address, &range);
}

bool rs_import_close(CUdeviceptr address, CUresult *result)
{
    struct opened *block = NULL;
    bool is_last = false, is_ours;

    rs_mutex_lock(&lock);
    forget_ended();
    if (close_native(address) || !atomic_load(&segment_map)) {
        unlock_and_drop();
        return false;
    }
    block = find_at(address);
    is_last = block && --block->count == 0;
    if (is_last)
        unlink_block(block);
    is_ours = block || is_in_segment(address);
    unlock_and_drop();
    *result = is_last ? close_block(block) : block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return is_ours;
}

/* ---- the rest ---- */

enum rs_imported rs_import_find(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    struct rs_address_map *map = atomic_load_explicit(&block_map, memory_order_acquire);
    struct rs_range range;

    if (RS_LIKELY(!map))
        return RS_IMPORTED_NOT;
    if (rs_address_map_find_inside(map, address, &range)) {
        *start = range.start;
        *size_bytes = (size_t)range.size_bytes;
        return RS_IMPORTED_BLOCK;
    }
    map = atomic_load_explicit(&segment_map, memory_order_acquire);
    return map && rs_address_map_find_inside(map, address, &range) ? RS_IMPORTED_OUTSIDE
                                                                   : RS_IMPORTED_NOT;
}

bool rs_import_handle(CUdeviceptr address, CUipcMemHandle *handle)
{
    struct opened *block;
    bool found;

    rs_mutex_lock(&lock);
    for (block = blocks; block; block = block->next)
        if (address - block->address < block->size_bytes)
            break;
    found = block;
    if (found)
        *handle = block->handle;
    rs_mutex_unlock(&lock);
    return found;
}

void rs_import_context_ended(void)
{
    rs_mutex_lock(&lock);
    forget_ended();
    unlock_and_drop();
}
