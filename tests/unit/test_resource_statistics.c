/* SPDX-License-Identifier: Apache-2.0 */
/* statistics: its counters. */
#include "unit.h"

#include "fake_leaf.h"
#include "resource/report.h"

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

struct counters {
    uint64_t live, peak, total, live_count, peak_count, total_count, failures;
};

static void assert_counters(struct stack *stack, const struct counters *expected)
{
    struct rs_report report = {.count = 0};

    stack->mr->ops.report(stack->mr, &report);
#define VALUE(name) rs_report_value(&report, "statistics", name, 999)
    assert_int_equal(VALUE("live"), expected->live);
    assert_int_equal(VALUE("peak"), expected->peak);
    assert_int_equal(VALUE("total"), expected->total);
    assert_int_equal(VALUE("live_allocations"), expected->live_count);
    assert_int_equal(VALUE("peak_allocations"), expected->peak_count);
    assert_int_equal(VALUE("allocations"), expected->total_count);
    assert_int_equal(VALUE("failures"), expected->failures);
#undef VALUE
    rs_report_release(&report);
}

TEST(counts_requested_bytes)
{
    struct stack stack = make_statistics();
    struct rs_allocation first, second;

    assert_counters(&stack, &(struct counters){0, 0, 0, 0, 0, 0, 0});
    first = take(&stack, 1000);
    second = take(&stack, 1);
    give(&stack, &first);
    assert_counters(&stack, &(struct counters){1, 1001, 1001, 1, 2, 2, 0});
    give(&stack, &second);
    assert_counters(&stack, &(struct counters){0, 1001, 1001, 0, 2, 2, 0});
    rs_mr_destroy(stack.mr, false);
}

TEST(counts_failures)
{
    struct stack stack = make_statistics();
    struct rs_allocation allocation;

    (void)take(&stack, 100);
    stack.leaf->capacity_bytes = 0;
    assert_int_equal(rs_mr_allocate(stack.mr, 1, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_counters(&stack, &(struct counters){100, 100, 100, 1, 1, 1, 1});
    rs_mr_destroy(stack.mr, false);
}

TEST(a_failed_free_is_live_again)
{
    struct stack stack = make_statistics();
    struct rs_allocation allocation = take(&stack, 100);

    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_counters(&stack, &(struct counters){100, 100, 100, 1, 1, 1, 0});
    rs_mr_destroy(stack.mr, false);
}
