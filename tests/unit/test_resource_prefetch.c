/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch: the driver calls it makes, and that an error of none of them reaches the program. */
#include "placing_driver.h"

#include "driver/stream.h"
#include "resource/report.h"

#define MIB ((size_t)1 << 20)

static struct rs_own_stream own_stream;
static const struct rs_environment environment = {
    .device = PLACING_DEVICE, .context = PLACING_CONTEXT, .own_stream = &own_stream};

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static struct stack start(enum rs_memory memory, bool is_old, const char *const *options)
{
    struct stack stack;
    int error;

    placing_start(is_old);
    own_stream = (struct rs_own_stream){NULL};
    stack.leaf = placing_leaf(memory);
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_prefetch, &stack.leaf->base,
                                options, &error);
    assert_non_null(stack.mr);
    return stack;
}

static void end(struct stack *stack)
{
    assert_int_equal(stack->leaf->wrong_calls, 0);
    assert_int_equal(stack->leaf->live_count, 0);
    assert_int_equal(placing.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_null(placing.current);
    rs_mr_destroy(stack->mr, false);
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

static uint64_t counter(struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    stack->mr->ops.report(stack->mr, &report);
    value = rs_report_value(&report, "prefetch", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

TEST(each_block_is_prefetched_to_the_device)
{
    for (int is_old = 0; is_old < 2; is_old++) {
        struct stack stack = start(RS_MEMORY_MANAGED, is_old, NULL);
        struct rs_allocation first = take(&stack, 3 * MIB), second = take(&stack, 100);

        assert_int_equal(placing.count, 2);
        assert_placed(0, PREFETCH, first.address, 3 * MIB, PLACING_DEVICE);
        assert_placed(1, PREFETCH, second.address, 100, PLACING_DEVICE);
        assert_int_equal(placing.old_calls, is_old ? 2 : 0);
        assert_int_equal(placing.stream_count, 1);
        assert_int_equal(counter(&stack, "prefetches"), 2);
        assert_int_equal(counter(&stack, "prefetched"), 3 * MIB + 100);
        give(&stack, &first);
        give(&stack, &second);
        assert_int_equal(placing.count, 2);
        end(&stack);
    }
}

TEST(device_memory_is_left_alone)
{
    struct stack stack =
        start(RS_MEMORY_DEVICE, false, OPTIONS("preferred_location=device", "accessed_by=1"));
    struct rs_allocation allocation = take(&stack, MIB);

    give(&stack, &allocation);
    assert_int_equal(placing.count, 0);
    assert_int_equal(placing.stream_count, 0);
    end(&stack);
}

/* Pinned memory, or device memory under a fallback. */
TEST(a_refusal_is_no_error)
{
    struct stack stack = start(RS_MEMORY_HOST, false, NULL);
    struct rs_allocation allocation;

    placing.answer = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 3; i++) {
        allocation = take(&stack, MIB);
        give(&stack, &allocation);
    }
    assert_int_equal(counter(&stack, "internal_refusals"), 3);
    assert_int_equal(counter(&stack, "prefetches"), 0);
    end(&stack);
}

TEST(a_device_that_cannot_is_asked_once)
{
    static const CUresult answers[] = {CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(answers); i++) {
        struct stack stack = start(RS_MEMORY_MANAGED, false, NULL);
        placing.answer = answers[i];
        for (unsigned j = 0; j < 3; j++) {
            struct rs_allocation allocation = take(&stack, MIB);
            give(&stack, &allocation);
        }
        assert_int_equal(placing.count, 1);
        end(&stack);
    }
}

/* Later frees take back nothing, so a block of a pool would keep the advice. */
TEST(a_device_that_cannot_keeps_no_advice)
{
    struct stack stack =
        start(RS_MEMORY_MANAGED, false, OPTIONS("preferred_location=host", "accessed_by=1"));
    struct rs_allocation block;

    placing.answer = CUDA_ERROR_INVALID_DEVICE;
    block = take(&stack, MIB);
    assert_placed(2, PREFETCH, block.address, MIB, PLACING_DEVICE);
    assert_placed(3, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, block.address, MIB, CU_DEVICE_CPU);
    assert_placed(4, CU_MEM_ADVISE_UNSET_ACCESSED_BY, block.address, MIB, PLACING_DEVICE);
    give(&stack, &block);
    assert_int_equal(placing.count, 5);
    end(&stack);
}

TEST(a_driver_without_prefetch_is_served)
{
    struct stack stack = start(RS_MEMORY_MANAGED, true, OPTIONS("preferred_location=host"));
    struct rs_allocation allocation;

    rs_driver.cuMemPrefetchAsync = NULL;
    rs_driver.cuMemAdvise = NULL;
    allocation = take(&stack, MIB);
    give(&stack, &allocation);
    assert_int_equal(placing.count, 0);
    end(&stack);
}

TEST(advice_is_given_and_taken_back)
{
    struct stack stack =
        start(RS_MEMORY_MANAGED, false, OPTIONS("preferred_location=host", "accessed_by=1"));
    struct rs_allocation block = take(&stack, MIB);

    assert_placed(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block.address, MIB, CU_DEVICE_CPU);
    assert_placed(1, CU_MEM_ADVISE_SET_ACCESSED_BY, block.address, MIB, PLACING_DEVICE);
    assert_placed(2, PREFETCH, block.address, MIB, PLACING_DEVICE);
    give(&stack, &block);
    assert_placed(3, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, block.address, MIB, CU_DEVICE_CPU);
    assert_placed(4, CU_MEM_ADVISE_UNSET_ACCESSED_BY, block.address, MIB, PLACING_DEVICE);
    assert_int_equal(placing.count, 5);
    end(&stack);
}

TEST(a_block_that_stays_keeps_its_advice)
{
    struct stack stack = start(RS_MEMORY_MANAGED, false, OPTIONS("preferred_location=device"));
    struct rs_allocation block = take(&stack, MIB);

    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(stack.mr, &block, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_placed(placing.count - 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block.address, MIB,
                  PLACING_DEVICE);
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    give(&stack, &block);
    end(&stack);
}

TEST(held_memory_is_prefetched_too)
{
    struct fake_leaf *leaf;
    struct rs_mr *mr;
    struct rs_allocation allocation;
    int error;

    placing_start(false);
    leaf = placing_leaf(RS_MEMORY_MANAGED);
    mr = make_resource(&rs_mr_descriptor_pool, &leaf->base, OPTIONS("initial_size=2MiB"));
    mr = make_resource_at(&environment, &rs_mr_descriptor_prefetch, mr, NULL, &error);
    assert_int_equal(rs_mr_allocate_with(mr, 4 * MIB, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(placing.count, 0);
    assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_HELD, &allocation), CUDA_SUCCESS);
    assert_int_equal(placing.count, 1);
    assert_int_equal(rs_mr_deallocate(mr, &allocation, NULL), CUDA_SUCCESS);
    rs_mr_destroy(mr, false);
}
