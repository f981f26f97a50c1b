/* SPDX-License-Identifier: Apache-2.0 */
/* One resource over a fake leaf: makes it, uses it, and asserts at its end that nothing is left. */
#pragma once

#include "unit.h"

#include "fake_leaf.h"

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static inline struct stack make_stack(const struct rs_mr_descriptor *descriptor,
                                      size_t capacity_bytes, const char *const *options)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};

    stack.mr = make_resource(descriptor, &stack.leaf->base, options);
    return stack;
}

static inline void end_stack(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    stack->mr->ops.destroy(stack->mr, false);
    assert_int_equal(stack->leaf->live_count, 0);
    assert_int_equal(stack->leaf->wrong_calls, 0);
    fake_leaf_destroy(stack->leaf);
}

static inline struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    assert_true(rs_mr_check(stack->mr));
    return allocation;
}

static inline void give(struct stack *stack, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}
