/* SPDX-License-Identifier: Apache-2.0 */
/* Live blocks: allocations of the program that a stack served.
 *
 * All functions are thread safe. `address` may lie anywhere inside the block, except where the
 * comment says that the block begins there. */
#pragma once

#include "context/block_counts.h"
#include "context/context.h"
#include "resource/block.h"
#include "resource/resource.h"

/* What other files are told of a live block. */
struct rs_block_view {
    CUdeviceptr address;
    size_t size_bytes; /* as requested */
    CUcontext context; /* the context whose stack owns the memory */
    CUdevice device;
    bool whole; /* the block has a driver allocation of its own, which exceeds it by less than
                   RS_BLOCK_ALIGNMENT bytes */
    enum rs_kind kind;
    unsigned object; /* the number of the shared object that allocated it (trace/object.h); 0: not
                        known */
};

/* What the program told the driver about a block: advice about managed memory (cuMemAdvise), and
 * SYNC_MEMOPS for every kind. It is undone before the block is handed out again. The constants are
 * the bits of rs_advice.advised. */
enum {
    RS_ADVISED_READ_MOSTLY = 1 << 0,
    RS_ADVISED_LOCATION = 1 << 1,
    RS_ADVISED_HOST_ACCESS = 1 << 2,
    RS_ADVISED_SYNC_MEMOPS = 1 << 3,
    /* The program unset SYNC_MEMOPS on a managed block, whose memory starts with it set;
     * RS_ADVISED_SYNC_MEMOPS overrides this bit. */
    RS_ADVISED_NO_SYNC_MEMOPS = 1 << 4,
};

struct rs_advice {
    unsigned advised;         /* RS_ADVISED_... */
    uint64_t device_accesses; /* bit i: device i was advised as an accessor (SET_ACCESSED_BY) */
};

/* How a block is exported to other processes (rs_block_record.exported). RS_EXPORTED_NOT: it is not
 * exported. RS_EXPORTED_NATIVE: by a handle that the driver made. Any other value is one more than
 * the block's index in the table of ipc/export.c. */
enum { RS_EXPORTED_NOT = 0, RS_EXPORTED_NATIVE = 0xffff };

struct rs_taken_block {
    struct rs_allocation allocation;
    struct rs_stack *stack;
    struct rs_advice advice;
    unsigned exported;
    /* Id of the driver allocation, set and read by ipc/export.c; 0: none. */
    unsigned long long exported_id;
};

/* Return the record of a live block, or NULL when there is none. rs_block_beginning_at looks for
 * the block that begins at address, rs_block_around for the block in which address lies. The caller
 * may read the record's fields, and write those of its history, although the block may be freed at
 * any moment: the next block that gets the record starts with an empty history. */
struct rs_block_record *rs_block_beginning_at(CUdeviceptr address);
struct rs_block_record *rs_block_around(CUdeviceptr address);

/* Fills in *view for the live block that holds address; returns false when there is none. */
bool rs_block_find(CUdeviceptr address, struct rs_block_view *view);

/* Adds the advice to what is noted for the live block that holds address; advice noted before
 * stays. */
void rs_block_note_advice(CUdeviceptr address, const struct rs_advice *advice);

/* True when SYNC_MEMOPS was set for the block: by the program, or by the driver when the program
 * asked for P2P tokens.  False for NULL, which is no block. */
static inline bool rs_block_syncs_memops(const struct rs_block_record *block)
{
    return block && block->advised & RS_ADVISED_SYNC_MEMOPS;
}

/* True when SYNC_MEMOPS was set (see above) for any live block in the driver allocation around
 * address.  Visits every block of the process. */
bool rs_block_segment_syncs_memops(CUdeviceptr address);

/* Calls visit for each live block of the process, without a lock; `whole` is not filled in. Leaves
 * out the blocks of contexts that have ended or that a call destroys (RS_ENDING_SURELY). Blocks
 * that are allocated or freed meanwhile may be missed. */
