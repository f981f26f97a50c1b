/* SPDX-License-Identifier: Apache-2.0 */
/* headroom: where managed memory is advised to lie, and which requests for device memory are
 * refused. */
#include "placing_driver.h"

#include "resource/report.h"

#define MIB ((size_t)1 << 20)

static const struct rs_environment environment = {.device = PLACING_DEVICE,
                                                  .context = PLACING_CONTEXT};

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static struct stack start(enum rs_memory memory, size_t free_bytes)
{
    struct stack stack;
    int error;

    placing_start(false);
    placing.free_bytes = free_bytes;
    stack.leaf = placing_leaf(memory);
    stack.mr = make_resource_at(&environment, &rs_mr_descriptor_headroom, &stack.leaf->base,
                                OPTIONS("headroom=100MiB"), &error);
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

static CUresult take(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    return rs_mr_allocate(stack->mr, size_bytes, NULL, out);
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
    value = rs_report_value(&report, "headroom", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

/* ---- memory that migrates ---- */

TEST(a_block_is_split_at_what_is_free)
{
    static const enum rs_memory memories[] = {RS_MEMORY_MANAGED, RS_MEMORY_HOST};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(memories); i++) {
        struct stack stack = start(memories[i], 101 * MIB + 300);
        struct rs_allocation block;

        assert_int_equal(take(&stack, 3 * MIB, &block), CUDA_SUCCESS);
        assert_int_equal(placing.count, 2);
        assert_placed(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block.address, MIB + 256,
                      PLACING_DEVICE);
        assert_placed(1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block.address + MIB + 256,
                      2 * MIB - 256, CU_DEVICE_CPU);
        assert_int_equal(counter(&stack, "preferred_on_device"), MIB + 256);
        assert_int_equal(counter(&stack, "preferred_on_host"), 2 * MIB - 256);
        give(&stack, &block);
        assert_placed(2, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, block.address, 3 * MIB,
                      PLACING_DEVICE);
        end(&stack);
    }
}

TEST(with_room_all_of_it_is_the_devices)
{
    struct stack stack = start(RS_MEMORY_MANAGED, 200 * MIB);
    struct rs_allocation block;

    assert_int_equal(take(&stack, 3 * MIB, &block), CUDA_SUCCESS);
    assert_int_equal(placing.count, 1);
    assert_placed(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block.address, 3 * MIB, PLACING_DEVICE);
    give(&stack, &block);
    end(&stack);
}

TEST(advice_that_is_refused_is_no_error)
{
    struct stack stack = start(RS_MEMORY_HOST, 0);
    struct rs_allocation block;

    placing.answer = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(take(&stack, MIB, &block), CUDA_SUCCESS);
    give(&stack, &block);
    end(&stack);
}

/* ---- device memory ---- */

TEST(device_memory_stays_free)
{
    struct stack stack = start(RS_MEMORY_DEVICE, 110 * MIB);
    struct rs_allocation block;

    assert_int_equal(take(&stack, 11 * MIB, &block), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(stack.leaf->allocations + stack.leaf->refusals, 0); /* not even asked */
    assert_int_equal(take(&stack, 10 * MIB, &block), CUDA_SUCCESS);
    give(&stack, &block);
    placing.free_bytes = 99 * MIB;
    assert_int_equal(take(&stack, 1, &block), CUDA_ERROR_OUT_OF_MEMORY);
    placing.free_bytes = 102 * MIB;
    assert_int_equal(take(&stack, 1, &block), CUDA_SUCCESS);
    give(&stack, &block);
    assert_int_equal(take(&stack, SIZE_MAX, &block), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(counter(&stack, "internal_refusals"), 3);
    assert_int_equal(placing.count, 0);
    end(&stack);
}

static struct stack *meanwhile_stack;
static CUresult meanwhile_result;

static void allocate_meanwhile(void)
{
    struct rs_allocation block;
    CUcontext current = placing.current;
    CUstreamCaptureMode mode = placing.mode;

    /* As another thread would, between the look at what is free and the allocation. */
    meanwhile_result = take(meanwhile_stack, 6 * MIB, &block);
    if (meanwhile_result == CUDA_SUCCESS)
        give(meanwhile_stack, &block);
    placing.current = current;
    placing.mode = mode;
}

TEST(two_at_once_do_not_take_the_same_room)
{
    struct stack stack = start(RS_MEMORY_DEVICE, 110 * MIB);
    struct rs_allocation block;

    meanwhile_stack = &stack;
    placing.on_memory_info = allocate_meanwhile;
    assert_int_equal(take(&stack, 6 * MIB, &block), CUDA_SUCCESS);
    assert_int_equal(meanwhile_result, CUDA_ERROR_OUT_OF_MEMORY);
    give(&stack, &block);
    end(&stack);
}

TEST(what_is_held_beneath_is_served)
{
    struct fake_leaf *leaf;
    struct rs_mr *mr;
    struct rs_allocation first, second;
    int error;

    placing_start(false);
    leaf = placing_leaf(RS_MEMORY_DEVICE);
    mr = make_resource(&rs_mr_descriptor_pool, &leaf->base, OPTIONS("initial_size=4MiB"));
    mr = make_resource_at(&environment, &rs_mr_descriptor_headroom, mr, OPTIONS("headroom=1GiB"),
                          &error);
    assert_int_equal(rs_mr_allocate(mr, 4 * MIB, NULL, &first), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate(mr, MIB, NULL, &second), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_deallocate(mr, &first, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_HELD, &second), CUDA_SUCCESS);
    assert_int_equal(rs_mr_deallocate(mr, &second, NULL), CUDA_SUCCESS);
    assert_int_equal(leaf->allocations, 1);
    rs_mr_destroy(mr, false);
}

/* The pool would rather grow than cut them, and is not allowed to. */
TEST(what_is_held_for_larger_ones_is_served)
{
    static const struct rs_environment under_reuse = {
        .device = PLACING_DEVICE, .context = PLACING_CONTEXT, .frees_are_ready = true};
    static const char *const initial_sizes[] = {"initial_size=0", "initial_size=512MiB"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(initial_sizes); i++) {
        struct rs_allocation block;
        struct rs_mr *mr;
        int error;
        placing_start(false);
        placing.free_bytes = (size_t)1 << 30;
        mr = make_resource_at(&under_reuse, &rs_mr_descriptor_pool,
                              &placing_leaf(RS_MEMORY_DEVICE)->base, OPTIONS(initial_sizes[i]),
                              &error);
        mr = make_resource_at(&under_reuse, &rs_mr_descriptor_headroom, mr,
                              OPTIONS("headroom=100MiB"), &error);
        assert_int_equal(rs_mr_allocate(mr, 512 * MIB, NULL, &block), CUDA_SUCCESS);
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        placing.free_bytes = 0;
        assert_int_equal(rs_mr_allocate(mr, 1000, NULL, &block), CUDA_SUCCESS);
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        rs_mr_destroy(mr, false);
    }
}

TEST(a_failing_upstream_gives_its_room_back)
{
    struct stack stack = start(RS_MEMORY_DEVICE, 110 * MIB);
    struct rs_allocation block;

    stack.leaf->fail_at = 1;
    stack.leaf->fail_with = CUDA_ERROR_UNKNOWN;
    assert_int_equal(take(&stack, 10 * MIB, &block), CUDA_ERROR_UNKNOWN);
    assert_int_equal(take(&stack, 10 * MIB, &block), CUDA_SUCCESS);
    give(&stack, &block);
    end(&stack);
}

/* Memory that would only stand in is not asked for, nor placed, by a caller that may yet make room;
 * the first is full here.  Of memory that does not migrate no more is asked for than was checked.
 */
TEST(the_best_is_asked_for)
{
    static const enum rs_memory firsts[] = {RS_MEMORY_DEVICE, RS_MEMORY_MANAGED};
    int error;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(firsts); i++) {
        struct fake_leaf *first, *second;
        struct rs_allocation block;
        struct rs_mr *mr;

        placing_start(false);
        placing.free_bytes = (size_t)8 << 30;
        first = placing_leaf(firsts[i]);
        second = placing_leaf(RS_MEMORY_HOST);
        first->base.memories = 1u << firsts[i];
        second->base.memories = 1u << RS_MEMORY_HOST;
        second->next_address = (CUdeviceptr)1 << 40;
        first->capacity_bytes = MIB;
        mr = make_resource_of_two(&environment, &rs_mr_descriptor_fallback, &first->base,
                                  &second->base, NULL, &error);
        mr = make_resource_at(&environment, &rs_mr_descriptor_headroom, mr,
                              OPTIONS("headroom=1GiB"), &error);
        assert_int_equal(rs_mr_allocate_with(mr, 2 * MIB, NULL, RS_EFFORT_BEST, &block),
                         CUDA_ERROR_NOT_READY);
        assert_int_equal(second->allocations + placing.count, 0);
        assert_int_equal(first->effort, firsts[i] == RS_MEMORY_DEVICE
                                            ? RS_EFFORT_BEST | RS_EFFORT_LITTLE
                                            : RS_EFFORT_BEST);
        assert_int_equal(rs_mr_allocate(mr, 2 * MIB, NULL, &block), CUDA_SUCCESS);
        assert_int_equal(second->live_count, 1);
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_BEST, &block), CUDA_SUCCESS);
        assert_int_equal(first->live_count, 1);
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        rs_mr_destroy(mr, false);
    }
}

TEST(a_size_must_be_given)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_headroom, NULL, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "headroom=1GiB"));
    assert_true(options_are_valid(&rs_mr_descriptor_headroom, NULL, OPTIONS("headroom=10%"), line,
                                  sizeof(line)));
}
