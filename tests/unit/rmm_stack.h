/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of RMM's lines share.  A test is named after its line in
 * conformance/rmm_lines.txt; lines that need a device (attributes of pointers, created streams,
 * real exhaustion) are in the suite gpu. */
#pragma once

#include "unit.h"

#include "fake_leaf.h"
#include "resource/report.h"

#include <sched.h>
#include <stdatomic.h>

#define KIB          ((size_t)1 << 10)
#define MIB          ((size_t)1 << 20)
#define GIB          ((size_t)1 << 30)
#define PIB          ((size_t)1 << 50)
#define DEVICE_BYTES (80 * GIB)

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static inline struct rs_mr *over(const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                                 const char *const *options)
{
    return make_resource(descriptor, upstream, options);
}

static inline struct stack stack_over(size_t capacity_bytes,
                                      const struct rs_mr_descriptor *descriptor,
                                      const char *const *options)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};

    stack.mr = over(descriptor, &stack.leaf->base, options);
    return stack;
}

static inline void end(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    rs_mr_destroy(stack->mr, false);
}

static inline struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_not_equal(allocation.address, 0);
    assert_int_equal(allocation.address % 256, 0);
    return allocation;
}

static inline void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation = {0};

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(allocation.address, 0);
}

static inline void give(struct stack *stack, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
}

static inline uint64_t counter(struct rs_mr *mr, const char *resource, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    mr->ops.report(mr, &report);
    value = rs_report_value(&report, resource, name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

enum { HANDED_OVER = 100 };

/* Blocks that another thread gives back as they are produced. */
/* Streams and events are the reuse node's; here: freed by another thread than allocated it. */
struct hand_over {
    struct rs_mr *mr;
    atomic_uint produced;
    struct rs_allocation blocks[HANDED_OVER];
};

static inline void *consume(void *data)
{
    struct hand_over *hand_over = data;

    for (unsigned i = 0; i < HANDED_OVER; i++) {
        while (atomic_load(&hand_over->produced) <= i)
            sched_yield();
        if (rs_mr_deallocate(hand_over->mr, &hand_over->blocks[i], NULL) != CUDA_SUCCESS)
            return NULL;
    }
    return data;
}
