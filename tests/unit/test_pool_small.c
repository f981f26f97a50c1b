/* SPDX-License-Identifier: Apache-2.0 */
/* The pool serves requests that are small beside others from the other end of its chunks. */
#include "pool_stack.h"

static CUdeviceptr end_of(const struct rs_allocation *block)
{
    return block->address + block->size_bytes;
}

/* 1 GiB under `reuse`, where the leaf has no more. */
static struct stack make_full_pool(void)
{
    struct stack stack = make_large_pool_under_reuse();

    stack.leaf->capacity_bytes = GIB;
    return stack;
}

TEST(small_ones_gather_at_the_end_of_an_initial_chunk)
{
    struct stack stack = make_full_pool();
    struct rs_allocation large = take(&stack, 400 * MIB), small[3], whole;
    static const size_t sizes[] = {1000, 3 * MIB, 40 * MIB};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++) {
        struct rs_allocation next = take(&stack, 100 * MIB);
        small[i] = take(&stack, sizes[i]);
        assert_true(lies_in(&small[i], &stack.leaf->live[0]));
        assert_true(end_of(&small[i]) > end_of(&stack.leaf->live[0]) - 45 * MIB);
        give(&stack, &next);
    }
    give(&stack, &large);
    whole = take(&stack, 980 * MIB); /* in one piece, whatever lives on */
    assert_int_equal(whole.address, stack.leaf->live[0].address);
    give(&stack, &whole);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++)
        give(&stack, &small[i]);
    assert_int_equal(state_of(&stack).largest_free_bytes, GIB);
    end_stack(&stack);
}

TEST(a_small_one_takes_the_hole_of_one_at_the_end)
{
    struct stack stack = make_full_pool();
    struct rs_allocation first = take(&stack, 2 * MIB), second = take(&stack, 2 * MIB), again;

    assert_int_equal(end_of(&second), first.address);
    give(&stack, &first);
    again = take(&stack, MIB);
    assert_int_equal(again.address, first.address);
    give(&stack, &again);
    give(&stack, &second);
    end_stack(&stack);
}

/* Also of a range whose end and alignment are odd. */
TEST(the_end_of_an_odd_chunk_is_served)
{
    static const size_t sizes[] = {1, 511, 513, MIB - 1, MIB, MIB + 1, 1300 * KIB};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        struct stack stack = make_pool(
            GIB, OPTIONS("initial_size=1073741568", "maximum_size=1073741568")); /* 256 less */
        struct rs_allocation blocks[20];
        for (size_t j = 0; j < RS_ARRAY_LENGTH(blocks); j++) {
            blocks[j] = take(&stack, sizes[i]);
            assert_int_equal(blocks[j].address % (sizes[i] < MIB ? 512 : 64 * KIB), 0);
            assert_true(end_of(&blocks[j]) <= end_of(&stack.leaf->live[0]));
        }
        for (size_t j = 0; j < RS_ARRAY_LENGTH(blocks); j++)
            give(&stack, &blocks[j * 7 % RS_ARRAY_LENGTH(blocks)]);
        assert_int_equal(state_of(&stack).largest_free_bytes, GIB - 256);
        end_stack(&stack);
    }
}

TEST(free_ends_are_for_large_ones_again)
{
    struct stack stack = make_full_pool();
    struct rs_allocation blocks[100], large;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
        blocks[i] = take(&stack, 5 * MIB);
    for (size_t i = 0; i + 1 < RS_ARRAY_LENGTH(blocks); i++)
        give(&stack, &blocks[i]);
    large = take(&stack, 490 * MIB); /* twice: above the one that lives on, and below it */
    assert_int_equal(rs_mr_allocate_with(stack.mr, 490 * MIB, NULL, RS_EFFORT_HELD, &blocks[0]),
                     CUDA_SUCCESS);
    assert_true(large.address > blocks[99].address);
    give(&stack, &large);
    give(&stack, &blocks[0]);
    give(&stack, &blocks[99]);
    end_stack(&stack);
}

/* Beside blocks of 256 MiB and more a chunk of its own is better than the end.  It has 1/128 of
 * what is held, lest each second block that is freed and allocated in turn waits for the first. */
TEST(a_small_one_stays_away_from_huge_ones)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation huge = take(&stack, 256 * MIB), small[3];

    assert_false(is_fitting(&stack, 1000));
    small[0] = take(&stack, 1000);
    assert_int_equal(stack.leaf->live_count, 2);
    assert_int_equal(stack.leaf->live[1].size_bytes, 8 * MIB);
    small[1] = take(&stack, 2000); /* there is room in that */
    assert_int_equal(stack.leaf->live_count, 2);
    small[2] = take(&stack, 3 * MIB); /* of another kind */
    assert_int_equal(stack.leaf->live_count, 3);
    give(&stack, &huge);
    huge = take(&stack, GIB);
    assert_int_equal(stack.leaf->live_bytes, GIB + 14 * MIB);
    give(&stack, &huge);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++)
        give(&stack, &small[i]);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 14 * MIB);
    end_stack(&stack);
}

/* A 16th of what is held then. */
TEST(what_stays_away_is_little)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation huge = take(&stack, 256 * MIB), block;

    for (size_t i = 0; i < 30; i++)
        block = take(&stack, 5 * MIB);
    assert_in_range(stack.leaf->live_bytes, GIB + 50 * MIB, GIB + GIB / 15);
    assert_true(lies_in(&block, &stack.leaf->live[0]));
    (void)huge;
    end_stack(&stack);
}

static void count_call(void *data)
{
    ++*(unsigned *)data;
}

/* It was only for the sake of others: nothing goes back for it, nor is memory short then. */
TEST(a_small_one_that_cannot_stay_away_takes_the_end)
{
    struct stack stack = make_full_pool();
    struct rs_allocation huge = take(&stack, 256 * MIB), small;
    unsigned calls = 0;

    give(&stack, &huge);
    for (size_t i = 0; i < 3; i++) {
        stack.leaf->on_call = count_call;
        stack.leaf->on_call_data = &calls;
        small = take(&stack, 1000);
        assert_int_equal(small.address + 1024, end_of(&stack.leaf->live[0]));
        give(&stack, &small);
    }
    assert_int_equal(calls, 1); /* and it is not asked again each time */
    assert_int_equal(stack.leaf->deallocations, 0);
    end_stack(&stack);
}
