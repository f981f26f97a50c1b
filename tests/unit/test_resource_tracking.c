/* SPDX-License-Identifier: Apache-2.0 */
/* tracking: the live blocks, and the call sites that allocated them. */
#include "stack.h"

#include "resource/adaptor/tracking.h"
#include "resource/report.h"

#include <pthread.h>
#include <string.h>

#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

enum { BLOCKS = 40 };

static struct stack make_tracking(const char *stacks)
{
    return make_stack(&rs_mr_descriptor_tracking, PLENTY, OPTIONS(stacks));
}

struct seen {
    struct rs_tracked blocks[BLOCKS];
    size_t count;
};

static void see(void *data, const struct rs_tracked *tracked)
{
    struct seen *seen = data;

    assert_in_range(seen->count, 0, BLOCKS - 1);
    seen->blocks[seen->count++] = *tracked;
}

static struct seen look(const struct stack *stack)
{
    struct seen seen = {.count = 0};

    rs_tracking_each(stack->mr, see, &seen);
    return seen;
}

static const struct rs_call_site *site_of(const struct stack *stack,
                                          const struct rs_allocation *allocation)
{
    struct seen seen = look(stack);

    for (size_t i = 0; i < seen.count; i++)
        if (seen.blocks[i].address == allocation->address)
            return seen.blocks[i].site;
    fail_msg("not tracked");
    return NULL;
}

static uint64_t counter(const struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    stack->mr->ops.report(stack->mr, &report);
    value = rs_report_value(&report, "tracking", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

TEST(live_blocks_are_seen_with_their_sizes)
{
    struct stack stack = make_tracking("stacks=0");
    struct rs_allocation blocks[10];
    struct seen seen;

    for (size_t i = 0; i < 10; i++)
        blocks[i] = take(&stack, 1000 + i);
    for (size_t i = 0; i < 10; i += 2)
        give(&stack, &blocks[i]);
    seen = look(&stack);
    assert_int_equal(seen.count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(seen.blocks[i].address, blocks[2 * i + 1].address);
        assert_int_equal(seen.blocks[i].size_bytes, 1000 + 2 * i + 1);
        assert_null(seen.blocks[i].site);
    }
    assert_int_equal(counter(&stack, "live"), 5 * 1000 + 1 + 3 + 5 + 7 + 9);
    assert_int_equal(counter(&stack, "live_allocations"), 5);
    for (size_t i = 1; i < 10; i += 2)
        give(&stack, &blocks[i]);
    assert_int_equal(look(&stack).count, 0);
    assert_int_equal(counter(&stack, "live"), 0);
    end_stack(&stack);
}

static const void *returns_to; /* where the function below goes back to */

static __attribute__((noinline)) struct rs_allocation take_here(struct stack *stack)
{
    struct rs_allocation allocation = take(stack, 512);

    returns_to = __builtin_return_address(0); /* no tail call: this frame stays */
    return allocation;
}

static bool has_frame(const struct rs_call_site *site, const void *address)
{
    for (unsigned i = 0; i < site->frame_count; i++)
        if (site->frames[i] == address)
            return true;
    return false;
}

TEST(equal_call_sites_are_one_record)
{
    struct stack stack = make_tracking("stacks=1");
    struct rs_allocation blocks[BLOCKS - 1], other;
    const struct rs_call_site *site, *other_site;
    const void *from_loop;

    for (size_t i = 0; i < BLOCKS - 1; i++)
        blocks[i] = take_here(&stack);
    from_loop = returns_to;
    other = take_here(&stack); /* another line */
    site = site_of(&stack, &blocks[0]);
    assert_non_null(site);
    assert_in_range(site->frame_count, 2, RS_CALL_SITE_FRAMES_MAX);
    for (size_t i = 1; i < BLOCKS - 1; i++)
        assert_ptr_equal(site_of(&stack, &blocks[i]), site);
    other_site = site_of(&stack, &other);
    assert_non_null(other_site);
    assert_ptr_not_equal(other_site, site);
    assert_true(has_frame(site, from_loop) && !has_frame(site, returns_to));
    assert_true(has_frame(other_site, returns_to) && !has_frame(other_site, from_loop));
    assert_int_equal(site->line_count, 0);
    for (size_t i = 0; i < BLOCKS - 1; i++)
        give(&stack, &blocks[i]);
    give(&stack, &other);
    end_stack(&stack);
}

static __attribute__((noinline)) struct rs_allocation take_deep(struct stack *stack, unsigned depth)
{
    struct rs_allocation allocation = depth > 0 ? take_deep(stack, depth - 1) : take_here(stack);

    __asm__ volatile("" ::: "memory");
    return allocation;
}

TEST(deep_stacks_are_cut_off_outside)
{
    struct stack stack = make_tracking("stacks=1");
    struct rs_allocation shallow = take_deep(&stack, 3), deep = take_deep(&stack, 100);
    const struct rs_call_site *site = site_of(&stack, &deep);

    assert_int_equal(site->frame_count, RS_CALL_SITE_FRAMES_MAX);
    assert_true(has_frame(site, returns_to)); /* the innermost ones stay */
    assert_in_range(site_of(&stack, &shallow)->frame_count, 5, RS_CALL_SITE_FRAMES_MAX);
    give(&stack, &shallow);
    give(&stack, &deep);
    end_stack(&stack);
}

TEST(failed_allocations_and_frees_change_nothing)
{
    struct stack stack = make_tracking("stacks=1");
    struct rs_allocation block = take(&stack, MIB), other;

    stack.leaf->capacity_bytes = MIB;
    assert_int_equal(rs_mr_allocate(stack.mr, 1, NULL, &other), CUDA_ERROR_OUT_OF_MEMORY);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(stack.mr, &block, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(counter(&stack, "live"), MIB);
    assert_int_equal(look(&stack).count, 1);
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    give(&stack, &block);
    end_stack(&stack);
}

TEST(held_and_little_allocations_pass_through)
{
    struct stack stack = make_tracking("stacks=0");
    struct rs_allocation block;

    /* A leaf holds nothing. */
    assert_int_equal(rs_mr_allocate_with(stack.mr, 512, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(look(&stack).count, 0);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 512, NULL, RS_EFFORT_LITTLE, &block),
                     CUDA_SUCCESS);
    assert_int_equal(look(&stack).count, 1);
    give(&stack, &block);
    end_stack(&stack);
}

static void *take_and_give_in_thread(void *data)
{
    struct stack *stack = data;

    for (unsigned i = 0; i < 300; i++) {
        struct rs_allocation block;
        if (rs_mr_allocate(stack->mr, 512 + i % 7, NULL, &block) != CUDA_SUCCESS ||
            rs_mr_deallocate(stack->mr, &block, NULL) != CUDA_SUCCESS)
            return NULL;
    }
    return data;
}

TEST(threads_share_the_call_sites)
{
    struct stack stack = make_tracking("stacks=1");
    pthread_t threads[8];

    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give_in_thread, &stack), 0);
    for (unsigned i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    assert_int_equal(look(&stack).count, 0);
    end_stack(&stack);
}
