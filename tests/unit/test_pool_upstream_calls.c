/* SPDX-License-Identifier: Apache-2.0 */
/* The pool during an upstream call: other threads can use it, and threads that need memory at the
 * same time ask upstream once. */
#include "flying_clock.h"
#include "pool_stack.h"

#include <limits.h>
#include <pthread.h>

struct during {
    struct stack *stack;
    struct rs_allocation *to_free;
    struct rs_allocation taken;
};

static void use_pool_during_call(void *data)
{
    struct during *during = data;

    during->taken = take(during->stack, 1000); /* would hang if the lock were held */
    give(during->stack, &during->taken);
}

TEST(the_pool_is_usable_during_upstream_calls)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct during during = {.stack = &stack};

    stack.leaf->on_call = use_pool_during_call;
    stack.leaf->on_call_data = &during;
    (void)take(&stack, 64 * MIB);
    assert_int_not_equal(during.taken.address, 0);
    end_stack(&stack);
}

static void free_during_call(void *data)
{
    struct during *during = data;

    give(during->stack, during->to_free);
}

TEST(a_block_freed_during_a_failing_growth_is_found)
{
    struct stack stack = make_pool(64 * MIB, OPTIONS("initial_size=64MiB"));
    struct rs_allocation block = take(&stack, 32 * MIB), pin = take(&stack, 32 * MIB);
    struct during during = {.stack = &stack, .to_free = &block};

    (void)pin;
    stack.leaf->on_call = free_during_call;
    stack.leaf->on_call_data = &during;
    assert_int_equal(take(&stack, 20 * MIB).address, block.address);
    end_stack(&stack);
}

static void take_5_mib_during_call(void *data)
{
    struct during *during = data;

    during->taken = take(during->stack, 5 * MIB);
}

TEST(only_one_growth_at_a_time_asks_for_more_than_it_needs)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct during during = {.stack = &stack};

    stack.leaf->on_call = take_5_mib_during_call;
    stack.leaf->on_call_data = &during;
    (void)take(&stack, 1000);
    assert_int_equal(stack.leaf->live[0].size_bytes, 5 * MIB); /* not 6 */
    assert_int_equal(stack.leaf->live[1].size_bytes, 2 * MIB);
    end_stack(&stack);
}

static struct rs_allocation take_little(struct stack *stack)
{
    struct rs_allocation little;

    assert_int_equal(rs_mr_allocate_with(stack->mr, 3 * MIB, NULL, RS_EFFORT_LITTLE, &little),
                     CUDA_SUCCESS);
    return little;
}

static void take_little_and_5_mib_during_call(void *data)
{
    struct during *during = data;

    (void)take_little(during->stack);
    during->taken = take(during->stack, 5 * MIB);
}

/* A growth for little rounds its request up to the driver's unit, and is no growth ahead. */
TEST(a_growth_for_little_ends_no_growth_ahead)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct during during = {.stack = &stack};

    stack.leaf->on_call = take_little_and_5_mib_during_call;
    stack.leaf->on_call_data = &during;
    (void)take(&stack, 1000);
    assert_chunks(&stack, (size_t[]){4 * MIB, 5 * MIB, 2 * MIB}, 3); /* not 6 */
    end_stack(&stack);
}

static void take_little_during_call(void *data)
{
    struct during *during = data;

    during->taken = take_little(during->stack);
}

TEST(a_growth_for_little_is_no_part_of_the_initial_size)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=64MiB"));
    struct during during = {.stack = &stack};
    struct rs_allocation block;

    (void)rs_mr_trim_with(stack.mr, &(struct rs_trim){.initial_of = UINT_MAX});
    assert_int_equal(stack.leaf->live_bytes, 0);
    stack.leaf->on_call = take_little_during_call;
    stack.leaf->on_call_data = &during;
    block = take(&stack, 1000);
    assert_chunks(&stack, (size_t[]){4 * MIB, 64 * MIB}, 2);
    give(&stack, &during.taken);
    give(&stack, &block);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    end_stack(&stack);
}

/* An upstream call takes SHORT or LONG: longer than a thread waits for another one's growth. */
enum { THREADS = 16, SHORT_US = 2000, LONG_US = 60000 };

static pthread_barrier_t start;

static void *take_one(void *data)
{
    struct rs_allocation allocation;

    pthread_barrier_wait(&start);
    return (void *)(uintptr_t)rs_mr_allocate(data, 64 * KIB, NULL, &allocation);
}

static void many_threads_take_one(struct stack *stack, unsigned pause_us)
{
    pthread_t threads[THREADS];

    stack->leaf->pause_us = pause_us;
    pthread_barrier_init(&start, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_one, stack->mr), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_int_equal((uintptr_t)result, CUDA_SUCCESS);
    }
    pthread_barrier_destroy(&start);
}

TEST(threads_that_miss_together_grow_once)
{
    struct stack stack = make_pool(PLENTY, NULL);

    atomic_store(&waits_have_no_end, true); /* as the call is short, on whatever machine */
    many_threads_take_one(&stack, SHORT_US);
    atomic_store(&waits_have_no_end, false);
    assert_in_range(stack.leaf->peak_bytes, 2 * MIB, 2 * MIB + 2 * 64 * KIB);
    end_stack(&stack);
}

TEST(a_maximum_being_taken_by_another_thread_is_no_out_of_memory)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=1MiB"));

    many_threads_take_one(&stack, LONG_US); /* exactly fits */
    end_stack(&stack);
}

TEST(memory_being_taken_by_another_thread_is_no_out_of_memory)
{
    struct stack stack = make_pool(2 * MIB, NULL);

    many_threads_take_one(&stack, LONG_US);
    end_stack(&stack);
}
