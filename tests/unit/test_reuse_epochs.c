/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: a freed block joins an epoch, the epoch is sealed with a fence, and the block is free
 * again when that fence is done. */
#include "driver/capture.h"
#include "reuse_stack.h"

#include <pthread.h>
#include <string.h>

TEST(a_freed_block_waits_for_its_fence)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB), c, d;

    (void)give_busy(&stack, &a);
    c = take(&stack, 4 * MIB);
    assert_true(c.address != a.address);
    assert_int_equal(device.records, 1);
    assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
    complete_all();
    d = take(&stack, 4 * MIB);
    assert_int_equal(d.address, a.address);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give(&stack, &b);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

TEST(a_free_after_the_seal_is_not_covered)
{
    struct stack stack = start(PLENTY, "initial_size=12MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB),
                         c = take(&stack, 4 * MIB), d, e, f, g;
    uint64_t first, second;

    first = give_busy(&stack, &a);
    d = take(&stack, 4 * MIB); /* seals a */
    second = give_busy(&stack, &b);
    complete_to(first);
    e = take(&stack, 4 * MIB);
    assert_int_equal(e.address, a.address);
    f = take(&stack, 4 * MIB);
    assert_true(f.address != b.address);
    complete_to(second);
    g = take(&stack, 4 * MIB);
    assert_int_equal(g.address, b.address);
    give(&stack, &c);
    give(&stack, &d);
    give(&stack, &e);
    give(&stack, &f);
    give(&stack, &g);
    end(&stack);
}

TEST(a_free_during_the_seal_is_not_covered)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB), c, d;
    uint64_t first;

    late.stack = &stack;
    late.allocation = b;
    device.in_record = free_late;
    first = give_busy(&stack, &a);
    turn(&stack); /* seals a; b is freed behind the fence */
    assert_null(device.in_record);
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    c = take(&stack, 4 * MIB);
    d = take(&stack, 56 * MIB); /* all that is left */
    assert_true(c.address == a.address);
    assert_true(d.address > b.address);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

TEST(small_frees_are_sealed_by_the_hundred)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    static struct rs_allocation blocks[3 * SEAL_COUNT];

    for (unsigned i = 0; i < 3 * SEAL_COUNT; i++)
        blocks[i] = take(&stack, 1000);
    for (unsigned i = 0; i < SEAL_COUNT - 1; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 0);
    (void)give_busy(&stack, &blocks[SEAL_COUNT - 1]);
    assert_int_equal(device.records, 1);
    for (unsigned i = SEAL_COUNT; i < 2 * SEAL_COUNT; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 2);
    assert_int_equal(device.queries, 0); /* not for a single epoch */
    complete_all();
    for (unsigned i = 2 * SEAL_COUNT; i < 3 * SEAL_COUNT; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 3);
    assert_int_equal(device.queries, 1);
    assert_int_equal(counter(&stack, "epochs_sealed"), 3);
    assert_int_equal(counter(&stack, "epochs_retired"), 2);
    assert_int_equal(counter(&stack, "quarantined_blocks"), SEAL_COUNT);
    assert_int_equal(counter(&stack, "quarantined"), SEAL_COUNT * 1000);
    end(&stack);
}

TEST(a_large_free_is_sealed_at_once)
{
    struct stack stack = start(PLENTY, "initial_size=128MiB");
    struct rs_allocation a = take(&stack, SEAL_MIB * MIB - 1), b = take(&stack, LOOK_MIB * MIB);
    struct rs_allocation c = take(&stack, SEAL_MIB * MIB);

    (void)give_busy(&stack, &a);
    assert_int_equal(device.records, 0);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, 1);
    (void)give_busy(&stack, &c);
    assert_int_equal(device.records, 2);
    end(&stack);
}

/* An allocation on the slow path makes upstream short; 138 MiB are held then.  (Without an initial
 * size it is a 128th, which footprint judges.) */
TEST(while_upstream_is_short_a_free_of_a_64th_of_an_initial_size_seals)
{
    struct stack stack = start(PLENTY, "initial_size=128MiB");
    struct rs_allocation all = take(&stack, 128 * MIB), a = take(&stack, 5 * MIB / 4);
    struct rs_allocation b = take(&stack, 9 * MIB / 4);
    unsigned records = device.records;

    (void)give_busy(&stack, &a);
    assert_int_equal(device.records, records);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, records + 1);
    complete_all();
    give(&stack, &all);
    end(&stack);
}

TEST(while_upstream_is_short_and_little_is_held_256_KiB_seal)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct rs_allocation all = take(&stack, 8 * MIB), a = take(&stack, 255 << 10);
    struct rs_allocation b = take(&stack, 255 << 10), c = take(&stack, 256 << 10);
    unsigned records = device.records;

    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, records);
    (void)give_busy(&stack, &c);
    assert_int_equal(device.records, records + 1);
    complete_all();
    give(&stack, &all);
    end(&stack);
}

