/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's allowance: it may hold a little more than the peak of live bytes.  Past that it gives
 * chunks back, or cuts a larger block, before it grows. */
#include "pool_stack.h"

TEST(a_small_block_pins_no_chunk_of_large_ones)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation large = take(&stack, 8 * MIB), small;

    give(&stack, &large);
    small = take(&stack, 1000);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    give(&stack, &small);
    end_stack(&stack);
}

TEST(chunks_too_small_go_back_before_a_growth_past_the_allowance)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 40 * MIB);

    give(&stack, &block);
    block = take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->peak_bytes, 50 * MIB);
    assert_int_equal(stack.leaf->deallocations, 1);
    give(&stack, &block);
    end_stack(&stack);
}

TEST(the_initial_size_is_allowed_and_not_on_top)
{
    static const char *const initial_sizes[] = {"initial_size=150MiB", "initial_size=100MiB"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(initial_sizes); i++) {
        struct stack stack = make_pool_under(true, true, OPTIONS(initial_sizes[i]));
        struct rs_allocation pin = take(&stack, 100 * MIB);
        struct rs_allocation block = take(&stack, 20 * MIB);
        give(&stack, &block);
        (void)take(&stack, 30 * MIB); /* 150 of 130 and a 32nd, or of the initial size */
        assert_int_equal(stack.leaf->deallocations, i);
        give(&stack, &pin);
        end_stack(&stack);
    }
}

TEST(memory_of_another_kind_serves_before_a_growth_past_the_allowance)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation block = take(&stack, 64 * MIB), pin, small;

    give(&stack, &block);
    pin = take(&stack, 33 * MIB);
    small = take(&stack, 1000); /* a chunk of its own: that is allowed */
    assert_int_equal(stack.leaf->live_count, 2);
    block = take(&stack, 20 * MIB);
    assert_int_equal(stack.leaf->live_count, 2);
    assert_int_equal(block.address, pin.address + 33 * MIB);
    give(&stack, &small);
    end_stack(&stack);
}

TEST(rmm_growth_gives_nothing_back_early)
{
    struct stack stack = make_pool_under(true, true, OPTIONS("growth=rmm"));
    struct rs_allocation block = take(&stack, 40 * MIB);

    give(&stack, &block);
    (void)take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->deallocations, 0);
    end_stack(&stack);
}

/* Each request is larger than all before: it would cost a return and a growth for ever. */
TEST(early_returns_are_rationed)
{
    struct stack stack = make_pool_under(true, true, NULL);

    for (size_t i = 0; i < 520; i++) {
        struct rs_allocation block = take(&stack, (64 + 2 * i) * MIB);
        give(&stack, &block);
    }
    assert_int_equal(stack.leaf->deallocations, 512);
    assert_true(stack.leaf->live_count > 1);
    end_stack(&stack);
}

TEST(a_large_request_cuts_no_much_larger_block)
{
    static const size_t held[] = {60 * MIB, 61 * MIB};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(held); i++) {
        struct stack stack = make_pool_under(true, true, NULL);
        struct rs_allocation block = take(&stack, held[i]);
        give(&stack, &block);
        (void)take(&stack, 40 * MIB);
        assert_int_equal(stack.leaf->deallocations, held[i] > 60 * MIB);
        assert_int_equal(stack.leaf->live_bytes, (held[i] > 60 * MIB ? 40 : 60) * MIB);
        end_stack(&stack);
    }
}

/* 1124 MiB were live; a 32nd more may be held. */
TEST(the_allowance_is_used_before_a_much_larger_block_is_cut)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation pin = take(&stack, GIB), hole = take(&stack, 100 * MIB), block;

    give(&stack, &hole);
    block = take(&stack, 33 * MIB);
    assert_int_equal(stack.leaf->live_count, 3);
    assert_false(lies_in(&block, &hole));
    block = take(&stack, 33 * MIB); /* past it, and nothing can go back */
    assert_int_equal(stack.leaf->live_count, 3);
    assert_true(lies_in(&block, &hole));
    give(&stack, &pin);
    end_stack(&stack);
}

