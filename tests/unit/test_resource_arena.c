/* SPDX-License-Identifier: Apache-2.0 */
#include "stack.h"

#include "heap/alignment.h"
#include "resource/report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define KIB        ((size_t)1 << 10)
#define MIB        ((size_t)1 << 20)
#define LEAF_BYTES (512 * MIB)

static struct stack make_arena(const char *size)
{
    return make_stack(&rs_mr_descriptor_arena, LEAF_BYTES, OPTIONS(size));
}

/* One that is not its device's first: it takes its memory when it needs it. */
static struct stack make_later_arena(const char *size)
{
    struct stack stack = {.leaf = fake_leaf_create(LEAF_BYTES)};
    int error;

    stack.mr = make_resource_at(&fake_second_environment, &rs_mr_descriptor_arena,
                                &stack.leaf->base, OPTIONS(size), &error);
    assert_non_null(stack.mr);
    return stack;
}

static uint64_t counter(struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    stack->mr->ops.report(stack->mr, &report);
    value = rs_report_value(&report, "arena", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

static void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_mr_check(stack->mr));
}

static CUdeviceptr superblock_of(const struct stack *stack, const struct rs_allocation *allocation)
{
    return (allocation->address - stack->leaf->live[0].address) / MIB;
}

/* ---- threads that allocate and stop where they are told to ---- */

enum { BLOCKS = 8 };

struct thread {
    pthread_t id;
    struct rs_mr *mr;
    size_t size_bytes;
    bool frees; /* its own blocks, before it ends */
    struct rs_allocation block[BLOCKS];
    unsigned failures;
    pthread_barrier_t has_blocks, may_end;
};

static void *allocate_and_wait(void *data)
{
    struct thread *thread = data;

    for (unsigned i = 0; i < BLOCKS; i++)
        thread->failures +=
            rs_mr_allocate(thread->mr, thread->size_bytes, NULL, &thread->block[i]) != CUDA_SUCCESS;
    pthread_barrier_wait(&thread->has_blocks);
    pthread_barrier_wait(&thread->may_end);
    for (unsigned i = 0; i < BLOCKS && thread->frees; i++)
        thread->failures += rs_mr_deallocate(thread->mr, &thread->block[i], NULL) != CUDA_SUCCESS;
    return NULL;
}

static void begin(struct thread *thread, struct stack *stack, size_t size_bytes, bool frees)
{
    *thread = (struct thread){.mr = stack->mr, .size_bytes = size_bytes, .frees = frees};
    pthread_barrier_init(&thread->has_blocks, NULL, 2);
    pthread_barrier_init(&thread->may_end, NULL, 2);
    assert_int_equal(pthread_create(&thread->id, NULL, allocate_and_wait, thread), 0);
    pthread_barrier_wait(&thread->has_blocks);
}

static void end(struct thread *thread)
{
    pthread_barrier_wait(&thread->may_end);
    pthread_join(thread->id, NULL);
    assert_int_equal(thread->failures, 0);
    pthread_barrier_destroy(&thread->has_blocks);
    pthread_barrier_destroy(&thread->may_end);
}

static void give_blocks(struct stack *stack, const struct thread *thread)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        give(stack, &thread->block[i]);
}

TEST(threads_do_not_share_superblocks)
{
    struct stack stack = make_arena("arena_size=64MiB");
    struct rs_allocation mine = take(&stack, 1000);
    struct thread threads[2];

    begin(&threads[0], &stack, 1000, true);
    begin(&threads[1], &stack, 1000, true);
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_int_equal(superblock_of(&stack, &mine), 0);
        assert_int_equal(superblock_of(&stack, &threads[0].block[i]), 1);
        assert_int_equal(superblock_of(&stack, &threads[1].block[i]), 2);
    }
    assert_int_equal(counter(&stack, "superblocks"), 3);
    assert_int_equal(counter(&stack, "thread_arenas"), 3);
    end(&threads[0]);
    end(&threads[1]);
    give(&stack, &mine);
    end_stack(&stack);
}

TEST(what_a_thread_leaves_empty_goes_back_at_its_end)
{
    struct stack stack = make_arena("arena_size=64MiB");

    for (unsigned i = 0; i < 100; i++) {
        struct thread thread;
        begin(&thread, &stack, 300 * KIB, true);
        assert_int_equal(counter(&stack, "superblocks"), 3);
        end(&thread);
        assert_int_equal(counter(&stack, "superblocks"), 0);
        assert_int_equal(counter(&stack, "thread_arenas"), 0);
    }
    assert_int_equal(counter(&stack, "largest_free"), 64 * MIB);
    end_stack(&stack);
}

