/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the pool: a pool over a fake leaf. */
#pragma once

#include "resource/allocator/pool_inside.h"
#include "stack.h"

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define GIB    ((size_t)1 << 30)
#define PLENTY ((size_t)1 << 50)

static inline struct stack make_pool(size_t capacity_bytes, const char *const *options)
{
    return make_stack(&rs_mr_descriptor_pool, capacity_bytes, options);
}

/* Asserts that a request of this size is out of memory. */
static inline void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_mr_check(stack->mr));
}

struct pool_state {
    size_t held_bytes, peak_held_bytes; /* in upstream chunks */
    size_t live_bytes, peak_live_bytes; /* in blocks handed out, as rounded */
    size_t largest_free_bytes, chunk_count;
};

static inline struct pool_state state_of(struct stack *stack)
{
    struct rs_pool *pool = RS_MR_AS(rs_pool, stack->mr);
    struct pool_state state;

    rs_mutex_lock(&stack->mr->lock);
    state = (struct pool_state){
        .held_bytes = pool->held_bytes,
        .peak_held_bytes = pool->peak_held_bytes,
        .live_bytes = pool->blocks.live_bytes,
        .peak_live_bytes = pool->blocks.peak_live_bytes,
        .largest_free_bytes = rs_blocks_largest_free_bytes(&pool->blocks),
        .chunk_count = pool->chunk_count,
    };
    rs_mutex_unlock(&stack->mr->lock);
    return state;
}

/* Asserts that the leaf's live blocks have these sizes, the oldest first. */
static inline void assert_chunks(const struct stack *stack, const size_t *sizes, size_t count)
{
    assert_int_equal(stack->leaf->live_count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(stack->leaf->live[i].size_bytes, sizes[i]);
}

/* Makes a pool over a leaf as `reuse` has it (`clean`: freed blocks that reach it are ready), or as
 * without `reuse`. */
static inline struct stack make_pool_under(bool clean, bool in_order, const char *const *options)
{
    static const struct rs_environment places[] = {
        {.context = (CUcontext)(uintptr_t)0x1000},
        {.context = (CUcontext)(uintptr_t)0x1000, .frees_are_ready = true},
    };
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    stack.leaf->deallocates_in_order = in_order;
    stack.mr = make_resource_at(&places[clean], &rs_mr_descriptor_pool, &stack.leaf->base, options,
                                &error);
    assert_non_null(stack.mr);
    return stack;
}

static inline bool lies_in(const struct rs_allocation *block, const struct rs_allocation *hole)
{
    return block->address >= hole->address && block->address - hole->address < hole->size_bytes;
}

/* True when the pool serves this size from memory that it holds. */
static inline bool is_fitting(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation block;
    CUresult result = rs_mr_allocate_with(stack->mr, size_bytes, NULL, RS_EFFORT_HELD, &block);

    if (result == CUDA_SUCCESS)
        give(stack, &block);
    else
        assert_int_equal(result, CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
}

static const struct rs_environment place_under_reuse = {
    .context = (CUcontext)(uintptr_t)0x1000,
    .first_on_device = true,
    .frees_are_ready = true,
};

static inline struct stack make_large_pool_under_reuse(void)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    stack.mr = make_resource_at(&place_under_reuse, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=1GiB"), &error);
    assert_non_null(stack.mr);
    return stack;
}
