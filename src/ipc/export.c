/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/export.h"

#include "base/check.h"
#include "base/file.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/request.h"
#include "context/context.h"
#include "context/table.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "introspect/introspect.h"
#include "ipc/import.h"
#include "ipc/pieces.h"
#include "ipc/pool.h"
#include "ipc/table.h"
#include "ipc/transfer.h"
#include "resource/segment.h"
#include "shared/commands.h"
#include "shared/memory_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

_Static_assert((int)RS_IPC_SLOTS < (int)RS_EXPORTED_NATIVE,
               "a slot's number fits into a block's record");

enum export_state { EXPORT_FREE, EXPORT_LIVE, EXPORT_HELD };

/* The exporter's own record of a slot of the table (ipc/table.h). */
struct exported {
    enum export_state state;
    uint32_t generation; /* the generation of the block that this slot exported last */
    uint32_t next;       /* the next free or held slot, plus one; 0: none */
    CUdeviceptr address;
    size_t size_bytes;
    struct rs_taken_block held; /* the held block; it is here so that holding it needs no memory */
};

/* Protects all variables below. No call that waits is made under it. */
static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_RECORDS);
RS_RESET_IN_CHILD(ipc_export, lock);
static struct exported *exports; /* NULL: the table has not been made */
/* These two point into the memory file, which other processes read. */
static struct rs_ipc_header *table_header;
static struct rs_ipc_slot *slots;
static struct rs_kept_descriptor file;
static struct rs_ipc_handle self; /* the fields that all handles of this process share */
/* `used`: how many slots were ever used. `first_free`: the first free slot, plus one; 0: none. */
static uint32_t used, first_free;
static uint32_t first_held, last_held; /* the oldest and the latest held slot, plus one; 0: none */
static struct rs_hash_table spent;     /* ids of driver allocations whose own handle was given to a
                                          block that is freed by now */
/* An id could not be entered in `spent` for lack of host memory, so no handle of the driver is
 * given out any more. */
static bool all_spent;
static void *const is_spent = (void *)(uintptr_t)1; /* the entries' value; any but NULL would do */

_Atomic size_t rs_export_held;

/* ---- the table ---- */

/* Seals the file against other writers.  Linux before 5.1 lacks F_SEAL_FUTURE_WRITE: there a
 * process of the same user can write to the file, as it could to our memory. */
static bool seal(int fd)
{
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    return fchmod(fd, 0600) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0;
}

/* Creates the table, for the first handle that needs it. The table stays until the process ends. */
static bool create_table(void)
{
    struct exported *entries = rs_map_zeroed(RS_IPC_SLOTS * sizeof(*entries));
    struct rs_ipc_header header = {.pipe = {.fd = 0}};
    void *memory;
    int fd = -1;

    RS_ASSERT(!exports && !slots);
    self.process_namespace = rs_process_namespace();
    self.start_ticks = rs_process_start_ticks(0);
    /* Importers compare the namespace and the start time, so a handle needs both. */
    if (entries && self.process_namespace && self.start_ticks >= 0 &&
        getrandom(header.nonce, sizeof(header.nonce), 0) == sizeof(header.nonce))
        fd = rs_memory_file_make(RS_IPC_FILE_NAME, RS_IPC_FILE_BYTES, &memory);
    if (fd >= 0 && !seal(fd))
        rs_file_close(fd);
    else if (fd >= 0 && rs_descriptor_keep(&file, fd))
        exports = entries;
    if (!exports) {
        if (fd >= 0)
            munmap(memory, RS_IPC_FILE_BYTES);
        if (entries)
            munmap(entries, RS_IPC_SLOTS * sizeof(*entries));
        return false;
    }
    self.process = getpid();
    self.fd = file.fd;
    memcpy(self.magic, rs_ipc_magic, sizeof(self.magic));
    memcpy(self.nonce, header.nonce, sizeof(self.nonce));
    memcpy(header.magic, rs_ipc_magic, sizeof(header.magic));
    memcpy(memory, &header, sizeof(header));
    table_header = memory;
    slots = (void *)((char *)memory + RS_IPC_SLOTS_AT);
    return true;
}

/* ---- slots; the caller holds the lock ---- */

