/* SPDX-License-Identifier: Apache-2.0 */
/* reuse of host memory: the block used last lies in the processor's caches, so it comes back first.
 */
#include "reuse_stack.h"

#include "shared/job_layout.h"

#include <stdatomic.h>
#include <string.h>

static struct stack start_host_with(bool has_fences, const char *maximum_size)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    struct rs_mr *below;
    int error;

    start_device(has_fences);
    stack.leaf->base.memories = 1u << RS_MEMORY_HOST;
    below = make_resource_at(&environment, &rs_mr_descriptor_pool, &stack.leaf->base,
                             OPTIONS("initial_size=64MiB", maximum_size), &error);
    assert_int_equal(error, 0);
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_reuse, below,
                                OPTIONS("free=deferred"), &error);
    assert_int_equal(error, 0);
    return stack;
}

static struct stack start_host(void)
{
    return start_host_with(true, "maximum_size=none");
}

/* Host memory that was used last is still in the processor's caches: as soon as it is clean it
 * comes back, though there is more that is free. */
TEST(host_memory_comes_back_at_once)
{
    struct stack stack = start_host();
    struct rs_allocation a, b, small;

    a = take(&stack, 4 * MIB);
    (void)give_busy(&stack, &a);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    b = take(&stack, 4 * MIB);
    assert_true(b.address != a.address); /* it is still used */
    give(&stack, &b);
    complete_all();
    a = take(&stack, 4 * MIB);
    assert_int_equal(a.address, b.address); /* freed last */
    (void)give_busy(&stack, &a);
    complete_all();
    for (unsigned i = 1; i < 10; i++) {
        b = take(&stack, 4 * MIB);
        assert_int_equal(b.address, a.address);
        (void)give_busy(&stack, &b);
        complete_all();
    }
    small = take(&stack, 512); /* not worth it */
    give(&stack, &small);
    assert_int_equal(counter(&stack, "epochs_sealed"), 12);
    end(&stack);
}

/* Each free of host memory is to be sealed, and must not wait each time. */
static void expect_few_waits(struct stack stack)
{
    struct rs_allocation a;

    for (unsigned i = 0; i < 40; i++) {
        a = take(&stack, 4 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 1, 5);
    device.record_answer = CUDA_SUCCESS;
    end(&stack);
}

TEST(host_memory_is_waited_for_by_the_size_of_it)
{
    struct stack stack = start_host();

    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    expect_few_waits(stack);
}

TEST(on_an_old_driver_host_memory_is_waited_for_by_the_size_of_it)
{
    expect_few_waits(start_host_with(false, "maximum_size=none"));
}

/* The limit is of the device's memory. */
TEST(on_an_old_driver_the_devices_limit_makes_no_free_of_host_memory_wait)
{
    struct stack stack = start_host_with(false, "maximum_size=none");
    struct rs_allocation a = take(&stack, 64 * MIB), b = take(&stack, 4 * MIB);

    atomic_store(&account.limit_bytes, MIB);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.waits, 0);
    atomic_store(&account.limit_bytes, 0);
    give(&stack, &a);
    end(&stack);
}

/* No allocation could wait for it. */
TEST(on_an_old_driver_host_memory_is_waited_for_where_there_is_no_more)
{
    static const size_t sizes[] = {64 * MIB, 4096};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        struct stack stack = start_host_with(false, "maximum_size=64MiB");
        struct rs_allocation a = take(&stack, sizes[i]), b = {.address = 0};
        if (sizes[i] < 64 * MIB)
            b = take(&stack, 64 * MIB - sizes[i]);
        (void)give_busy(&stack, &a);
        assert_int_equal(device.waits, 1);
        a = take(&stack, sizes[i]);
        if (b.address)
            give(&stack, &b);
        give(&stack, &a);
        end(&stack);
    }
}

/* Of large host memory the blocks used last, which are not searched for again, and none of another
 * size: what is kept splits what is free upstream. */
TEST(the_last_large_host_blocks_are_kept)
{
    struct stack stack = start_host();
    struct rs_allocation a, b, c, whole;

    atomic_fetch_add(&account.held_bytes[RS_MEMORY_HOST], 16ull << 30); /* so several might be */
    a = take(&stack, 20 * MIB);
    b = take(&stack, 24 * MIB);
    give(&stack, &a);
    give(&stack, &b);
    complete_all();
    c = take(&stack, MIB);
    assert_int_equal(counter(&stack, "kept"), 24 * MIB); /* not a too */
    b = take(&stack, 24 * MIB);
    assert_int_equal(counter(&stack, "kept"), 0);
    give(&stack, &b);
    give(&stack, &c);
    complete_all();
    whole = take(&stack, 64 * MIB); /* goes before more is taken from the system */
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &whole);
    complete_all();
    end(&stack);
    atomic_fetch_sub(&account.held_bytes[RS_MEMORY_HOST], 16ull << 30);
}

TEST(a_few_large_host_blocks_of_one_size_are_kept)
{
    struct stack stack = start_host();
    struct rs_allocation blocks[4], small;

    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    complete_all();
    small = take(&stack, MIB);
    assert_int_equal(counter(&stack, "kept"), 40 * MIB);
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 10 * MIB);
    assert_int_equal(counter(&stack, "kept"), 0);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    give(&stack, &small);
    complete_all();
    end(&stack);
}

/* Each answer that a fence is done costs more than all else of such a pair. */
TEST(large_host_blocks_are_asked_for_when_there_is_no_other)
{
    struct stack stack = start_host();
    struct rs_allocation a = take(&stack, SEAL_MIB * MIB), b, c, d;

    give(&stack, &a);
    complete_all();
    b = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 0);
    give(&stack, &b);
    complete_all();
    assert_int_equal(device.records, 2);
    assert_int_equal(device.queries, 0);
    c = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 1);
    assert_int_equal(counter(&stack, "kept"), SEAL_MIB * MIB);
    d = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 1);
    assert_int_equal(c.address + d.address, a.address + b.address);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &c);
    give(&stack, &d);
    complete_all();
    end(&stack);
}

static size_t idle_in_job_after_a_free(struct stack *stack, const struct rs_job_share *share)
{
    struct rs_allocation block = take(stack, 40 * MIB);

    (void)give_busy(stack, &block);
    assert_true(counter(stack, "epochs_sealed") > 0);
    complete_all();
    end(stack);
    return share->entry->idle_bytes;
}

/* Other processes would ask for it and wait. */
TEST(freed_host_memory_is_no_memory_of_the_job_s)
{
    static struct rs_job_limit job;
    struct rs_job_share share = {.job = &job, .limit_bytes = PLENTY};
    struct stack stack;

    if (rs_job_limit_init(&job, (struct rs_size){PLENTY, RS_SIZE_BYTES}) != 0)
        return; /* a kernel without robust mutexes */
    share.member = rs_job_limit_join(&job);
    rs_job_share_enter(&share);
    stack = start_host();
    atomic_store(&account.job, &share);
    assert_int_equal(idle_in_job_after_a_free(&stack, &share), 0);
    stack = start(PLENTY, "initial_size=64MiB");
    atomic_store(&account.job, &share);
    assert_int_equal(idle_in_job_after_a_free(&stack, &share), 40 * MIB);
    atomic_store(&account.job, NULL);
}