void rs_block_each(void (*visit)(void *data, const struct rs_block_view *view), void *data);

/* Returns an id for the live block that holds address, unique among all allocations of the process,
 * past and future (the answer to CU_POINTER_ATTRIBUTE_BUFFER_ID); 0 when there is no live block.
 * The id is made at the first call. */
uint64_t rs_block_id(CUdeviceptr address);

/* True when one of the first RS_MANAGED_UNIT bytes of the range lies in a live block. It checks
 * every RS_BLOCK_ALIGNMENT bytes from address on. */
bool rs_block_is_near(CUdeviceptr address, size_t size_bytes);

/* True when address lies in a driver allocation of a stack, in a live block or not. */
bool rs_block_is_our_memory(CUdeviceptr address);

/* Forgets every block of a context that has ended, and ends the blocks' exports. */
void rs_block_forget_all(struct rs_context *context);

/* ---- what every allocation and free calls; inline, since both together take only about 60 ns
 * (tests/bench/README.md) ---- */

/* Slow path of rs_block_enter: for a block that is not in the map, or whose context may be ending.
 */
bool rs_block_enter_slowly(struct rs_stack *stack, const struct rs_allocation *allocation,
                           unsigned object);

/* Returns the stack of the record's block. Acquire order: if this is the stack of a new block, for
 * which the record was recycled after a look-up, a later rs_block_is_at returns false. */
RS_HOT_INLINE struct rs_stack *rs_block_stack(struct rs_block_record *block)
{
    return atomic_load_explicit(&block->stack, memory_order_acquire);
}

/* Returns false when the record that a look-up found at address was recycled for another block
 * before the caller read the record's stack.  That happens to correct programs: the record of a
 * context that has ended may stand at an address that the driver has given out again. */
RS_HOT_INLINE bool rs_block_is_at(const struct rs_block_record *block, CUdeviceptr address)
{
    return atomic_load_explicit(&block->address, memory_order_relaxed) == address;
}

/* Returns the state of the stack's context (RS_CONTEXT_...). While a call may be ending the context
 * this is RS_CONTEXT_ENDS, and rs_context_serves tells whether its blocks are still valid. */
RS_HOT_INLINE unsigned rs_block_alive_in(const struct rs_stack *stack)
{
    return atomic_load_explicit(&stack->context->alive, memory_order_relaxed);
}

/* Resets the record, counts the block and makes it live: from here on look-ups find it. */
RS_HOT_INLINE void rs_block_publish(struct rs_block_record *block, struct rs_stack *stack,
                                    const struct rs_allocation *allocation, unsigned object)
{
    rs_block_count_entered(stack->counter, allocation->size_bytes);
    block->token = allocation->token;
    atomic_store_explicit(&block->object, (uint16_t)object, memory_order_relaxed);
    atomic_store_explicit(&block->history, 0, memory_order_relaxed); /* RS_EXPORTED_NOT is 0 */
    atomic_store_explicit(&block->device_accesses, 0, memory_order_relaxed);
    atomic_store_explicit(&block->id, 0, memory_order_relaxed);
    atomic_store_explicit(&block->state, RS_BLOCK_LIVE, memory_order_release);
}

/* Makes a block live that was just allocated. `object` is the number of the shared object that
 * allocated it (trace/object.h). A block that comes with its record (allocation->block) needs no
 * new one. Returns false when out of host memory, and when the context has ended. */
RS_HOT_INLINE bool rs_block_enter(struct rs_stack *stack, const struct rs_allocation *allocation,
                                  unsigned object)
{
    struct rs_block_record *block = allocation->block;

    if (RS_UNLIKELY(!block) ||
        RS_UNLIKELY(atomic_load_explicit(&block->state, memory_order_relaxed) != RS_BLOCK_TAKEN) ||
        RS_UNLIKELY(!rs_block_alive_in(stack)))
        return rs_block_enter_slowly(stack, allocation, object);
    rs_block_publish(block, stack, allocation, object);
    /* The free of this block will read this cache line. */
    rs_address_map_prefetch(atomic_load_explicit(&rs_blocks, memory_order_relaxed),
                            allocation->address);
    return true;
}