/* Takes a free slot.  Returns its number plus one; 0 when all are in use. */
static uint32_t take_slot(void)
{
    uint32_t number = first_free;

    RS_ASSERT_HELD(&lock);
    if (number)
        first_free = exports[number - 1].next;
    else if (used < RS_IPC_SLOTS)
        number = ++used;
    RS_ASSERT(!number || exports[number - 1].state == EXPORT_FREE);
    return number;
}

static void give_slot(uint32_t number)
{
    struct exported *entry = &exports[number - 1];

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(number <= used && entry->state != EXPORT_FREE);
    entry->state = EXPORT_FREE;
    entry->next = first_free;
    first_free = number;
}

/* Returns the slot that exports this block, plus one; 0: none. When a free raced with the export, a
 * record may name a slot of another block. So the block's address and size are compared with the
 * slot's. */
static uint32_t slot_of_block(const struct rs_block_view *block)
{
    const struct rs_block_record *record = rs_block_around(block->address);
    unsigned number = record ? record->exported : RS_EXPORTED_NOT;
    const struct exported *entry;

    RS_ASSERT_HELD(&lock);
    if (number == RS_EXPORTED_NOT || number == RS_EXPORTED_NATIVE || !exports)
        return 0;
    RS_ASSERT(number <= used);
    entry = &exports[number - 1];
    return entry->state == EXPORT_LIVE && entry->address == block->address &&
                   entry->size_bytes == block->size_bytes
               ? number
               : 0;
}

/* Notes in the block's record that it is exported.  Returns false when the program has freed the
 * block meanwhile. */
static bool note_exported(CUdeviceptr address, unsigned exported)
{
    struct rs_block_record *block = rs_block_beginning_at(address);

    RS_ASSERT(exported <= UINT16_MAX);
    if (block)
        atomic_store_explicit(&block->exported, (uint16_t)exported, memory_order_relaxed);
    return block;
}

static void write_handle(uint32_t number, CUipcMemHandle *handle)
{
    struct rs_ipc_handle ours = self;

    RS_ASSERT(number > 0 && exports[number - 1].state == EXPORT_LIVE);
    RS_ASSERT(exports[number - 1].generation != 0); /* a closed slot has generation 0 */
    ours.slot = number - 1;
    ours.generation = exports[number - 1].generation;
    rs_ipc_seal(&ours, handle);
}

/* Clears the generation, so that no importer can open the block any more. */
static void close_slot(uint32_t number)
{
    atomic_store(&slots[number - 1].generation, 0);
}

/* True while another process holds a lock on the slot, or when the kernel does not tell. */
static bool is_open_elsewhere(uint32_t number)
{
    static bool said;
    struct flock wanted = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number - 1, .l_len = 1};

    if (!rs_descriptor_is_kept(&file)) {
        if (rs_log_once(&said))
            rs_log("the program closed a file descriptor of rmmshim (perhaps in a loop over all "
                   "descriptors): memory that was shared with other processes now stays allocated "
                   "until this process ends; close only descriptors that the program has opened");
        return true;
    }
    /* The generation must be cleared before the lock is asked for (ipc/table.h). */
    atomic_thread_fence(memory_order_seq_cst);
    return fcntl(file.fd, F_GETLK, &wanted) != 0 || wanted.l_type != F_UNLCK;
}

/* ---- native handles; the caller holds the lock ---- */

/* True when a block may get the driver's own handle of the driver allocation `id`. That handle
 * stands for the allocation as long as it lives, so only one block may ever have it; later blocks
 * in the same memory get handles of ours. */
static bool may_be_native(unsigned long long id)
{
    return id && !all_spent && !rs_hash_get(&spent, id);
}

/* ---- export ---- */

