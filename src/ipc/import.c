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

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How to tell whether opened memory still exists: by the id of the driver allocation, which is
 * never used twice, or else by its range.  Where the driver tells neither, the memory counts as
 * existing. */
struct proof {
    unsigned long long id; /* 0: the driver tells none */
    bool has_range;
};

/* A driver allocation of another process, opened once in a context for all blocks inside. */
struct segment {
    CUipcMemHandle native;
    CUcontext context;
    /* Owns the context's memory; forget_ended runs before this record is recycled. */
    struct rs_context *owner;
    struct proof proof;
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
    struct proof proof;
    unsigned count;
    struct native *next;
};

static struct rs_mutex lock =
    RS_MUTEX_INIT(RS_RANK_RECORDS); /* protects the lists; no call under it waits */
RS_RESET_IN_CHILD(ipc_import, lock);
static struct segment *segments;
static struct opened *blocks;
static struct native *natives;

/* Calls under way that may end a context: meanwhile what the maps say must be proved. */
static _Atomic unsigned endings;

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

static bool is_base(CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;

    return rs_driver.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS &&
           base == address;
}

static struct proof proof_of(CUdeviceptr address)
{
    return (struct proof){rs_driver_allocation_id(address), is_base(address)};
}

/* False when the context in which the address was opened has ended, and the memory with it. */
static bool is_alive(CUdeviceptr address, struct proof proof)
{
    return proof.id ? rs_driver_allocation_id(address) == proof.id
                    : !proof.has_range || is_base(address);
}

static struct segment *find_segment(const CUipcMemHandle *native, CUcontext context)
{
    struct segment *segment = segments;

    RS_ASSERT_HELD(&lock);
    while (segment &&
           (segment->context != context || memcmp(&segment->native, native, sizeof(*native)) != 0))
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
    segment->proof = proof_of(segment->base);
    if (enter_segment(segment))
        return segment;
    (void)rs_driver.cuIpcCloseMemHandle(segment->base);
    free(segment);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return NULL;
}

/* ---- blocks; the caller holds the lock ---- */

static bool is_slot_used(const struct rs_exporter *exporter, uint32_t slot)
{
    const struct opened *block = blocks;

    RS_ASSERT_HELD(&lock);
    while (block && (block->exporter != exporter || block->slot != slot))
        block = block->next;
    return block;
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
    struct opened *block = blocks, *next;

    for (; block; block = next) {
        next = block->next;
        if (block->segment != segment)
            continue;
        unlink_block(block);
        leave_slot(block->exporter, block->slot);
        rs_exporter_leave(block->exporter);
        free(block);
        RS_ASSERT(segment->uses > 0);
        segment->uses--;
    }
    if (segment->uses > 0)
        return; /* a thread is closing a block of it */
    unlink_segment(segment);
    free(segment);
}

static void forget_ended(void)
{
    struct segment *segment = segments, *next;

    for (; segment; segment = next) {
        next = segment->next;
        if (segment->uses > 0 && (atomic_load(&segment->owner->ending) == RS_ENDING_OVER ||
                                  !is_alive(segment->base, segment->proof)))
            forget_segment(segment);
    }
    for (struct native **link = &natives; *link;) {
        struct native *native = *link;
        if (is_alive(native->address, native->proof)) {
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

static struct opened *open_block(const struct opening *opening, CUresult *result)
{
    struct rs_exporter *exporter = rs_exporter_use(&opening->handle, result);
    struct opened *block = NULL;
    struct rs_ipc_slot slot;

    if (!exporter)
        return NULL;
    if (rs_exporter_lock(exporter, &opening->handle, &slot, result))
        block = open_in_segment(opening, exporter, &slot, result);
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
    rs_mutex_unlock(&lock);
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
        native->proof = proof_of(address);
        native->next = natives;
        natives = native;
    }
    if (native)
        native->count++;
    rs_mutex_unlock(&lock);
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

/* Releases the block's use of its segment; the last use closes the driver's handle.  The caller
 * does not hold the lock, as that driver call waits. */
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
        result = rs_driver.cuIpcCloseMemHandle(segment->base);
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
    CUresult result = leave_segment(segment);

    rs_mutex_lock(&lock);
    /* Waiting takes 512 bytes of the device.  Where it has none, the slot stays locked until the
     * process ends. */
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
        rs_mutex_unlock(&lock);
        return false;
    }
    block = find_at(address);
    is_last = block && --block->count == 0;
    if (is_last)
        unlink_block(block);
    is_ours = block || is_in_segment(address);
    rs_mutex_unlock(&lock);
    *result = is_last ? close_block(block) : block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return is_ours;
}

/* ---- the rest ---- */

static enum rs_imported find_in_maps(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
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

enum rs_imported rs_import_find(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    enum rs_imported found = find_in_maps(address, start, size_bytes);

    if (RS_LIKELY(found == RS_IMPORTED_NOT) || atomic_load(&endings) == 0)
        return found;
    /* The driver may have given the address out again since. */
    rs_mutex_lock(&lock);
    forget_ended();
    rs_mutex_unlock(&lock);
    return find_in_maps(address, start, size_bytes);
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

void rs_import_forked(void)
{
    atomic_store(&block_map, NULL);
    atomic_store(&segment_map, NULL);
    segments = NULL;
    blocks = NULL;
    natives = NULL;
    atomic_store(&endings, 0);
}

void rs_import_context_ending(void)
{
    atomic_fetch_add(&endings, 1);
}

void rs_import_context_ended(void)
{
    rs_mutex_lock(&lock);
    forget_ended();
    rs_mutex_unlock(&lock);
    RS_ASSERT(atomic_load(&endings) > 0);
    atomic_fetch_sub(&endings, 1);
}
