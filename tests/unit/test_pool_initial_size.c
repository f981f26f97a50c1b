/* SPDX-License-Identifier: Apache-2.0 */
/* The initial size of a pool: which context takes it, when it goes back, and when it is taken
 * again. */
#include "pool_stack.h"

#include <errno.h>
#include <string.h>

TEST(initial_size_is_taken_by_the_first_context_only)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));
    int error;
    struct rs_mr *second =
        make_resource_at(&fake_second_environment, &rs_mr_descriptor_pool, &stack.leaf->base,
                         OPTIONS("initial_size=1GiB"), &error);

    assert_non_null(second);
    assert_int_equal(stack.leaf->live_bytes, GIB);
    second->ops.destroy(second, false);
    end_stack(&stack);
}

TEST(the_initial_size_stays_for_what_cannot_fit)
{
    struct stack small = make_pool(64 * MIB, OPTIONS("initial_size=60MiB"));
    struct stack bounded = make_pool(PLENTY, OPTIONS("initial_size=40MiB", "maximum_size=100MiB"));
    struct rs_allocation first = take(&bounded, 40 * MIB);

    refuse(&small, 81 * GIB); /* the device has 80 */
    assert_int_equal(small.leaf->live_bytes, 60 * MIB);
    refuse(&small, 70 * MIB); /* which is not known to be too much */
    assert_int_equal(small.leaf->live_bytes, 0);
    (void)take(&bounded, 50 * MIB);
    give(&bounded, &first);
    refuse(&bounded, 51 * MIB);
    assert_int_equal(bounded.leaf->live_bytes, 90 * MIB);
    (void)take(&bounded, 45 * MIB);
    assert_int_equal(bounded.leaf->live_bytes, 95 * MIB);
    end_stack(&small);
    end_stack(&bounded);
}

/* What an upstream that has no more bounds, too. */
TEST(the_initial_size_stays_for_what_upstream_never_has)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    struct rs_mr *limiting =
        make_resource(&rs_mr_descriptor_limiting, &leaf->base, OPTIONS("limit=100MiB"));
    struct rs_mr *pool =
        make_resource(&rs_mr_descriptor_pool, limiting, OPTIONS("initial_size=40MiB"));
    struct rs_allocation block;

    assert_int_equal(rs_mr_allocate(pool, 101 * MIB, NULL, &block), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(leaf->live_bytes, 40 * MIB);
    assert_int_equal(rs_mr_allocate(pool, 90 * MIB, NULL, &block), CUDA_SUCCESS);
    assert_int_equal(leaf->live_bytes, 90 * MIB);
    rs_mr_destroy(pool, false);
}

TEST(the_initial_size_comes_back_with_a_growth)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(100 * MIB, OPTIONS("initial_size=60MiB", growths[i]));
        struct rs_allocation large = take(&stack, 80 * MIB), block;

        give(&stack, &large);
        assert_int_equal(rs_mr_trim(stack.mr, 0), 80 * MIB);
        block = take(&stack, MIB);
        assert_int_equal(state_of(&stack).held_bytes, 60 * MIB);
        give(&stack, &block);
        assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
        /* of as much as there is room for, ... */
        assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE), 60 * MIB);
        stack.leaf->capacity_bytes = 31 * MIB;
        (void)take(&stack, MIB);
        assert_int_equal(state_of(&stack).held_bytes, 30 * MIB);
        /* ... and of the rest then. */
        stack.leaf->capacity_bytes = 100 * MIB;
        (void)take(&stack, 30 * MIB);
        assert_in_range(state_of(&stack).held_bytes, 60 * MIB, 90 * MIB);
        end_stack(&stack);
    }
}

