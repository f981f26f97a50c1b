/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/import.h"

#include "base/address_map.h"
#include "base/check.h"
#include "base/lock.h"
#include "base/process.h"
#include "context/context.h"
#include "context/end.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "ipc/pieces.h"
#include "ipc/pool.h"
#include "ipc/table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the driver told about memory when it was opened, from which the library later tells whether
 * the memory still exists. It is the id of the driver allocation, which is never used twice, or
 * else that a range begins at the address. Without either the memory counts as existing. For a
 * segment that was sent, which outlives its context, `id` is the context's. */
struct proof {
    unsigned long long id; /* 0: the driver told none */
    bool has_range;
};

/* Memory of another process that is open here. A record is one of three: a segment (a driver
 * allocation opened for our blocks), a block, or a native (an address that the program opened by a
 * handle of the driver's own). */
struct record {
    struct record *next;
    CUdeviceptr address;
    size_t size_bytes;
    unsigned uses; /* of a block or a native: its opens; of a segment: its blocks */

    /* What the record is found by. For a block, and for a segment of mapped pieces: our handle. For
     * a segment in a driver's pool: what opens it there (rs_ipc_slot.pooled). For another segment:
     * the driver's handle. Unused for a native. */
    CUipcMemHandle handle;
    /* Only for a segment: the exporter has sent it, either in pieces for one block (ipc/pieces.h)
     * or as an allocation of `pool` (ipc/pool.h). It outlives its context. */
    bool is_sent;
    struct rs_imported_pool *pool;
    CUcontext context;        /* the context in which a segment or block was opened */
    struct rs_context *owner; /* the context that owns a segment's memory. forget_ended runs before
                                 that context's record is recycled, so the pointer is valid */
    struct proof proof;       /* only for a segment or a native */
    struct rs_exporter *exporter; /* for a block or a segment */
    struct record *segment;       /* `segment` and `slot` are only for a block */
    uint32_t slot;
};

struct records {
    struct record *first;
    _Atomic(struct rs_address_map *) map; /* rs_import_find reads it without the lock */
};

/* Protects the lists. A thread that holds it waits for no work of the GPU. It may wait for an
 * exporter that sends memory (ipc/transfer.h); the exporter's answer needs no lock of this file in
 * its process. */
static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_RECORDS);
RS_RESET_IN_CHILD(ipc_import, lock);

/* Each segment is opened once in a context, for all blocks inside. */
static struct records segments;

static struct records blocks;

/* Blocks that are being closed. The slot of each stays locked until the work that uses the block
 * has ended, even if no other block here uses that slot any more. */
static struct record *closing;

/* Addresses that the program opened by handles of the driver's own. They are in no map, since the
 * driver itself answers questions about their memory. A block of ours may begin at the same
 * address: the exporter may have cut the allocation into blocks since the driver's handle was
 * made. */
static struct records natives;

/* The number of calls under way that may end a context. While it is not 0, memory in the maps may
 * no longer exist, so rs_import_find checks that. */
static _Atomic unsigned endings;

/* One call of cuIpcOpenMemHandle. */
struct opening {
    CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned);
    unsigned flags;
    CUcontext context;
    struct rs_context *owner;
    const CUipcMemHandle *given;
    struct rs_ipc_handle handle; /* `given`, decoded */
};

/* ---- records; the caller holds the lock ---- */

static struct record *find_opened(const struct records *in, const CUipcMemHandle *handle,
                                  CUcontext context)
{
    struct record *record = in->first;

    RS_ASSERT_HELD(&lock);
    while (record &&
           (record->context != context || memcmp(&record->handle, handle, sizeof(*handle)) != 0))
        record = record->next;
    return record;
}

/* Returns a record that begins at that address, if possible one that was opened in that context;
 * NULL when there is none. */
static struct record *find_at(const struct records *in, CUdeviceptr address, CUcontext context)
{
    struct record *found = NULL;

    RS_ASSERT_HELD(&lock);
    for (struct record *record = in->first; record; record = record->next)
        if (record->address == address && (!found || record->context == context))
            found = record;
    return found;
}

/* Copies the record into the list and, unless it is a native, into the map.  Returns the copy; NULL
 * when out of host memory. */
static struct record *enter_import(struct records *in, const struct record *like)
{
    struct record *record = malloc(sizeof(*record));
    struct rs_address_map *map = atomic_load(&in->map);