TEST(what_a_thread_leaves_in_use_is_the_next_ones)
{
    struct stack stack = make_arena("arena_size=64MiB");
    struct thread threads[3];

    for (unsigned i = 0; i < 3; i++) {
        begin(&threads[i], &stack, 1000, false);
        end(&threads[i]);
        assert_int_equal(counter(&stack, "superblocks"), 1);
    }
    for (unsigned i = 0; i < 3; i++)
        give_blocks(&stack, &threads[i]); /* by another thread, after the end of theirs */
    assert_int_equal(counter(&stack, "superblocks"), 0);
    end_stack(&stack);
}

TEST(an_arena_may_end_before_its_threads)
{
    struct stack first = make_arena("arena_size=8MiB"), second;
    struct thread thread;

    begin(&thread, &first, 1000, false);
    (void)take(&first, 1000);
    end_stack(&first);
    second = make_arena("arena_size=8MiB");
    (void)take(&second, 1000);
    end(&thread);
    assert_int_equal(counter(&second, "superblocks"), 1);
    end_stack(&second);
}

TEST(one_thread_uses_many_arenas)
{
    enum { ARENAS = 40 };
    static struct stack stacks[ARENAS];
    static struct rs_allocation blocks[ARENAS][3];

    for (unsigned i = 0; i < ARENAS; i++)
        stacks[i] = make_arena("arena_size=8MiB");
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < ARENAS; i++)
            blocks[i][round] = take(&stacks[i], 1000);
    for (unsigned i = 0; i < ARENAS; i++) {
        assert_int_equal(counter(&stacks[i], "superblocks"), 1);
        for (unsigned round = 0; round < 3; round++)
            give(&stacks[i], &blocks[i][round]);
        end_stack(&stacks[i]);
    }
}

/* ---- what is small beside others ---- */

/* A superblock, and blocks of 3 and, once a block of 512 MiB was served, of 40 MiB: one piece is
 * left. */
TEST(small_ones_gather_at_the_upper_end)
{
    static const size_t sizes[] = {1000, 3 * MIB, 40 * MIB};
    struct stack stack = {.leaf = fake_leaf_create(8192 * MIB)};
    struct rs_allocation small[RS_ARRAY_LENGTH(sizes)], large, next;
    CUdeviceptr end;

    stack.mr =
        make_resource(&rs_mr_descriptor_arena, &stack.leaf->base, OPTIONS("arena_size=8GiB"));
    end = stack.leaf->live[0].address + 8192 * MIB;
    large = take(&stack, 512 * MIB);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        next = take(&stack, 512 * MIB);
        small[i] = take(&stack, sizes[i]);
        assert_true(small[i].address >= end - 45 * MIB);
        give(&stack, &next);
    }
    give(&stack, &large);
    large = take(&stack, (8192 - 45) * MIB);
    assert_int_equal(large.address, stack.leaf->live[0].address);
    give(&stack, &large);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++)
        give(&stack, &small[i]);
    (void)rs_mr_trim(stack.mr, 0); /* the thread's superblock */
    large = take(&stack, 8192 * MIB);
    give(&stack, &large);
    end_stack(&stack);
}

/* ---- what is served ---- */

TEST(large_blocks_are_aligned_and_small_ones_fill_what_is_left)
{
    struct stack stack = make_arena("arena_size=8MiB");
    size_t served = 0;
    struct rs_allocation allocation;

    (void)take(&stack, 1);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(take(&stack, MIB + 1 + i).address % RS_LARGE_ALIGNMENT, 0);
    while (rs_mr_allocate(stack.mr, 512, NULL, &allocation) == CUDA_SUCCESS)
        served += 512;
    assert_true(rs_mr_check(stack.mr));
    assert_int_equal(served, 8 * MIB - 512 - 3 * (MIB + 512)); /* to the last byte */
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    refuse(&stack, 1);
    end_stack(&stack);
}

TEST(an_unaligned_upstream_block_serves_a_request_of_its_size)
{
    struct stack stack = make_later_arena("arena_size=2MiB");
    struct rs_allocation allocation;

    stack.leaf->next_address += RS_BLOCK_ALIGNMENT;
    allocation = take(&stack, 2 * MIB);
    give(&stack, &allocation);
    end_stack(&stack);
}

TEST(room_in_another_threads_superblock_is_found)
{
    struct stack stack = make_arena("arena_size=1MiB");
    struct thread thread;
    struct rs_allocation allocation;

    begin(&thread, &stack, 64 * KIB, true); /* half of the only superblock */
    allocation = take(&stack, 512 * KIB);
    refuse(&stack, 1);
    end(&thread);
    give(&stack, &allocation);
    assert_int_equal(counter(&stack, "lent"), 0); /* nobody's thread: back at once */
    end_stack(&stack);
}

