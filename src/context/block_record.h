/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a block, and the functions that every allocation and free calls.  They are inline:
 * an allocation and its free together take about 60 ns (tests/bench/README.md). */
#pragma once

#include "base/address_map.h"
#include "base/check.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "resource/resource.h"

#include <stdatomic.h>

enum rs_block_state { RS_BLOCK_FREE, RS_BLOCK_LIVE, RS_BLOCK_TAKEN };

/* Records are recycled and never unmapped.  A late reader may find the record in use for another
 * block; it compares the address to tell. */
struct rs_block_record {
    void *slab_link;             /* used by the slab alone */
    _Atomic unsigned char state; /* enum rs_block_state */
    _Atomic uint16_t object;     /* that allocated it (trace/object.h); 0: not known */
    union {
        struct {
            _Atomic bool has_other_streams;
            _Atomic unsigned char advised; /* RS_ADVISED_... */
            _Atomic uint16_t exported;     /* RS_EXPORTED_... */
        };
        _Atomic uint32_t history; /* all three, set to 0 by one store: a new block has none */
    };
    _Atomic uint64_t device_accesses;
    _Atomic uint64_t id; /* 0: rs_block_id has not been called */
    _Atomic CUdeviceptr address;
    _Atomic size_t size_bytes;
    _Atomic(void *) token;
    _Atomic(struct rs_stack *) stack;
};

/* Maps addresses to block records; NULL before the first block. */
extern RS_HOT_DATA _Atomic(struct rs_address_map *) rs_blocks;

bool rs_block_enter_new(struct rs_stack *stack, const struct rs_allocation *allocation,
                        unsigned object);

/* Removes a block in state RS_BLOCK_TAKEN from the map and recycles its record, unless the end of
 * its context has done so. */
void rs_block_forget(struct rs_block_record *block, CUdeviceptr address);

RS_HOT_INLINE struct rs_stack *rs_block_stack(struct rs_block_record *block)
{
    return atomic_load_explicit(&block->stack, memory_order_relaxed);
}

/* RS_CONTEXT_... of the block's context.  Its blocks may still count where a call may be ending
 * it. */
RS_HOT_INLINE unsigned rs_block_alive(struct rs_block_record *block)
{
    return atomic_load_explicit(&rs_block_stack(block)->context->alive, memory_order_relaxed);
}

/* Resets the record, counts the block and makes it live: from here on look-ups find it. */
RS_HOT_INLINE void rs_block_show(struct rs_block_record *block, struct rs_stack *stack,
                                 const struct rs_allocation *allocation, unsigned object)
{
    rs_block_count_entered(stack->counter, allocation->size_bytes);
    atomic_store_explicit(&block->token, allocation->token, memory_order_relaxed);
    atomic_store_explicit(&block->object, (uint16_t)object, memory_order_relaxed);
    atomic_store_explicit(&block->history, 0, memory_order_relaxed); /* RS_EXPORTED_NOT is 0 */
    atomic_store_explicit(&block->device_accesses, 0, memory_order_relaxed);
    atomic_store_explicit(&block->id, 0, memory_order_relaxed);
    atomic_store_explicit(&block->state, RS_BLOCK_LIVE, memory_order_release);
}

/* Enters a block that `object` has just allocated.  A block that comes with
 * its record (allocation->holder) takes no new one.  False when out of host memory, or when the
 * context of that record has ended and the record is no longer this block's. */
RS_HOT_INLINE bool rs_block_enter(struct rs_stack *stack, const struct rs_allocation *allocation,
                                  unsigned object)
{
    struct rs_block_record *block = allocation->holder;

    if (RS_UNLIKELY(!block))
        return rs_block_enter_new(stack, allocation, object);
    if (RS_UNLIKELY(
            RS_DIFFER(rs_block_stack(block), stack) |
            RS_DIFFER(atomic_load_explicit(&block->state, memory_order_relaxed), RS_BLOCK_TAKEN)))
        return false;
    rs_block_show(block, stack, allocation, object);
    rs_address_map_prefetch(atomic_load_explicit(&rs_blocks, memory_order_relaxed),
                            allocation->address); /* the free of this block reads this line */
    return true;
}

/* Enters a block whose deallocation failed.  Who allocated it is known only where it comes with its
 * record. */
bool rs_block_enter_again(struct rs_stack *stack, const struct rs_allocation *allocation);

/* Returns the record of the block that begins at address, or that lately began there; NULL when
 * there is none.  The caller must check its state. */
RS_HOT_INLINE struct rs_block_record *rs_block_see(CUdeviceptr address)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);

    return RS_LIKELY(map) ? rs_address_map_owner(map, address) : NULL;
}

/* The part of rs_block_take_seen after the checks that need no write. */
RS_HOT_INLINE bool rs_block_take_checked(struct rs_block_record *block, CUdeviceptr address,
                                         struct rs_taken_block *taken)
{
    unsigned char live = RS_BLOCK_LIVE;

    if (RS_UNLIKELY(!atomic_compare_exchange_strong_explicit(
            &block->state, &live, RS_BLOCK_TAKEN, memory_order_acquire, memory_order_relaxed)))
        return false;
    if (RS_UNLIKELY(atomic_load_explicit(&block->address, memory_order_relaxed) != address)) {
        /* The record was recycled for another block after the look-up: the program frees twice. */
        atomic_store_explicit(&block->state, RS_BLOCK_LIVE, memory_order_release);
        return false;
    }
    taken->allocation = (struct rs_allocation){
        address,
        atomic_load_explicit(&block->size_bytes, memory_order_relaxed),
        atomic_load_explicit(&block->token, memory_order_relaxed),
        block,
    };
    taken->stack = rs_block_stack(block);
    taken->advice = (struct rs_advice){
        atomic_load_explicit(&block->advised, memory_order_relaxed),
        atomic_load_explicit(&block->device_accesses, memory_order_relaxed),
    };
    taken->exported = atomic_load_explicit(&block->exported, memory_order_relaxed);
    rs_block_count_left(taken->stack->counter, taken->allocation.size_bytes);
    if (RS_UNLIKELY(
            !atomic_load_explicit(&taken->stack->mr, memory_order_relaxed)->keeps_holders)) {
        taken->allocation.holder = NULL;
        rs_block_forget(block, address);
    }
    return true;
}

/* Makes the live block that begins at address invisible to look-ups, so that it can be freed, if
 * bit 1 << kind of its kind is in `kinds`; fills in *taken.  At most one thread succeeds.  False
 * when there is no such block, or its context is faulty (context/fault.h).  If the deallocation
 * then fails, rs_block_enter_again makes the block live again.  Where the stack keeps holders, the
 * record stays in the map and goes with the allocation (taken->allocation.holder). */
RS_HOT_INLINE bool rs_block_take_seen(struct rs_block_record *block, CUdeviceptr address,
                                      unsigned kinds, struct rs_taken_block *taken)
{
    return RS_LIKELY(block) &&
           RS_LIKELY(rs_block_alive(block) & kinds >> rs_block_stack(block)->kind) &&
           rs_block_take_checked(block, address, taken);
}

/* As rs_block_take, also where a call may be ending the block's context: then the driver is asked.
 */
RS_COLD bool rs_block_take_doubted(CUdeviceptr address, unsigned kinds,
                                   struct rs_taken_block *taken);

RS_HOT_INLINE bool rs_block_take(CUdeviceptr address, unsigned kinds, struct rs_taken_block *taken)
{
    return rs_block_take_seen(rs_block_see(address), address, kinds, taken);
}