/* Frees a hundred of them in one epoch. */
static uint64_t give_epoch(struct stack *stack, const struct rs_allocation *blocks)
{
    uint64_t work = submit();

    for (unsigned i = 0; i < SEAL_COUNT; i++)
        give(stack, &blocks[i]);
    return work;
}

/* An answer that a fence is done is the costly one. */
TEST(a_free_gets_one_answer_that_a_fence_is_done)
{
    enum { EPOCHS = 70 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[EPOCHS + 2][SEAL_COUNT];
    unsigned queries;

    for (unsigned i = 0; i < (EPOCHS + 2) * SEAL_COUNT; i++)
        blocks[i / SEAL_COUNT][i % SEAL_COUNT] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < EPOCHS - 1; i++) {
        queries = device.queries;
        (void)give_epoch(&stack, blocks[i]);
        assert_in_range(device.queries - queries, 0, i == 2 ? 2 : 1);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS - 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_all();
    queries = device.queries;
    (void)give_epoch(&stack, blocks[EPOCHS - 1]);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS - 1);
    assert_int_equal(device.queries - queries, 2); /* that of the oldest, which was pending */
    queries = device.queries;
    (void)give_epoch(&stack, blocks[EPOCHS]);
    complete_all();
    (void)give_epoch(&stack, blocks[EPOCHS + 1]);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS + 1);
    assert_int_equal(device.queries - queries, 1);
    end(&stack);
}

/* A long operation, and what a program frees meanwhile. */
TEST(a_seal_asks_once_however_much_was_freed_while_the_gpu_is_stuck)
{
    enum { EPOCHS = 1000, EVENTS = 66 };
    struct stack stack = start(PLENTY, "initial_size=128MiB");
    static struct rs_allocation blocks[EPOCHS + 1][SEAL_COUNT];
    unsigned queries, records;

    charge(&stack);
    for (unsigned i = 0; i < (EPOCHS + 1) * SEAL_COUNT; i++)
        assert_int_equal(
            rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &blocks[i / SEAL_COUNT][i % SEAL_COUNT]),
            CUDA_SUCCESS);
    (void)submit();
    for (unsigned i = 0; i < EPOCHS; i++) {
        queries = device.queries;
        records = device.records;
        for (unsigned j = 0; j < SEAL_COUNT; j++)
            assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i][j], NULL), CUDA_SUCCESS);
        assert_int_equal(device.records - records, 1);
        assert_in_range(device.queries - queries, 0, i == 2 ? 2 : 1);
    }
    assert_in_range(device.event_count, 1, EVENTS);
    assert_true(rs_mr_check(stack.mr));
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS * SEAL_COUNT);
    complete_all();
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

/* Nothing is left upstream, so each free would seal for the next allocation.  Behind many pending
 * epochs that is in vain, and each seal a driver call. */
TEST(frees_behind_many_epochs_seal_seldom)
{
    enum { FREES = 1024, CROWD = 16, EVERY = 16, BYTES = 64 << 10 };
    static struct rs_allocation blocks[FREES];
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    unsigned records;

    for (unsigned i = 0; i < FREES; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, BYTES, NULL, &blocks[i]), CUDA_SUCCESS);
    charge(&stack);
    (void)submit();
    records = device.records;
    for (unsigned i = 0; i < FREES; i++)
        assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i], NULL), CUDA_SUCCESS);
    assert_in_range(device.records - records, CROWD, 2 * CROWD + FREES / EVERY);
    complete_all();
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

/* Of many epochs, which were merged: what work still uses waits, the oldest alone waits for none
 * but its own, and the others for little that is younger. */
TEST(a_merged_epoch_waits_for_its_youngest_fence)
{
    enum { EPOCHS = 300 };

    for (unsigned done = 0; done <= EPOCHS; done += done < 3 ? 1 : 27) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct rs_allocation blocks[EPOCHS];
        uint64_t work[EPOCHS + 1] = {0};
        uint64_t left;

        for (unsigned i = 0; i < EPOCHS; i++)
            assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &blocks[i]), CUDA_SUCCESS);
        for (unsigned i = 0; i < EPOCHS; i++) {
            work[i + 1] = submit();
            assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i], NULL), CUDA_SUCCESS);
            seal(&stack);
        }
        assert_true(rs_mr_check(stack.mr));
        complete_to(work[done]);
        (void)rs_mr_trim(stack.mr, PLENTY);
        left = counter(&stack, "quarantined_blocks");
        assert_int_equal(EPOCHS - left, counter(&stack, "epochs_retired"));
        assert_in_range(left, EPOCHS - done, EPOCHS - done + (EPOCHS - done) / 8);
        if (done <= 1)
            assert_int_equal(left, EPOCHS - done);
        end(&stack);
    }
}

