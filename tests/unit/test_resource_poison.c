/* SPDX-License-Identifier: Apache-2.0 */
/* poison: it reports memory errors, and nothing for a correct program. */
#include "stack.h"

#include "driver/driver.h"
#include "fake_memory.h"
#include "resource/report.h"
#include "until.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLENTY ((size_t)1 << 50)
#define MIB    ((size_t)1 << 20)

enum { GUARD = 512 };

static struct stack make_poison(const char *more)
{
    fake_memory_begin();
    return make_stack(&rs_mr_descriptor_poison, PLENTY, OPTIONS("guard=512", more));
}

static uint64_t counter(const struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    stack->mr->ops.report(stack->mr, &report);
    value = rs_report_value(&report, "poison", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

static void assert_found(const struct stack *stack, unsigned before, unsigned after, unsigned freed)
{
    assert_int_equal(counter(stack, "written_before"), before);
    assert_int_equal(counter(stack, "written_past_end"), after);
    assert_int_equal(counter(stack, "written_after_free"), freed);
    assert_int_equal(counter(stack, "unchecked"), 0);
    assert_int_equal(atomic_load(&fake_memory_wrong_calls), 0);
}

TEST(allocated_memory_is_no_number)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation block = take(&stack, 67);
    const unsigned char *bytes = fake_memory_at(block.address);
    double wide;
    float single;
    uint16_t half;

    memcpy(&wide, bytes + 8, sizeof(wide));
    memcpy(&single, bytes + 4, sizeof(single));
    memcpy(&half, bytes + 2, sizeof(half));
    assert_true(isnan(wide) && isnan(single));
    assert_true((half & 0x7c00) == 0x7c00 && (half & 0x3ff)); /* half; bfloat16 is float's half */
    for (size_t i = 4; i < 67; i++)
        assert_int_equal(bytes[i], bytes[i % 4]);
    assert_int_not_equal(bytes[67], bytes[3]); /* the guard begins at the very next byte */
    give(&stack, &block);
    memcpy(&wide, bytes + 8, sizeof(wide));
    assert_true(isnan(wide));
    assert_found(&stack, 0, 0, 0);
    end_stack(&stack);
}

TEST(fills_are_as_asked)
{
    struct stack stack = make_poison("fill_allocated=0x04030201");
    struct rs_allocation block = take(&stack, 7);

    assert_memory_equal(fake_memory_at(block.address), "\1\2\3\4\1\2\3", 7);
    give(&stack, &block);
    end_stack(&stack);
    stack = make_poison("fill_freed=3735928559");
    block = take(&stack, 6);
    give(&stack, &block);
    assert_memory_equal(fake_memory_at(block.address), "\xef\xbe\xad\xde\xef\xbe", 6);
    end_stack(&stack);
}

TEST(every_byte_of_a_guard_counts)
{
    static const size_t sizes[] = {1, 511, 512, 1000};
    static const int offsets[] = {-GUARD, -GUARD + 1, -1};
    static const size_t beyond[] = {0, 1, GUARD - 1};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        for (size_t j = 0; j < RS_ARRAY_LENGTH(offsets); j++) {
            struct stack stack = make_poison(NULL);
            struct rs_allocation block = take(&stack, sizes[i]);
            fake_memory_at(block.address)[offsets[j]] = 1;
            give(&stack, &block);
            assert_found(&stack, 1, 0, 0);
            end_stack(&stack);

            stack = make_poison(NULL);
            block = take(&stack, sizes[i]);
            fake_memory_at(block.address)[sizes[i] + beyond[j]] = 1;
            give(&stack, &block);
            assert_found(&stack, 0, 1, 0);
            end_stack(&stack);
        }
    }
}

