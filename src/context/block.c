/* SPDX-License-Identifier: Apache-2.0 */
#include "context/block.h"

#include "base/check.h"
#include "base/lock.h"
#include "context/end.h"
#include "context/limit.h"
#include "resource/segment.h"
#include "shim/wiring.h"

/* Ends a block whose context, and so its memory, has ended. The block's entry in the map is already
 * gone. Returns false, having done nothing, when another thread has claimed the block first. */
static bool lose(struct rs_block_record *block)
{
    unsigned char live = RS_BLOCK_LIVE;

    if (!atomic_compare_exchange_strong(&block->state, &live, RS_BLOCK_HIDDEN))
        return false;
    rs_block_count_left(rs_block_stack(block)->counter, block->size_bytes);
    rs_wiring.export_gone(atomic_load_explicit(&block->exported, memory_order_relaxed));
    rs_block_record_give(block);
    return true;
}

/* Called when another block has replaced the block `before` in the map. A live `before` belongs to
 * a context that has ended or is ending. Otherwise a free has claimed `before`. It may be of the
 * same stack: a resource may cut a freed block of its upstream, which has the record `before`, into
 * new blocks. */
static void replaced(struct rs_block_record *before, const struct rs_stack *by)
{
    if (!lose(before) && rs_block_stack(before) == by)
        atomic_store_explicit(&before->state, RS_BLOCK_HIDDEN, memory_order_relaxed);
}

/* Called when out of host memory for a record: counts the program's out-of-memory error. */
RS_COLD static bool refuse_block(const struct rs_stack *stack)
{
    rs_limit_note_refused(stack->environment.device);
    return false;
}

/* Enters a hidden block into the map, and marks it as taken. Returns false when out of host memory.
 */
static bool enter_new(struct rs_block_record *block, struct rs_stack *stack,
                      const struct rs_allocation *allocation)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);
    struct rs_block_record *before;

    RS_ASSERT_SLOW(allocation->size_bytes > 0 && allocation->address % RS_BLOCK_ALIGNMENT == 0);
    if (RS_UNLIKELY(!map))
        map = rs_address_map_create_at(&rs_blocks);
    if (!map)
        return false;
    atomic_store_explicit(&block->address, allocation->address, memory_order_relaxed);
    block->size_bytes = allocation->size_bytes;
    /* Stored after the address, in release order, for rs_block_stack. */
    atomic_store_explicit(&block->stack, stack, memory_order_release);
    atomic_store_explicit(&block->state, RS_BLOCK_TAKEN, memory_order_release);
    before = rs_address_map_replace(map, allocation->address, allocation->size_bytes, block);
    if (!before)
        atomic_store_explicit(&block->state, RS_BLOCK_HIDDEN, memory_order_relaxed);
    else if (before != block)
        replaced(before, stack);
    return before;
}

bool rs_block_enter_slowly(struct rs_stack *stack, const struct rs_allocation *allocation,
                           unsigned object)
{
    struct rs_block_record *block = allocation->block;

    if (atomic_load(&stack->context->ending) == RS_ENDING_OVER)
        return false; /* rs_block_forget_all has run, or is about to run, for this context */
    if (!block) {
        block = rs_block_record_take();
        if (!block)
            return refuse_block(stack);
        block->upstream_bytes = 0;
    }
    if (atomic_load_explicit(&block->state, memory_order_relaxed) != RS_BLOCK_TAKEN &&
        !enter_new(block, stack, allocation)) {
        if (!allocation->block)
            rs_block_record_give(block);
        return refuse_block(stack);
    }
    rs_block_publish(block, stack, allocation, object);
    return true;
}

bool rs_block_restore(struct rs_stack *stack, const struct rs_allocation *allocation)
{
    struct rs_block_record *block = allocation->block;

    return rs_block_enter(stack, allocation,
                          block ? atomic_load_explicit(&block->object, memory_order_relaxed) : 0);
}

struct rs_block_record *rs_block_beginning_at(CUdeviceptr address)
{
    struct rs_block_record *block = rs_block_lookup(address);

    /* The record may have been recycled for another block after the look-up. */
    return block && atomic_load_explicit(&block->state, memory_order_acquire) == RS_BLOCK_LIVE &&
                   rs_block_is_at(block, address)
               ? block
               : NULL;
}

static const struct rs_context *context_of_block(struct rs_block_record *block)
{
    return rs_block_stack(block)->context;
}

bool rs_block_take_doubted(CUdeviceptr address, unsigned kinds, struct rs_taken_block *taken)
{
    struct rs_block_record *block = rs_block_lookup(address);

    return block && kinds >> rs_block_stack(block)->kind & 1 &&
           atomic_load_explicit(&block->state, memory_order_relaxed) == RS_BLOCK_LIVE &&
           rs_context_serves(context_of_block(block)) &&
           rs_block_take_checked(block, address, taken);
}

/* Returns false for a block that the search must skip: its context has ended or is destroyed by a
 * call, or its record was recycled, so that the block is gone. While a call gives up a reference to
 * the context, only a block that contains the address is looked at further: the driver is asked
 * whether the context still exists. */
static bool is_in_service(const struct rs_range *range, bool is_inside)
{
    const struct rs_context *context = context_of_block(range->owner);

    return rs_block_is_at(range->owner, range->start) &&
           (atomic_load_explicit(&context->alive, memory_order_relaxed) != RS_CONTEXT_ENDS ||
            (is_inside && rs_context_serves(context)));
}