TEST(of_many_epochs_only_those_that_are_done_are_retired)
{
    enum { EPOCHS = 41, DONE = 23 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[EPOCHS][SEAL_COUNT];
    uint64_t work[EPOCHS];

    for (unsigned i = 0; i < EPOCHS * SEAL_COUNT; i++)
        blocks[i / SEAL_COUNT][i % SEAL_COUNT] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < EPOCHS - 1; i++)
        work[i] = give_epoch(&stack, blocks[i]);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_to(work[DONE - 1]);
    (void)give_epoch(&stack, blocks[EPOCHS - 1]);
    assert_in_range(counter(&stack, "epochs_retired"), DONE / 2, DONE); /* without looking long */
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "epochs_retired"), DONE);
    assert_int_equal(counter(&stack, "quarantined_blocks"), (EPOCHS - DONE) * SEAL_COUNT);
    end(&stack);
}

/* Whatever the number of epochs and how many of them are done. */
TEST(what_is_asked_for_exactly_is_exact)
{
    enum { EPOCHS = 30 };

    for (unsigned done = 0; done <= EPOCHS; done++) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct rs_allocation blocks[EPOCHS];
        uint64_t work[EPOCHS + 1] = {0};

        for (unsigned i = 0; i < EPOCHS; i++)
            blocks[i] = take(&stack, MIB);
        for (unsigned i = 0; i < EPOCHS; i++) {
            work[i + 1] = give_busy(&stack, &blocks[i]);
            seal(&stack);
        }
        complete_to(work[done]);
        (void)rs_mr_trim(stack.mr, PLENTY);
        assert_int_equal(counter(&stack, "epochs_retired"), done);
        assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS - done);
        end(&stack);
    }
}

/* Threads that are there at once, each of which frees less than is sealed. */
struct side_by_side {
    struct stack *stack;
    pthread_barrier_t *all_have_freed;
};

static void *free_some(void *data)
{
    struct side_by_side *side = data;

    for (unsigned i = 0; i < SEAL_MIB / 4; i++) {
        struct rs_allocation block = take(side->stack, MIB);
        (void)give_busy(side->stack, &block);
    }
    pthread_barrier_wait(side->all_have_freed);
    return NULL;
}

TEST(what_threads_free_side_by_side_is_sealed_together)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    pthread_barrier_t all_have_freed;
    struct side_by_side side = {&stack, &all_have_freed};
    pthread_t threads[8];

    assert_int_equal(pthread_barrier_init(&all_have_freed, NULL, 8), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, free_some, &side), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(counter(&stack, "quarantined"), 2 * SEAL_MIB * MIB);
    assert_in_range(device.records, 1, 2);
    pthread_barrier_destroy(&all_have_freed);
    end(&stack);
}

TEST(a_refused_record_leaves_the_blocks_open)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB), b, c;

    device.record_answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, MIB);
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    device.record_answer = CUDA_SUCCESS;
    c = take(&stack, MIB);
    assert_int_equal(c.address, a.address);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}

TEST(fixed_size_blocks_wait_too)
{
    struct stack stack;
    struct rs_allocation blocks[4], again;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_fixed_size, 4 * MIB,
                       OPTIONS("block_size=1MiB", "blocks_to_preallocate=4"), "free=deferred");
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, MIB);
    begin_elsewhere(); /* no fence can be had, and the driver's own wait fails */
    (void)give_busy(&stack, &blocks[2]);
    device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(try(&stack, MIB, &again), CUDA_ERROR_OUT_OF_MEMORY);
    device.free_answer = CUDA_SUCCESS;
    fail_to_begin_elsewhere();
    complete_all();
    again = take(&stack, MIB);
    assert_int_equal(again.address, blocks[2].address);
    assert_int_equal(device.records, 1);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, i == 2 ? &again : &blocks[i]);
    end(&stack);
}

/* Another context of the program is current: the fences are this stack's context's all the same. */
TEST(fences_belong_to_the_context_of_the_memory)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 2 * MIB), b;
    CUcontext popped;

    (void)fake_push(OTHER);
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, 2 * MIB);
    assert_int_equal(b.address, a.address);
    assert_ptr_equal(device.events[0].context, CTX);
    give(&stack, &b);
    assert_ptr_equal(current(), OTHER);
    (void)fake_pop(&popped);
    end(&stack);
}

TEST(the_report_is_exact)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 1000), b = take(&stack, 2000), c;

    assert_int_equal(counter(&stack, "quarantined"), 0);
    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(counter(&stack, "quarantined"), 3000);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 2);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_all();
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    assert_int_equal(counter(&stack, "waits"), 0);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    assert_int_equal(counter(&stack, "full_waits"), 0);
    assert_int_equal(counter(&stack, "waited"), 0);
    c = take(&stack, 1);
    give(&stack, &c);
    end(&stack);
}
