/* SPDX-License-Identifier: Apache-2.0 */
/* The pool under reuse, where no work uses free blocks: held memory is better than a wait, and a
 * growth may be better than a cut. */
#include "pool_stack.h"

TEST(an_early_return_needs_an_upstream_whose_frees_do_not_wait)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        struct stack stack = make_pool_under(true, in_order, NULL);
        struct rs_allocation block = take(&stack, 40 * MIB);
        give(&stack, &block);
        (void)take(&stack, 50 * MIB);
        assert_int_equal(stack.leaf->deallocations, in_order);
        end_stack(&stack);
    }
}

/* What would wait inside a request is refused by the leaf, and stays. */
TEST(a_context_that_is_busy_keeps_its_chunks)
{
    struct stack stack = make_pool_under(false, true, NULL);
    struct rs_allocation block = take(&stack, 40 * MIB);

    give(&stack, &block);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    (void)take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 90 * MIB);
    assert_true(rs_mr_check(stack.mr));
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    end_stack(&stack);
}

TEST(held_memory_of_any_kind_is_better_than_a_wait)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 8 * MIB), small;

    give(&stack, &block);
    assert_int_equal(
        rs_mr_allocate_with(stack.mr, 1000, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &small),
        CUDA_SUCCESS);
    assert_int_equal(small.address, block.address);
    end_stack(&stack);
}

TEST(a_growth_is_better_than_a_block_of_another_kind)
{
    for (int clean = 0; clean < 2; clean++) {
        struct stack stack = make_pool_under(clean, true, OPTIONS("initial_size=40MiB"));
        struct rs_allocation block = take(&stack, 40 * MIB);
        give(&stack, &block);
        assert_true(is_fitting(&stack, 39 * MIB));
        assert_int_equal(is_fitting(&stack, 8 * MIB), !clean);
        assert_int_equal(is_fitting(&stack, 1000), !clean);
        assert_int_equal(
            rs_mr_allocate_with(stack.mr, 1000, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &block),
            CUDA_SUCCESS);
        give(&stack, &block);
        end_stack(&stack);
    }
}

TEST(what_was_held_at_first_is_for_all_kinds)
{
    struct rs_environment environment = fake_environment;
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    environment.frees_are_ready = true;
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=40MiB"), &error);
    assert_true(is_fitting(&stack, 39 * MIB));
    assert_true(is_fitting(&stack, 8 * MIB));
    assert_true(is_fitting(&stack, 1000));
    end_stack(&stack);
}

TEST(a_growth_is_better_than_a_much_larger_block)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 100 * MIB);

    give(&stack, &block);
    assert_true(is_fitting(&stack, 67 * MIB));
    assert_false(is_fitting(&stack, 66 * MIB));
    assert_int_equal(
        rs_mr_allocate_with(stack.mr, 66 * MIB, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &block),
        CUDA_SUCCESS);
    end_stack(&stack);
}

static bool is_cut_from_first(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    return rs_mr_allocate_with(stack->mr, size_bytes, NULL, RS_EFFORT_HELD, out) == CUDA_SUCCESS &&
           stack->leaf->live_count == 1;
}

TEST(requests_of_one_size_cut_any_block)
{
    enum { BLOCKS = 16 };
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation blocks[BLOCKS];

    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < BLOCKS; i++)
            assert_true(is_cut_from_first(&stack, 64 * MIB, &blocks[i]));
        for (size_t i = 0; i < BLOCKS; i++)
            give(&stack, &blocks[i * 5 % BLOCKS]);
    }
    end_stack(&stack);
}

/* 1024 MiB, of which 500 and half of that again stay whole. */
TEST(a_block_is_cut_while_its_rest_serves_the_largest)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation block;

    assert_true(is_cut_from_first(&stack, 500 * MIB, &block));
    give(&stack, &block);
    assert_true(is_cut_from_first(&stack, 200 * MIB, &block));
    assert_true(is_fitting(&stack, 74 * MIB));
    assert_false(is_fitting(&stack, 75 * MIB));
    assert_true(is_fitting(&stack, 550 * MIB));
    give(&stack, &block);
    end_stack(&stack);
}

TEST(of_two_much_larger_blocks_the_one_whose_rest_serves_is_cut)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation hole = take(&stack, 130 * MIB), wall = take(&stack, 64 * MIB), block;

    give(&stack, &hole);
    assert_true(is_cut_from_first(&stack, 64 * MIB, &block));
    assert_int_equal(block.address, wall.address + 64 * MIB);
    give(&stack, &wall);
    end_stack(&stack);
}

/* As one asks who tries how much there is. */
TEST(a_refused_request_is_not_the_largest)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation pin = take(&stack, 32 * MIB), block;

    stack.leaf->largest_bytes = GIB;
    refuse(&stack, 10 * GIB);
    assert_true(is_cut_from_first(&stack, 500 * MIB, &block));
    give(&stack, &pin);
    end_stack(&stack);
}
