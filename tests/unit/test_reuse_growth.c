/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: an allocation that finds no block of its size waits for an epoch, cuts a larger block or
 * grows; which one is best depends on the held bytes and on the peak of live bytes. */
#include "base/lock.h"
#include "reuse_stack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* What was freed and is done with is in one piece again before a huge block is placed. */
TEST(a_huge_block_is_placed_beside_nothing_that_is_done_with)
{
    struct stack stack = start(PLENTY, "initial_size=2GiB");
    struct rs_allocation a = take(&stack, 300 * MIB), b = take(&stack, 100 * MIB), huge;
    CUdeviceptr start_address = a.address;

    give(&stack, &a);
    give(&stack, &b); /* little: not sealed */
    complete_all();
    huge = take(&stack, 512 * MIB);
    assert_int_equal(huge.address, start_address);
    give(&stack, &huge);
    complete_all();
    end(&stack);
}

/* Pairs of one size need none: each leaves a hole for the next. */
TEST(huge_blocks_of_one_size_ask_for_no_fence)
{
    struct stack stack = start(PLENTY, "initial_size=2GiB");
    struct rs_allocation huge = take(&stack, 512 * MIB);

    give(&stack, &huge);
    device.queries = 0;
    huge = take(&stack, 512 * MIB);
    assert_int_equal(device.queries, 0);
    give(&stack, &huge);
    complete_all();
    end(&stack);
}

/* With what upstream has free, and what can be made ready at once; not by a wait, and not by a
 * growth. */
TEST(a_request_for_held_memory_neither_grows_nor_waits)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 8 * MIB), none;
    uint64_t allocations = stack.leaf->allocations;

    assert_int_equal(rs_mr_allocate_with(stack.mr, 8 * MIB, NULL, RS_EFFORT_HELD, &none),
                     CUDA_ERROR_NOT_READY);
    (void)give_busy(&stack, &a);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 8 * MIB, NULL, RS_EFFORT_HELD, &none),
                     CUDA_ERROR_NOT_READY);
    seal(&stack);
    complete_all();
    assert_int_equal(rs_mr_allocate_with(stack.mr, 8 * MIB, NULL, RS_EFFORT_HELD, &a),
                     CUDA_SUCCESS);
    assert_int_equal(stack.leaf->allocations, allocations);
    assert_int_equal(counter(&stack, "waits"), 0);
    give(&stack, &a);
    complete_all();
    end(&stack);
}

/* 32 MiB were live at once, and nothing is held any more. */
static struct stack start_with_peak(void)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation peak = take(&stack, 32 * MIB);

    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_bytes, 0);
    return stack;
}

TEST(growth_is_free_up_to_the_peak_and_a_little)
{
    struct stack stack = start_with_peak();
    struct rs_allocation a = take(&stack, 16 * MIB), b, c;

    (void)give_busy(&stack, &a);
    b = take(&stack, 17 * MIB); /* held 16 and these 17: 32 and a thirty-second */
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "waits"), 0);
    (void)give_busy(&stack, &b);
    complete_in(20);
    c = take(&stack, 16 * MIB);
    assert_true(counter(&stack, "waits") > 0);
    assert_int_equal(stack.leaf->live_bytes, 34 * MIB); /* chunks are in units of 2 MiB */
    give(&stack, &c);
    end(&stack);
}

/* An initial size is room that was asked for, and no peak: the program used 8 MiB of it. */
TEST(growth_is_not_free_past_the_initial_size)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB), c;

    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    complete_in(3);
    c = take(&stack, 8 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &c);
    end(&stack);
}

/* 64 MiB at first, which are in use, and a large chunk of 40 that is free.  128 MiB were live at
 * once, so 132 may be held. */
static struct stack start_with_hole(const char *mode, struct rs_allocation *first,
                                    struct rs_allocation *hole)
{
    struct rs_allocation peak;
    struct stack stack;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=64MiB"), mode);
    *first = take(&stack, 64 * MIB);
    peak = take(&stack, 64 * MIB);
    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    *hole = take(&stack, 40 * MIB);
    give(&stack, hole);
    return stack;
}

