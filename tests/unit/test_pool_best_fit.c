/* SPDX-License-Identifier: Apache-2.0 */
/* The pool takes the smallest free block that fits, and joins free neighbours. */
#include "pool_stack.h"
#include "resource/report.h"

#include <stdio.h>

TEST(takes_the_smallest_block_that_fits)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation large = take(&stack, 64 * KIB), wall = take(&stack, 512);
    struct rs_allocation small = take(&stack, 8 * KIB), wall2 = take(&stack, 512);
    struct rs_allocation medium = take(&stack, 16 * KIB), wall3 = take(&stack, 512);
    struct rs_allocation again;

    (void)wall, (void)wall2, (void)wall3;
    give(&stack, &large);
    give(&stack, &small);
    give(&stack, &medium);
    again = take(&stack, 10 * KIB);
    assert_int_equal(again.address, medium.address);
    again = take(&stack, 8 * KIB);
    assert_int_equal(again.address, small.address);
    again = take(&stack, 17 * KIB);
    assert_int_equal(again.address, large.address);
    end_stack(&stack);
}

TEST(takes_the_lowest_address_among_equals)
{
    enum { BLOCKS = 40 };
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation blocks[BLOCKS], walls[BLOCKS];

    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = take(&stack, 4 * KIB);
        walls[i] = take(&stack, 512);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        give(&stack, &blocks[i * 7 % BLOCKS]);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_int_equal(take(&stack, 4 * KIB).address, blocks[i].address);
    (void)walls;
    end_stack(&stack);
}

TEST(freed_neighbours_become_one_block_in_any_order)
{
    static const unsigned orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 2, 0},
                                         {2, 0, 3, 1}, {1, 2, 0, 3}, {0, 3, 1, 2}};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(orders); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
        struct rs_allocation blocks[4];
        for (unsigned j = 0; j < 4; j++)
            blocks[j] = take(&stack, 100 * KIB);
        for (unsigned j = 0; j < 4; j++)
            give(&stack, &blocks[orders[i][j]]);
        assert_int_equal(take(&stack, MIB).address, blocks[0].address);
        assert_int_equal(stack.leaf->allocations, 1);
        end_stack(&stack);
    }
}

TEST(chunks_never_merge_even_when_they_touch)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation first, second;

    stack.leaf->is_tight = true;
    first = take(&stack, 2 * MIB);
    second = take(&stack, 2 * MIB);
    assert_int_equal(first.address + 2 * MIB, second.address);
    give(&stack, &first);
    give(&stack, &second);
    assert_int_equal(state_of(&stack).largest_free_bytes, 2 * MIB);
    (void)take(&stack, 3 * MIB);
    assert_int_equal(stack.leaf->allocations, 3);
    end_stack(&stack);
}

TEST(odd_end_of_a_chunk_is_served_and_nothing_past_it)
{
    for (size_t odd = 256; odd < 4096; odd += 256) {
        char initial[40], maximum[40];
        struct stack stack;
        struct rs_allocation head, tail;

        snprintf(initial, sizeof(initial), "initial_size=%zu", 4096 + odd);
        snprintf(maximum, sizeof(maximum), "maximum_size=%zu", 4096 + odd);
        stack = make_pool(PLENTY, OPTIONS(initial, maximum));
        head = take(&stack, 4096 + odd); /* the whole of it */
        give(&stack, &head);
        refuse(&stack, 4096 + odd + 1);
        head = take(&stack, 4000);
        refuse(&stack, odd + 1);
        tail = take(&stack, odd);
        assert_int_equal(tail.address, head.address + 4096);
        refuse(&stack, 1);
        give(&stack, &head);
        give(&stack, &tail);
        assert_int_equal(state_of(&stack).largest_free_bytes, 4096 + odd);
        end_stack(&stack);
    }
}

TEST(the_report_is_exact)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation first = take(&stack, 1000), second = take(&stack, 10 * MIB);
    struct rs_report report = {.count = 0};

    give(&stack, &second);
    (void)first;
    refuse(&stack, SIZE_MAX);
    stack.mr->ops.report(stack.mr, &report);
#define VALUE(name) rs_report_value(&report, "pool", name, 999)
    assert_int_equal(VALUE("held"), 11 * MIB);
    assert_int_equal(VALUE("held_peak"), 11 * MIB);
    assert_int_equal(VALUE("live"), KIB);
    assert_int_equal(VALUE("live_peak"), KIB + 10 * MIB);
    assert_int_equal(VALUE("free"), 11 * MIB - KIB);
    assert_int_equal(VALUE("largest_free"), 10 * MIB);
    assert_int_equal(VALUE("chunks"), 2);
    assert_int_equal(VALUE("growths"), 1);
    assert_int_equal(VALUE("chunk_returns"), 0);
    assert_int_equal(VALUE("allocations"), 2);
    assert_int_equal(VALUE("failures"), 1);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 11 * MIB - KIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 10 * MIB);
    report.count = 0;
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(VALUE("chunk_returns"), 1);
#undef VALUE
    end_stack(&stack);
}

/* What an allocation past its allowance takes: its own size in the driver's unit, and no step. */
TEST(allocate_little_takes_no_step)
{
    static const size_t sizes[] = {80 * MIB, 2 * MIB, 4 * MIB};
    struct stack stack = make_pool(GIB, NULL);
    struct rs_allocation little;

    (void)take(&stack, 80 * MIB);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 1000, NULL, RS_EFFORT_HELD, &little),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 1000, NULL, RS_EFFORT_LITTLE, &little),
                     CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 512 * KIB, NULL, RS_EFFORT_HELD, &little),
                     CUDA_SUCCESS);
    /* Also of another kind of size, where it fits. */
    assert_int_equal(rs_mr_allocate_with(stack.mr, MIB, NULL, RS_EFFORT_LITTLE, &little),
                     CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 3 * MIB, NULL, RS_EFFORT_LITTLE, &little),
                     CUDA_SUCCESS);
    assert_chunks(&stack, sizes, 3);
    assert_true(rs_mr_check(stack.mr));
    end_stack(&stack);
}
