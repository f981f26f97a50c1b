/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's own tests of its pool, arena, binning and fixed-size resources. */
#include "rmm_stack.h"

#include "placing_driver.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- pool ---- */

static bool pool_options_are_valid(const char *initial, const char *maximum)
{
    char line[300];

    return options_are_valid(&rs_mr_descriptor_pool, &fake_environment, OPTIONS(initial, maximum),
                             line, sizeof(line));
}

TEST(line_16_a_maximum_below_the_initial_size_is_refused)
{
    assert_false(pool_options_are_valid("initial_pool_size=2048", "maximum_pool_size=1024"));
}

TEST(line_17_sizes_are_multiples_of_256)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                    OPTIONS("initial_size=1000031", "maximum_size=1000200"));
    struct rs_allocation allocation =
        take(&stack, 999936); /* RMM refuses, here they are rounded down */

    refuse(&stack, 257);
    give(&stack, &allocation);
    end(&stack);
    assert_false(pool_options_are_valid("initial_pool_size=255", "maximum_pool_size=1000192"));
    assert_true(pool_options_are_valid("initial_pool_size=1000192", "maximum_pool_size=1000448"));
}

TEST(line_18_initial_may_equal_maximum)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                    OPTIONS("initial_size=1000192", "maximum_size=1000192"));
    struct rs_allocation allocation = take(&stack, 1000192);

    refuse(&stack, 1);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_19_nine_tenths_of_the_device_can_be_a_pool)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=90%"));

    assert_in_range(stack.leaf->live_bytes, DEVICE_BYTES * 9 / 10 - 2 * MIB, DEVICE_BYTES * 9 / 10);
    end(&stack);
}

TEST(line_20_two_quarters_of_the_device_from_half_of_it)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=50%"));

    (void)take(&stack, DEVICE_BYTES / 4);
    (void)take(&stack, DEVICE_BYTES / 4);
    assert_int_equal(stack.leaf->allocations, 1);
    end(&stack);
}

TEST(line_21_growth_backs_off_by_halving)
{
    struct stack stack = stack_over(6000, &rs_mr_descriptor_pool, OPTIONS("growth=rmm"));

    (void)take(&stack, 1000);
    (void)take(&stack, 4000);
    (void)take(&stack, 500);
    refuse(&stack, 2000);
    end(&stack);
}

TEST(line_22_growth_stops_at_the_maximum_and_what_is_there_serves)
{
    struct stack stack =
        stack_over(6000, &rs_mr_descriptor_pool, OPTIONS("growth=rmm", "maximum_size=8192"));

    (void)take(&stack, 1000);
    refuse(&stack, 4000);
    (void)take(&stack, 500);
    (void)take(&stack, 2000);
    end(&stack);
}

TEST(line_25_the_pool_holds_at_least_its_initial_size)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=1MiB"));

    assert_true(counter(stack.mr, "pool", "held") >= MIB);
    end(&stack);
}

TEST(line_26_a_small_maximum_serves_itself_and_no_more)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                    OPTIONS("initial_size=0", "maximum_size=1024"));

    (void)take(&stack, 1024);
    refuse(&stack, 1024);
    end(&stack);
}

TEST(line_27_sizes_as_text_and_almost_the_whole_cap)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                        OPTIONS("maximum_size=8MiB", growths[i]));
        (void)take(&stack, 8 * MIB - 1);
        refuse(&stack, 16 * MIB);
        end(&stack);
    }
}

/* ---- arena: a pool of one size ---- */

static struct stack arena_of(const char *size)
{
    return stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena, OPTIONS(size));
}

TEST(line_30_at_least_a_mebibyte_at_most_nearly_all)
{
    char line[300];
    struct stack stack;

    assert_false(options_are_valid(&rs_mr_descriptor_arena, &fake_environment,
                                   OPTIONS("arena_size=1048448"), line, sizeof(line)));
    stack = arena_of("arena_size=90%");
    assert_in_range(stack.leaf->live_bytes, DEVICE_BYTES * 9 / 10 - 512, DEVICE_BYTES * 9 / 10);
    end(&stack);
    stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena, NULL);
    assert_int_equal(stack.leaf->live_bytes, DEVICE_BYTES / 2);
    (void)take(&stack, 1);
    (void)take(&stack, 64 * MIB);
    (void)take(&stack, DEVICE_BYTES / 3);
    end(&stack);
}

TEST(line_34_mebibytes_in_address_order_then_none_and_back)
{
    struct stack stack = arena_of("arena_size=4MiB");
    struct rs_allocation blocks[4];

    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, MIB);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(blocks[i].address, blocks[0].address + i * MIB);
    refuse(&stack, MIB);
    refuse(&stack, 1);
    give(&stack, &blocks[0]);
    give(&stack, &blocks[1]); /* with previous */
    give(&stack, &blocks[3]);
    give(&stack, &blocks[2]); /* with both */
    assert_int_equal(take(&stack, 4 * MIB).address, blocks[0].address);
    end(&stack);
}

TEST(line_35_large_requests_merge_to_the_whole)
{
    struct stack stack = arena_of("arena_size=16MiB");
    struct rs_allocation first = take(&stack, 2 * MIB + 100), second = take(&stack, 3 * MIB + 7);
    struct rs_allocation third = take(&stack, 4 * MIB), whole;

    assert_true(first.address < second.address && second.address < third.address);
    refuse(&stack, 17 * MIB);
    refuse(&stack, 17 * MIB);
    give(&stack, &second);
    second = take(&stack, 2 * MIB);
    assert_true(first.address < second.address && second.address < third.address);
    give(&stack, &third);
    give(&stack, &first);
    give(&stack, &second);
    whole = take(&stack, 16 * MIB);
    give(&stack, &whole);
    end(&stack);
}