/* Makes a block live again whose deallocation failed. Its object's number is kept only if the
 * allocation comes with its record (allocation->block). */
bool rs_block_restore(struct rs_stack *stack, const struct rs_allocation *allocation);

/* Returns the record of the block that begins at address, or that lately began there; NULL when
 * there is none.  The caller must check its state. */
RS_HOT_INLINE struct rs_block_record *rs_block_lookup(CUdeviceptr address)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);

    return RS_LIKELY(map) ? rs_address_map_owner(map, address) : NULL;
}

/* Takes the block of a record whose stack the caller has checked: marks it as taken and fills in
 * *taken. Returns false when another thread has taken the block, or its record was recycled. The
 * address is compared before the state is changed, since a recycled record must not look taken for
 * a moment: the free of its new block would then fail. */
RS_HOT_INLINE bool rs_block_take_checked(struct rs_block_record *block, CUdeviceptr address,
                                         struct rs_taken_block *taken)
{
    unsigned char live = RS_BLOCK_LIVE;

    if (RS_UNLIKELY(!rs_block_is_at(block, address)) ||
        RS_UNLIKELY(!atomic_compare_exchange_strong_explicit(
            &block->state, &live, RS_BLOCK_TAKEN, memory_order_acquire, memory_order_relaxed)))
        return false;
    if (RS_UNLIKELY(!rs_block_is_at(block, address))) {
        /* The record was recycled for another block just now: the program frees twice. */
        atomic_store_explicit(&block->state, RS_BLOCK_LIVE, memory_order_release);
        return false;
    }
    taken->allocation = (struct rs_allocation){
        address,
        block->size_bytes,
        block->token,
        block,
    };
    taken->stack = rs_block_stack(block);
    taken->advice = (struct rs_advice){
        atomic_load_explicit(&block->advised, memory_order_relaxed),
        atomic_load_explicit(&block->device_accesses, memory_order_relaxed),
    };
    taken->exported = atomic_load_explicit(&block->exported, memory_order_relaxed);
    rs_block_count_left(taken->stack->counter, taken->allocation.size_bytes);
    if (RS_UNLIKELY(block->upstream_bytes == 0)) { /* no resource made the record */
        taken->allocation.block = NULL;
        rs_block_record_give(block);
    }
    return true;
}

/* Takes the live block that begins at address, so that it can be freed: look-ups no longer find it.
 * Its kind must be in the set `kinds` (bits 1 << rs_kind). `block` is the result of
 * rs_block_lookup, which may be NULL. Fills in *taken. At most one thread succeeds. Returns false
 * when there is no such block, its context is faulty (context/end.h), or a call may be ending its
 * context. If the deallocation then fails, rs_block_restore makes the block live again. A record
 * that a resource made stays in the map and goes with the allocation (taken->allocation.block). */
RS_HOT_INLINE bool rs_block_claim_found(struct rs_block_record *block, CUdeviceptr address,
                                        unsigned kinds, struct rs_taken_block *taken)
{
    return RS_LIKELY(block) &&
           RS_LIKELY(rs_block_alive_in(rs_block_stack(block)) &
                     kinds >> rs_block_stack(block)->kind) &&
           rs_block_take_checked(block, address, taken);
}

/* Does what rs_block_claim does, but also takes a block whose context is faulty. While a call gives
 * up a reference to the context (RS_ENDING_MAYBE), it takes the block if the driver says that the
 * context still exists. */
RS_COLD bool rs_block_take_doubted(CUdeviceptr address, unsigned kinds,
                                   struct rs_taken_block *taken);

RS_HOT_INLINE bool rs_block_claim(CUdeviceptr address, unsigned kinds, struct rs_taken_block *taken)
{
    return rs_block_claim_found(rs_block_lookup(address), address, kinds, taken);
}