TEST(a_much_larger_chunk_goes_back_where_the_driver_has_refused)
{
    struct stack stack = make_pool(1124 * MIB, NULL);
    struct rs_allocation pin, hole, block;
    uint64_t refusals = 0;

    stack.leaf->is_tight = true; /* aligned, as the driver's */
    pin = take(&stack, GIB);
    hole = take(&stack, 100 * MIB);
    give(&stack, &hole);
    for (unsigned i = 0; i < 3; i++) {
        block = take(&stack, 34 * MIB);
        assert_int_equal(stack.leaf->live_bytes, GIB + 34 * MIB);
        assert_true(i > 0 ? stack.leaf->refusals == refusals : stack.leaf->refusals > 0);
        refusals = stack.leaf->refusals;
        give(&stack, &block);
    }
    give(&stack, &pin);
    end_stack(&stack);
}

/* The small one would pin a chunk that the large one needs the memory of. */
TEST(where_memory_is_short_a_block_gets_a_chunk_of_its_size)
{
    struct stack stack = make_pool(24 * MIB, NULL);
    struct rs_allocation a = take(&stack, 12 * MIB), b = take(&stack, 12 * MIB), c, d;

    refuse(&stack, 8 * MIB);
    give(&stack, &a);
    c = take(&stack, 4 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &b);
    d = take(&stack, 20 * MIB);
    give(&stack, &c);
    give(&stack, &d);
    end_stack(&stack);
}

TEST(half_of_the_early_returns_are_for_chunks_too_small)
{
    struct stack stack = make_pool_under(true, true, NULL);

    stack.leaf->is_tight = true;
    stack.leaf->next_address = GIB;
    for (size_t i = 0; i < 600; i++) {
        struct rs_allocation block = take(&stack, (i % 2 ? 40 : 100) * MIB);
        give(&stack, &block);
    }
    assert_int_equal(stack.leaf->deallocations, 258);
    assert_int_equal(stack.leaf->live_bytes, 100 * MIB);
    end_stack(&stack);
}

/* Half of the returns are used up by looks in vain, before upstream sees its context idle. */
TEST(returns_in_vain_are_rationed)
{
    struct stack stack = make_pool_under(false, true, NULL);

    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    for (size_t i = 0; i < 258; i++) {
        struct rs_allocation block = take(&stack, (i ? 40 : 100) * MIB);
        give(&stack, &block);
    }
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    (void)take(&stack, 40 * MIB);
    assert_int_equal(stack.leaf->deallocations, 0);
    assert_int_equal(stack.leaf->allocations, 1);
    end_stack(&stack);
}

TEST(any_block_fits_where_no_growth_can_be_had)
{
    struct stack stack = make_pool_under(true, true, OPTIONS("maximum_size=104MiB"));
    struct rs_allocation block = take(&stack, 100 * MIB);

    give(&stack, &block);
    assert_false(is_fitting(&stack, 4 * MIB));
    assert_true(is_fitting(&stack, 5 * MIB));
    end_stack(&stack);

    stack = make_pool_under(true, true, NULL);
    block = take(&stack, 100 * MIB);
    give(&stack, &block);
    (void)take(&stack, 80 * MIB);
    stack.leaf->capacity_bytes = 100 * MIB;
    assert_false(is_fitting(&stack, 2 * MIB));
    block = take(&stack, 2 * MIB); /* of the large one, as the driver refuses */
    give(&stack, &block);
    assert_false(is_fitting(&stack, 2 * MIB)); /* again: free chunks may have gone back by then */
    end_stack(&stack);
}

/* By its own measure the pool is far below its allowance: 300 MiB were live. */
TEST(a_caller_past_its_own_allowance_gets_chunks_given_back)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t rmm = 0; rmm < RS_ARRAY_LENGTH(growths); rmm++) {
        struct stack stack = make_pool_under(true, true, OPTIONS(growths[rmm]));
        struct rs_allocation block = take(&stack, 300 * MIB);
        give(&stack, &block);
        (void)rs_mr_trim(stack.mr, 0);
        block = take(&stack, 40 * MIB);
        give(&stack, &block);
        block = take(&stack, 50 * MIB);
        assert_int_equal(stack.leaf->deallocations, 1); /* the trim's */
        assert_int_equal(rs_mr_allocate_with(stack.mr, 60 * MIB, NULL, RS_EFFORT_LITTLE, &block),
                         CUDA_SUCCESS);
        assert_int_equal(stack.leaf->deallocations, rmm ? 1 : 2);
        end_stack(&stack);
    }
}
