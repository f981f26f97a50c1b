/* SPDX-License-Identifier: Apache-2.0 */
/* fixed_size: blocks of one size. */
#include "unit.h"

#include "flying_clock.h"
#include "resource/report.h"
#include "stack.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

static struct stack make_fixed(size_t capacity_bytes, const char *const *options)
{
    return make_stack(&rs_mr_descriptor_fixed_size, capacity_bytes, options);
}

TEST(takes_128_blocks_of_1_mib_by_default)
{
    struct stack stack = make_fixed(PLENTY, NULL);

    assert_int_equal(stack.leaf->live_bytes, 128 * MIB);
    for (unsigned i = 0; i < 128; i++)
        (void)take(&stack, MIB);
    assert_int_equal(stack.leaf->live_count, 1);
    (void)take(&stack, 1);
    assert_int_equal(stack.leaf->live_bytes, 256 * MIB);
    end_stack(&stack);
}

TEST(block_size_is_rounded_up_to_the_alignment)
{
    struct stack stack = make_fixed(PLENTY, OPTIONS("block_size=1000", "blocks_to_preallocate=3"));
    struct rs_allocation first = take(&stack, 1), second = take(&stack, 1024);

    assert_int_equal(stack.leaf->live_bytes, 3 * KIB);
    assert_int_equal(second.address, first.address + KIB);
    end_stack(&stack);
}

TEST(a_request_above_the_block_size_is_refused)
{
    struct stack stack = make_fixed(PLENTY, OPTIONS("block_size=4KiB"));
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack.mr, 4 * KIB + 1, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(stack.leaf->allocations, 1);
    end_stack(&stack);
}

TEST(the_block_freed_last_is_handed_out_first)
{
    struct stack stack = make_fixed(PLENTY, OPTIONS("block_size=4KiB"));
    struct rs_allocation blocks[5];

    for (unsigned i = 0; i < 5; i++)
        blocks[i] = take(&stack, 4 * KIB);
    give(&stack, &blocks[1]);
    give(&stack, &blocks[3]);
    assert_int_equal(take(&stack, 1).address, blocks[3].address);
    assert_int_equal(take(&stack, 1).address, blocks[1].address);
    end_stack(&stack);
}

TEST(another_context_of_the_device_takes_nothing_at_first)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;
    struct stack stack = {leaf,
                          make_resource_at(&fake_second_environment, &rs_mr_descriptor_fixed_size,
                                           &leaf->base, NULL, &error)};

    assert_non_null(stack.mr);
    assert_int_equal(leaf->allocations, 0);
    (void)take(&stack, 1);
    assert_int_equal(leaf->allocations, 1);
    end_stack(&stack);
}

TEST(fewer_blocks_are_taken_when_memory_is_short)
{
    struct stack stack = make_fixed(10 * MIB, NULL);
    struct rs_allocation allocation;

    assert_int_equal(stack.leaf->live_bytes, 8 * MIB);
    for (unsigned i = 0; i < 10; i++)
        (void)take(&stack, MIB);
    assert_int_equal(rs_mr_allocate(stack.mr, MIB, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_mr_check(stack.mr));
    end_stack(&stack);
}

TEST(no_room_for_the_first_chunk_is_no_error)
{
    struct stack stack = make_fixed(0, NULL);

    stack.leaf->capacity_bytes = PLENTY;
    (void)take(&stack, 1);
    end_stack(&stack);
}

TEST(another_error_for_the_first_chunk_fails_creation)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;

    leaf->fail_at = 1;
    leaf->fail_with = CUDA_ERROR_NOT_INITIALIZED;
    assert_null(make_resource_at(&fake_environment, &rs_mr_descriptor_fixed_size, &leaf->base, NULL,
                                 &error));
    assert_int_equal(error, -EIO);
    fake_leaf_destroy(leaf);
}

TEST(chunks_without_live_blocks_are_trimmed)
{
    struct stack stack = make_fixed(PLENTY, OPTIONS("block_size=1MiB", "blocks_to_preallocate=2"));
    struct rs_allocation blocks[6];

    for (unsigned i = 0; i < 6; i++)
        blocks[i] = take(&stack, MIB);
    for (unsigned i = 0; i < 5; i++)
        give(&stack, &blocks[i]);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 5 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 3 * MIB), 2 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 2 * MIB);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), MIB);
    give(&stack, &blocks[5]);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 2 * MIB);
    end_stack(&stack);
}

static void use_during_call(void *data)
{
    struct rs_allocation *block = data;
    struct stack *stack = block[0].token;

    give(stack, &block[1]);
}

TEST(a_block_freed_during_a_failing_growth_is_found)
{
    struct stack stack = make_fixed(2 * MIB, OPTIONS("blocks_to_preallocate=2"));
    struct rs_allocation blocks[3] = {{.token = &stack}};

    blocks[1] = take(&stack, MIB);
    blocks[2] = take(&stack, MIB);
    stack.leaf->on_call = use_during_call; /* would hang if the lock were held */
    stack.leaf->on_call_data = blocks;
    assert_int_equal(take(&stack, MIB).address, blocks[1].address);
    end_stack(&stack);
}

enum { THREADS = 16 };

static pthread_barrier_t start;

static void *take_one(void *data)
{
    struct rs_allocation allocation;

    pthread_barrier_wait(&start);
    return (void *)(uintptr_t)rs_mr_allocate(data, 1, NULL, &allocation);
}

TEST(threads_that_miss_together_grow_once)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;
    struct stack stack = {leaf,
                          make_resource_at(&fake_second_environment, &rs_mr_descriptor_fixed_size,
                                           &leaf->base, NULL, &error)};
    pthread_t threads[THREADS];

    leaf->pause_us = 2000;
    atomic_store(&waits_have_no_end, true); /* as that is short, on whatever machine */
    pthread_barrier_init(&start, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_one, stack.mr), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_int_equal((uintptr_t)result, CUDA_SUCCESS);
    }
    pthread_barrier_destroy(&start);
    atomic_store(&waits_have_no_end, false);
    assert_int_equal(leaf->allocations, 1);
    end_stack(&stack);
}

TEST(impossible_options_are_diagnosed)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_fixed_size, NULL, OPTIONS("block_size=0"),
                                   line, sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_fixed_size, NULL,
                                   OPTIONS("blocks_to_preallocate=0"), line, sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_fixed_size, NULL,
                                   OPTIONS("block_size=18446744073709551615"), line, sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_fixed_size, NULL,
                                   OPTIONS("block_size=1PiB", "blocks_to_preallocate=1000000"),
                                   line, sizeof(line)));
    assert_non_null(
        strstr(line, "1000000 blocks (blocks_to_preallocate) of 1PiB (block_size) at a time"));
}

TEST(the_report_is_exact)
{
    struct stack stack = make_fixed(PLENTY, OPTIONS("blocks_to_preallocate=2"));
    struct rs_report report = {.count = 0};
    struct rs_allocation allocation;

    for (unsigned i = 0; i < 3; i++)
        (void)take(&stack, 1);
    (void)rs_mr_allocate(stack.mr, 2 * MIB, NULL, &allocation);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "fixed_size", "held", 0), 4 * MIB);
    assert_int_equal(rs_report_value(&report, "fixed_size", "live", 0), 3 * MIB);
    assert_int_equal(rs_report_value(&report, "fixed_size", "chunks", 0), 2);
    assert_int_equal(rs_report_value(&report, "fixed_size", "allocations", 0), 3);
    assert_int_equal(rs_report_value(&report, "fixed_size", "failures", 0), 1);
    end_stack(&stack);
}
