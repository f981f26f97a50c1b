/* SPDX-License-Identifier: Apache-2.0 */
/* The pool grows by chunks within its maximum, and gives free chunks back where that makes room. */
#include "pool_stack.h"

TEST(geometric_growth_takes_little_ahead)
{
    static const size_t sizes[] = {80 * MIB, 2 * MIB, 10 * MIB, 2 * GIB, 16 * MIB};
    struct stack stack = make_pool(PLENTY, NULL);

    (void)take(&stack, 80 * MIB);
    (void)take(&stack, 1000);
    (void)take(&stack, 10 * MIB);
    (void)take(&stack, 2 * GIB - 1000);
    (void)take(&stack, 3 * MIB); /* a 128th of 2140 MiB: five of these, rounded up to 2 MiB */
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

TEST(geometric_growth_past_an_initial_size_takes_a_sixteenth_of_what_is_held)
{
    static const size_t sizes[] = {160 * MIB, 10 * MIB, 10 * MIB, 2 * GIB};
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=160MiB"));

    (void)take(&stack, 160 * MIB);
    (void)take(&stack, 1000);
    (void)take(&stack, 10 * MIB); /* a 16th of 170 MiB: one of these */
    (void)take(&stack, 2 * GIB - 1000);
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

TEST(rmm_growth_doubles)
{
    static const size_t sizes[] = {MIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB};
    struct stack stack = make_pool(PLENTY, OPTIONS("growth=rmm"));

    for (unsigned i = 0; i < 33; i++)
        (void)take(&stack, MIB);
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

TEST(rmm_growth_takes_half_of_what_is_left_to_the_maximum)
{
    static const size_t sizes[] = {4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1};
    struct stack stack = make_pool(PLENTY, OPTIONS("growth=rmm", "maximum_size=8GiB"));

    for (unsigned i = 0; i < 8192; i++)
        (void)take(&stack, MIB);
    refuse(&stack, 1);
    assert_int_equal(stack.leaf->live_count, RS_ARRAY_LENGTH(sizes));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++)
        assert_int_equal(stack.leaf->live[i].size_bytes, sizes[i] * MIB);
    end_stack(&stack);
}

TEST(rmm_growth_halves_to_odd_sizes)
{
    struct stack stack = make_pool(6000, OPTIONS("growth=rmm"));
    struct rs_allocation last;

    (void)take(&stack, 1000);
    (void)take(&stack, 4000);
    last = take(&stack, 500);
    assert_int_equal(stack.leaf->live[2].size_bytes, 640);
    assert_int_equal(take(&stack, 128).address, last.address + 512);
    refuse(&stack, 1);
    end_stack(&stack);
}

TEST(growth_halves_when_upstream_refuses)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));

    (void)take(&stack, GIB);
    stack.leaf->capacity_bytes = GIB + 20 * MIB;
    (void)take(&stack, 1000); /* 64 refused, 32 refused, 16 */
    assert_int_equal(stack.leaf->live[1].size_bytes, 16 * MIB);
    assert_int_equal(stack.leaf->refusals, 2);
    end_stack(&stack);
}

TEST(sizes_that_were_refused_are_not_tried_again_each_time)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));

    (void)take(&stack, GIB);
    stack.leaf->largest_bytes = 3 * MIB;
    (void)take(&stack, 2 * MIB);
    assert_int_equal(stack.leaf->refusals, 5); /* 64, 32, 16, 8, 4 */
    refuse(&stack, 50 * MIB);                  /* says nothing new about small ones */
    stack.leaf->refusals = 0;
    (void)take(&stack, 2 * MIB);
    assert_int_equal(stack.leaf->refusals, 0);
    stack.leaf->largest_bytes = SIZE_MAX;
    for (unsigned i = 0; i < 4096; i++) { /* memory counts as short for so long */
        struct rs_allocation block = take(&stack, 1000);
        give(&stack, &block);
    }
    for (unsigned i = 0; i < 40; i++) /* and growth feels its way up again */
        (void)take(&stack, 2 * MIB);
    assert_true(stack.leaf->live[stack.leaf->live_count - 1].size_bytes > 16 * MIB);
    end_stack(&stack);
}

