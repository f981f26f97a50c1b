/* SPDX-License-Identifier: Apache-2.0 */
/* The contract that every memory resource over an upstream must keep, run over the table of
 * resources. */
#include "unit.h"

#include "fake_leaf.h"
#include "fake_memory.h"
#include "host_memory.h"
#include "ledger/account.h"
#include "report/counters.h"
#include "resource/block.h"
#include "resource/report.h"
#include "subjects.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the resources under test ---- */

#define MIB        ((size_t)1 << 20)
#define LEAF_BYTES (512 * MIB)

static struct fake_leaf *full_leaf; /* the second upstream of who needs one */

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

/* What a trim has taken out of a resource. */
struct going_back {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
    struct rs_account account;
};

static struct rs_mr *make_subject(const struct rs_mr_descriptor *descriptor,
                                  const struct rs_environment *environment, struct fake_leaf *leaf,
                                  int *error)
{
    const struct subject *subject = subject_of(descriptor);

    return make_resource_of_two(environment, descriptor, &leaf->base,
                                descriptor->upstream_count == 2 ? &full_leaf->base : NULL,
                                subject ? subject->options : NULL, error);
}

static struct stack make_stack(void **state)
{
    struct stack stack = {.leaf = fake_leaf_create(LEAF_BYTES)};
    int error;

    fake_memory_begin();
    stack.mr = make_subject(*state, &fake_second_environment, stack.leaf, &error);
    assert_non_null(stack.mr);
    return stack;
}

/* Destroys the resource alone and checks that it leaves nothing upstream. */
static void end_stack(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    stack->mr->ops.destroy(stack->mr, false);
    assert_int_equal(stack->leaf->live_count, 0);
    assert_int_equal(stack->leaf->wrong_calls, 0);
    fake_leaf_destroy(stack->leaf);
}

static const struct rs_allocation untouched = {0xdeadbeef, 12345, (void *)0x77, NULL};

static bool is_untouched(const struct rs_allocation *allocation)
{
    return memcmp(allocation, &untouched, sizeof(untouched)) == 0;
}

static void allocate(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, out), CUDA_SUCCESS);
    assert_int_equal(out->address % RS_BLOCK_ALIGNMENT, 0);
    assert_int_equal(out->size_bytes, size_bytes);
    assert_true(fake_leaf_owns(stack->leaf, out->address, size_bytes));
    assert_true(rs_mr_check(stack->mr));
}

static void deallocate(struct stack *stack, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}

static const size_t sizes[] = {1, 511, 512, 513, 4096, 1000, 33333, 64 << 10, 2, 1024};
enum { SIZES = RS_ARRAY_LENGTH(sizes) };

/* ---- tests ---- */

TEST_EACH(serves_and_leaves_nothing_upstream)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];

    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    for (size_t i = 0; i < SIZES; i += 2)
        deallocate(&stack, &live[i]);
    for (size_t i = 0; i < SIZES; i += 2)
        allocate(&stack, sizes[i], &live[i]);
    for (size_t i = 0; i < SIZES; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(live[i].address + sizes[i] <= live[j].address ||
                        live[j].address + sizes[j] <= live[i].address);
    for (size_t i = SIZES; i-- > 0;)
        deallocate(&stack, &live[i]);
    end_stack(&stack);
}

TEST_EACH(what_is_idle_is_told_and_goes_back_on_trim)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];

    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    for (size_t i = 0; i < SIZES; i++)
        deallocate(&stack, &live[i]);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), stack.leaf->live_bytes);
    assert_int_equal(rs_mr_free_blocks(stack.mr) > 0, rs_mr_idle_bytes(stack.mr) > 0);
    assert_int_equal(rs_mr_trim(stack.mr, SIZE_MAX), 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), stack.leaf->live_bytes);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_count, 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    assert_int_equal(rs_mr_free_blocks(stack.mr), 0);
    allocate(&stack, 1000, &live[0]);
    deallocate(&stack, &live[0]);
    end_stack(&stack);
}

/* Nothing is live, so what upstream still counts as live is idle or in a thread's hands. */
static void look_at_what_goes_back(void *data)
{
    const struct going_back *going_back = data;

    assert_true(rs_mr_idle_bytes(going_back->mr) +
                    atomic_load(&going_back->account.returning_bytes) >=
                going_back->leaf->live_bytes);
}