TEST(held_memory_alone_serves_or_is_not_ready)
{
    struct stack stack = make_later_arena("arena_size=4MiB");
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate_with(stack.mr, 100, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(stack.leaf->allocations, 0);
    allocation = take(&stack, 100);
    give(&stack, &allocation);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_SUCCESS);
    give(&stack, &allocation);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 5 * MIB, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(counter(&stack, "failures"), 0);
    end_stack(&stack);
}

/* ---- upstream ---- */

TEST(the_first_context_takes_it_at_once_and_keeps_it)
{
    struct stack stack = make_arena("arena_size=64MiB");

    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    end_stack(&stack);
}

TEST(another_context_takes_it_at_need_and_gives_it_back)
{
    struct stack stack = make_later_arena("arena_size=64MiB");
    struct rs_allocation allocation;

    assert_int_equal(stack.leaf->live_bytes, 0);
    allocation = take(&stack, 100);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0); /* in use */
    give(&stack, &allocation);
    assert_int_equal(rs_mr_trim(stack.mr, 64 * MIB), 0);
    assert_int_equal(rs_mr_trim(stack.mr, 64 * MIB - 1), 64 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 0);
    end_stack(&stack);
}

TEST(where_there_is_less_it_takes_the_largest_and_later_the_rest)
{
    struct stack stack = make_later_arena("arena_size=64MiB");
    struct rs_allocation blocks[3];

    stack.leaf->capacity_bytes = 20 * MIB;
    blocks[0] = take(&stack, 100);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    blocks[1] = take(&stack, 15 * MIB - 64 * KIB);
    refuse(&stack, 5 * MIB);           /* not there */
    refuse(&stack, 49 * MIB);          /* never */
    blocks[2] = take(&stack, 3 * MIB); /* alone, as the rest is not there */
    assert_int_equal(stack.leaf->live_bytes, 19 * MIB);
    stack.leaf->capacity_bytes = LEAF_BYTES;
    give(&stack, &blocks[2]);
    blocks[2] = take(&stack, 40 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    refuse(&stack, 40 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    for (unsigned i = 0; i < 3; i++)
        give(&stack, &blocks[i]);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 64 * MIB);
    end_stack(&stack);
}

static void *take_one(void *data)
{
    struct rs_allocation allocation;

    return rs_mr_allocate(data, 1000, NULL, &allocation) == CUDA_SUCCESS ? data : NULL;
}

TEST(threads_that_find_nothing_take_it_once)
{
    struct stack stack = make_later_arena("arena_size=64MiB");
    pthread_t threads[8];
    void *result;

    stack.leaf->pause_us = 20000;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_one, stack.mr), 0);
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    assert_int_equal(stack.leaf->allocations + stack.leaf->refusals, 1);
    end_stack(&stack);
}

static void use_meanwhile(void *data)
{
    struct stack *stack = data;

    assert_true(rs_mr_check(stack->mr));
    assert_int_equal(counter(stack, "held"), 0);
    assert_int_equal(rs_mr_idle_bytes(stack->mr), 0);
}

TEST(no_lock_is_held_around_upstream_calls)
{
    struct stack stack = make_later_arena("arena_size=64MiB");
    struct rs_allocation allocation;

    stack.leaf->on_call = use_meanwhile;
    stack.leaf->on_call_data = &stack;
    allocation = take(&stack, 1000);
    assert_null(stack.leaf->on_call);
    give(&stack, &allocation);
    end_stack(&stack);
}

/* ---- all together ---- */

enum { THREADS = 8, GENERATIONS = 4, ROUNDS = 1000, LIVE_PER_THREAD = 24 };

#define ARENA_MIB 64

static atomic_bool unit_is_live[ARENA_MIB << 11];
static atomic_uint overlaps, errors, served;
static CUdeviceptr arena_begin;

static void mark(const struct rs_allocation *allocation, bool is_live)
{
    size_t first = (allocation->address - arena_begin) / 512;

    for (size_t i = 0; i < (allocation->size_bytes + 511) / 512; i++)
        if (atomic_exchange(&unit_is_live[first + i], is_live) == is_live)
            atomic_fetch_add(&overlaps, 1);
}

static void *work(void *data)
{
    struct thread *thread = data;
    struct rs_allocation live[LIVE_PER_THREAD] = {{0}};
    uint64_t seed = 88172645463325252u + thread->size_bytes;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rs_allocation *block = &live[test_random(&seed) % LIVE_PER_THREAD];
        size_t most_bytes = (size_t)1 << test_random(&seed) % 23;
        if (block->size_bytes) {
            mark(block, false);
            errors += rs_mr_deallocate(thread->mr, block, NULL) != CUDA_SUCCESS;
            block->size_bytes = 0;
        } else if (rs_mr_allocate(thread->mr, 1 + test_random(&seed) % most_bytes, NULL, block) ==
                   CUDA_SUCCESS) {
            mark(block, true);
            atomic_fetch_add(&served, 1);
        }
        if (round % 250 == 0)
            errors += !rs_mr_check(thread->mr);
    }
    for (unsigned i = 0; i < LIVE_PER_THREAD; i++) {
        if (!live[i].size_bytes)
            continue;
        mark(&live[i], false);
        errors += rs_mr_deallocate(thread->mr, &live[i], NULL) != CUDA_SUCCESS;
    }
    return NULL;
}