TEST(writes_inside_are_nobodys_business)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation blocks[20];

    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < 20; i++) {
            blocks[i] = take(&stack, 100 + 333 * i);
            memset(fake_memory_at(blocks[i].address), (int)i, 100 + 333 * i);
        }
        for (size_t i = 0; i < 20; i++)
            give(&stack, &blocks[i]);
    }
    (void)rs_mr_trim(stack.mr, 0);
    assert_found(&stack, 0, 0, 0);
    end_stack(&stack);
}

TEST(a_write_after_the_free_is_found_at_the_next_use)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation block = take(&stack, 100000), again;

    give(&stack, &block);
    fake_memory_at(block.address)[99999] = 1;
    assert_found(&stack, 0, 0, 0);
    again = take(&stack, 100000);
    assert_int_equal(again.address, block.address);
    assert_found(&stack, 0, 0, 1);
    give(&stack, &again);
    end_stack(&stack);
}

TEST(a_write_after_the_free_is_found_when_the_block_goes_upstream)
{
    struct stack stack = make_poison("keep=4KiB");
    struct rs_allocation block = take(&stack, 1000), other = take(&stack, 2000);

    give(&stack, &block);
    fake_memory_at(block.address)[0] = 1;
    assert_int_equal(stack.leaf->live_count, 2);
    give(&stack, &other); /* more than 4 KiB with the guards */
    assert_int_equal(stack.leaf->live_count, 1);
    assert_found(&stack, 0, 0, 1);
    assert_int_equal(counter(&stack, "kept_blocks"), 1);
    end_stack(&stack);
}

TEST(kept_blocks_are_bounded_and_go_oldest_first)
{
    struct stack stack = make_poison("keep=1MiB");
    struct rs_allocation blocks[40];

    for (size_t i = 0; i < 40; i++)
        blocks[i] = take(&stack, 100000 + i);
    for (size_t i = 0; i < 40; i++)
        give(&stack, &blocks[i]);
    assert_in_range(counter(&stack, "kept"), MIB - 110000, MIB);
    assert_int_equal(counter(&stack, "kept"), stack.leaf->live_bytes);
    assert_false(fake_leaf_owns(stack.leaf, blocks[0].address, 1));
    assert_true(fake_leaf_owns(stack.leaf, blocks[39].address, 1));
    end_stack(&stack);
}

TEST(nothing_is_kept_where_that_is_asked)
{
    struct stack stack = make_poison("keep=0");
    struct rs_allocation block = take(&stack, 1000);

    give(&stack, &block);
    assert_int_equal(stack.leaf->live_count, 0);
    end_stack(&stack);
}

TEST(kept_blocks_give_way_to_a_request)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation blocks[8], large;

    stack.leaf->capacity_bytes = 64 << 10;
    for (size_t i = 0; i < 8; i++)
        blocks[i] = take(&stack, 7000);
    assert_int_equal(rs_mr_allocate(stack.mr, 7000, NULL, &large), CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < 8; i++)
        give(&stack, &blocks[i]);
    assert_int_equal(counter(&stack, "kept_blocks"), 8);
    large = take(&stack, 60000);
    assert_int_equal(counter(&stack, "kept_blocks"), 0);
    give(&stack, &large);
    end_stack(&stack);
}

/* ---- a block that another thread is giving upstream ---- */

static struct {
    struct stack stack;
    pthread_t thread;
    struct rs_allocation block;
    CUresult result;
} asking;

static void *ask(void *data)
{
    asking.result = rs_mr_allocate(asking.stack.mr, 7000, NULL, &asking.block);
    return data;
}

/* The other thread may be in the leaf. */
static size_t read_leaf(const size_t *number)
{
    size_t now;

    pthread_mutex_lock(&asking.stack.leaf->lock);
    now = *number;
    pthread_mutex_unlock(&asking.stack.leaf->lock);
    return now;
}

static size_t refusals(void)
{
    return read_leaf(&asking.stack.leaf->refusals);
}

/* In the first thread, while its block is on its way. */
static void let_another_be_refused(void *data)
{
    asking.stack.leaf->on_deallocate = NULL;
    assert_int_equal(pthread_create(&asking.thread, NULL, ask, data), 0);
    assert_true(UNTIL(refusals() > 0));
}

