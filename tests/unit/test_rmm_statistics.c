/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's own tests of statistics and tracking. */
#include "rmm_stack.h"

#include "resource/adaptor/tracking.h"

/* ---- statistics ---- */

static void assert_counters(struct rs_mr *mr, uint64_t mib, uint64_t peak_mib, uint64_t total_mib,
                            uint64_t count, uint64_t peak_count, uint64_t total_count)
{
    assert_int_equal(counter(mr, "statistics", "live"), mib * MIB);
    assert_int_equal(counter(mr, "statistics", "peak"), peak_mib * MIB);
    assert_int_equal(counter(mr, "statistics", "total"), total_mib * MIB);
    assert_int_equal(counter(mr, "statistics", "live_allocations"), count);
    assert_int_equal(counter(mr, "statistics", "peak_allocations"), peak_count);
    assert_int_equal(counter(mr, "statistics", "allocations"), total_count);
}

TEST(line_64_all_zero_at_start_and_value_zero_at_end)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation allocation;

    assert_counters(stack.mr, 0, 0, 0, 0, 0, 0);
    allocation = take(&stack, 10 * MIB);
    give(&stack, &allocation);
    assert_counters(stack.mr, 0, 10, 10, 0, 1, 1);
    end(&stack);
}

TEST(line_65_peak_and_total_of_ten_blocks)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation blocks[20];

    for (unsigned i = 0; i < 10; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 0; i < 10; i += 2)
        give(&stack, &blocks[i]);
    assert_counters(stack.mr, 50, 100, 100, 5, 10, 10);
    for (unsigned i = 10; i < 20; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 1; i < 20; i += i < 9 ? 2 : 1)
        give(&stack, &blocks[i]);
    assert_counters(stack.mr, 0, 150, 200, 0, 15, 20);
    end(&stack);
}

TEST(line_66_stacked_adaptors_count_for_themselves)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct stack inner = stack;
    struct rs_allocation blocks[10];

    stack.mr = over(&rs_mr_descriptor_statistics, inner.mr, NULL);
    for (unsigned i = 0; i < 10; i++)
        blocks[i] = take(i % 2 ? &inner : &stack, 10 * MIB);
    assert_counters(stack.mr, 50, 50, 50, 5, 5, 5);
    assert_counters(inner.mr, 100, 100, 100, 10, 10, 10);
    for (unsigned i = 0; i < 10; i++)
        give(&stack, &blocks[i]); /* half of them foreign to the outer one */
    assert_counters(stack.mr, 0, 50, 50, 0, 5, 5);
    assert_counters(inner.mr, 0, 100, 100, 0, 10, 10);
    blocks[0] = take(&stack, 60 * MIB); /* what was freed beyond its own is not forgotten */
    assert_counters(stack.mr, 10, 50, 110, 0, 5, 6);
    give(&stack, &blocks[0]);
    end(&stack);
}

/* An upstream that, inside a free and before it returns, lets another thread allocate and free, as
 * a real one may give the address out again at once. */
static struct rs_mr *reused;
static void (*look_inside_free)(void);
static uint64_t live_inside_free, live_count_inside_free;
static CUresult (*real_deallocate)(struct rs_mr *, const struct rs_allocation *, CUstream);

static CUresult free_slowly(struct rs_mr *mr, const struct rs_allocation *allocation,
                            CUstream stream)
{
    CUresult result = real_deallocate(mr, allocation, stream);
    struct rs_allocation again;

    mr->ops.deallocate = real_deallocate;
    if (rs_mr_allocate(reused, allocation->size_bytes, stream, &again) == CUDA_SUCCESS) {
        look_inside_free();
        (void)rs_mr_deallocate(reused, &again, stream);
    }
    return result;
}

static void free_and_look(struct stack *stack, const struct rs_allocation *allocation,
                          void (*look)(void))
{
    reused = stack->mr;
    look_inside_free = look;
    live_inside_free = live_count_inside_free = 0;
    real_deallocate = stack->leaf->base.ops.deallocate;
    stack->leaf->base.ops.deallocate = free_slowly;
    give(stack, allocation);
}