TEST(line_36_and_39_blocks_outlive_a_refusal)
{
    struct stack stack = arena_of("arena_size=8MiB");
    struct hand_over hand_over = {.mr = stack.mr};
    pthread_t thread;
    void *result;

    for (unsigned i = 0; i < HANDED_OVER; i++)
        hand_over.blocks[i] = take(&stack, 20000);
    refuse(&stack, 8 * MIB);
    assert_int_equal(counter(stack.mr, "arena", "live"), HANDED_OVER * 20480);
    atomic_store(&hand_over.produced, HANDED_OVER);
    assert_int_equal(pthread_create(&thread, NULL, consume, &hand_over), 0);
    pthread_join(thread, &result);
    assert_non_null(result);
    (void)take(&stack, 8 * MIB);
    end(&stack);
}

TEST(line_37_quarters_merge_in_any_order)
{
    struct stack stack = arena_of("arena_size=2MiB");
    struct rs_allocation blocks[8];
    const unsigned order[] = {3, 4, 6, 5, 1, 0, 7, 2}; /* previous, next, both */

    for (unsigned i = 0; i < 8; i++)
        blocks[i] = take(&stack, 256 * KIB);
    for (unsigned i = 1; i < 8; i++)
        assert_int_equal(blocks[i].address, blocks[i - 1].address + 256 * KIB);
    for (unsigned i = 0; i < 8; i++)
        give(&stack, &blocks[order[i]]);
    assert_int_equal(take(&stack, 100 * KIB).address, blocks[0].address);
    refuse(&stack, 2 * MIB);
    end(&stack);

    stack = arena_of("arena_size=2MiB");
    blocks[0] = take(&stack, 100);
    give(&stack, &blocks[0]);
    (void)take(&stack, 2 * MIB);
    end(&stack);
}

/* While the four still live. */
struct arena_user {
    pthread_t thread;
    struct rs_mr *mr;
    pthread_barrier_t *is_done, *may_end;
    bool good;
};

static void *use_arena(void *data)
{
    struct arena_user *user = data;

    user->good = true;
    for (unsigned i = 0; i < 100; i++) {
        struct rs_allocation block;
        user->good &= rs_mr_allocate(user->mr, 1 + 1000 * i, NULL, &block) == CUDA_SUCCESS &&
                      rs_mr_deallocate(user->mr, &block, NULL) == CUDA_SUCCESS;
    }
    pthread_barrier_wait(user->is_done);
    pthread_barrier_wait(user->may_end);
    return NULL;
}

TEST(line_38_all_of_it_after_four_threads)
{
    struct stack stack = arena_of("arena_size=8MiB");
    struct arena_user users[4];
    pthread_barrier_t is_done, may_end;
    struct rs_allocation whole;

    pthread_barrier_init(&is_done, NULL, 5);
    pthread_barrier_init(&may_end, NULL, 5);
    for (unsigned i = 0; i < 4; i++) {
        users[i] = (struct arena_user){.mr = stack.mr, .is_done = &is_done, .may_end = &may_end};
        assert_int_equal(pthread_create(&users[i].thread, NULL, use_arena, &users[i]), 0);
    }
    pthread_barrier_wait(&is_done);
    whole = take(&stack, 8 * MIB);
    pthread_barrier_wait(&may_end);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(users[i].thread, NULL);
        assert_true(users[i].good);
    }
    give(&stack, &whole);
    end(&stack);
    pthread_barrier_destroy(&is_done);
    pthread_barrier_destroy(&may_end);
}

/* ---- binning, fixed_size ---- */

TEST(line_42_a_bin_serves_smaller_requests)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_binning,
                                    OPTIONS("minimum_size=1KiB", "maximum_size=1KiB"));
    struct rs_allocation allocation = take(&stack, 100);

    assert_int_equal(stack.leaf->live_bytes, 8 * KIB);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_44_above_the_largest_bin_goes_upstream)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_binning,
                                    OPTIONS("minimum_size=1KiB", "maximum_size=128KiB"));
    struct rs_allocation allocation = take(&stack, 128 * MIB);

    assert_int_equal(stack.leaf->live_bytes, 128 * MIB);
    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_bytes, 0);
    end(&stack);
}

TEST(line_45_bins_work_over_any_resource)
{
    struct fake_leaf *leaf;
    struct rs_mr *headroom;
    struct stack stack;
    int error;

    for (int memory = 0; memory < RS_MEMORIES; memory++) {
        placing_start(false);
        placing.free_bytes = GIB;
        leaf = placing_leaf((enum rs_memory)memory);
        headroom = make_resource_at(&placing_environment, &rs_mr_descriptor_headroom, &leaf->base,
                                    OPTIONS("headroom=512MiB"), &error);
        stack = (struct stack){leaf, over(&rs_mr_descriptor_binning, headroom,
                                          OPTIONS("minimum_size=1KiB", "maximum_size=128KiB"))};
        for (size_t size_bytes = 1; size_bytes < MIB; size_bytes *= 3) {
            struct rs_allocation allocation = take(&stack, size_bytes);
            give(&stack, &allocation);
        }
        end(&stack);
    }
}

TEST(line_46_fixed_size_refuses_larger_and_grows)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_fixed_size,
                                    OPTIONS("block_size=1MiB", "blocks_to_preallocate=2"));
    struct rs_allocation blocks[3];

    refuse(&stack, MIB + 1);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = take(&stack, MIB);
    assert_int_not_equal(blocks[0].address, blocks[1].address);
    assert_int_equal(stack.leaf->allocations, 2);
    end(&stack);
}