    RS_ASSERT_HELD(&lock);
    if (!map && in != &natives)
        map = rs_address_map_create_at(&in->map);
    if (!record || (in != &natives && (!map || !rs_address_map_insert(map, like->address,
                                                                      like->size_bytes, record)))) {
        free(record);
        return NULL;
    }
    *record = *like;
    record->next = in->first;
    in->first = record;
    return record;
}

/* Removes the record from its list and from the map. If another record begins at the same address
 * (the same memory, opened in another context), the map gets that record instead. */
static void leave_import(struct records *in, struct record *record)
{
    struct rs_address_map *map = atomic_load(&in->map);
    struct record **link = &in->first, *other;

    RS_ASSERT_HELD(&lock);
    while (*link != record)
        link = &(*link)->next;
    *link = record->next;
    other = find_at(in, record->address, NULL);
    if (map && (!other || !rs_address_map_insert(map, other->address, other->size_bytes, other)))
        (void)rs_address_map_remove(map, record->address, record);
}

/* ---- segments; the caller holds the lock ---- */

static bool is_base(CUdeviceptr address)
{
    CUdeviceptr base;
    size_t bytes;

    return rs_driver.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS &&
           base == address;
}

/* Returns the size of the opened allocation. The driver is asked first. The exporter's number
 * counts if the driver does not tell, or if it knows only single pieces. */
static size_t bytes_at(CUdeviceptr base, const struct rs_ipc_slot *slot)
{
    CUdeviceptr start;
    size_t bytes;

    return slot->pieces == 0 &&
                   rs_driver.cuMemGetAddressRange_v2(&start, &bytes, base) == CUDA_SUCCESS
               ? bytes
               : slot->allocation_bytes;
}

static struct proof proof_of(CUdeviceptr address)
{
    return (struct proof){rs_driver_allocation_id(address), is_base(address)};
}

static bool is_context_alive(CUcontext context, unsigned long long its_id)
{
    unsigned long long id = 0;
    CUresult result = its_id ? rs_driver.cuCtxGetId(context, &id) : CUDA_SUCCESS;

    switch ((int)result) {
    case CUDA_SUCCESS:
        return id == its_id;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_HANDLE:
        return false;
    default: /* another error says nothing about the context, so the program may still use the
                memory */
        return true;
    }
}

/* False when the record's memory no longer exists, or must be unmapped since its context ended. */
static bool is_alive(const struct record *record)
{
    if (record->is_sent)
        return is_context_alive(record->context, record->proof.id);
    return record->proof.id ? rs_driver_allocation_id(record->address) == record->proof.id
                            : !record->proof.has_range || is_base(record->address);
}

/* Returns what the segment of a slot's block is found by (record.handle). */
static const CUipcMemHandle *segment_key(const struct opening *opening,
                                         const struct rs_ipc_slot *slot)
{
    return slot->pieces > 0 ? opening->given : &slot->native;
}

/* Finds the segment of a slot's block. One that was opened in another context is found too if it is
 * an allocation of a pool. */
static struct record *find_segment(const struct opening *opening,
                                   const struct rs_exporter *exporter,
                                   const struct rs_ipc_slot *slot)
{
    struct record *segment = segments.first;

    RS_ASSERT_HELD(&lock);
    if (!slot->pool)
        return find_opened(&segments, segment_key(opening, slot), opening->context);
    while (segment && (!segment->pool || segment->exporter != exporter ||
                       memcmp(&segment->handle, &slot->pooled, sizeof(slot->pooled)) != 0))
        segment = segment->next;
    return segment;
}

static CUresult close_segment(const struct record *segment)
{
    return segment->pool      ? rs_pool_leave(segment->pool, segment->address)
           : segment->is_sent ? rs_pieces_unmap(segment->address, segment->size_bytes)
                              : rs_driver.cuIpcCloseMemHandle(segment->address);
}

/* Has the exporter send the memory of a slot, and opens it. Fails if the block is freed
 * meanwhile. */
static CUresult receive_segment(const struct opening *opening, const struct rs_ipc_slot *slot,
                                struct record *segment)
{
    struct rs_exporter *exporter = segment->exporter;
    struct rs_ipc_slot now;
    CUresult result =
        slot->pool
            ? rs_pool_import(exporter, &opening->handle, slot, &segment->pool, &segment->address)
            : rs_pieces_map(exporter, &opening->handle, slot, &segment->address);
    bool is_all = result == CUDA_SUCCESS;