/* Another thread that is refused meanwhile must not take it for live memory. */
TEST_EACH(what_goes_back_on_trim_is_seen_all_the_way)
{
    struct going_back going_back = {.leaf = fake_leaf_create(LEAF_BYTES)};
    struct stack stack = {.leaf = going_back.leaf};
    struct rs_environment environment = fake_second_environment;
    struct rs_allocation live[SIZES];
    int error;

    fake_memory_begin();
    environment.account = &going_back.account;
    stack.mr = going_back.mr = make_subject(*state, &environment, stack.leaf, &error);
    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    for (size_t i = 0; i < SIZES; i++)
        deallocate(&stack, &live[i]);
    stack.leaf->on_deallocate = look_at_what_goes_back;
    stack.leaf->on_deallocate_data = &going_back;
    (void)rs_mr_trim(stack.mr, 0);
    stack.leaf->on_deallocate = NULL;
    assert_int_equal(stack.leaf->live_count, 0);
    assert_int_equal(atomic_load(&going_back.account.returning_bytes), 0);
    end_stack(&stack);
}

TEST_EACH(upstream_failure_comes_back_unchanged_and_output_untouched)
{
    static const CUresult errors[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_ILLEGAL_ADDRESS,
                                      CUDA_ERROR_DEINITIALIZED};
    struct stack stack = make_stack(state);
    struct rs_allocation allocation = untouched;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(errors); i++) {
        stack.leaf->fail_at = 1;
        stack.leaf->fail_with = errors[i];
        assert_int_equal(rs_mr_allocate(stack.mr, 1000, NULL, &allocation), errors[i]);
        assert_true(is_untouched(&allocation));
        assert_true(rs_mr_check(stack.mr));
        assert_int_equal(stack.leaf->live_count, 0);
    }
    allocate(&stack, 1000, &allocation);
    deallocate(&stack, &allocation);
    end_stack(&stack);
}

TEST_EACH(upstream_out_of_memory_is_reported_and_recovered_from)
{
    struct stack stack = make_stack(state);
    struct rs_allocation allocation = untouched;

    stack.leaf->capacity_bytes = 0;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, 1000, NULL, &allocation),
                         CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(is_untouched(&allocation));
    assert_true(rs_mr_check(stack.mr));
    stack.leaf->capacity_bytes = LEAF_BYTES;
    allocate(&stack, 1000, &allocation);
    deallocate(&stack, &allocation);
    end_stack(&stack);
}

TEST_EACH(sizes_near_the_largest_are_refused)
{
    static const size_t huge[] = {SIZE_MAX,       SIZE_MAX - 1,     SIZE_MAX - 255,
                                  SIZE_MAX - 256, SIZE_MAX - 511,   SIZE_MAX - 512,
                                  SIZE_MAX - 513, SIZE_MAX - 1023,  SIZE_MAX - (2u << 20),
                                  SIZE_MAX / 2,   SIZE_MAX / 2 + 2, (size_t)1 << 50};
    struct stack stack = make_stack(state);
    struct rs_allocation kept, allocation = untouched;

    allocate(&stack, 5000, &kept);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(huge); i++) {
        assert_int_equal(rs_mr_allocate(stack.mr, huge[i], NULL, &allocation),
                         CUDA_ERROR_OUT_OF_MEMORY);
        assert_true(is_untouched(&allocation));
        assert_true(rs_mr_check(stack.mr));
    }
    deallocate(&stack, &kept);
    end_stack(&stack);
}

TEST_EACH(failed_upstream_free_loses_nothing)
{
    struct stack stack = make_stack(state);
    struct rs_allocation allocation;
    CUresult result;

    allocate(&stack, 4096, &allocation);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    result = rs_mr_deallocate(stack.mr, &allocation, NULL);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_true(rs_mr_check(stack.mr));
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        assert_int_equal(result, CUDA_ERROR_LAUNCH_FAILED);
        deallocate(&stack, &allocation);
    }
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_count, 0);
    end_stack(&stack);
}

/* ---- efforts ---- */

static const enum rs_effort held_efforts[] = {RS_EFFORT_HELD, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY};
enum { HELD_EFFORTS = RS_ARRAY_LENGTH(held_efforts) };

/* How often upstream was asked for more than it holds. */
static uint64_t growths(const struct stack *stack)
{
    return stack->leaf->allocations + stack->leaf->refusals;
}

TEST_EACH(held_memory_alone_takes_nothing_upstream)
{
    static const size_t asked[] = {1, 1000, 64 << 10, SIZE_MAX - 513, SIZE_MAX};
    struct stack stack = make_stack(state);
    struct rs_allocation allocation = untouched;
    uint64_t before = growths(&stack);

    for (size_t i = 0; i < HELD_EFFORTS; i++)
        for (size_t j = 0; j < RS_ARRAY_LENGTH(asked); j++) {
            assert_int_equal(
                rs_mr_allocate_with(stack.mr, asked[j], NULL, held_efforts[i], &allocation),
                CUDA_ERROR_NOT_READY);
            assert_true(is_untouched(&allocation));
            assert_int_equal(growths(&stack), before);
            assert_true(rs_mr_check(stack.mr));
        }
    end_stack(&stack);
}