TEST(a_growth_past_the_initial_size_is_no_part_of_it)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));
    struct rs_allocation block;

    assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE), GIB);
    (void)take(&stack, GIB - MIB);
    assert_int_equal(state_of(&stack).held_bytes, GIB);
    block = take(&stack, 2 * MIB);
    assert_true(state_of(&stack).held_bytes > GIB + 2 * MIB); /* more than the request */
    give(&stack, &block);
    assert_true(rs_mr_trim(stack.mr, 0) > 2 * MIB);
    assert_int_equal(state_of(&stack).held_bytes, GIB);
    end_stack(&stack);
}

/* It is for all, and so not for a small one that keeps away from huge ones. */
TEST(a_small_one_that_stays_away_leaves_the_initial_size)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=2GiB"));
    struct rs_allocation huge = take(&stack, 3 * GIB);
    size_t held_bytes;

    give(&stack, &huge);
    (void)rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE);
    assert_int_equal(state_of(&stack).held_bytes, 0);
    stack.leaf->capacity_bytes = 500 * MIB; /* not for the initial size */
    huge = take(&stack, 400 * MIB);
    give(&stack, &huge);
    held_bytes = state_of(&stack).held_bytes;
    stack.leaf->capacity_bytes = PLENTY;
    (void)take(&stack, 1024);
    assert_in_range(state_of(&stack).held_bytes, held_bytes, held_bytes + 32 * MIB);
    end_stack(&stack);
}

TEST(only_who_lacks_its_memory_has_the_initial_size_given_back)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=4MiB"));
    struct rs_allocation block = take(&stack, 8 * MIB);

    give(&stack, &block);
    assert_int_equal(rs_mr_trim_all(stack.mr, 0), 8 * MIB);
    assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_MANAGED), 0);
    assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE), 4 * MIB);
    end_stack(&stack);
}

TEST(an_initial_size_larger_than_what_is_free_starts_smaller)
{
    struct rs_environment environment = fake_environment;
    struct stack stack = {.leaf = fake_leaf_create(3 * GIB + 1000)};
    int error;

    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=4GiB"), &error);
    assert_non_null(stack.mr);
    assert_int_equal(state_of(&stack).held_bytes, 2 * GIB); /* halved */
    stack.mr->ops.destroy(stack.mr, false);

    environment.free_bytes = 3 * GIB + 500;
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=4GiB"), &error);
    assert_non_null(stack.mr);
    assert_int_equal(state_of(&stack).held_bytes, 3 * GIB); /* what was free */
    (void)take(&stack, 1000);
    end_stack(&stack);
}

TEST(no_room_at_all_for_the_initial_size_is_no_error)
{
    struct stack stack = make_pool(0, OPTIONS("initial_size=4GiB"));

    refuse(&stack, 1000);
    stack.leaf->capacity_bytes = 8 * MIB;
    (void)take(&stack, 1000);
    end_stack(&stack);
}

TEST(another_error_for_the_initial_size_fails_creation)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;

    leaf->fail_at = 1;
    leaf->fail_with = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_null(make_resource_at(&fake_environment, &rs_mr_descriptor_pool, &leaf->base,
                                 OPTIONS("initial_size=4GiB"), &error));
    assert_int_equal(error, -EIO);
    fake_leaf_destroy(leaf);
}

TEST(contradicting_options_are_diagnosed)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_pool, NULL,
                                   OPTIONS("initial_size=2GiB", "maximum_size=1GiB"), line,
                                   sizeof(line)));
    assert_non_null(strstr(line, "maximum size 1GiB is below its initial size 2GiB"));
    assert_true(options_are_valid(&rs_mr_descriptor_pool, NULL, OPTIONS("initial_size=90GiB"), line,
                                  sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_pool, &fake_environment,
                                   OPTIONS("initial_size=90GiB"), line, sizeof(line)));
    assert_non_null(strstr(line, "larger than the device's"));
    assert_true(options_are_valid(&rs_mr_descriptor_pool, &fake_environment,
                                  OPTIONS("initial_pool_size=1GiB", "maximum_pool_size=1GiB"), line,
                                  sizeof(line)));
}
