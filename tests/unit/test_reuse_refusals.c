/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: host memory runs out, or upstream refuses.  No block is lost, and requests that can be
 * served are. */
#include "host_memory.h"
#include "resource/block.h"
#include "reuse_stack.h"

#include <string.h>

/* Neither an epoch nor growth is possible then, but the driver's own wait is. */
TEST(without_host_memory_nothing_is_lost)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    host_left = 0;
    (void)give_busy(&stack, &a); /* a free needs none */
    b = take(&stack, 16 * MIB);
    host_left = -1;
    assert_int_equal(b.address, a.address);
    assert_int_equal(device.records, 0);
    assert_int_equal(device.waits, 1); /* of the free: no epoch can be made */
    give(&stack, &b);
    end(&stack);
}

TEST(without_host_memory_for_a_record_a_request_is_refused)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_block_record *spare = NULL, *record;
    struct rs_allocation a, b;

    host_left = 0;
    for (; (record = rs_block_record_take()); spare = record) /* of earlier blocks of the process */
        record->next = spare;
    assert_int_equal(try(&stack, MIB, &a), CUDA_ERROR_OUT_OF_MEMORY);
    host_left = -1;
    for (; spare; spare = record) {
        record = spare->next;
        rs_block_record_give(spare);
    }
    a = take(&stack, 16 * MIB); /* nothing was lost */
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    give(&stack, &b);
    end(&stack);
}

/* The one block that there is room for is freed while upstream says that there is none. */
static void free_and_complete(void *data)
{
    (void)data;
    free_late();
    complete_all();
}

TEST(a_refusal_counts_only_if_nothing_moved)
{
    struct stack stack = start(16 * MIB, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    late.stack = &stack;
    late.allocation = a;
    stack.leaf->on_call = free_and_complete;
    b = take(&stack, 16 * MIB);
    assert_null(stack.leaf->on_call);
    give(&stack, &b);
    end(&stack);
}

/* It is tried again, and nothing is lost. */
TEST(what_upstream_does_not_take_back_stays)
{
    struct stack stack;
    struct rs_allocation a, b;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_aligned, 16 * MIB, NULL, "free=deferred");
    a = take(&stack, 16 * MIB);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    give(&stack, &a);
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 16 * MIB);
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    b = take(&stack, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}