static bool lies_in(const struct rs_allocation *block, const struct rs_allocation *hole)
{
    return block->address >= hole->address && block->address - hole->address < hole->size_bytes;
}

TEST(within_the_allowance_growth_is_better_than_a_cut)
{
    static const char *const modes[] = {"free=deferred", "free=wait"};

    for (size_t waits = 0; waits < RS_ARRAY_LENGTH(modes); waits++) {
        struct rs_allocation first, hole, block;
        struct stack stack = start_with_hole(modes[waits], &first, &hole);
        block = take(&stack, 20 * MIB);
        assert_false(lies_in(&block, &hole));
        give(&stack, &block);
        give(&stack, &first);
        end(&stack);
    }
}

/* 144 MiB may be held, and 140 are.  A large block that is cut for a smaller one is missed later.
 */
TEST(past_the_allowance_a_wait_is_better_than_a_cut)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation hole = take(&stack, 100 * MIB), busy = take(&stack, 40 * MIB), block;

    give(&stack, &hole);
    (void)give_busy(&stack, &busy);
    complete_in(20);
    block = take(&stack, 36 * MIB);
    assert_true(lies_in(&block, &busy));
    assert_int_equal(counter(&stack, "waits"), 1);
    give(&stack, &block);
    end(&stack);
}

/* 132 MiB may be held, and 152 are, and the GPU is stuck. */
TEST(past_the_allowance_a_cut_is_better_than_growth)
{
    struct rs_allocation first, hole, busy, block;
    struct stack stack = start_with_hole("free=deferred", &first, &hole);

    busy = take(&stack, 48 * MIB);
    (void)give_busy(&stack, &busy);
    block = take(&stack, 28 * MIB);
    assert_true(lies_in(&block, &hole));
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    give(&stack, &block);
    give(&stack, &first);
    complete_all();
    end(&stack);
}

/* 148 MiB may be held, and 132 are.  The block in the gap is freed and its work done; only nobody
 * has looked yet. */
TEST(past_the_allowance_what_is_ready_by_now_spares_a_cut)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation first = take(&stack, 16 * MIB), gap = take(&stack, 36 * MIB);
    struct rs_allocation hole = take(&stack, 80 * MIB), block;

    give(&stack, &hole);
    (void)rs_mr_trim(stack.mr, PLENTY); /* clean, and kept */
    (void)give_busy(&stack, &gap);      /* large: this seals */
    complete_all();
    block = take(&stack, 35 * MIB);
    assert_true(lies_in(&block, &gap));
    give(&stack, &block);
    give(&stack, &first);
    end(&stack);
}

/* What the context's stacks of other kinds hold is charged to the same account. */
TEST(other_memories_do_not_count_against_growth)
{
    struct stack stack = start_with_peak();
    struct rs_allocation a, b;

    atomic_store(&account.held_bytes[RS_MEMORY_HOST], 1 << 30);
    atomic_store(&account.held_bytes[RS_MEMORY_MANAGED], 1 << 30);
    a = take(&stack, 16 * MIB);
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB); /* as above */
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "waits"), 0);
    give(&stack, &b);
    end(&stack);
}

TEST(past_the_peak_an_epoch_is_waited_for_once)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c, d;
    uint64_t begin_ns, waited_ns;

    (void)give_busy(&stack, &a);
    count_time();
    begin_ns = rs_clock_ns();
    b = take(&stack, 16 * MIB);
    waited_ns = rs_clock_ns() - begin_ns;
    assert_true(b.address != a.address);
    assert_true(waited_ns >= WAIT_MS * 1000000ull);
    assert_true(waited_ns < 5000000000ull);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    assert_true(counter(&stack, "waited") >= WAIT_MS * 1000000ull);
    assert_true(counter(&stack, "waited") <= waited_ns);
    (void)give_busy(&stack, &b);
    c = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1); /* the first epoch hides the second */
    assert_int_equal(stack.leaf->live_bytes, 48 * MIB);
    complete_all();
    d = take(&stack, 16 * MIB);
    assert_true(d.address == a.address || d.address == b.address);
    assert_int_equal(stack.leaf->live_bytes, 48 * MIB);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

