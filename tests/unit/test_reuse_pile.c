/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: a program frees thousands of blocks while the GPU is stuck.  No single call afterwards
 * pays for all of them. */
#include "reuse_stack.h"

#include <string.h>

enum { PILED_UP = 4096, FEW = 128 + 2 * 8 };

static struct rs_allocation pile[PILED_UP], large_one; /* of which a free seals */

/* Over a resource whose each block is one of the leaf's. */
static struct stack start_pile(size_t capacity_bytes)
{
    struct stack stack;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_limiting, capacity_bytes, OPTIONS("limit=1TiB"),
                       "free=deferred");
    charge(&stack);
    assert_int_equal(rs_mr_allocate(stack.mr, SEAL_MIB * MIB, NULL, &large_one), CUDA_SUCCESS);
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &pile[i]), CUDA_SUCCESS);
    charge(&stack);
    return stack;
}

static void pile_up(struct stack *stack)
{
    (void)submit();
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_deallocate(stack->mr, &pile[i], NULL), CUDA_SUCCESS);
    assert_int_equal(stack->leaf->deallocations, 0);
    assert_true(rs_mr_check(stack->mr));
}

/* Returns how many blocks went upstream. */
static uint64_t give_one(struct stack *stack, const struct rs_allocation *block)
{
    uint64_t before = stack->leaf->deallocations;

    assert_int_equal(rs_mr_deallocate(stack->mr, block, NULL), CUDA_SUCCESS);
    return stack->leaf->deallocations - before;
}

/* Else the first free that finds the GPU done would give millions upstream by itself. */
TEST(what_piled_up_goes_upstream_a_few_at_a_time)
{
    static struct rs_allocation more[PILED_UP];
    struct stack stack = start_pile(PLENTY);
    unsigned frees = 0;

    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &more[i]), CUDA_SUCCESS);
    pile_up(&stack);
    complete_all();
    assert_in_range(give_one(&stack, &large_one), 0, FEW);
    for (; frees < PILED_UP; frees++)
        assert_in_range(give_one(&stack, &more[frees]), 0, FEW);
    assert_true(rs_mr_check(stack.mr));
    assert_in_range(stack.leaf->deallocations, PILED_UP / 2, 2 * PILED_UP);
    assert_in_range(counter(&stack, "quarantined_blocks"), 1, PILED_UP);
    end(&stack);
}

/* An allocation that upstream has nothing for is served with the first of it. */
TEST(the_slow_path_takes_what_piled_up_in_steps)
{
    enum { STEP = 512 };
    struct stack stack = start(PLENTY, "initial_size=2MiB");
    struct rs_allocation block;

    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &pile[i]), CUDA_SUCCESS);
    assert_int_equal(stack.leaf->live_bytes, PILED_UP * UNIT_BYTES); /* nothing is left */
    pile_up(&stack);
    complete_all();
    block = take(&stack, UNIT_BYTES);
    assert_in_range(counter(&stack, "quarantined_blocks"), PILED_UP - STEP, PILED_UP - 1);
    assert_int_equal(stack.leaf->live_bytes, PILED_UP * UNIT_BYTES);
    give(&stack, &block);
    end(&stack);
}

/* One that needs more than the first step gives is served with the second or third. */
TEST(the_slow_path_takes_as_many_steps_as_it_needs)
{
    enum { STEP = 512 };
    struct stack stack = start(PLENTY, "initial_size=2MiB");
    struct rs_allocation block;

    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &pile[i]), CUDA_SUCCESS);
    pile_up(&stack);
    complete_all();
    block = take(&stack, 2 * STEP * UNIT_BYTES);
    assert_in_range(counter(&stack, "quarantined_blocks"), PILED_UP - 3 * STEP,
                    PILED_UP - 2 * STEP);
    assert_int_equal(stack.leaf->live_bytes, PILED_UP * UNIT_BYTES);
    give(&stack, &block);
    end(&stack);
}

TEST(an_allocation_sorts_a_bounded_part_of_what_is_ready)
{
    enum { COUNT = 1500, SORTED = 8 * 16, KEPT = 512 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation other, last[SEAL_COUNT];

    for (unsigned i = 0; i < COUNT; i++)
        pile[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        last[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < COUNT; i++)
        (void)give_one(&stack, &pile[i]);
    complete_all();
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        (void)give_one(&stack, &last[i]);
    assert_in_range(counter(&stack, "kept"), (COUNT - 2 * SEAL_COUNT) * UNIT_BYTES, MIB);
    other = take(&stack, 2 * UNIT_BYTES);
    assert_in_range(counter(&stack, "kept"),
                    (COUNT - 2 * SEAL_COUNT - SORTED - KEPT) * (size_t)UNIT_BYTES, MIB);
    give(&stack, &other);
    end(&stack);
}

TEST(a_trim_gives_all_that_piled_up_upstream)
{
    struct stack stack = start_pile(PLENTY);

    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    assert_int_equal(stack.leaf->live_count, 0);
    end(&stack);
}

TEST(the_slow_path_takes_all_that_piled_up)
{
    struct stack stack = start_pile(PILED_UP * UNIT_BYTES + SEAL_MIB * MIB);
    struct rs_allocation all;

    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one); /* finds it done, and leaves most of it */
    complete_all();
    all = take(&stack, PILED_UP * UNIT_BYTES + SEAL_MIB * MIB);
    assert_int_equal(stack.leaf->live_count, 1);
    give(&stack, &all);
    end(&stack);
}

TEST(what_piled_up_goes_with_its_context)
{
    struct stack stack = start_pile(PLENTY);
    struct rs_mr *below = stack.mr->upstream[0];

    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one);
    stack.mr->ops.destroy(stack.mr, true);
    below->ops.destroy(below, true);
    free_sentinel(&sentinel);
    fake_leaf_destroy(stack.leaf);
}

TEST(an_epoch_waited_for_in_vain_is_known_among_many)
{
    enum { EPOCHS = 200 };
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c, small[EPOCHS];

    for (unsigned i = 0; i < EPOCHS; i++)
        small[i] = take(&stack, UNIT_BYTES);
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    for (unsigned i = 0; i < EPOCHS; i++) {
        (void)give_busy(&stack, &small[i]);
        turn(&stack);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS + 1);
    c = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}