TEST(the_maximum_is_never_exceeded)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=10MiB", growths[i]));
        struct rs_allocation allocation;
        uint64_t seed = 7;
        while (rs_mr_allocate(stack.mr, 1 + test_random(&seed) % MIB, NULL, &allocation) ==
               CUDA_SUCCESS)
            ;
        assert_in_range(stack.leaf->peak_bytes, 9 * MIB, 10 * MIB);
        end_stack(&stack);
    }
}

TEST(a_request_above_the_maximum_disturbs_nothing)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=10MiB"));
    struct rs_allocation cached = take(&stack, MIB);

    give(&stack, &cached);
    refuse(&stack, 10 * MIB + 1);
    assert_int_equal(stack.leaf->deallocations, 0);
    assert_int_equal(stack.leaf->refusals, 0);
    end_stack(&stack);
}

TEST(free_chunks_make_room_below_the_maximum)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=16MiB"));
    struct rs_allocation first = take(&stack, 8 * MIB), second = take(&stack, 8 * MIB);

    refuse(&stack, 1);
    give(&stack, &first);
    give(&stack, &second);
    (void)take(&stack, 12 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 12 * MIB);
    assert_int_equal(stack.leaf->peak_bytes, 16 * MIB);
    end_stack(&stack);
}

TEST(free_chunks_make_room_upstream)
{
    struct stack stack = make_pool(100 * MIB, OPTIONS("initial_size=60MiB"));
    struct rs_allocation other = take(&stack, 60 * MIB);
    struct rs_allocation kept = take(&stack, 20 * MIB);

    give(&stack, &other);
    (void)take(&stack, 80 * MIB); /* the initial chunk, too, rather than out-of-memory */
    assert_int_equal(stack.leaf->live_bytes, 100 * MIB);
    give(&stack, &kept);
    refuse(&stack, 100 * MIB); /* a live block pins the rest */
    assert_int_equal(stack.leaf->live_bytes, 80 * MIB);
    end_stack(&stack);
}

TEST(trim_keeps_the_initial_chunk_and_what_it_is_told_to)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=4MiB"));
    struct rs_allocation blocks[4];

    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 4 * MIB);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    assert_int_equal(state_of(&stack).held_bytes, 16 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 8 * MIB), 4 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(take(&stack, 4 * MIB).address, blocks[0].address);
    end_stack(&stack);
}

TEST(a_chunk_with_a_live_block_stays)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation large = take(&stack, MIB), small = take(&stack, 1);

    give(&stack, &large);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    give(&stack, &small);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 2 * MIB);
    end_stack(&stack);
}

/* Takes blocks of one size, all there is room for, and gives them back in another order. */
static void use_all(struct stack *stack, size_t count, size_t size_bytes)
{
    struct rs_allocation blocks[20];

    for (size_t i = 0; i < count; i++)
        blocks[i] = take(stack, size_bytes);
    for (size_t i = 0; i < count; i++)
        give(stack, &blocks[i * 7 % count]);
    assert_true(stack->leaf->live_bytes <= stack->leaf->capacity_bytes);
}

TEST(ten_gibibytes_are_served_again_in_other_sizes)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(10 * GIB + 64 * MIB, OPTIONS(growths[i]));
        stack.leaf->is_tight = true; /* aligned, as the driver's large allocations are */
        use_all(&stack, 10, GIB);
        use_all(&stack, 20, GIB / 2);
        use_all(&stack, 5, 2 * GIB);
        use_all(&stack, 10, GIB);
        /* RMM's growth takes more than a request where it can, and that is then in the way. */
        if (i == 0)
            use_all(&stack, 3, 3 * GIB);
        use_all(&stack, 1, 10 * GIB);
        use_all(&stack, 20, GIB / 2);
        end_stack(&stack);
    }
}