/* A resource that keeps freed memory has some then; any other has an upstream that does. */
TEST_EACH(held_memory_serves_a_request_that_it_fits)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];
    uint64_t before;

    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    for (size_t i = 0; i < SIZES; i++)
        deallocate(&stack, &live[i]);
    stack.leaf->held_bytes = 16 * MIB;
    before = growths(&stack);
    for (size_t i = 0; i < HELD_EFFORTS; i++) {
        assert_int_equal(rs_mr_allocate_with(stack.mr, 1000, NULL, held_efforts[i], &live[i]),
                         CUDA_SUCCESS);
        assert_int_equal(live[i].size_bytes, 1000);
        assert_true(fake_leaf_owns(stack.leaf, live[i].address, 1000));
    }
    assert_int_equal(growths(&stack), before);
    for (size_t i = 0; i < HELD_EFFORTS; i++)
        deallocate(&stack, &live[i]);
    end_stack(&stack);
}

/* An allocator may be asked for a little and take a chunk; an adaptor has one upstream block for
 * each of its own. */
static bool passes_efforts(const struct rs_mr_descriptor *descriptor)
{
    return descriptor->frees == RS_FREE_AS_UPSTREAM || descriptor->keeps_blocks;
}

TEST_EACH(an_adaptor_asks_upstream_with_the_effort_it_was_asked_with)
{
    static const enum rs_effort efforts[] = {RS_EFFORT_FULL,
                                             RS_EFFORT_LITTLE,
                                             RS_EFFORT_BEST,
                                             RS_EFFORT_AHEAD,
                                             RS_EFFORT_LITTLE | RS_EFFORT_AHEAD,
                                             RS_EFFORT_BEST | RS_EFFORT_AHEAD,
                                             RS_EFFORT_HELD,
                                             RS_EFFORT_HELD | RS_EFFORT_CUT_ANY};
    struct stack stack = make_stack(state);
    struct rs_allocation live[RS_ARRAY_LENGTH(efforts)];

    stack.leaf->held_bytes = 16 * MIB;
    for (size_t i = 0; passes_efforts(*state) && i < RS_ARRAY_LENGTH(efforts); i++) {
        assert_int_equal(rs_mr_allocate_with(stack.mr, 5000, NULL, efforts[i], &live[i]),
                         CUDA_SUCCESS);
        assert_int_equal(stack.leaf->effort, efforts[i]);
    }
    for (size_t i = 0; passes_efforts(*state) && i < RS_ARRAY_LENGTH(efforts); i++)
        deallocate(&stack, &live[i]);
    end_stack(&stack);
}

/* One of them lies in it, and no other: it was asked for that one (with room to align it, say). */
static bool is_one_of(const struct rs_allocation *allocation, const struct rs_allocation *live)
{
    size_t inside = 0;

    for (size_t i = 0; i < SIZES; i++)
        inside += live[i].address >= allocation->address &&
                  live[i].address + sizes[i] <= allocation->address + allocation->size_bytes;
    return inside == 1;
}

TEST_EACH(destroyed_with_live_allocations)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];

    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    stack.mr->ops.destroy(stack.mr, false);
    assert_int_equal(stack.leaf->wrong_calls, 0);
    /* What was held has gone back; what only passed through is not the resource's to free. */
    for (size_t i = 0; i < stack.leaf->live_count; i++)
        assert_true(is_one_of(&stack.leaf->live[i], live));
    fake_leaf_destroy(stack.leaf);
}

TEST_EACH(memory_that_is_gone_is_not_freed)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];
    uint64_t deallocations;

    for (size_t i = 0; i < SIZES; i++)
        allocate(&stack, sizes[i], &live[i]);
    deallocate(&stack, &live[0]);
    deallocations = stack.leaf->deallocations;
    stack.mr->ops.destroy(stack.mr, true);
    fake_memory_end_context();
    assert_int_equal(stack.leaf->deallocations, deallocations);
    fake_leaf_destroy(stack.leaf);
}

/* More blocks than a page of records has, so that a second page is needed. */
enum { MANY = 1200 };