static CUresult refuse_export(bool *said, const char *reason)
{
    if (rs_log_once(said))
        rs_log("cuIpcGetMemHandle: refused: %s", reason);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult refuse_without_resources(void)
{
    static bool said;

    (void)refuse_export(&said, "sharing a block with other processes needs a file descriptor, a "
                               "thread and memory, and at least one of these is not available (for "
                               "file descriptors see ulimit -n)");
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns the number of a new slot, plus one; 0 after a diagnostic, with the error in *result. */
static uint32_t take_slot_or_refuse(CUresult *result)
{
    static bool said_closed, said_full;
    uint32_t number = 0;

    if (!exports && !create_table())
        *result = refuse_without_resources();
    else if (!rs_descriptor_is_kept(&file))
        *result = refuse_export(
            &said_closed, "the program has closed a file descriptor that rmmshim needs for sharing "
                          "(perhaps in a loop over all descriptors): set RMM_IPC=dedicated, which "
                          "needs none, but serves memory from the resource 'cuda' without a pool");
    else if (!(number = take_slot()))
        *result = refuse_export(
            &said_full, "this process shares as many blocks with other processes as it can: set "
                        "RMM_IPC=dedicated, which has no such limit, but serves memory from the "
                        "resource 'cuda' without a pool");
    return number;
}

/* Exports a block by a slot. `place` tells where the block lies in its driver allocation. It also
 * has the driver's handle of that allocation, or tells which descriptors are sent instead. */
static CUresult export_in_slot(const struct rs_block_view *block, const struct rs_ipc_slot *place,
                               CUipcMemHandle *handle)
{
    uint32_t number = slot_of_block(block);
    CUresult refused = CUDA_SUCCESS;
    struct exported *entry;
    struct rs_ipc_slot *slot;

    if (!number) {
        number = take_slot_or_refuse(&refused);
        if (!number)
            return refused;
        entry = &exports[number - 1];
        slot = &slots[number - 1];
        entry->state = EXPORT_LIVE;
        /* 0 is left out, since it means that the slot is closed. */
        entry->generation += entry->generation == UINT32_MAX ? 2 : 1;
        entry->address = block->address;
        entry->size_bytes = block->size_bytes;
        slot->pieces = place->pieces;
        slot->pool = place->pool;
        slot->offset_bytes = place->offset_bytes;
        slot->size_bytes = block->size_bytes;
        slot->allocation_bytes = place->allocation_bytes;
        slot->native = place->native;
        if (!note_exported(block->address, number)) {
            give_slot(number); /* the program has freed the block meanwhile */
            return CUDA_ERROR_INVALID_VALUE;
        }
        atomic_store(&slot->generation, entry->generation);
    }
    write_handle(number, handle);
    return CUDA_SUCCESS;
}

/* Makes the descriptor of a piece, or of the block's pool, for an importer; -1 when that fails. It
 * runs on the thread of ipc/transfer.h. If the block's memory ends meanwhile, the descriptor may be
 * that of another block, so the importer then checks that the slot is still the block's. */
static int make_descriptor(uint32_t slot, uint32_t generation, uint32_t piece)
{
    CUdeviceptr address = 0;
    uint64_t pool;
    int fd;

    {
        RS_MUTEX_GUARD(&lock);
        if (slot >= used || generation == 0 || slots[slot].generation != generation ||
            piece >= (slots[slot].pool ? 1 : slots[slot].pieces))
            return -1;
        pool = slots[slot].pool;
        if (!pool)
            address = exports[slot].address - slots[slot].offset_bytes +
                      piece * (slots[slot].allocation_bytes / slots[slot].pieces);
    }
    if (pool)
        return rs_pool_descriptor(pool);
    return rs_piece_export(address, &fd) == CUDA_SUCCESS ? fd : -1;
}

/* Finds the place of a block in memory for which the driver has no handle: mapped memory, or a
 * pool's. Returns CUDA_ERROR_NOT_SUPPORTED when the block lies in other memory. */
static CUresult find_sent(const struct rs_block_view *block, struct rs_ipc_slot *place)
{
    CUresult result = rs_pieces_find(block->address, block->size_bytes, place), pooled;

    if (result == CUDA_SUCCESS)
        return result;
    pooled = rs_pool_find(block, place);
    return pooled == CUDA_ERROR_NOT_SUPPORTED ? result : pooled;
}

/* Exports a block of which descriptors are sent. Returns false when the block lies in other memory,
 * or when nothing can be sent. */
static bool export_sent(const struct rs_block_view *block, CUipcMemHandle *handle, CUresult *result)
{
    struct rs_ipc_slot place = {.pieces = 0};

    *result = find_sent(block, &place);
    RS_MUTEX_GUARD(&lock);
    if (*result == CUDA_SUCCESS)
        *result = exports || create_table()
                      ? rs_transfer_start(&table_header->pipe, make_descriptor)
                      : CUDA_ERROR_OUT_OF_MEMORY;
    if (*result == CUDA_ERROR_NOT_SUPPORTED)
        return false;
    RS_ASSERT(*result != CUDA_SUCCESS || place.pieces > 0 || place.pool);
    if (*result == CUDA_SUCCESS)
        *result = export_in_slot(block, &place, handle);
    else if (*result == CUDA_ERROR_OUT_OF_MEMORY)
        *result = refuse_without_resources();
    return true;
}

static CUresult export_block(const struct rs_block_view *block, CUipcMemHandle *handle)
{
    static bool said;
    struct rs_ipc_slot place = {.pieces = 0};
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult result = rs_driver.cuIpcGetMemHandle(&place.native, block->address);

    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) {
        CUresult refused;
        if (export_sent(block, handle, &refused))
            return refused;
        refused = refuse_export(
            &said, "other processes cannot open this block, because it is virtual, stream-ordered, "
                   "managed or host memory: to share device memory, set for instance "
                   "RMM_RESOURCE=pool(cuda)");
        return block->whole ? result : refused;
    }
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemGetAddressRange_v2(&base, &bytes, block->address);
    if (result != CUDA_SUCCESS)
        return result;
    place.offset_bytes = block->address - base;
    place.allocation_bytes = bytes;
    RS_MUTEX_GUARD(&lock);
    if (block->whole && !slot_of_block(block) &&
        may_be_native(rs_driver_allocation_id(block->address)) &&
        note_exported(block->address, RS_EXPORTED_NATIVE))
        *handle = place.native;
    else
        result = export_in_slot(block, &place, handle);
    return result;
}

/* Answers for a block that another process exported. The driver refuses to export such memory
 * again, and the program gets its error. If the driver does not refuse, the program gets an error
 * too, since the driver's handle would name the whole allocation around the block. */
static CUresult export_again(CUdeviceptr address)
{
    CUipcMemHandle unwanted;
    CUresult result = rs_driver.cuIpcGetMemHandle(&unwanted, address);

    return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

bool rs_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result)
{
    struct rs_introspection introspection = rs_introspect(address);

    if (!handle || !rs_driver_ready(false) || !rs_driver.cuIpcGetMemHandle)
        return false; /* the program gets the driver's own error */
    if (introspection.what == RS_INTROSPECTED_FREED)
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (introspection.what == RS_INTROSPECTED_OPENED)
        *result = export_again(address);
    else if (introspection.what == RS_INTROSPECTED_BLOCK &&
             introspection.block.kind == RS_KIND_DEVICE)
        *result = export_block(&introspection.block, handle);
    else
        return false;
    return true;
}

/* ---- frees ---- */

static void hold_slot(uint32_t number, const struct rs_taken_block *taken)
{
    struct exported *entry = &exports[number - 1];

    RS_ASSERT_HELD(&lock);
    entry->state = EXPORT_HELD;
    entry->held = *taken;
    entry->next = 0;
    if (last_held)
        exports[last_held - 1].next = number;
    else
        first_held = number;
    last_held = number;
    atomic_fetch_add(&rs_export_held, 1);
    atomic_fetch_add(rs_attention, 1);
}

/* Takes the oldest held slot off the list.  Returns its number plus one; 0 when none is held. */
static uint32_t take_held_slot(void)
{
    uint32_t number = first_held;

    RS_ASSERT_HELD(&lock);
    if (!number)
        return 0;
    first_held = exports[number - 1].next;
    if (!first_held)
        last_held = 0;
    atomic_fetch_sub(&rs_export_held, 1);
    atomic_fetch_sub(rs_attention, 1);
    return number;
}

static bool end_slot(uint32_t number, const struct rs_taken_block *taken)
{
    RS_MUTEX_GUARD(&lock);

    close_slot(number);
    if (is_open_elsewhere(number)) {
        hold_slot(number, taken);
        return true;
    }
    give_slot(number);
    return false;
}

bool rs_export_end(struct rs_taken_block *taken)
{
    struct rs_stack *stack = taken->stack;

    if (taken->exported == RS_EXPORTED_NATIVE) {
        RS_MUTEX_GUARD(&lock);
        taken->exported_id = rs_driver_allocation_id(taken->allocation.address);
        if (taken->exported_id && !rs_hash_put(&spent, taken->exported_id, is_spent))
            all_spent = true;
        return false;
    }
    if (!end_slot(taken->exported, taken))
        return false;
    /* The block is deallocated only later. So the wait for the GPU, which a free by the driver
     * would make, is made here. */
    (void)rs_sentinel_wait(&stack->context->sentinel, stack->context->handle);
    return true;
}

void rs_export_freed(const struct rs_taken_block *taken)
{
    struct rs_segment segment;

    if (!taken->exported_id || rs_segment_find(taken->allocation.address, &segment))
        return;
    RS_MUTEX_GUARD(&lock);
    /* The driver has the allocation back, and never uses its id again. */
    (void)rs_hash_take(&spent, taken->exported_id);
}

/* ---- blocks that another process has closed ---- */

/* The longest time that the collection of a block waits for a context to be idle. */
enum { IDLE_NS = 500 * 1000 };

/* True when a deallocation in the stack may be made now, since it will not wait for the context's
 * work. With `reuse` above all leaves it never does; otherwise it does not if the context is idle.
 * Where the driver has no fences, nobody can tell whether the context is idle: there the
 * deallocation is made outside of requests, where a wait is allowed. */
static bool may_free_now(const struct rs_stack *stack)
{
    if (stack->environment.frees_are_ready)
        return true;
    return rs_fence_supported() ? rs_context_idle(stack->context->handle, IDLE_NS) == RS_FENCE_DONE
                                : !rs_request_is_under_way();
}

/* Returns the stack of the oldest held block; NULL when no block is held. */
static struct rs_stack *oldest_stack(void)
{
    RS_MUTEX_GUARD(&lock);

    return first_held ? exports[first_held - 1].held.stack : NULL;
}

/* Takes the oldest held block and returns true, if the block is of this stack and no process has it
 * open any more. Otherwise, and always for a NULL `stack`, moves the block to the end of the list
 * and returns false. */
static bool take_released(const struct rs_stack *stack, struct rs_taken_block *block)
{
    RS_MUTEX_GUARD(&lock);
    uint32_t number = take_held_slot();

    if (!number)
        return false;
    *block = exports[number - 1].held;
    if (block->stack != stack || is_open_elsewhere(number)) {
        hold_slot(number, block);
        return false;
    }
    give_slot(number);
    return true;
}

/* Deallocates a block for which may_free_now was true. The caller keeps the block's context from
 * ending. If `reuse` is above all leaves, the call is made inside a request: there `reuse` takes
 * the block without a wait. */
static void deallocate_held(const struct rs_taken_block *block)
{
    struct rs_stack *stack = block->stack;
    bool is_ready = stack->environment.frees_are_ready;

    if (is_ready)
        rs_request_begin();
    /* This fails only when the context is broken. */
    (void)rs_mr_deallocate(atomic_load(&stack->mr), &block->allocation, NULL);
    if (is_ready)
        rs_request_end();
}

/* Deallocates the oldest held block, if it is of this stack and that is possible now. Otherwise
 * moves the block to the end of the list. */
static void collect_one(struct rs_stack *stack)
{
    struct rs_taken_block block;
    bool is_held = rs_context_hold(stack->context);

    if (take_released(is_held && may_free_now(stack) ? stack : NULL, &block))
        deallocate_held(&block);
    if (is_held)
        rs_context_release(stack->context);
}

void rs_export_collect(bool all)
{
    struct rs_stack *stack;

    if (rs_context_is_creating())
        return; /* this thread may hold the contexts' lock */
    for (size_t looks = all ? atomic_load(&rs_export_held) : 1;
         looks > 0 && (stack = oldest_stack()); looks--)
        collect_one(stack);
}

/* ---- ends of contexts ---- */

void rs_export_forget(unsigned exported)
{
    if (exported == RS_EXPORTED_NOT || exported == RS_EXPORTED_NATIVE)
        return;
    RS_MUTEX_GUARD(&lock);
    close_slot(exported);
    give_slot(exported);
}

void rs_export_forget_held(const struct rs_context *context)
{
    rs_pool_forget(context->handle);
    RS_MUTEX_GUARD(&lock);

    for (size_t count = atomic_load(&rs_export_held); count > 0; count--) {
        uint32_t number = take_held_slot();
        struct rs_taken_block block = exports[number - 1].held;
        if (block.stack->context != context) {
            hold_slot(number, &block);
            continue;
        }
        give_slot(number);
        if (block.allocation.block)
            rs_block_record_give(block.allocation.block);
    }
}
