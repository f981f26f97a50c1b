/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: frees that wait for all work of the device, by freeing a sentinel with the driver: on a
 * driver without fences, where it refuses them, and with free=wait. */
#include "driver/fence.h"
#include "reuse_stack.h"

#include <stdatomic.h>
#include <string.h>

TEST(on_an_old_driver_each_free_waits)
{
    struct stack stack = start_old(PLENTY, "initial_size=8MiB");
    struct rs_allocation a, first = {.address = 0};

    for (unsigned i = 0; i < 3; i++) {
        a = take(&stack, 1000);
        first = i == 0 ? a : first;
        assert_int_equal(a.address, first.address);
        (void)give_busy(&stack, &a);
        assert_int_equal(device.waits, i + 1);
        assert_int_equal(atomic_load(&completed), atomic_load(&submitted));
        assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
        assert_int_equal(counter(&stack, "kept"), 0);
    }
    assert_int_equal(counter(&stack, "full_waits"), 3);
    assert_int_equal(device.event_count, 0);
    end(&stack);
}

/* A block that was exported is freed late, in a request, which must not wait. */
TEST(on_an_old_driver_a_late_free_waits_for_the_next_one)
{
    struct stack stack = start_old(PLENTY, "initial_size=8MiB");
    struct rs_allocation late_one = take(&stack, MIB), next = take(&stack, MIB);

    rs_request_begin();
    (void)give_busy(&stack, &late_one);
    rs_request_end();
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined"), MIB);
    (void)give_busy(&stack, &next);
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

/* The driver has waited, and returns to us only after another thread's free. */
TEST(a_free_during_the_full_wait_is_not_covered)
{
    struct stack stack = start(64 * MIB, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 32 * MIB), b = take(&stack, 8 * MIB),
                         c = take(&stack, 16 * MIB), d;

    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    late.stack = &stack;
    late.allocation = b;
    device.in_free = free_late;
    (void)give_busy(&stack, &a); /* so much is waited for at once */
    assert_null(device.in_free);
    d = take(&stack, 32 * MIB);
    assert_int_equal(d.address, a.address);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

/* Without memory for a new sentinel the one that is held back serves. */
TEST(the_sentinel_works_on_a_full_device)
{
    struct stack stack = start_old(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    rs_sentinel_prepare(&sentinel, CTX);
    assert_int_equal(device.live_sentinels, 2);
    device.is_full = true;
    for (unsigned i = 0; i < 2; i++) {
        (void)give_busy(&stack, &a);
        b = take(&stack, 16 * MIB);
        assert_int_equal(b.address, a.address);
        assert_int_equal(device.waits, i + 1);
        a = b;
    }
    (void)give_busy(&stack, &a); /* cannot wait, and has no error: the block stays open */
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    device.is_full = false;
    assert_int_equal(rs_mr_trim(stack.mr, SIZE_MAX), 0); /* may wait */
    b = take(&stack, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}

static void nobody_gets_the_block_while_its_free_waits(void)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(late.stack->mr, 16 * MIB, NULL, &allocation), CUDA_SUCCESS);
    assert_true(allocation.address != late.allocation.address);
    late.allocation = allocation;
}

TEST(free_wait_waits_before_the_block_is_free)
{
    struct stack stack;
    struct rs_allocation a;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=16MiB"), "free=wait");
    a = take(&stack, 16 * MIB);
    late.stack = &stack;
    late.allocation = a;
    device.in_free = nobody_gets_the_block_while_its_free_waits;
    (void)give_busy(&stack, &a);
    assert_null(device.in_free);
    give(&stack, &late.allocation);
    end(&stack);
}

TEST(free_wait_waits_in_each_free)
{
    struct stack stack;
    struct rs_allocation a, b;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=16MiB"), "free=wait");
    for (unsigned i = 0; i < 3; i++) {
        a = take(&stack, 16 * MIB);
        (void)give_busy(&stack, &a);
        assert_int_equal(device.waits, i + 1);
        assert_int_equal(atomic_load(&completed), i + 1);
        assert_int_equal(counter(&stack, "quarantined"), 0);
    }
    assert_int_equal(counter(&stack, "full_waits"), 3);
    assert_int_equal(device.records, 0);
    a = take(&stack, 16 * MIB);
    device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    charge(&stack);
    assert_int_equal(rs_mr_deallocate(stack.mr, &a, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    device.free_answer = CUDA_SUCCESS;
    b = take(&stack, 16 * MIB);
    assert_true(b.address != a.address); /* still allocated */
    give(&stack, &a);
    give(&stack, &b);
    end(&stack);
}

/* Full waits, when it is time, and none for what is scarce. */
TEST(frees_wait_where_the_driver_refuses_fences)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;
    unsigned waits;

    stack.leaf->is_tight = true; /* a gap would misalign what comes next */
    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 9, 12);
    assert_in_range(stack.leaf->live_bytes, 0, 48 * MIB);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    device.record_answer = CUDA_SUCCESS; /* for the moment only */
    for (unsigned i = 0; i < 8; i++) {
        a = take(&stack, 8 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_true(counter(&stack, "epochs_sealed") > 0);
    end(&stack);
}

/* Where little more can be had, an allocation would be refused what waits. */
TEST(each_free_waits_where_fences_are_refused_and_little_is_left)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation blocks[3], again;
    unsigned waits;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
        blocks[i] = take(&stack, i < 2 ? MIB : LOOK_MIB * MIB);
    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    (void)give_busy(&stack, &blocks[0]); /* finds out that no fence can be had */
    waits = device.waits;
    (void)give_busy(&stack, &blocks[1]);
    assert_int_equal(device.waits, waits);
    atomic_store(&account.limit_bytes, 10 * MIB);
    (void)give_busy(&stack, &blocks[2]);
    assert_int_equal(device.waits, waits + 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    again = take(&stack, LOOK_MIB * MIB);
    give(&stack, &again);
    device.record_answer = CUDA_SUCCESS;
    end(&stack);
}