static void take_and_give_many(struct rs_mr *mr)
{
    static struct rs_allocation live[MANY];
    size_t count = 0;

    while (count < MANY && rs_mr_allocate(mr, 512, NULL, &live[count]) == CUDA_SUCCESS)
        count++;
    assert_true(rs_mr_check(mr));
    while (count > 0)
        assert_int_equal(rs_mr_deallocate(mr, &live[--count], NULL), CUDA_SUCCESS);
}

/* Creates, uses and destroys a resource; anything may fail with out-of-memory, nothing else. */
static void use_everything(const struct rs_mr_descriptor *descriptor, struct fake_leaf *leaf)
{
    struct rs_allocation live[SIZES];
    bool is_live[SIZES] = {false};
    int error;
    struct rs_mr *mr = make_subject(descriptor, &fake_environment, leaf, &error);

    if (!mr) {
        assert_int_equal(error, -ENOMEM);
        return;
    }
    for (size_t i = 0; i < SIZES; i++) {
        CUresult result = rs_mr_allocate(mr, sizes[i], NULL, &live[i]);
        is_live[i] = result == CUDA_SUCCESS;
        assert_true(is_live[i] || result == CUDA_ERROR_OUT_OF_MEMORY);
        assert_true(rs_mr_check(mr));
    }
    take_and_give_many(mr);
    host_left = host_left < 0 ? -1 : 0; /* frees need no memory, ever */
    for (size_t i = 0; i < SIZES; i++)
        if (is_live[i])
            assert_int_equal(rs_mr_deallocate(mr, &live[i], NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(mr));
    mr->ops.destroy(mr, false);
}

TEST_EACH(every_missing_host_allocation_is_survived)
{
    struct fake_leaf *leaf = fake_leaf_create(LEAF_BYTES);
    size_t refused = 0;
    long allowed = 0;

    fake_memory_begin();
    use_everything(*state, leaf); /* a log's file stays open from here on */
    host_counts = true;
    do {
        host_refused = 0;
        host_left = allowed++;
        use_everything(*state, leaf);
        host_left = -1;
        refused += host_refused;
        assert_int_equal(host_held_count(), 0);
        assert_int_equal(leaf->live_count, 0);
    } while (host_refused > 0 && allowed < 1000);
    host_counts = false;
    assert_true(refused > 0);          /* it did need memory */
    assert_int_equal(host_refused, 0); /* and in the end it had enough */
    assert_int_equal(leaf->wrong_calls, 0);
    fake_leaf_destroy(leaf);
}

TEST_EACH(what_was_done_once_needs_no_more_host_memory)
{
    struct stack stack = make_stack(state);
    struct rs_allocation live[SIZES];

    for (unsigned round = 0; round < 500; round++) {
        for (size_t i = 0; i < SIZES; i++)
            assert_int_equal(rs_mr_allocate(stack.mr, sizes[i], NULL, &live[i]), CUDA_SUCCESS);
        for (size_t i = 0; i < SIZES; i++)
            assert_int_equal(rs_mr_deallocate(stack.mr, &live[i], NULL), CUDA_SUCCESS);
        host_left = 0;
    }
    host_left = -1;
    end_stack(&stack);
}

/* ---- eight threads ---- */

enum { THREADS = 8, ROUNDS = 1500, LIVE_PER_THREAD = 40, GRANULES = 1 << 20 };

static atomic_bool granule_is_live[GRANULES];
static atomic_uint overlaps, refusals, errors;

/* Marks what an allocation covers; overlap shows as a mark that is there already. */
static void mark(const struct rs_allocation *allocation, bool is_live)
{
    size_t first = allocation->address / RS_BLOCK_ALIGNMENT;
    size_t count = (allocation->size_bytes + RS_BLOCK_ALIGNMENT - 1) / RS_BLOCK_ALIGNMENT;

    for (size_t i = first; i < first + count; i++)
        if (atomic_exchange(&granule_is_live[i % GRANULES], is_live) == is_live)
            atomic_fetch_add(&overlaps, 1);
}

struct worker {
    pthread_t thread;
    struct rs_mr *mr;
    uint64_t seed;
};

static void give(struct worker *worker, struct rs_allocation *allocation)
{
    mark(allocation, false);
    if (rs_mr_deallocate(worker->mr, allocation, NULL) != CUDA_SUCCESS)
        atomic_fetch_add(&errors, 1);
    allocation->size_bytes = 0;
}

static void take(struct worker *worker, struct rs_allocation *allocation)
{
    size_t size_bytes = 1 + test_random(&worker->seed) % (16 << 10);
    CUresult result = rs_mr_allocate(worker->mr, size_bytes, NULL, allocation);

    if (result == CUDA_SUCCESS)
        mark(allocation, true);
    else
        atomic_fetch_add(result == CUDA_ERROR_OUT_OF_MEMORY ? &refusals : &errors, 1);
}

static void *work(void *data)
{
    struct worker *worker = data;
    struct rs_allocation live[LIVE_PER_THREAD] = {{0}};

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rs_allocation *allocation = &live[test_random(&worker->seed) % LIVE_PER_THREAD];
        if (allocation->size_bytes)
            give(worker, allocation);
        else
            take(worker, allocation);
        if (round % 100 == 99)
            (void)rs_mr_trim(worker->mr, 0);
        if (round % 200 == 199 && !rs_mr_check(worker->mr))
            atomic_fetch_add(&errors, 1);
    }
    for (size_t i = 0; i < LIVE_PER_THREAD; i++)
        if (live[i].size_bytes)
            give(worker, &live[i]);
    return NULL;
}