TEST(generations_of_threads_leave_it_whole)
{
    struct stack stack = make_arena("arena_size=64MiB");
    struct thread threads[THREADS];
    struct rs_allocation whole;

    arena_begin = stack.leaf->live[0].address;
    for (unsigned generation = 0; generation < GENERATIONS; generation++) {
        for (unsigned i = 0; i < THREADS; i++) {
            threads[i] = (struct thread){.mr = stack.mr, .size_bytes = generation * THREADS + i};
            assert_int_equal(pthread_create(&threads[i].id, NULL, work, &threads[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(threads[i].id, NULL);
        assert_int_equal(atomic_load(&overlaps), 0);
        assert_int_equal(atomic_load(&errors), 0);
        assert_int_equal(rs_mr_idle_bytes(stack.mr), ARENA_MIB * MIB);
        whole = take(&stack, ARENA_MIB * MIB);
        give(&stack, &whole);
    }
    assert_true(atomic_load(&served) > THREADS * GENERATIONS * ROUNDS / 4);
    end_stack(&stack);
}

/* Memory on its way from a thread's arena to the global one is not overlooked: all of the arena is
 * free or becomes so, whoever empties it, so no request may fail. */
static void *take_whole_and_small(void *data)
{
    struct thread *thread = data;
    struct rs_allocation block;

    for (unsigned round = 0; round < 2000; round++) {
        if (rs_mr_allocate(thread->mr, round % 2 ? 100 : 2 * MIB, NULL, &block) != CUDA_SUCCESS ||
            rs_mr_deallocate(thread->mr, &block, NULL) != CUDA_SUCCESS)
            thread->failures++;
    }
    return NULL;
}

TEST(nothing_is_overlooked_on_its_way)
{
    /* At worst three threads have two whole blocks and superblocks in bad places. */
    struct stack stack = make_arena("arena_size=12MiB");
    struct thread threads[3];

    for (unsigned i = 0; i < 3; i++) {
        threads[i] = (struct thread){.mr = stack.mr};
        assert_int_equal(pthread_create(&threads[i].id, NULL, take_whole_and_small, &threads[i]),
                         0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i].id, NULL);
        assert_int_equal(threads[i].failures, 0);
    }
    end_stack(&stack);
}

static void *take_and_end(void *data)
{
    struct rs_allocation block;

    return rs_mr_allocate(data, 100, NULL, &block) == CUDA_SUCCESS &&
                   rs_mr_deallocate(data, &block, NULL) == CUDA_SUCCESS
               ? data
               : NULL;
}

static void *start_many(void *data)
{
    struct thread *thread = data;
    pthread_t child;
    void *result;

    for (unsigned i = 0; i < 3000; i++) {
        if (pthread_create(&child, NULL, take_and_end, thread->mr) != 0 ||
            pthread_join(child, &result) != 0 || !result)
            thread->failures++;
    }
    return NULL;
}

/* There is one superblock, that every thread needs and leaves empty at its end. */
TEST(nothing_is_overlooked_when_threads_end)
{
    struct stack stack = make_arena("arena_size=1MiB");
    struct thread threads[3];

    for (unsigned i = 0; i < 3; i++) {
        threads[i] = (struct thread){.mr = stack.mr};
        assert_int_equal(pthread_create(&threads[i].id, NULL, start_many, &threads[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i].id, NULL);
        assert_int_equal(threads[i].failures, 0);
    }
    end_stack(&stack);
}

/* ---- options ---- */

TEST(bad_options_are_refused)
{
    static const struct {
        const char *options[2];
        const char *line;
    } cases[] = {
        {{"arena_size=1MiB"}, ""},
        {{"arena_size=1048575"}, "1MiB"},
        {{"arena_size=2TiB"}, "1TiB"},
        {{"arena_size=81GiB"}, "larger than the device's memory"},
        {{"dump_path=%z"}, ""}, /* not used */
        {{"dump_log_on_failure=1", "dump_path=%z"}, "%z"},
        {{"dump_log_on_failure=1", "dump_path="}, "dump_path is empty"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *const options[] = {cases[i].options[0], cases[i].options[1], NULL};
        char line[300];
        bool valid = options_are_valid(&rs_mr_descriptor_arena, &fake_environment, options, line,
                                       sizeof(line));
        if (valid != !*cases[i].line || !strstr(line, cases[i].line))
            fail_msg("case %zu: %s", i, line);
    }
}