/* Returns the live block that holds address, or NULL. */
static struct rs_block_record *find_live(CUdeviceptr address, struct rs_range *range)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);
    struct rs_block_record *block;

    if (!map || !rs_address_map_find_inside_if(map, address, is_in_service, range))
        return NULL;
    block = range->owner;
    return atomic_load_explicit(&block->state, memory_order_acquire) == RS_BLOCK_LIVE &&
                   rs_block_is_at(block, range->start)
               ? block
               : NULL;
}

struct rs_block_record *rs_block_around(CUdeviceptr address)
{
    struct rs_range range;

    return find_live(address, &range);
}

void rs_block_note_advice(CUdeviceptr address, const struct rs_advice *advice)
{
    struct rs_block_record *block = rs_block_around(address);

    if (!block)
        return;
    atomic_fetch_or_explicit(&block->advised, advice->advised, memory_order_relaxed);
    atomic_fetch_or_explicit(&block->device_accesses, advice->device_accesses,
                             memory_order_relaxed);
}

struct search {
    struct rs_segment segment;
    bool found;
};

static bool find_sync_memops(void *data, const struct rs_range *range)
{
    struct search *search = data;

    if (range->start - search->segment.start < search->segment.size_bytes &&
        rs_block_syncs_memops(rs_block_around(range->start)))
        search->found = true;
    return !search->found;
}

bool rs_block_segment_syncs_memops(CUdeviceptr address)
{
    struct search search = {.found = false};

    if (rs_segment_find(address, &search.segment))
        rs_address_map_each(atomic_load(&rs_blocks), find_sync_memops, &search);
    return search.found;
}

uint64_t rs_block_id(CUdeviceptr address)
{
    /* The driver counts its ids from 1 up, so it never reaches ids from 2^62 on. */
    static _Atomic uint64_t last = (uint64_t)1 << 62;
    struct rs_block_record *block = rs_block_around(address);
    uint64_t known = block ? atomic_load_explicit(&block->id, memory_order_relaxed) : 0, made;

    if (!block || known)
        return known;
    made = 1 + atomic_fetch_add_explicit(&last, 1, memory_order_relaxed);
    return atomic_compare_exchange_strong_explicit(&block->id, &known, made, memory_order_relaxed,
                                                   memory_order_relaxed)
               ? made
               : known;
}

bool rs_block_is_near(CUdeviceptr address, size_t size_bytes)
{
    size_t look_bytes = rs_min(size_bytes, RS_MANAGED_UNIT);

    for (size_t i = 0; i < look_bytes; i += RS_BLOCK_ALIGNMENT)
        if (rs_block_around(address + i))
            return true;
    return false;
}

static struct rs_block_view view_of_block(struct rs_block_record *block,
                                          const struct rs_range *range)
{
    return (struct rs_block_view){.address = range->start,
                                  .size_bytes = range->size_bytes,
                                  .context = rs_block_stack(block)->context->handle,
                                  .device = rs_block_stack(block)->environment.device,
                                  .kind = rs_block_stack(block)->kind,
                                  .object =
                                      atomic_load_explicit(&block->object, memory_order_relaxed)};
}

bool rs_block_find(CUdeviceptr address, struct rs_block_view *view)
{
    struct rs_segment segment;
    struct rs_range range;
    struct rs_block_record *block = find_live(address, &range);

    if (!block)
        return false;
    *view = view_of_block(block, &range);
    view->whole = rs_segment_find(address, &segment) && segment.start == range.start &&
                  segment.size_bytes - range.size_bytes < RS_BLOCK_ALIGNMENT;
    return true;
}

struct each {
    void (*visit)(void *data, const struct rs_block_view *view);
    void *data;
};

static bool visit_live(void *data, const struct rs_range *range)
{
    const struct each *each = data;
    struct rs_block_record *block = range->owner;
    struct rs_block_view view;

    /* A context to which a call gives up a reference counts as alive here. The driver is not asked
     * whether it still exists. */
    if (atomic_load_explicit(&block->state, memory_order_acquire) == RS_BLOCK_LIVE &&
        atomic_load(&context_of_block(block)->ending) <= RS_ENDING_MAYBE &&
        rs_block_is_at(block, range->start)) {
        view = view_of_block(block, range);
        each->visit(each->data, &view);
    }
    return true;
}

void rs_block_each(void (*visit)(void *data, const struct rs_block_view *view), void *data)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);

    if (map)
        rs_address_map_each(map, visit_live, &(struct each){visit, data});
}

bool rs_block_is_our_memory(CUdeviceptr address)
{
    struct rs_segment segment;

    return rs_segment_find(address, &segment);
}

static bool is_of_context(void *context, void *block)
{
    return context_of_block(block) == context;
}

/* Removes the range and ends its block if the block is of the context. rs_address_map_remove_if
 * compares the contexts as it removes the range. An earlier comparison could be outdated: the
 * record may be recycled for a block of another context at the same address. */
static bool forget_if_owned(void *context, const struct rs_range *range)
{
    if (rs_address_map_remove_if(atomic_load(&rs_blocks), range->start, range->owner, is_of_context,
                                 context))
        (void)lose(range->owner);
    return true;
}

void rs_block_forget_all(struct rs_context *context)
{
    struct rs_address_map *map = atomic_load_explicit(&rs_blocks, memory_order_acquire);

    /* A context in service could enter more blocks meanwhile. */
    RS_ASSERT(!atomic_load(&context->alive));
    if (map)
        rs_address_map_each(map, forget_if_owned, context);
}
