/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of `reuse`: `reuse` over a resource over a fake leaf, on the fake device. */
#pragma once

#include "unit.h"

#include "base/request.h"
#include "driver/capture.h"
#include "fake_leaf.h"
#include "free_sentinel.h"
#include "resource/report.h"
#include "reuse_device.h"

#define MIB ((size_t)1 << 20)

/* Constants of the resource (reuse.h). */
enum {
    WAIT_MS = 20, /* longest wait for one epoch */
    SEAL_MIB = 32,
    LOOK_MIB = 4, /* freed bytes, in MiB, after which a shard looks whether to seal */
    SEAL_COUNT = 128,
    UNIT_BYTES = 512,
};

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr; /* reuse over a resource over the leaf */
};

/* Charges the account with the bytes that the leaf has given out, as the library's leaves do. */
static inline void charge(struct stack *stack)
{
    atomic_store(&account.held_bytes[RS_MEMORY_DEVICE], stack->leaf->live_bytes);
}

static inline struct stack stack_at(const struct rs_environment *where,
                                    const struct rs_mr_descriptor *descriptor,
                                    size_t capacity_bytes, const char *const *options,
                                    const char *mode)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};
    struct rs_mr *below;
    int error;

    below = make_resource_at(where, descriptor, &stack.leaf->base, options, &error);
    assert_int_equal(error, 0);
    charge(&stack);
    stack.mr = make_resource_at(where, &rs_mr_descriptor_reuse, below, OPTIONS(mode), &error);
    assert_int_equal(error, 0);
    return stack;
}

static inline struct stack stack_over(const struct rs_mr_descriptor *descriptor,
                                      size_t capacity_bytes, const char *const *options,
                                      const char *mode)
{
    return stack_at(&environment, descriptor, capacity_bytes, options, mode);
}

/* `reuse` over a pool, on a driver with fences. */
static inline struct stack start(size_t capacity_bytes, const char *initial_size)
{
    start_device(true);
    return stack_over(&rs_mr_descriptor_pool, capacity_bytes, OPTIONS(initial_size),
                      "free=deferred");
}

/* `reuse` over a pool, on a driver without fences. */
static inline struct stack start_old(size_t capacity_bytes, const char *initial_size)
{
    start_device(false);
    return stack_over(&rs_mr_descriptor_pool, capacity_bytes, OPTIONS(initial_size),
                      "free=deferred");
}

/* Destroys the stack and asserts that nothing is left.  All fences of freed blocks must be done. */
static inline void end(struct stack *stack)
{
    struct rs_mr *below = stack->mr->upstream[0];

    assert_true(rs_mr_check(stack->mr));
    stack->mr->ops.destroy(stack->mr, false);
    free_sentinel(&sentinel);
    assert_true(rs_mr_check(below));
    below->ops.destroy(below, false);
    assert_int_equal(stack->leaf->live_count, 0);
    assert_int_equal(stack->leaf->wrong_calls, 0);
    assert_int_equal(device.wrong_calls, 0);
    assert_int_equal(device.live_sentinels, 0);
    for (size_t i = 0; i < device.event_count; i++)
        assert_false(device.events[i].is_live);
    assert_int_equal(thread.depth, 1);
    assert_int_equal(thread.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fake_leaf_destroy(stack->leaf);
}

static inline CUresult try(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    CUresult result;

    charge(stack);
    result = rs_mr_allocate(stack->mr, size_bytes, NULL, out);
    assert_true(rs_mr_check(stack->mr));
    return result;
}

static inline struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(try(stack, size_bytes, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    return allocation;
}

static inline void give(struct stack *stack, const struct rs_allocation *allocation)
{
    charge(stack);
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}

/* Seals the open blocks into an epoch without waiting for it. */
static inline void seal(struct stack *stack)
{
    rs_request_begin();
    (void)rs_mr_trim(stack->mr, PLENTY);
    rs_request_end();
}

/* Seals the open blocks and retires the epochs that are done; asserts that nothing goes back to the
 * leaf. */
static inline void turn(struct stack *stack)
{
    charge(stack);
    assert_int_equal(rs_mr_trim(stack->mr, SIZE_MAX), 0);
}

/* Submits work that uses the block, then frees the block; returns the number of the work. */
static inline uint64_t give_busy(struct stack *stack, const struct rs_allocation *allocation)
{
    uint64_t work = submit();

    give(stack, allocation);
    return work;
}

static inline uint64_t counter(struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    rs_mr_report(stack->mr, &report);
    value = rs_report_value(&report, "reuse", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

/* A block that a test frees inside a callback of the device or of the leaf, while the resource is
 * busy. */
static struct {
    struct stack *stack;
    struct rs_allocation allocation;
    CUstream stream;
    uint64_t work;
} late;

static inline void free_late(void)
{
    late.work = submit();
    assert_int_equal(rs_mr_deallocate(late.stack->mr, &late.allocation, late.stream), CUDA_SUCCESS);
    late.stream = NULL;
}

/* A stream that captures. */
static const struct rs_capture_stream capturing = {.identity = &device};

static inline void begin_capture(void)
{
    rs_capture_begin_enter();
    rs_capture_begin_leave(capturing, true);
}