TEST(a_wait_ends_with_the_work)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)give_busy(&stack, &a);
    complete_in(3);
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}

/* What is freed is sealed and waited for even when another epoch has just been retired. */
TEST(growth_waits_for_open_frees_too)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 16 * MIB), c, d;
    uint64_t first, waits;

    first = give_busy(&stack, &a);
    c = take(&stack, 8 * MIB); /* grows, as the peak does; seals a */
    complete_to(first);
    (void)give_busy(&stack, &b);
    waits = counter(&stack, "waits");
    complete_in(4);
    d = take(&stack, 16 * MIB);
    assert_int_equal(d.address, b.address);
    assert_int_equal(counter(&stack, "waits"), waits + 1);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

TEST(before_out_of_memory_all_is_waited_for)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB), c, d;

    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    complete_after_ms(3 * WAIT_MS);
    c = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(try(&stack, 1, &d), CUDA_ERROR_OUT_OF_MEMORY);
    give(&stack, &c);
    end(&stack);
}

/* Several threads wait for the same work, and one of them sees its end. */
static void *take_and_give(void *data)
{
    struct stack *stack = data;
    struct rs_allocation allocation;
    CUresult result;

    thread.depth = 0;
    (void)fake_push(CTX);
    result = rs_mr_allocate(stack->mr, 4 * MIB, NULL, &allocation);
    if (result == CUDA_SUCCESS)
        result = rs_mr_deallocate(stack->mr, &allocation, NULL);
    return (void *)(uintptr_t)result;
}

TEST(threads_that_wait_for_the_same_work_all_go_on)
{
    struct stack stack = start(32 * MIB, "initial_size=32MiB");
    struct rs_allocation blocks[8];
    uint64_t begin_ns;
    pthread_t threads[8];
    void *result;

    for (unsigned i = 0; i < 8; i++)
        blocks[i] = take(&stack, 4 * MIB);
    for (unsigned i = 0; i < 8; i++)
        (void)give_busy(&stack, &blocks[i]);
    complete_after_ms(3 * WAIT_MS);
    begin_ns = rs_clock_ns();
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &stack), 0);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_int_equal((uintptr_t)result, CUDA_SUCCESS);
    }
    assert_true(rs_clock_ns() - begin_ns < 10000000000ull);
    end(&stack);
}

TEST(a_fence_that_can_never_be_done_is_not_waited_for)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;
    uint64_t begin_ns;

    (void)give_busy(&stack, &a);
    count_time();
    begin_ns = rs_clock_ns();
    device.query_answer = device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_clock_ns() - begin_ns < 5000000000ull);
    assert_int_equal(counter(&stack, "quarantined"), 16 * MIB);
    device.query_answer = device.free_answer = CUDA_SUCCESS;
    end(&stack);
}

/* A failed allocation is not live: the peak, and so growth, must not remember it.  A program that
 * probes for memory would hold from then on what it never had. */
TEST(a_refused_request_is_no_peak)
{
    struct stack stack = start(512 * MIB, "initial_size=0");
    struct rs_allocation a = take(&stack, 8 * MIB), b;

    assert_int_equal(try(&stack, 1024 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(try(&stack, (size_t)PTRDIFF_MAX + 1, &b), CUDA_ERROR_OUT_OF_MEMORY);
    for (unsigned i = 0; i < 20; i++) {
        (void)give_busy(&stack, &a);
        complete_in(4);
        a = take(&stack, 8 * MIB);
    }
    assert_true(stack.leaf->live_bytes <= 24 * MIB);
    give(&stack, &a);
    end(&stack);
}
