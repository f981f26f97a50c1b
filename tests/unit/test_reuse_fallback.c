/* SPDX-License-Identifier: Apache-2.0 */
/* reuse over a fallback: freed memory that is ready soon is better than the second, slower memory.
 */
#include "base/lock.h"
#include "reuse_stack.h"

#include <string.h>

/* reuse over a fallback from a pool to a second leaf of any size. */
static struct stack start_with_fallback(bool has_fences, size_t capacity_bytes,
                                        struct fake_leaf **second)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};
    struct rs_allocation peak;
    struct rs_mr *below;
    int error;

    start_device(has_fences);
    *second = fake_leaf_create(PLENTY);
    (*second)->next_address = (CUdeviceptr)1 << 40;
    below = make_resource_at(&environment, &rs_mr_descriptor_pool, &stack.leaf->base, NULL, &error);
    below = make_resource_of_two(&environment, &rs_mr_descriptor_fallback, below, &(*second)->base,
                                 NULL, &error);
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_reuse, below, NULL, &error);
    assert_non_null(stack.mr);
    /* The program has used much at once before, so that growth is free. */
    peak = take(&stack, 4096 * MIB);
    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    (*second)->allocations = 0;
    device.waits = 0;
    return stack;
}

static void end_with_fallback(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    complete_all();
    rs_mr_destroy(stack->mr, false);
    free_sentinel(&sentinel);
    assert_int_equal(device.wrong_calls, 0);
    assert_int_equal(device.live_sentinels, 0);
}

/* What is quarantined would do, within the bound: that is better than slow memory. */
TEST(a_fallback_waits_for_what_will_be_ready_soon)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation large = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), again;

    give_busy(&stack, &large);
    complete_in(3);
    again = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 0);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    give(&stack, &again);
    give(&stack, &small);
    end_with_fallback(&stack);
}

/* Work that lasts is not waited for: neither the 30 s before out-of-memory, nor twice. */
TEST(a_fallback_does_not_wait_long)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation large = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), spilled[3];
    uint64_t begin_ns;

    give_busy(&stack, &large);
    count_time();
    begin_ns = rs_clock_ns();
    for (unsigned i = 0; i < 3; i++)
        spilled[i] = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 3);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    assert_in_range(rs_clock_ns() - begin_ns, WAIT_MS * 1000000ull, 5000 * 1000000ull);
    complete_all();
    large = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 3); /* home again */
    give(&stack, &large);
    give(&stack, &small);
    for (unsigned i = 0; i < 3; i++)
        give(&stack, &spilled[i]);
    end_with_fallback(&stack);
}

/* More than all that is freed and free: no wait would help. */
TEST(a_fallback_does_not_wait_in_vain)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation kept = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), large;

    give_busy(&stack, &small);
    large = take(&stack, 32 * MIB);
    assert_int_equal(second->allocations, 1);
    assert_int_equal(counter(&stack, "waits"), 0);
    give(&stack, &large);
    give(&stack, &kept);
    end_with_fallback(&stack);
}

TEST(on_an_old_driver_nothing_spills_for_what_was_freed)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(false, 64 * MIB, &second);
    struct rs_allocation kept = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), again;

    give_busy(&stack, &small);
    assert_int_equal(device.waits, 1);
    again = take(&stack, 16 * MIB);
    assert_int_equal(second->allocations, 0);
    give(&stack, &again);
    give(&stack, &kept);
    end_with_fallback(&stack);
}

/* Only when neither has memory, the long wait is due. */
TEST(both_full_waits_before_out_of_memory)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 16 * MIB, &second);
    struct rs_allocation first = take(&stack, 16 * MIB), spilled, again;

    second->capacity_bytes = 16 * MIB;
    spilled = take(&stack, 16 * MIB);
    give_busy(&stack, &spilled);
    complete_after_ms(50);
    again = take(&stack, 16 * MIB);
    assert_int_equal(second->allocations, 2);
    give(&stack, &again);
    give(&stack, &first);
    end_with_fallback(&stack);
}

TEST(held_memory_can_be_asked_for)
{
    struct stack stack = start(PLENTY, "initial_size=4MiB");
    struct rs_allocation block = take(&stack, 4 * MIB), held;

    give_busy(&stack, &block);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &held),
                     CUDA_ERROR_NOT_READY);
    complete_all();
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0); /* seals */
    assert_int_equal(rs_mr_allocate_with(stack.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &held),
                     CUDA_SUCCESS);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &held);
    end(&stack);
}