static void run_threads(struct stack *stack)
{
    struct worker workers[THREADS];

    atomic_store(&overlaps, 0);
    atomic_store(&refusals, 0);
    atomic_store(&errors, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.mr = stack->mr, .seed = 88172645463325252u + i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    assert_int_equal(atomic_load(&overlaps), 0);
    assert_int_equal(atomic_load(&errors), 0);
}

TEST_EACH(eight_threads_share_it)
{
    struct stack stack = make_stack(state);

    run_threads(&stack);
    assert_int_equal(atomic_load(&refusals), 0);
    end_stack(&stack);
}

TEST_EACH(eight_threads_share_too_little)
{
    struct stack stack = make_stack(state);

    stack.leaf->capacity_bytes = MIB;
    run_threads(&stack);
    end_stack(&stack);
}

TEST_EACH(counters_are_reported)
{
    struct stack stack = make_stack(state);
    struct rs_report report = {.count = 0};
    struct rs_allocation allocation;

    allocate(&stack, 1000, &allocation);
    if (stack.mr->ops.report)
        stack.mr->ops.report(stack.mr, &report);
    for (const struct rs_counter_row *row = stack.mr->ops.counters; row && row->name; row++)
        assert_true(rs_counter_is_known(stack.mr->descriptor->name, row->name));
    for (size_t i = 0; i < report.count; i++)
        assert_true(rs_counter_is_known(report.counters[i].resource, report.counters[i].name));
    for (size_t i = 0; i < report.count; i++)
        for (size_t j = 0; j < i; j++)
            assert_false(strcmp(report.counters[i].name, report.counters[j].name) == 0 &&
                         strcmp(report.counters[i].resource, report.counters[j].resource) == 0);
    deallocate(&stack, &allocation);
    end_stack(&stack);
}

static bool is_whole(const struct fake_leaf *leaf, const struct rs_allocation *allocation)
{
    for (size_t i = 0; i < leaf->live_count; i++)
        if (leaf->live[i].address == allocation->address)
            return leaf->live[i].size_bytes == allocation->size_bytes;
    return false;
}

/* Adaptors whose allocations are whole ones of their upstream. */
static bool is_said_to_pass_on(const struct rs_mr_descriptor *descriptor)
{
    static const char *const names[] = {"statistics", "limiting", "logging",  "recording",
                                        "tracking",   "prefetch", "fallback", "headroom"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++)
        if (strcmp(names[i], descriptor->name) == 0)
            return true;
    return false;
}

/* Without its record each block of the program would take one anew, and enter the map of blocks:
 * 71 to 104 ns. */
TEST_EACH(what_only_passes_on_passes_the_record_on)
{
    const struct rs_mr_descriptor *descriptor = *state;
    struct rs_block_record record;
    struct stack stack = make_stack(state);
    struct rs_allocation allocation;

    stack.leaf->record = &record;
    allocate(&stack, 999, &allocation);
    if (is_said_to_pass_on(descriptor))
        assert_true(is_whole(stack.leaf, &allocation));
    assert_ptr_equal(allocation.block, is_whole(stack.leaf, &allocation) ? &record : NULL);
    deallocate(&stack, &allocation);
    end_stack(&stack);
}

/* ---- the table ---- */

static bool is_tested_here(const struct rs_mr_descriptor *descriptor)
{
    return descriptor->upstream_count > 0 && !subject_needs_driver(descriptor);
}

int unit_prepare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    full_leaf = fake_leaf_create(0);
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        if (is_tested_here(rs_mr_descriptors[i]))
            unit_add_case(rs_mr_descriptors[i], "%s", rs_mr_descriptors[i]->name);
    return 0;
}