    RS_ASSERT_HELD(&lock);
    if (!is_all && result != CUDA_ERROR_NOT_READY)
        return result;
    if (!rs_exporter_lock(exporter, &opening->handle, &now, &result)) {
        if (is_all)
            (void)close_segment(segment);
    } else if (!is_all) {
        result = RS_IPC_REFUSE(
            CUDA_ERROR_MAP_FAILED,
            "the process that shared the memory could not send it, perhaps because it had no file "
            "descriptor left: start that process with a higher `ulimit -n`");
    }
    return result;
}

/* Opens a segment in the current context, by the driver's handle of the slot or from what the
 * exporter sends, and enters it in `segments`. Returns NULL with the error in *result when that
 * fails. */
static struct record *open_segment(const struct opening *opening, struct rs_exporter *exporter,
                                   const struct rs_ipc_slot *slot, CUresult *result)
{
    struct record segment = {.handle = *segment_key(opening, slot),
                             .is_sent = slot->pieces > 0 || slot->pool,
                             .exporter = exporter,
                             .context = opening->context,
                             .owner = opening->owner,
                             .size_bytes = slot->allocation_bytes};
    struct record *entered;

    RS_ASSERT_HELD(&lock);
    *result = !segment.owner    ? CUDA_ERROR_OUT_OF_MEMORY
              : segment.is_sent ? receive_segment(opening, slot, &segment)
                                : opening->open(&segment.address, slot->native, opening->flags);
    if (*result != CUDA_SUCCESS)
        return NULL;
    segment.size_bytes = segment.is_sent ? segment.size_bytes : bytes_at(segment.address, slot);
    segment.proof = segment.is_sent ? (struct proof){.id = rs_context_id_of(segment.context)}
                                    : proof_of(segment.address);
    entered = segment.size_bytes > 0 ? enter_import(&segments, &segment) : NULL;
    if (!entered) {
        (void)close_segment(&segment);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return entered;
}

/* ---- blocks; the caller holds the lock ---- */

static bool has_slot(const struct record *block, const struct rs_exporter *exporter, uint32_t slot)
{
    while (block && (block->exporter != exporter || block->slot != slot))
        block = block->next;
    return block;
}

/* Ends a use of the exporter's table (rs_exporter_leave). Unlocks the slot first, unless the block
 * is also open, or being closed, in another context. */
static void leave_exporter(struct rs_exporter *exporter, uint32_t slot)
{
    RS_ASSERT_HELD(&lock);
    if (!has_slot(blocks.first, exporter, slot) && !has_slot(closing, exporter, slot))
        rs_exporter_unlock(exporter, slot);
    rs_exporter_leave(exporter);
}

/* Forgets a segment that ended with its context, and all blocks in it. */
static void forget_segment(struct record *segment)
{
    struct record *block = blocks.first, *next;
    bool is_last;

    for (; block; block = block->next)
        segment->uses -= block->segment == segment;
    is_last = segment->uses == 0; /* false: another thread is closing a block of this segment */
    if (is_last && segment->is_sent)
        (void)close_segment(segment); /* must come before a slot is unlocked (ipc/pool.h) */
    for (block = blocks.first; block; block = next) {
        next = block->next;
        if (block->segment != segment)
            continue;
        leave_import(&blocks, block);
        leave_exporter(block->exporter, block->slot);
        free(block);
    }
    if (!is_last)
        return;
    leave_import(&segments, segment);
    free(segment);
}

static void forget_ended(void)
{
    struct record *record, *next;

    RS_ASSERT_HELD(&lock);
    for (record = segments.first; record; record = next) {
        next = record->next;
        if (record->uses > 0 &&
            (atomic_load(&record->owner->ending) == RS_ENDING_OVER || !is_alive(record)))
            forget_segment(record);
    }
    for (record = natives.first; record; record = next) {
        next = record->next;
        if (is_alive(record))
            continue;
        leave_import(&natives, record);
        free(record);
    }
}

/* ---- opening ---- */

/* True when the block lies inside the opened allocation, at a place where a block can begin. This
 * is checked since the exporter may be any program of the user. */
static bool is_inside_opened(const struct rs_ipc_slot *slot, CUdeviceptr base)
{
    size_t bytes = bytes_at(base, slot);

    return slot->size_bytes > 0 && slot->offset_bytes % RS_BLOCK_ALIGNMENT == 0 &&
           slot->offset_bytes <= bytes && slot->size_bytes <= bytes - slot->offset_bytes;
}

/* Opens the block of a slot: finds or opens its segment and enters the block.  Returns NULL with
 * the error in *result when that fails. */
static struct record *open_in_segment(const struct opening *opening, struct rs_exporter *exporter,
                                      const struct rs_ipc_slot *slot, CUresult *result)
{
    struct record block = {.size_bytes = slot->size_bytes,
                           .handle = *opening->given,
                           .context = opening->context,
                           .exporter = exporter,
                           .slot = opening->handle.slot};
    struct record *segment = find_segment(opening, exporter, slot);
    struct record *entered = NULL;

    if (segment && segment->context != opening->context) {
        *result = RS_IPC_REFUSE(
            CUDA_ERROR_NOT_SUPPORTED,
            "this memory is open in another CUDA context of this process, and memory of the memory "
            "resource 'async' can be open in only one CUDA context at a time");
        return NULL;
    }
    if (!segment)
        segment = open_segment(opening, exporter, slot, result);
    if (!segment)
        return NULL;
    block.address = segment->address + slot->offset_bytes;
    block.segment = segment;
    if (!is_inside_opened(slot, segment->address))
        *result = RS_IPC_REFUSE(
            CUDA_ERROR_MAP_FAILED,
            "the process that shared the memory gives a size or an offset that does not fit the "
            "memory: use the same version of rmmshim in both processes");
    else if (!(entered = enter_import(&blocks, &block)))
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (entered) {
        segment->uses++;
    } else if (segment->uses == 0) {
        leave_import(&segments, segment);
        (void)close_segment(segment);
        free(segment);
    }
    return entered;
}

static struct record *open_block(const struct opening *opening, CUresult *result)
{
    struct rs_exporter *exporter = rs_exporter_use(&opening->handle, result);
    struct record *block = NULL;
    struct rs_ipc_slot slot;

    if (!exporter)
        return NULL;
    if (rs_exporter_lock(exporter, &opening->handle, &slot, result))
        block = open_in_segment(opening, exporter, &slot, result);
    if (!block)
        leave_exporter(exporter, opening->handle.slot);
    return block;
}

static CUresult open_ours(const struct opening *opening, CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    struct record *block;

    RS_MUTEX_GUARD(&lock);
    forget_ended();
    block = find_opened(&blocks, opening->given, opening->context);
    if (!block)
        block = open_block(opening, &result);
    if (block) {
        block->uses++;
        *address = block->address;
    }
    return result;
}

bool rs_import_open(CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *address,
                    const CUipcMemHandle *handle, unsigned flags, CUresult *result)
{
    struct opening opening = {.open = open, .flags = flags, .given = handle};

    if (!rs_ipc_is_ours(handle) || !rs_driver.cuIpcCloseMemHandle)
        return false;
    *result = rs_driver.cuCtxGetCurrent(&opening.context);
    if (*result != CUDA_SUCCESS)
        return true;
    if (!opening.context)
        *result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!address || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (!rs_ipc_read(handle, &opening.handle))
        *result = RS_IPC_REFUSE(CUDA_ERROR_INVALID_HANDLE,
                                "the handle is damaged, or made by another version of rmmshim");
    else if (opening.handle.process == getpid() &&
             opening.handle.process_namespace == rs_process_namespace() &&
             opening.handle.start_ticks == rs_process_start_ticks(0))
        *result = CUDA_ERROR_INVALID_CONTEXT; /* the handle is this process's own; the driver gives
                                                 the same answer */
    else {
        opening.owner = rs_context_current(true);
        *result = open_ours(&opening, address);
    }
    return true;
}

/* ---- the driver's own handles ---- */

void rs_import_note_native(CUdeviceptr address)
{
    struct record *native;

    RS_MUTEX_GUARD(&lock);
    forget_ended();
    native = find_at(&natives, address, NULL);
    if (!native)
        native = enter_import(&natives,
                              &(struct record){.address = address, .proof = proof_of(address)});
    if (native)
        native->uses++;
}

/* Counts the close of a native at that address. Returns false if there is none. If a native and a
 * block of ours are open at one address, the native is closed first, since it does no harm to close
 * our block too late. The caller holds the lock. */
static bool close_native(CUdeviceptr address)
{
    struct record *native = find_at(&natives, address, NULL);

    if (native && --native->uses == 0) {
        leave_import(&natives, native);
        free(native);
    }
    return native;
}

/* ---- closing ---- */

/* Ends a block's use of its segment; the last use closes the segment. The caller does not hold the
 * lock, since the driver's close of a handle waits. But an allocation of a pool is freed under the
 * lock, since no other thread may import it again before that (ipc/pool.h). */
static CUresult leave_segment(struct record *segment)
{
    CUresult result = CUDA_SUCCESS;
    bool is_last, is_pooled;

    rs_mutex_lock(&lock);
    is_last = --segment->uses == 0;
    is_pooled = segment->pool;
    if (is_last)
        leave_import(&segments, segment);
    if (is_last && is_pooled)
        result = close_segment(segment);
    rs_mutex_unlock(&lock);
    if (is_last && !is_pooled)
        result = close_segment(segment);
    if (is_last)
        free(segment);
    return result;
}

/* Closes a block. The exporter may reuse the memory as soon as the slot is unlocked, so this
 * process first waits for its own work. The driver's close would wait too, but is called only for
 * the last block of the segment. */
static CUresult close_block(struct record *block)
{
    struct rs_context *owner = block->segment->owner;
    struct record **link = &closing;
    CUresult waited = rs_sentinel_wait(&owner->sentinel, owner->handle), result = CUDA_SUCCESS;

    /* The wait needs 512 bytes on the device. If the driver has no memory for that, this process
     * may still use the block. Then the slot stays locked until the process ends, and memory that
     * was sent stays mapped. */
    if (waited != CUDA_ERROR_OUT_OF_MEMORY || !block->segment->is_sent)
        result = leave_segment(block->segment);
    if (waited == CUDA_ERROR_OUT_OF_MEMORY)
        return result; /* the block stays in `closing` */
    RS_MUTEX_GUARD(&lock);
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    leave_exporter(block->exporter, block->slot);
    free(block);
    return result;
}

bool rs_import_close(CUdeviceptr address, CUresult *result)
{
    struct record *block = NULL;
    struct rs_range range;
    CUcontext current = NULL;
    bool is_last, is_ours;

    rs_mutex_lock(&lock);
    forget_ended();
    if (close_native(address) || !atomic_load(&segments.map)) {
        rs_mutex_unlock(&lock);
        return false;
    }
    (void)rs_driver.cuCtxGetCurrent(&current);
    block = find_at(&blocks, address, current);
    is_last = block && --block->uses == 0;
    if (is_last) {
        leave_import(&blocks, block);
        block->next = closing;
        closing = block;
    }
    /* The driver must not get an address inside a segment, since it would close the whole
     * segment. */
    is_ours = block || rs_address_map_find_inside(atomic_load(&segments.map), address, &range);
    rs_mutex_unlock(&lock);
    *result = is_last ? close_block(block) : block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return is_ours;
}

/* ---- the rest ---- */

static enum rs_imported find_in_maps(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    struct rs_address_map *map = atomic_load_explicit(&blocks.map, memory_order_acquire);
    struct rs_range range;

    if (RS_LIKELY(!map))
        return RS_IMPORTED_NOT;
    if (rs_address_map_find_inside(map, address, &range)) {
        *start = range.start;
        *size_bytes = (size_t)range.size_bytes;
        return RS_IMPORTED_BLOCK;
    }
    map = atomic_load_explicit(&segments.map, memory_order_acquire);
    return map && rs_address_map_find_inside(map, address, &range) ? RS_IMPORTED_OUTSIDE
                                                                   : RS_IMPORTED_NOT;
}

enum rs_imported rs_import_find(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    enum rs_imported found = find_in_maps(address, start, size_bytes);

    if (RS_LIKELY(found == RS_IMPORTED_NOT) || atomic_load(&endings) == 0)
        return found;
    /* A context may have ended just now, and its memory with it, and the driver may have given out
     * the address again. */
    rs_mutex_lock(&lock);
    forget_ended();
    rs_mutex_unlock(&lock);
    return find_in_maps(address, start, size_bytes);
}

CUcontext rs_import_context(CUdeviceptr address)
{
    CUcontext current = NULL;
    const struct record *block;

    (void)rs_driver.cuCtxGetCurrent(&current);
    RS_MUTEX_GUARD(&lock);
    block = find_at(&blocks, address, current);
    return block ? block->context : NULL;
}

void rs_import_forked(void)
{
    atomic_store(&blocks.map, NULL);
    atomic_store(&segments.map, NULL);
    segments.first = blocks.first = natives.first = closing = NULL;
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