static void look_at_statistics(void)
{
    live_inside_free = counter(reused, "statistics", "live");
    live_count_inside_free = counter(reused, "statistics", "live_allocations");
}

TEST(line_68_memory_reused_during_its_free_is_not_live_twice)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation allocation = take(&stack, 10 * MIB);

    free_and_look(&stack, &allocation, look_at_statistics);
    assert_int_equal(live_inside_free, 10 * MIB);
    assert_int_equal(live_count_inside_free, 1);
    assert_counters(stack.mr, 0, 10, 20, 0, 1, 2);
    end(&stack);
}

/* ---- tracking ---- */

static void count_site(void *data, const struct rs_tracked *tracked)
{
    *(unsigned *)data += tracked->site != NULL;
}

static unsigned sites(struct rs_mr *mr)
{
    unsigned count = 0;

    rs_tracking_each(mr, count_site, &count);
    return count;
}

static void assert_tracked(struct rs_mr *mr, uint64_t mebibytes, uint64_t blocks)
{
    assert_int_equal(counter(mr, "tracking", "live"), mebibytes * MIB);
    assert_int_equal(counter(mr, "tracking", "live_allocations"), blocks);
}

TEST(line_69_live_blocks_are_exact_and_have_stacks_when_asked)
{
    static const char *const options[] = {"capture_stacks=0", "capture_stacks=1"};

    for (unsigned asked = 0; asked < 2; asked++) {
        struct stack stack =
            stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, OPTIONS(options[asked]));
        struct rs_allocation blocks[10];
        for (unsigned i = 0; i < 10; i++)
            blocks[i] = take(&stack, 10 * MIB);
        for (unsigned i = 0; i < 10; i += 2)
            give(&stack, &blocks[i]);
        assert_tracked(stack.mr, 50, 5);
        assert_int_equal(sites(stack.mr), asked ? 5 : 0);
        for (unsigned i = 1; i < 10; i += 2)
            give(&stack, &blocks[i]);
        assert_tracked(stack.mr, 0, 0);
        end(&stack);
    }
}

/* A block that was never allocated here cannot come (its token would not be ours); a wrong size
 * can. */
TEST(line_70_a_free_with_a_wrong_size_keeps_totals_right)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct rs_allocation first = take(&stack, 10 * MIB), second = take(&stack, 10 * MIB);

    first.size_bytes = 5 * MIB;
    give(&stack, &first);
    assert_tracked(stack.mr, 10, 1);
    second.size_bytes = 100 * MIB;
    give(&stack, &second);
    assert_tracked(stack.mr, 0, 0);
    assert_int_equal(stack.leaf->wrong_calls, 0); /* upstream heard the right ones */
    end(&stack);
}

TEST(line_71_nested_trackers_are_independent)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct stack inner = stack;
    struct rs_allocation outer_blocks[5], inner_blocks[5];

    stack.mr = over(&rs_mr_descriptor_tracking, inner.mr, NULL);
    for (unsigned i = 0; i < 5; i++) {
        outer_blocks[i] = take(&stack, 10 * MIB);
        inner_blocks[i] = take(&inner, 10 * MIB);
    }
    assert_tracked(stack.mr, 50, 5);
    assert_tracked(inner.mr, 100, 10);
    for (unsigned i = 0; i < 5; i++)
        give(&stack, &outer_blocks[i]);
    assert_tracked(stack.mr, 0, 0);
    assert_tracked(inner.mr, 50, 5);
    for (unsigned i = 0; i < 5; i++)
        give(&inner, &inner_blocks[i]);
    assert_tracked(inner.mr, 0, 0);
    end(&stack);
}

static void look_at_tracking(void)
{
    live_inside_free = counter(reused, "tracking", "live");
    live_count_inside_free = counter(reused, "tracking", "live_allocations");
}

TEST(line_71_memory_reused_during_its_free_is_not_tracked_afterwards)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct rs_allocation allocation = take(&stack, 10 * MIB);

    free_and_look(&stack, &allocation, look_at_tracking);
    assert_int_equal(live_inside_free, 10 * MIB);
    assert_int_equal(live_count_inside_free, 1);
    assert_tracked(stack.mr, 0, 0);
    end(&stack);
}
