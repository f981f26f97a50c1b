/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: the blocks that go back upstream on a trim, when the program synchronises, and when the
 * context has ended. */
#include "reuse_stack.h"

#include <string.h>

TEST(trim_gives_back_what_is_ready)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 8 * MIB);

    (void)give_busy(&stack, &a);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 8 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(stack.leaf->live_bytes, 8 * MIB);
    complete_all();
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    end(&stack);
}

static size_t excess_bytes;

static size_t fake_excess_bytes(struct rs_mr *mr)
{
    (void)mr;
    return excess_bytes;
}

/* Over a pool that would pass on what exceeds a release threshold. */
static struct stack start_with_threshold(void)
{
    struct stack stack = start(PLENTY, "initial_size=512MiB");

    stack.mr->upstream[0]->ops.excess_bytes = fake_excess_bytes;
    stack.mr->has_threshold = true;
    excess_bytes = PLENTY;
    return stack;
}

TEST(what_is_in_excess_goes_upstream_when_the_program_synchronises)
{
    struct stack stack = start_with_threshold();
    struct rs_allocation a = take(&stack, 3 * MIB), b = take(&stack, 1000);

    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, 0);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(device.records, 1);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_SOME); /* another stream */
    assert_int_equal(counter(&stack, "quarantined"), 3 * MIB + 1000);
    complete_all();
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_SOME);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(device.records, 1);
    end(&stack);
}

TEST(a_wait_for_the_whole_context_sees_late_fences)
{
    struct stack stack = start_with_threshold();
    struct rs_allocation a = take(&stack, 8 * MIB);

    (void)give_busy(&stack, &a);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_BEGIN);
    complete_in(8);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

static void expect_no_give_back(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation a = take(stack, size_bytes);
    unsigned records;

    give(stack, &a);
    records = device.records;
    rs_mr_synchronise(stack->mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(device.records, records);
    complete_all();
    rs_mr_synchronise(stack->mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(counter(stack, "quarantined"), size_bytes);
    (void)rs_mr_trim(stack->mr, PLENTY);
}

TEST(what_is_no_excess_stays_when_the_program_synchronises)
{
    struct stack stack = start_with_threshold();

    expect_no_give_back(&stack, MIB); /* of no use to the driver */
    excess_bytes = 0;
    expect_no_give_back(&stack, 8 * MIB);
    excess_bytes = PLENTY;
    stack.mr->has_threshold = false;
    expect_no_give_back(&stack, 8 * MIB);
    end(&stack);
}

static uint64_t older_work;

static void finish_older_work(void)
{
    complete_to(older_work);
}

/* The older fence is done when the younger is recorded, and that a little later. */
TEST(a_trim_waits_for_the_youngest_fence_too)
{
    struct stack stack = start(PLENTY, "initial_size=512MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB);

    older_work = give_busy(&stack, &a);
    seal(&stack);
    (void)give_busy(&stack, &b);
    device.in_record = finish_older_work;
    complete_in(8);
    (void)rs_mr_trim(stack.mr, 0);
    assert_null(device.in_record);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

TEST(memory_that_is_gone_needs_no_driver)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB);
    unsigned queries, waits;

    (void)give_busy(&stack, &a);
    (void)rs_mr_trim(stack.mr, 0);
    (void)give_busy(&stack, &b);
    queries = device.queries;
    waits = device.waits;
    rs_mr_destroy(stack.mr, true);
    assert_int_equal(device.queries, queries);
    assert_int_equal(device.waits, waits);
}
