/* SPDX-License-Identifier: Apache-2.0 */
/* limiting: the limit holds, exactly. */
#include "unit.h"

#include "fake_leaf.h"
#include "resource/report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static struct stack make_limiting(size_t limit_bytes)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    char option[40];

    snprintf(option, sizeof(option), "limit=%zu", limit_bytes);
    stack.mr = make_resource(&rs_mr_descriptor_limiting, &stack.leaf->base, OPTIONS(option));
    return stack;
}

static void end_limiting(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    rs_mr_destroy(stack->mr, false);
}

static uint64_t counter(struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    stack->mr->ops.report(stack->mr, &report);
    value = rs_report_value(&report, "limiting", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

static CUresult take(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    return rs_mr_allocate(stack->mr, size_bytes, NULL, out);
}

TEST(serves_up_to_the_limit_and_no_byte_more)
{
    struct stack stack = make_limiting(10 * MIB);
    struct rs_allocation first, second, third;

    assert_int_equal(take(&stack, 10 * MIB + 1, &first), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(take(&stack, 4 * MIB, &first), CUDA_SUCCESS);
    assert_int_equal(rs_mr_growable_bytes(stack.mr), 6 * MIB);
    assert_int_equal(take(&stack, 6 * MIB, &second), CUDA_SUCCESS);
    assert_int_equal(rs_mr_growable_bytes(stack.mr), 0);
    assert_int_equal(take(&stack, 1, &third), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_deallocate(stack.mr, &first, NULL), CUDA_SUCCESS);
    assert_int_equal(take(&stack, 4 * MIB, &first), CUDA_SUCCESS);
    assert_int_equal(counter(&stack, "live"), 10 * MIB);
    assert_int_equal(counter(&stack, "live_peak"), 10 * MIB);
    assert_int_equal(counter(&stack, "limit"), 10 * MIB);
    assert_int_equal(counter(&stack, "internal_refusals"), 2);
    end_limiting(&stack);
}

TEST(counts_in_units_of_256_bytes)
{
    struct stack stack = make_limiting(1000);
    struct rs_allocation allocation;

    assert_int_equal(take(&stack, 1, &allocation), CUDA_SUCCESS);
    assert_int_equal(counter(&stack, "live"), 256);
    assert_int_equal(take(&stack, 512, &allocation), CUDA_SUCCESS);
    assert_int_equal(take(&stack, 1, &allocation), CUDA_ERROR_OUT_OF_MEMORY); /* 232 are left */
    end_limiting(&stack);
}

TEST(sizes_near_the_largest_do_not_wrap)
{
    struct stack stack = make_limiting(SIZE_MAX - 1);
    struct rs_allocation allocation, kept;

    assert_int_equal(take(&stack, 1, &kept), CUDA_SUCCESS);
    stack.leaf->capacity_bytes = SIZE_MAX;
    for (size_t less = 0; less < 511; less++)
        assert_int_equal(take(&stack, SIZE_MAX - less, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(counter(&stack, "live"), 256);
    assert_int_equal(stack.leaf->allocations, 1);
    end_limiting(&stack);
}

TEST(a_refusal_upstream_is_not_counted)
{
    struct stack stack = make_limiting(10 * MIB);
    struct rs_allocation allocation;

    stack.leaf->capacity_bytes = MIB;
    assert_int_equal(take(&stack, 2 * MIB, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(counter(&stack, "live"), 0);
    assert_int_equal(counter(&stack, "live_peak"), 0);
    assert_int_equal(counter(&stack, "internal_refusals"), 0); /* not by the limit */
    end_limiting(&stack);
}

TEST(held_memory_is_within_the_limit_too)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    struct rs_mr *pool =
        make_resource(&rs_mr_descriptor_pool, &leaf->base, OPTIONS("initial_size=8MiB"));
    struct stack stack = {leaf,
                          make_resource(&rs_mr_descriptor_limiting, pool, OPTIONS("limit=5MiB"))};
    struct rs_allocation allocation, none;

    assert_int_equal(rs_mr_allocate_with(stack.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_SUCCESS);
    assert_int_equal(counter(&stack, "live"), 4 * MIB);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 2 * MIB, NULL, RS_EFFORT_HELD, &none),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(counter(&stack, "internal_refusals"), 0);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 2 * MIB, NULL, RS_EFFORT_LITTLE, &none),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 5 * MIB, NULL, RS_EFFORT_LITTLE, &allocation),
                     CUDA_SUCCESS);
    assert_int_equal(leaf->allocations, 1);
    assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_SUCCESS);
    end_limiting(&stack);
}

TEST(a_failed_free_stays_counted)
{
    struct stack stack = make_limiting(10 * MIB);
    struct rs_allocation allocation;

    assert_int_equal(take(&stack, MIB, &allocation), CUDA_SUCCESS);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(counter(&stack, "live"), MIB);
    end_limiting(&stack);
}

static atomic_bool stop;

static void *ask_for_too_much(void *data)
{
    struct rs_allocation allocation;

    while (!atomic_load(&stop))
        (void)rs_mr_allocate(data, 9 * MIB, NULL, &allocation);
    return NULL;
}

TEST(a_request_that_is_too_large_harms_no_other_thread)
{
    struct stack stack = make_limiting(8 * MIB);
    pthread_t thread;

    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&thread, NULL, ask_for_too_much, stack.mr), 0);
    for (unsigned i = 0; i < 20000; i++) {
        struct rs_allocation allocation;
        assert_int_equal(take(&stack, 8 * MIB, &allocation), CUDA_SUCCESS);
        assert_int_equal(rs_mr_deallocate(stack.mr, &allocation, NULL), CUDA_SUCCESS);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    end_limiting(&stack);
}

TEST(a_limit_must_be_given)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_limiting, NULL, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "limit=8GiB"));
    assert_false(options_are_valid(&rs_mr_descriptor_limiting, NULL, OPTIONS("limit=none"), line,
                                   sizeof(line)));
    assert_true(options_are_valid(&rs_mr_descriptor_limiting, NULL, OPTIONS("limit=0"), line,
                                  sizeof(line)));
    assert_true(options_are_valid(&rs_mr_descriptor_limiting, NULL, OPTIONS("allocation_limit=1MB"),
                                  line, sizeof(line)));
}
