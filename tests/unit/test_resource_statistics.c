/* SPDX-License-Identifier: Apache-2.0 */
/* statistics: counters and their nesting. */
#include "unit.h"

#include "fake_leaf.h"
#include "resource/adaptor/statistics.h"
#include "resource/report.h"

#include <errno.h>
#include <string.h>

#define PLENTY ((size_t)1 << 50)

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static struct stack make_statistics(void)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};

    stack.mr = make_resource(&rs_mr_descriptor_statistics, &stack.leaf->base, NULL);
    return stack;
}

static struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation), CUDA_SUCCESS);
    return allocation;
}

static void give(struct stack *stack, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
}

#define LEVEL(live, peak, total, live_count, peak_count, total_count)                              \
    ((struct rs_statistics_level){{(live), (peak), (total)},                                       \
                                  {(live_count), (peak_count), (total_count)}})

static void assert_level(struct stack *stack, struct rs_statistics_level expected)
{
    struct rs_statistics_level level;

    rs_statistics_get(stack->mr, &level);
    assert_memory_equal(&level, &expected, sizeof(level));
}

TEST(counts_requested_bytes)
{
    struct stack stack = make_statistics();
    struct rs_allocation first, second;

    assert_level(&stack, LEVEL(0, 0, 0, 0, 0, 0));
    first = take(&stack, 1000);
    second = take(&stack, 1);
    give(&stack, &first);
    assert_level(&stack, LEVEL(1, 1001, 1001, 1, 2, 2));
    give(&stack, &second);
    assert_level(&stack, LEVEL(0, 1001, 1001, 0, 2, 2));
    rs_mr_destroy(stack.mr, false);
}

TEST(levels_nest_as_in_rmm)
{
    struct stack stack = make_statistics();
    struct rs_statistics_level level;
    struct rs_allocation outer = take(&stack, 100), inner;

    assert_int_equal(rs_statistics_push(stack.mr, &level), 0);
    assert_memory_equal(&level, &LEVEL(100, 100, 100, 1, 1, 1), sizeof(level));
    assert_level(&stack, LEVEL(0, 0, 0, 0, 0, 0));
    inner = take(&stack, 50);
    give(&stack, &inner);
    give(&stack, &outer);
    assert_level(&stack, LEVEL(-100, 50, 50, -1, 1, 1)); /* freed what was there before */
    inner = take(&stack, 30);
    assert_int_equal(rs_statistics_pop(stack.mr, &level), 0);
    assert_memory_equal(&level, &LEVEL(-70, 50, 80, 0, 1, 2), sizeof(level));
    assert_level(&stack, LEVEL(30, 150, 180, 1, 2, 3));
    assert_int_equal(rs_statistics_pop(stack.mr, &level), -ERANGE);
    assert_level(&stack, LEVEL(30, 150, 180, 1, 2, 3));
    rs_mr_destroy(stack.mr, false);
}

TEST(the_report_is_of_all_levels)
{
    struct stack stack = make_statistics();
    struct rs_statistics_level level;
    struct rs_report report = {.count = 0};
    struct rs_allocation allocation;

    (void)take(&stack, 100);
    assert_int_equal(rs_statistics_push(stack.mr, &level), 0);
    allocation = take(&stack, 50);
    give(&stack, &allocation);
    assert_int_equal(rs_statistics_push(stack.mr, &level), 0);
    (void)take(&stack, 20);
    stack.leaf->capacity_bytes = 0;
    assert_int_equal(rs_mr_allocate(stack.mr, 1, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    stack.mr->ops.report(stack.mr, &report);
#define VALUE(name) rs_report_value(&report, "statistics", name, 999)
    assert_int_equal(VALUE("live"), 120);
    assert_int_equal(VALUE("peak"), 150);
    assert_int_equal(VALUE("total"), 170);
    assert_int_equal(VALUE("live_allocations"), 2);
    assert_int_equal(VALUE("peak_allocations"), 2);
    assert_int_equal(VALUE("allocations"), 3);
    assert_int_equal(VALUE("failures"), 1);
#undef VALUE
    assert_level(&stack, LEVEL(20, 20, 20, 1, 1, 1)); /* untouched */
    rs_mr_destroy(stack.mr, false);                   /* frees the levels */
}

TEST(a_failed_free_is_live_again)
{
    struct stack stack = make_statistics();
    struct rs_allocation allocation = take(&stack, 100);

    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_level(&stack, LEVEL(100, 100, 100, 1, 1, 1));
    rs_mr_destroy(stack.mr, false);
}