/* In the other thread: after its refusal it comes when the block has arrived. */
static void come_late(void *data)
{
    struct fake_leaf *leaf = asking.stack.leaf;

    if (refusals() > 0)
        assert_true(UNTIL(read_leaf(&leaf->live_count) == 0));
    else
        leaf->on_call = come_late;
    (void)data;
}

TEST(a_request_waits_for_a_block_that_is_leaving)
{
    struct rs_allocation block;

    asking.stack = make_poison("keep=0");
    asking.stack.leaf->capacity_bytes = 10000;
    block = take(&asking.stack, 7000);
    asking.stack.leaf->on_deallocate = let_another_be_refused;
    asking.stack.leaf->on_call = come_late;
    give(&asking.stack, &block);
    assert_int_equal(pthread_join(asking.thread, NULL), 0);
    assert_int_equal(asking.result, CUDA_SUCCESS);
    give(&asking.stack, &asking.block);
    end_stack(&asking.stack);
}

TEST(a_reused_blocks_guards_are_new)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation block = take(&stack, 1000);

    fake_memory_at(block.address)[1000] = 1;
    give(&stack, &block);
    assert_found(&stack, 0, 1, 0);
    block = take(&stack, 1000);
    give(&stack, &block);
    assert_found(&stack, 0, 1, 0); /* once */
    end_stack(&stack);
}

TEST(live_blocks_are_looked_at_in_the_end)
{
    struct stack stack = make_poison("abort=1");
    struct rs_allocation block = take(&stack, 1000);
    int status;
    pid_t child;

    fake_memory_at(block.address)[-1] = 1;
    child = fork();
    if (child == 0) {
        stack.mr->ops.destroy(stack.mr, false);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    stack.mr->ops.destroy(stack.mr, true);
    fake_leaf_destroy(stack.leaf);
}

TEST(a_broken_context_harms_nobody)
{
    struct stack stack = make_poison(NULL);
    struct rs_allocation first = take(&stack, 1000), second;

    atomic_store(&fake_memory_answer, CUDA_ERROR_ILLEGAL_ADDRESS);
    second = take(&stack, 1000);
    give(&stack, &first);
    give(&stack, &second);
    assert_int_not_equal(counter(&stack, "unchecked"), 0);
    atomic_store(&fake_memory_answer, CUDA_SUCCESS);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "written_before") + counter(&stack, "written_past_end") +
                         counter(&stack, "written_after_free"),
                     0);
    end_stack(&stack);
}

TEST(without_guards_blocks_are_as_large_as_asked)
{
    struct stack stack;
    struct rs_allocation block;

    fake_memory_begin();
    stack = make_stack(&rs_mr_descriptor_poison, PLENTY, OPTIONS("guard=0"));
    block = take(&stack, 1000);
    assert_int_equal(stack.leaf->live_bytes, 1000);
    give(&stack, &block);
    end_stack(&stack);
}

TEST(an_old_driver_is_refused)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;

    fake_memory_begin();
    rs_driver.cuMemsetD32Async = NULL;
    assert_null(
        make_resource_at(&fake_environment, &rs_mr_descriptor_poison, &leaf->base, NULL, &error));
    assert_int_not_equal(error, 0);
    fake_leaf_destroy(leaf);
}

TEST(options_are_bounded)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_poison, &fake_environment,
                                   OPTIONS("guard=100"), line, sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_poison, &fake_environment,
                                   OPTIONS("fill_freed=0x100000000"), line, sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_poison, &fake_environment,
                                   OPTIONS("fill_freed=0xfg"), line, sizeof(line)));
    assert_true(options_are_valid(&rs_mr_descriptor_poison, &fake_environment,
                                  OPTIONS("fill_freed=0xffFFffFF"), line, sizeof(line)));
}
