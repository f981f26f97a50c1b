/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: which block it takes, how it grows and shrinks, and random traces against a plain
 * model. */
#include "unit.h"

#include "driver/driver.h"
#include "heap/block_index.h"
#include "random_workload.h"
#include "resource/allocator/pool.h"
#include "resource/report.h"
#include "stack.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define GIB    ((size_t)1 << 30)
#define PLENTY ((size_t)1 << 50)

static struct stack make_pool(size_t capacity_bytes, const char *const *options)
{
    return make_stack(&rs_mr_descriptor_pool, capacity_bytes, options);
}

static void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_mr_check(stack->mr));
}

static struct rs_pool_state state_of(struct stack *stack)
{
    struct rs_pool_state state;

    rs_pool_state(stack->mr, &state);
    return state;
}

/* ---- which block ---- */

static void takes_the_smallest_block_that_fits(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation large = take(&stack, 64 * KIB), wall = take(&stack, 512);
    struct rs_allocation small = take(&stack, 8 * KIB), wall2 = take(&stack, 512);
    struct rs_allocation medium = take(&stack, 16 * KIB), wall3 = take(&stack, 512);
    struct rs_allocation again;

    (void)state;
    (void)wall, (void)wall2, (void)wall3;
    give(&stack, &large);
    give(&stack, &small);
    give(&stack, &medium);
    again = take(&stack, 10 * KIB);
    assert_int_equal(again.address, medium.address);
    again = take(&stack, 8 * KIB);
    assert_int_equal(again.address, small.address);
    again = take(&stack, 17 * KIB);
    assert_int_equal(again.address, large.address);
    end_stack(&stack);
}

static void takes_the_lowest_address_among_equals(void **state)
{
    enum { BLOCKS = 40 };
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation blocks[BLOCKS], walls[BLOCKS];

    (void)state;
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = take(&stack, 4 * KIB);
        walls[i] = take(&stack, 512);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        give(&stack, &blocks[i * 7 % BLOCKS]);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_int_equal(take(&stack, 4 * KIB).address, blocks[i].address);
    (void)walls;
    end_stack(&stack);
}

static void freed_neighbours_become_one_block_in_any_order(void **state)
{
    static const unsigned orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 2, 0},
                                         {2, 0, 3, 1}, {1, 2, 0, 3}, {0, 3, 1, 2}};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(orders); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
        struct rs_allocation blocks[4];
        for (unsigned j = 0; j < 4; j++)
            blocks[j] = take(&stack, 100 * KIB);
        for (unsigned j = 0; j < 4; j++)
            give(&stack, &blocks[orders[i][j]]);
        assert_int_equal(take(&stack, MIB).address, blocks[0].address);
        assert_int_equal(stack.leaf->allocations, 1);
        end_stack(&stack);
    }
}

static void chunks_never_merge_even_when_they_touch(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation first, second;

    (void)state;
    stack.leaf->is_tight = true;
    first = take(&stack, 2 * MIB);
    second = take(&stack, 2 * MIB);
    assert_int_equal(first.address + 2 * MIB, second.address);
    give(&stack, &first);
    give(&stack, &second);
    assert_int_equal(state_of(&stack).largest_free_bytes, 2 * MIB);
    (void)take(&stack, 3 * MIB);
    assert_int_equal(stack.leaf->allocations, 3);
    end_stack(&stack);
}

static void odd_end_of_a_chunk_is_served_and_nothing_past_it(void **state)
{
    (void)state;
    for (size_t odd = 256; odd < 4096; odd += 256) {
        char initial[40], maximum[40];
        struct stack stack;
        struct rs_allocation head, tail;

        snprintf(initial, sizeof(initial), "initial_size=%zu", 4096 + odd);
        snprintf(maximum, sizeof(maximum), "maximum_size=%zu", 4096 + odd);
        stack = make_pool(PLENTY, OPTIONS(initial, maximum));
        head = take(&stack, 4096 + odd); /* the whole of it */
        give(&stack, &head);
        refuse(&stack, 4096 + odd + 1);
        head = take(&stack, 4000);
        refuse(&stack, odd + 1);
        tail = take(&stack, odd);
        assert_int_equal(tail.address, head.address + 4096);
        refuse(&stack, 1);
        give(&stack, &head);
        give(&stack, &tail);
        assert_int_equal(state_of(&stack).largest_free_bytes, 4096 + odd);
        end_stack(&stack);
    }
}

/* ---- growth ---- */

static void assert_chunks(const struct stack *stack, const size_t *sizes, size_t count)
{
    assert_int_equal(stack->leaf->live_count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(stack->leaf->live[i].size_bytes, sizes[i]);
}

static void geometric_growth_takes_little_ahead(void **state)
{
    static const size_t sizes[] = {80 * MIB, 2 * MIB, 10 * MIB, 2 * GIB, 18 * MIB};
    struct stack stack = make_pool(PLENTY, NULL);

    (void)state;
    (void)take(&stack, 80 * MIB);
    (void)take(&stack, 1000);
    (void)take(&stack, 10 * MIB);
    (void)take(&stack, 2 * GIB - 1000);
    (void)take(&stack, 3 * MIB); /* a 128th of 2140 MiB rounded up to 2 MiB */
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

static void geometric_growth_past_an_initial_size_takes_a_sixteenth_of_what_is_held(void **state)
{
    static const size_t sizes[] = {160 * MIB, 10 * MIB, 12 * MIB, 2 * GIB};
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=160MiB"));

    (void)state;
    (void)take(&stack, 160 * MIB);
    (void)take(&stack, 1000);
    (void)take(&stack, 10 * MIB); /* a 16th of 170 MiB rounded up to 2 MiB */
    (void)take(&stack, 2 * GIB - 1000);
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

static void rmm_growth_doubles(void **state)
{
    static const size_t sizes[] = {MIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB};
    struct stack stack = make_pool(PLENTY, OPTIONS("growth=rmm"));

    (void)state;
    for (unsigned i = 0; i < 33; i++)
        (void)take(&stack, MIB);
    assert_chunks(&stack, sizes, RS_ARRAY_LENGTH(sizes));
    end_stack(&stack);
}

static void rmm_growth_takes_half_of_what_is_left_to_the_maximum(void **state)
{
    static const size_t sizes[] = {4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1};
    struct stack stack = make_pool(PLENTY, OPTIONS("growth=rmm", "maximum_size=8GiB"));

    (void)state;
    for (unsigned i = 0; i < 8192; i++)
        (void)take(&stack, MIB);
    refuse(&stack, 1);
    assert_int_equal(stack.leaf->live_count, RS_ARRAY_LENGTH(sizes));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++)
        assert_int_equal(stack.leaf->live[i].size_bytes, sizes[i] * MIB);
    end_stack(&stack);
}

static void rmm_growth_halves_to_odd_sizes(void **state)
{
    struct stack stack = make_pool(6000, OPTIONS("growth=rmm"));
    struct rs_allocation last;

    (void)state;
    (void)take(&stack, 1000);
    (void)take(&stack, 4000);
    last = take(&stack, 500);
    assert_int_equal(stack.leaf->live[2].size_bytes, 640);
    assert_int_equal(take(&stack, 128).address, last.address + 512);
    refuse(&stack, 1);
    end_stack(&stack);
}

static void growth_halves_when_upstream_refuses(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));

    (void)state;
    (void)take(&stack, GIB);
    stack.leaf->capacity_bytes = GIB + 20 * MIB;
    (void)take(&stack, 1000); /* 64 refused, 32 refused, 16 */
    assert_int_equal(stack.leaf->live[1].size_bytes, 16 * MIB);
    assert_int_equal(stack.leaf->refusals, 2);
    end_stack(&stack);
}

static void sizes_that_were_refused_are_not_tried_again_each_time(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));

    (void)state;
    (void)take(&stack, GIB);
    stack.leaf->largest_bytes = 3 * MIB;
    (void)take(&stack, 2 * MIB);
    assert_int_equal(stack.leaf->refusals, 5); /* 64, 32, 16, 8, 4 */
    refuse(&stack, 50 * MIB);                  /* says nothing new about small ones */
    stack.leaf->refusals = 0;
    (void)take(&stack, 2 * MIB);
    assert_int_equal(stack.leaf->refusals, 0);
    stack.leaf->largest_bytes = SIZE_MAX; /* and growth feels its way up again */
    for (unsigned i = 0; i < 40; i++)
        (void)take(&stack, 2 * MIB);
    assert_true(stack.leaf->live[stack.leaf->live_count - 1].size_bytes > 16 * MIB);
    end_stack(&stack);
}

static void the_maximum_is_never_exceeded(void **state)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=10MiB", growths[i]));
        struct rs_allocation allocation;
        uint64_t seed = 7;
        while (rs_mr_allocate(stack.mr, 1 + test_random(&seed) % MIB, NULL, &allocation) ==
               CUDA_SUCCESS)
            ;
        assert_in_range(stack.leaf->peak_bytes, 9 * MIB, 10 * MIB);
        end_stack(&stack);
    }
}

static void a_request_above_the_maximum_disturbs_nothing(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=10MiB"));
    struct rs_allocation cached = take(&stack, MIB);

    (void)state;
    give(&stack, &cached);
    refuse(&stack, 10 * MIB + 1);
    assert_int_equal(stack.leaf->deallocations, 0);
    assert_int_equal(stack.leaf->refusals, 0);
    end_stack(&stack);
}

/* ---- giving back ---- */

static void free_chunks_make_room_below_the_maximum(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=16MiB"));
    struct rs_allocation first = take(&stack, 8 * MIB), second = take(&stack, 8 * MIB);

    (void)state;
    refuse(&stack, 1);
    give(&stack, &first);
    give(&stack, &second);
    (void)take(&stack, 12 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 12 * MIB);
    assert_int_equal(stack.leaf->peak_bytes, 16 * MIB);
    end_stack(&stack);
}

static void free_chunks_make_room_upstream(void **state)
{
    struct stack stack = make_pool(100 * MIB, OPTIONS("initial_size=60MiB"));
    struct rs_allocation other = take(&stack, 60 * MIB);
    struct rs_allocation kept = take(&stack, 20 * MIB);

    (void)state;
    give(&stack, &other);
    (void)take(&stack, 80 * MIB); /* the initial chunk, too, rather than out-of-memory */
    assert_int_equal(stack.leaf->live_bytes, 100 * MIB);
    give(&stack, &kept);
    refuse(&stack, 100 * MIB); /* a live block pins the rest */
    assert_int_equal(stack.leaf->live_bytes, 80 * MIB);
    end_stack(&stack);
}

static void trim_keeps_the_initial_chunk_and_what_it_is_told_to(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=4MiB"));
    struct rs_allocation blocks[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 4 * MIB);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    assert_int_equal(state_of(&stack).held_bytes, 16 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 8 * MIB), 4 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(take(&stack, 4 * MIB).address, blocks[0].address);
    end_stack(&stack);
}

static void a_chunk_with_a_live_block_stays(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation large = take(&stack, MIB), small = take(&stack, 1);

    (void)state;
    give(&stack, &large);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    give(&stack, &small);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 2 * MIB);
    end_stack(&stack);
}

/* ---- the allowance ---- */

static void a_small_block_pins_no_chunk_of_large_ones(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation large = take(&stack, 8 * MIB), small;

    (void)state;
    give(&stack, &large);
    small = take(&stack, 1000);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    give(&stack, &small);
    end_stack(&stack);
}

/* Under `reuse`, which says that nobody uses what is free, or as without it. */
static struct stack make_pool_under(bool clean, bool in_order, const char *const *options)
{
    static const struct rs_place places[] = {
        {.context = (CUcontext)(uintptr_t)0x1000},
        {.context = (CUcontext)(uintptr_t)0x1000, .frees_are_clean = true},
    };
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    stack.leaf->deallocates_in_order = in_order;
    stack.mr = make_resource_at(&places[clean], &rs_mr_descriptor_pool, &stack.leaf->base, options,
                                &error);
    assert_non_null(stack.mr);
    return stack;
}

static void chunks_too_small_go_back_before_a_growth_past_the_allowance(void **state)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 40 * MIB);

    (void)state;
    give(&stack, &block);
    block = take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->peak_bytes, 50 * MIB);
    assert_int_equal(stack.leaf->deallocations, 1);
    give(&stack, &block);
    end_stack(&stack);
}

static void the_initial_size_is_allowed_and_not_on_top(void **state)
{
    static const char *const initial_sizes[] = {"initial_size=150MiB", "initial_size=100MiB"};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(initial_sizes); i++) {
        struct stack stack = make_pool_under(true, true, OPTIONS(initial_sizes[i]));
        struct rs_allocation pin = take(&stack, 100 * MIB);
        struct rs_allocation block = take(&stack, 20 * MIB);
        give(&stack, &block);
        (void)take(&stack, 30 * MIB); /* 150 of 130 and a 32nd, or of the initial size */
        assert_int_equal(stack.leaf->deallocations, i);
        give(&stack, &pin);
        end_stack(&stack);
    }
}

static void memory_of_another_kind_serves_before_a_growth_past_the_allowance(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation block = take(&stack, 64 * MIB), pin, small;

    (void)state;
    give(&stack, &block);
    pin = take(&stack, 33 * MIB);
    small = take(&stack, 1000); /* a chunk of its own: that is allowed */
    assert_int_equal(stack.leaf->live_count, 2);
    block = take(&stack, 20 * MIB);
    assert_int_equal(stack.leaf->live_count, 2);
    assert_int_equal(block.address, pin.address + 33 * MIB);
    give(&stack, &small);
    end_stack(&stack);
}

static void rmm_growth_gives_nothing_back_early(void **state)
{
    struct stack stack = make_pool_under(true, true, OPTIONS("growth=rmm"));
    struct rs_allocation block = take(&stack, 40 * MIB);

    (void)state;
    give(&stack, &block);
    (void)take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->deallocations, 0);
    end_stack(&stack);
}

/* Each request is larger than all before: it would cost a return and a growth for ever. */
static void early_returns_are_rationed(void **state)
{
    struct stack stack = make_pool_under(true, true, NULL);

    (void)state;
    for (size_t i = 0; i < 520; i++) {
        struct rs_allocation block = take(&stack, (64 + 2 * i) * MIB);
        give(&stack, &block);
    }
    assert_int_equal(stack.leaf->deallocations, 512);
    assert_true(stack.leaf->live_count > 1);
    end_stack(&stack);
}

static bool lies_in(const struct rs_allocation *block, const struct rs_allocation *hole)
{
    return block->address >= hole->address && block->address - hole->address < hole->size_bytes;
}

static void a_large_request_cuts_no_much_larger_block(void **state)
{
    static const size_t held[] = {60 * MIB, 61 * MIB};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(held); i++) {
        struct stack stack = make_pool_under(true, true, NULL);
        struct rs_allocation block = take(&stack, held[i]);
        give(&stack, &block);
        (void)take(&stack, 40 * MIB);
        assert_int_equal(stack.leaf->deallocations, held[i] > 60 * MIB);
        assert_int_equal(stack.leaf->live_bytes, (held[i] > 60 * MIB ? 40 : 60) * MIB);
        end_stack(&stack);
    }
}

/* 1124 MiB were live; a 32nd more may be held. */
static void the_allowance_is_used_before_a_much_larger_block_is_cut(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct rs_allocation pin = take(&stack, GIB), hole = take(&stack, 100 * MIB), block;

    (void)state;
    give(&stack, &hole);
    block = take(&stack, 33 * MIB);
    assert_int_equal(stack.leaf->live_count, 3);
    assert_false(lies_in(&block, &hole));
    block = take(&stack, 33 * MIB); /* past it, and nothing can go back */
    assert_int_equal(stack.leaf->live_count, 3);
    assert_true(lies_in(&block, &hole));
    give(&stack, &pin);
    end_stack(&stack);
}

static void a_much_larger_chunk_goes_back_where_the_driver_has_refused(void **state)
{
    struct stack stack = make_pool(1124 * MIB, NULL);
    struct rs_allocation pin, hole, block;
    uint64_t refusals = 0;

    (void)state;
    stack.leaf->is_tight = true; /* aligned, as the driver's */
    pin = take(&stack, GIB);
    hole = take(&stack, 100 * MIB);
    give(&stack, &hole);
    for (unsigned i = 0; i < 3; i++) {
        block = take(&stack, 34 * MIB);
        assert_int_equal(stack.leaf->live_bytes, GIB + 34 * MIB);
        assert_true(i > 0 ? stack.leaf->refusals == refusals : stack.leaf->refusals > 0);
        refusals = stack.leaf->refusals;
        give(&stack, &block);
    }
    give(&stack, &pin);
    end_stack(&stack);
}

/* The small one would pin a chunk that the large one needs the memory of. */
static void where_memory_is_short_a_block_gets_a_chunk_of_its_size(void **state)
{
    struct stack stack = make_pool(24 * MIB, NULL);
    struct rs_allocation a = take(&stack, 12 * MIB), b = take(&stack, 12 * MIB), c, d;

    (void)state;
    refuse(&stack, 8 * MIB);
    give(&stack, &a);
    c = take(&stack, 4 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &b);
    d = take(&stack, 20 * MIB);
    give(&stack, &c);
    give(&stack, &d);
    end_stack(&stack);
}

static void half_of_the_early_returns_are_for_chunks_too_small(void **state)
{
    struct stack stack = make_pool_under(true, true, NULL);

    (void)state;
    stack.leaf->is_tight = true;
    stack.leaf->next_address = GIB;
    for (size_t i = 0; i < 600; i++) {
        struct rs_allocation block = take(&stack, (i % 2 ? 40 : 100) * MIB);
        give(&stack, &block);
    }
    assert_int_equal(stack.leaf->deallocations, 258);
    assert_int_equal(stack.leaf->live_bytes, 100 * MIB);
    end_stack(&stack);
}

/* Half of the returns are used up by looks in vain, before upstream sees its context idle. */
static void returns_in_vain_are_rationed(void **state)
{
    struct stack stack = make_pool_under(false, true, NULL);

    (void)state;
    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    for (size_t i = 0; i < 258; i++) {
        struct rs_allocation block = take(&stack, (i ? 40 : 100) * MIB);
        give(&stack, &block);
    }
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    (void)take(&stack, 40 * MIB);
    assert_int_equal(stack.leaf->deallocations, 0);
    assert_int_equal(stack.leaf->allocations, 1);
    end_stack(&stack);
}

/* ---- under `reuse`, which says that nobody uses what is free ---- */

static void an_early_return_needs_an_upstream_whose_frees_do_not_wait(void **state)
{
    (void)state;
    for (int in_order = 0; in_order < 2; in_order++) {
        struct stack stack = make_pool_under(true, in_order, NULL);
        struct rs_allocation block = take(&stack, 40 * MIB);
        give(&stack, &block);
        (void)take(&stack, 50 * MIB);
        assert_int_equal(stack.leaf->deallocations, in_order);
        end_stack(&stack);
    }
}

/* What would wait inside a request is refused by the leaf, and stays. */
static void a_context_that_is_busy_keeps_its_chunks(void **state)
{
    struct stack stack = make_pool_under(false, true, NULL);
    struct rs_allocation block = take(&stack, 40 * MIB);

    (void)state;
    give(&stack, &block);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    (void)take(&stack, 50 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 90 * MIB);
    assert_true(rs_mr_check(stack.mr));
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    end_stack(&stack);
}

static void held_memory_of_any_kind_is_better_than_a_wait(void **state)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 8 * MIB), small;

    (void)state;
    give(&stack, &block);
    assert_int_equal(rs_mr_allocate_any_held(stack.mr, 1000, &small), CUDA_SUCCESS);
    assert_int_equal(small.address, block.address);
    end_stack(&stack);
}

static bool is_fitting(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation block;
    CUresult result = rs_mr_allocate_held(stack->mr, size_bytes, NULL, &block);

    if (result == CUDA_SUCCESS)
        give(stack, &block);
    else
        assert_int_equal(result, CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
}

static void a_growth_is_better_than_a_block_of_another_kind(void **state)
{
    (void)state;
    for (int clean = 0; clean < 2; clean++) {
        struct stack stack = make_pool_under(clean, true, OPTIONS("initial_size=40MiB"));
        struct rs_allocation block = take(&stack, 40 * MIB);
        give(&stack, &block);
        assert_true(is_fitting(&stack, 39 * MIB));
        assert_int_equal(is_fitting(&stack, 8 * MIB), !clean);
        assert_int_equal(is_fitting(&stack, 1000), !clean);
        assert_int_equal(rs_mr_allocate_any_held(stack.mr, 1000, &block), CUDA_SUCCESS);
        give(&stack, &block);
        end_stack(&stack);
    }
}

static void what_was_held_at_first_is_for_all_kinds(void **state)
{
    struct rs_place place = fake_place;
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    (void)state;
    place.frees_are_clean = true;
    stack.mr = make_resource_at(&place, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=40MiB"), &error);
    assert_true(is_fitting(&stack, 39 * MIB));
    assert_true(is_fitting(&stack, 8 * MIB));
    assert_true(is_fitting(&stack, 1000));
    end_stack(&stack);
}

static void a_growth_is_better_than_a_much_larger_block(void **state)
{
    struct stack stack = make_pool_under(true, true, NULL);
    struct rs_allocation block = take(&stack, 100 * MIB);

    (void)state;
    give(&stack, &block);
    assert_true(is_fitting(&stack, 67 * MIB));
    assert_false(is_fitting(&stack, 66 * MIB));
    assert_int_equal(rs_mr_allocate_any_held(stack.mr, 66 * MIB, &block), CUDA_SUCCESS);
    end_stack(&stack);
}

static const struct rs_place place_under_reuse = {
    .context = (CUcontext)(uintptr_t)0x1000,
    .first_on_device = true,
    .frees_are_clean = true,
};

static struct stack make_large_pool_under_reuse(void)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    int error;

    stack.mr = make_resource_at(&place_under_reuse, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=1GiB"), &error);
    assert_non_null(stack.mr);
    return stack;
}

static bool is_cut_from_first(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    return rs_mr_allocate_held(stack->mr, size_bytes, NULL, out) == CUDA_SUCCESS &&
           stack->leaf->live_count == 1;
}

static void requests_of_one_size_cut_any_block(void **state)
{
    enum { BLOCKS = 16 };
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation blocks[BLOCKS];

    (void)state;
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < BLOCKS; i++)
            assert_true(is_cut_from_first(&stack, 64 * MIB, &blocks[i]));
        for (size_t i = 0; i < BLOCKS; i++)
            give(&stack, &blocks[i * 5 % BLOCKS]);
    }
    end_stack(&stack);
}

/* 1024 MiB, of which 500 and half of that again stay whole. */
static void a_block_is_cut_while_its_rest_serves_the_largest(void **state)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation block;

    (void)state;
    assert_true(is_cut_from_first(&stack, 500 * MIB, &block));
    give(&stack, &block);
    assert_true(is_cut_from_first(&stack, 200 * MIB, &block));
    assert_true(is_fitting(&stack, 74 * MIB));
    assert_false(is_fitting(&stack, 75 * MIB));
    assert_true(is_fitting(&stack, 550 * MIB));
    give(&stack, &block);
    end_stack(&stack);
}

static void of_two_much_larger_blocks_the_one_whose_rest_serves_is_cut(void **state)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation hole = take(&stack, 130 * MIB), wall = take(&stack, 64 * MIB), block;

    (void)state;
    give(&stack, &hole);
    assert_true(is_cut_from_first(&stack, 64 * MIB, &block));
    assert_int_equal(block.address, wall.address + 64 * MIB);
    give(&stack, &wall);
    end_stack(&stack);
}

/* As one asks who tries how much there is. */
static void a_refused_request_is_not_the_largest(void **state)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation pin = take(&stack, 32 * MIB), block;

    (void)state;
    stack.leaf->largest_bytes = GIB;
    refuse(&stack, 10 * GIB);
    assert_true(is_cut_from_first(&stack, 500 * MIB, &block));
    give(&stack, &pin);
    end_stack(&stack);
}

/* ---- what is small beside others ---- */

static CUdeviceptr end_of(const struct rs_allocation *block)
{
    return block->address + block->size_bytes;
}

/* 1 GiB under `reuse`, where the leaf has no more. */
static struct stack make_full_pool(void)
{
    struct stack stack = make_large_pool_under_reuse();

    stack.leaf->capacity_bytes = GIB;
    return stack;
}

static void small_ones_gather_at_the_end_of_an_initial_chunk(void **state)
{
    struct stack stack = make_full_pool();
    struct rs_allocation large = take(&stack, 400 * MIB), small[3], whole;
    static const size_t sizes[] = {1000, 3 * MIB, 40 * MIB};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++) {
        struct rs_allocation next = take(&stack, 100 * MIB);
        small[i] = take(&stack, sizes[i]);
        assert_true(lies_in(&small[i], &stack.leaf->live[0]));
        assert_true(end_of(&small[i]) > end_of(&stack.leaf->live[0]) - 45 * MIB);
        give(&stack, &next);
    }
    give(&stack, &large);
    whole = take(&stack, 980 * MIB); /* in one piece, whatever lives on */
    assert_int_equal(whole.address, stack.leaf->live[0].address);
    give(&stack, &whole);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++)
        give(&stack, &small[i]);
    assert_int_equal(state_of(&stack).largest_free_bytes, GIB);
    end_stack(&stack);
}

static void a_small_one_takes_the_hole_of_one_at_the_end(void **state)
{
    struct stack stack = make_full_pool();
    struct rs_allocation first = take(&stack, 2 * MIB), second = take(&stack, 2 * MIB), again;

    (void)state;
    assert_int_equal(end_of(&second), first.address);
    give(&stack, &first);
    again = take(&stack, MIB);
    assert_int_equal(again.address, first.address);
    give(&stack, &again);
    give(&stack, &second);
    end_stack(&stack);
}

/* Also of a range whose end and alignment are odd. */
static void the_end_of_an_odd_chunk_is_served(void **state)
{
    static const size_t sizes[] = {1, 511, 513, MIB - 1, MIB, MIB + 1, 1300 * KIB};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        struct stack stack = make_pool(
            GIB, OPTIONS("initial_size=1073741568", "maximum_size=1073741568")); /* 256 less */
        struct rs_allocation blocks[20];
        for (size_t j = 0; j < RS_ARRAY_LENGTH(blocks); j++) {
            blocks[j] = take(&stack, sizes[i]);
            assert_int_equal(blocks[j].address % (sizes[i] < MIB ? 512 : 64 * KIB), 0);
            assert_true(end_of(&blocks[j]) <= end_of(&stack.leaf->live[0]));
        }
        for (size_t j = 0; j < RS_ARRAY_LENGTH(blocks); j++)
            give(&stack, &blocks[j * 7 % RS_ARRAY_LENGTH(blocks)]);
        assert_int_equal(state_of(&stack).largest_free_bytes, GIB - 256);
        end_stack(&stack);
    }
}

static void free_ends_are_for_large_ones_again(void **state)
{
    struct stack stack = make_full_pool();
    struct rs_allocation blocks[100], large;

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
        blocks[i] = take(&stack, 5 * MIB);
    for (size_t i = 0; i + 1 < RS_ARRAY_LENGTH(blocks); i++)
        give(&stack, &blocks[i]);
    large = take(&stack, 490 * MIB); /* twice: above the one that lives on, and below it */
    assert_int_equal(rs_mr_allocate_held(stack.mr, 490 * MIB, NULL, &blocks[0]), CUDA_SUCCESS);
    assert_true(large.address > blocks[99].address);
    give(&stack, &large);
    give(&stack, &blocks[0]);
    give(&stack, &blocks[99]);
    end_stack(&stack);
}

/* Beside blocks of 256 MiB and more a chunk of its own, of little, is better than the end. */
static void a_small_one_stays_away_from_huge_ones(void **state)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation huge = take(&stack, 256 * MIB), small[3];

    (void)state;
    assert_false(is_fitting(&stack, 1000));
    small[0] = take(&stack, 1000);
    assert_int_equal(stack.leaf->live_count, 2);
    assert_int_equal(stack.leaf->live[1].size_bytes, 2 * MIB);
    small[1] = take(&stack, 2000); /* there is room in that */
    assert_int_equal(stack.leaf->live_count, 2);
    small[2] = take(&stack, 3 * MIB); /* of another kind */
    assert_int_equal(stack.leaf->live_count, 3);
    give(&stack, &huge);
    huge = take(&stack, GIB);
    assert_int_equal(stack.leaf->live_bytes, GIB + 6 * MIB);
    give(&stack, &huge);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++)
        give(&stack, &small[i]);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 6 * MIB);
    end_stack(&stack);
}

/* A 16th of what is held then. */
static void what_stays_away_is_little(void **state)
{
    struct stack stack = make_large_pool_under_reuse();
    struct rs_allocation huge = take(&stack, 256 * MIB), block;

    (void)state;
    for (size_t i = 0; i < 30; i++)
        block = take(&stack, 5 * MIB);
    assert_in_range(stack.leaf->live_bytes, GIB + 50 * MIB, GIB + GIB / 15);
    assert_true(lies_in(&block, &stack.leaf->live[0]));
    (void)huge;
    end_stack(&stack);
}

static void count_call(void *data)
{
    ++*(unsigned *)data;
}

/* It was only for the sake of others: nothing goes back for it, nor is memory short then. */
static void a_small_one_that_cannot_stay_away_takes_the_end(void **state)
{
    struct stack stack = make_full_pool();
    struct rs_allocation huge = take(&stack, 256 * MIB), small;
    unsigned calls = 0;

    (void)state;
    give(&stack, &huge);
    for (size_t i = 0; i < 3; i++) {
        stack.leaf->on_call = count_call;
        stack.leaf->on_call_data = &calls;
        small = take(&stack, 1000);
        assert_int_equal(small.address + 1024, end_of(&stack.leaf->live[0]));
        give(&stack, &small);
    }
    assert_int_equal(calls, 1); /* and it is not asked again each time */
    assert_int_equal(stack.leaf->deallocations, 0);
    end_stack(&stack);
}

static void any_block_fits_where_no_growth_can_be_had(void **state)
{
    struct stack stack = make_pool_under(true, true, OPTIONS("maximum_size=104MiB"));
    struct rs_allocation block = take(&stack, 100 * MIB);

    (void)state;
    give(&stack, &block);
    assert_false(is_fitting(&stack, 4 * MIB));
    assert_true(is_fitting(&stack, 5 * MIB));
    end_stack(&stack);

    stack = make_pool_under(true, true, NULL);
    block = take(&stack, 100 * MIB);
    give(&stack, &block);
    (void)take(&stack, 80 * MIB);
    stack.leaf->capacity_bytes = 100 * MIB;
    assert_false(is_fitting(&stack, 2 * MIB));
    block = take(&stack, 2 * MIB); /* of the large one, as the driver refuses */
    give(&stack, &block);
    assert_false(is_fitting(&stack, 2 * MIB)); /* again: free chunks may have gone back by then */
    end_stack(&stack);
}

/* By its own measure the pool is far below its allowance: 300 MiB were live. */
static void a_caller_past_its_own_allowance_gets_chunks_given_back(void **state)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    (void)state;
    for (size_t rmm = 0; rmm < RS_ARRAY_LENGTH(growths); rmm++) {
        struct stack stack = make_pool_under(true, true, OPTIONS(growths[rmm]));
        struct rs_allocation block = take(&stack, 300 * MIB);
        give(&stack, &block);
        (void)rs_mr_trim(stack.mr, 0);
        block = take(&stack, 40 * MIB);
        give(&stack, &block);
        block = take(&stack, 50 * MIB);
        assert_int_equal(stack.leaf->deallocations, 1); /* the trim's */
        assert_int_equal(rs_mr_allocate_little(stack.mr, 60 * MIB, NULL, &block), CUDA_SUCCESS);
        assert_int_equal(stack.leaf->deallocations, rmm ? 1 : 2);
        end_stack(&stack);
    }
}

/* ---- the initial size ---- */

static void initial_size_is_taken_by_the_first_context_only(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1GiB"));
    int error;
    struct rs_mr *second =
        make_resource_at(&fake_second_place, &rs_mr_descriptor_pool, &stack.leaf->base,
                         OPTIONS("initial_size=1GiB"), &error);

    (void)state;
    assert_non_null(second);
    assert_int_equal(stack.leaf->live_bytes, GIB);
    second->ops.destroy(second, false);
    end_stack(&stack);
}

static void the_initial_size_stays_for_what_cannot_fit(void **state)
{
    struct stack small = make_pool(64 * MIB, OPTIONS("initial_size=60MiB"));
    struct stack bounded = make_pool(PLENTY, OPTIONS("initial_size=40MiB", "maximum_size=100MiB"));
    struct rs_allocation first = take(&bounded, 40 * MIB);

    (void)state;
    refuse(&small, 81 * GIB); /* the device has 80 */
    assert_int_equal(small.leaf->live_bytes, 60 * MIB);
    refuse(&small, 70 * MIB); /* which is not known to be too much */
    assert_int_equal(small.leaf->live_bytes, 0);
    (void)take(&bounded, 50 * MIB);
    give(&bounded, &first);
    refuse(&bounded, 51 * MIB);
    assert_int_equal(bounded.leaf->live_bytes, 90 * MIB);
    (void)take(&bounded, 45 * MIB);
    assert_int_equal(bounded.leaf->live_bytes, 95 * MIB);
    end_stack(&small);
    end_stack(&bounded);
}

/* What an upstream that has no more bounds, too. */
static void the_initial_size_stays_for_what_upstream_never_has(void **state)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    struct rs_mr *limiting =
        make_resource(&rs_mr_descriptor_limiting, &leaf->base, OPTIONS("limit=100MiB"));
    struct rs_mr *pool =
        make_resource(&rs_mr_descriptor_pool, limiting, OPTIONS("initial_size=40MiB"));
    struct rs_allocation block;

    (void)state;
    assert_int_equal(rs_mr_allocate(pool, 101 * MIB, NULL, &block), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(leaf->live_bytes, 40 * MIB);
    assert_int_equal(rs_mr_allocate(pool, 90 * MIB, NULL, &block), CUDA_SUCCESS);
    assert_int_equal(leaf->live_bytes, 90 * MIB);
    rs_mr_destroy(pool, false);
}

static void the_initial_size_comes_back_with_a_growth(void **state)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(100 * MIB, OPTIONS("initial_size=60MiB", growths[i]));
        struct rs_allocation large = take(&stack, 80 * MIB), block;

        give(&stack, &large);
        assert_int_equal(rs_mr_trim(stack.mr, 0), 80 * MIB);
        block = take(&stack, MIB);
        assert_int_equal(state_of(&stack).held_bytes, 60 * MIB);
        give(&stack, &block);
        assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
        /* of as much as there is room for, ... */
        assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE), 60 * MIB);
        stack.leaf->capacity_bytes = 31 * MIB;
        (void)take(&stack, MIB);
        assert_int_equal(state_of(&stack).held_bytes, 30 * MIB);
        /* ... and of the rest then. */
        stack.leaf->capacity_bytes = 100 * MIB;
        (void)take(&stack, 30 * MIB);
        assert_in_range(state_of(&stack).held_bytes, 60 * MIB, 90 * MIB);
        end_stack(&stack);
    }
}

/* It is for all, and so not for a small one that keeps away from huge ones. */
static void a_small_one_that_stays_away_leaves_the_initial_size(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=2GiB"));
    struct rs_allocation huge = take(&stack, 3 * GIB);
    size_t held_bytes;

    (void)state;
    give(&stack, &huge);
    (void)rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE);
    assert_int_equal(state_of(&stack).held_bytes, 0);
    stack.leaf->capacity_bytes = 500 * MIB; /* not for the initial size */
    huge = take(&stack, 400 * MIB);
    give(&stack, &huge);
    held_bytes = state_of(&stack).held_bytes;
    stack.leaf->capacity_bytes = PLENTY;
    (void)take(&stack, 1024);
    assert_in_range(state_of(&stack).held_bytes, held_bytes, held_bytes + 32 * MIB);
    end_stack(&stack);
}

static void only_who_lacks_its_memory_has_the_initial_size_given_back(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=4MiB"));
    struct rs_allocation block = take(&stack, 8 * MIB);

    (void)state;
    give(&stack, &block);
    assert_int_equal(rs_mr_trim_all(stack.mr, 0), 8 * MIB);
    assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_MANAGED), 0);
    assert_int_equal(rs_mr_trim_all(stack.mr, 1u << RS_MEMORY_DEVICE), 4 * MIB);
    end_stack(&stack);
}

static void an_initial_size_larger_than_what_is_free_starts_smaller(void **state)
{
    struct rs_place place = fake_place;
    struct stack stack = {.leaf = fake_leaf_create(3 * GIB + 1000)};
    int error;

    (void)state;
    stack.mr = make_resource_at(&place, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=4GiB"), &error);
    assert_non_null(stack.mr);
    assert_int_equal(state_of(&stack).held_bytes, 2 * GIB); /* halved */
    stack.mr->ops.destroy(stack.mr, false);

    place.free_bytes = 3 * GIB + 500;
    stack.mr = make_resource_at(&place, &rs_mr_descriptor_pool, &stack.leaf->base,
                                OPTIONS("initial_size=4GiB"), &error);
    assert_non_null(stack.mr);
    assert_int_equal(state_of(&stack).held_bytes, 3 * GIB); /* what was free */
    (void)take(&stack, 1000);
    end_stack(&stack);
}

static void no_room_at_all_for_the_initial_size_is_no_error(void **state)
{
    struct stack stack = make_pool(0, OPTIONS("initial_size=4GiB"));

    (void)state;
    refuse(&stack, 1000);
    stack.leaf->capacity_bytes = 8 * MIB;
    (void)take(&stack, 1000);
    end_stack(&stack);
}

static void another_error_for_the_initial_size_fails_creation(void **state)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    int error;

    (void)state;
    leaf->fail_at = 1;
    leaf->fail_with = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_null(make_resource_at(&fake_place, &rs_mr_descriptor_pool, &leaf->base,
                                 OPTIONS("initial_size=4GiB"), &error));
    assert_int_equal(error, -EIO);
    fake_leaf_destroy(leaf);
}

static void contradicting_options_are_complained_about(void **state)
{
    char line[300];

    (void)state;
    assert_false(options_are_valid(&rs_mr_descriptor_pool, NULL,
                                   OPTIONS("initial_size=2GiB", "maximum_size=1GiB"), line,
                                   sizeof(line)));
    assert_non_null(strstr(line, "maximum size 1GiB is below its initial size 2GiB"));
    assert_true(options_are_valid(&rs_mr_descriptor_pool, NULL, OPTIONS("initial_size=90GiB"), line,
                                  sizeof(line)));
    assert_false(options_are_valid(&rs_mr_descriptor_pool, &fake_place,
                                   OPTIONS("initial_size=90GiB"), line, sizeof(line)));
    assert_non_null(strstr(line, "larger than the device's"));
    assert_true(options_are_valid(&rs_mr_descriptor_pool, &fake_place,
                                  OPTIONS("initial_pool_size=1GiB", "maximum_pool_size=1GiB"), line,
                                  sizeof(line)));
}

/* ---- what happens during an upstream call ---- */

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

static void the_pool_is_usable_during_upstream_calls(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct during during = {.stack = &stack};

    (void)state;
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

static void a_block_freed_during_a_failing_growth_is_found(void **state)
{
    struct stack stack = make_pool(64 * MIB, OPTIONS("initial_size=64MiB"));
    struct rs_allocation block = take(&stack, 32 * MIB), pin = take(&stack, 32 * MIB);
    struct during during = {.stack = &stack, .to_free = &block};

    (void)state;
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

static void only_one_growth_at_a_time_asks_for_more_than_it_needs(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);
    struct during during = {.stack = &stack};

    (void)state;
    stack.leaf->on_call = take_5_mib_during_call;
    stack.leaf->on_call_data = &during;
    (void)take(&stack, 1000);
    assert_int_equal(stack.leaf->live[0].size_bytes, 5 * MIB); /* not 6 */
    assert_int_equal(stack.leaf->live[1].size_bytes, 2 * MIB);
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

static void threads_that_miss_together_grow_once(void **state)
{
    struct stack stack = make_pool(PLENTY, NULL);

    (void)state;
    many_threads_take_one(&stack, SHORT_US);
    assert_in_range(stack.leaf->peak_bytes, 2 * MIB, 2 * MIB + 2 * 64 * KIB);
    end_stack(&stack);
}

static void a_maximum_being_taken_by_another_thread_is_no_out_of_memory(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("maximum_size=1MiB"));

    (void)state;
    many_threads_take_one(&stack, LONG_US); /* exactly fits */
    end_stack(&stack);
}

static void memory_being_taken_by_another_thread_is_no_out_of_memory(void **state)
{
    struct stack stack = make_pool(2 * MIB, NULL);

    (void)state;
    many_threads_take_one(&stack, LONG_US);
    end_stack(&stack);
}

/* ---- the index alone ---- */

static struct rs_block *plain_best_fit(struct rs_block *blocks, size_t count, size_t size_bytes)
{
    struct rs_block *best = NULL;

    for (size_t i = 0; i < count; i++)
        if (blocks[i].is_free && blocks[i].size_bytes >= size_bytes &&
            (!best || blocks[i].size_bytes < best->size_bytes ||
             (blocks[i].size_bytes == best->size_bytes && blocks[i].address < best->address)))
            best = &blocks[i];
    return best;
}

/* In the order of size and address. */
static struct rs_block *plain_after(struct rs_block *blocks, size_t count,
                                    const struct rs_block *block)
{
    struct rs_block *after = NULL;

    for (size_t i = 0; i < count; i++)
        if (blocks[i].is_free &&
            (blocks[i].size_bytes > block->size_bytes ||
             (blocks[i].size_bytes == block->size_bytes && blocks[i].address > block->address)) &&
            (!after || blocks[i].size_bytes < after->size_bytes ||
             (blocks[i].size_bytes == after->size_bytes && blocks[i].address < after->address)))
            after = &blocks[i];
    return after;
}

static size_t random_size(uint64_t *seed)
{
    unsigned bits = 1 + (unsigned)(test_random(seed) % 45);
    size_t size_bytes = 1 + test_random(seed) % ((size_t)1 << bits);

    return test_random(seed) % 4 ? (size_bytes + 511) & ~(size_t)511 : size_bytes;
}

static void index_finds_what_a_plain_search_finds(void **state)
{
    enum { BLOCKS = 400, STEPS = 20000 };
    static struct rs_block_index index;
    static struct rs_block blocks[BLOCKS];
    const struct rs_block *largest;
    size_t free_count = 0, counted;
    uint64_t seed = 99;

    (void)state;
    for (unsigned step = 0; step < STEPS; step++) {
        struct rs_block *block = &blocks[test_random(&seed) % BLOCKS];
        size_t wanted = random_size(&seed);
        if (block->is_free) {
            rs_block_index_remove(&index, block);
            block->is_free = false;
            free_count--;
        } else {
            *block = (struct rs_block){.address = (CUdeviceptr)(block - blocks + 1) << 46,
                                       .size_bytes = random_size(&seed),
                                       .is_free = true};
            rs_block_index_insert(&index, block);
            free_count++;
            assert_ptr_equal(rs_block_index_after(&index, block),
                             plain_after(blocks, BLOCKS, block));
        }
        assert_ptr_equal(rs_block_index_best_fit(&index, wanted),
                         plain_best_fit(blocks, BLOCKS, wanted));
        largest = rs_block_index_largest(&index);
        if (largest)
            assert_null(plain_best_fit(blocks, BLOCKS, largest->size_bytes + 1));
        else
            assert_int_equal(free_count, 0);
    }
    assert_true(rs_block_index_check(&index, &counted));
    assert_int_equal(counted, free_count);
}

static void index_holds_sizes_to_the_largest(void **state)
{
    static const size_t sizes[] = {1, 512, 513, SIZE_MAX / 2, SIZE_MAX - 511, SIZE_MAX};
    static struct rs_block_index index;
    struct rs_block blocks[RS_ARRAY_LENGTH(sizes)];

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        blocks[i] = (struct rs_block){.address = 512 * i, .size_bytes = sizes[i], .is_free = true};
        rs_block_index_insert(&index, &blocks[i]);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        assert_ptr_equal(rs_block_index_best_fit(&index, sizes[i]), &blocks[i]);
        assert_ptr_equal(rs_block_index_largest(&index), &blocks[RS_ARRAY_LENGTH(sizes) - 1]);
    }
}

static void index_stays_shallow_whatever_the_distances(void **state)
{
    enum { BLOCKS = 1 << 14 };
    static struct rs_block_index index;
    static struct rs_block blocks[BLOCKS];
    static const size_t distances[] = {512,     1024,       4096,
                                       1 << 20, 1597 * 512, 0x9e3779b97f4aull * 512};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(distances); i++) {
        memset(&index, 0, sizeof(index));
        for (size_t j = 0; j < BLOCKS; j++) {
            blocks[j] = (struct rs_block){
                .address = distances[i] * (j + 1), .size_bytes = 512, .is_free = true};
            rs_block_index_insert(&index, &blocks[j]);
        }
        assert_in_range(rs_block_index_height(&index), 14, 60);
    }
}

/* ---- random traces against a plain model ---- */

enum { RANGES_MAX = 4096 };

struct range {
    CUdeviceptr start;
    size_t size_bytes;
    size_t chunk; /* free ranges merge within one */
};

/* Free memory as a plain list. */
struct model {
    size_t free_count, chunk_count, live_bytes;
    struct range free[RANGES_MAX];
};

static void model_add(struct model *model, struct range range)
{
    for (size_t i = 0; i < model->free_count;) {
        struct range *other = &model->free[i];
        bool follows = other->start + other->size_bytes == range.start;
        bool precedes = range.start + range.size_bytes == other->start;
        if (other->chunk != range.chunk || (!follows && !precedes)) {
            i++;
            continue;
        }
        range.start = follows ? other->start : range.start;
        range.size_bytes += other->size_bytes;
        *other = model->free[--model->free_count];
        i = 0;
    }
    assert_true(model->free_count < RANGES_MAX);
    model->free[model->free_count++] = range;
}

/* Takes the best fit; *taken is what was taken of it.  False when nothing fits. */
static bool model_take(struct model *model, size_t size_bytes, struct range *taken)
{
    struct range *best = NULL;
    size_t rounded = (size_bytes + 511) & ~(size_t)511;

    for (size_t i = 0; i < model->free_count; i++) {
        struct range *range = &model->free[i];
        if (range->size_bytes >= size_bytes &&
            (!best || range->size_bytes < best->size_bytes ||
             (range->size_bytes == best->size_bytes && range->start < best->start)))
            best = range;
    }
    if (!best)
        return false;
    *taken = *best;
    if (best->size_bytes <= rounded) {
        *best = model->free[--model->free_count];
    } else {
        taken->size_bytes = rounded;
        best->start += rounded;
        best->size_bytes -= rounded;
    }
    model->live_bytes += taken->size_bytes;
    return true;
}

/* Follows the pool's growth: new upstream allocations are free ranges. */
static void model_grow(struct model *model, const struct fake_leaf *leaf)
{
    for (; model->chunk_count < leaf->live_count; model->chunk_count++)
        model_add(model,
                  (struct range){leaf->live[model->chunk_count].address,
                                 leaf->live[model->chunk_count].size_bytes, model->chunk_count});
}

static void follows_the_model(const char *const *options, uint64_t seed)
{
    enum { LIVE = 300, STEPS = 4000 };
    static struct model model;
    struct stack stack = make_pool(PLENTY, options);
    struct rs_allocation live[LIVE] = {{0}};
    struct range ranges[LIVE];

    memset(&model, 0, sizeof(model));
    for (unsigned step = 0; step < STEPS; step++) {
        size_t i = test_random(&seed) % LIVE;
        if (live[i].size_bytes) {
            give(&stack, &live[i]);
            model.live_bytes -= ranges[i].size_bytes;
            model_add(&model, ranges[i]);
            live[i].size_bytes = 0;
        } else {
            live[i] = take(&stack, 1 + random_size(&seed) % (256 * KIB));
            model_grow(&model, stack.leaf);
            assert_true(model_take(&model, live[i].size_bytes, &ranges[i]));
            assert_int_equal(live[i].address, ranges[i].start);
        }
        assert_int_equal(state_of(&stack).live_bytes, model.live_bytes);
    }
    assert_int_equal(state_of(&stack).held_bytes, stack.leaf->live_bytes);
    end_stack(&stack);
}

static void every_step_is_the_best_fit_of_a_plain_list(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        follows_the_model(NULL, seed);
        follows_the_model(OPTIONS("growth=rmm"), seed);
        follows_the_model(OPTIONS("initial_size=1000192"), seed);
        follows_the_model(OPTIONS("initial_size=999936", "growth=rmm"), seed);
    }
}

/* Memory is short, so chunks of odd sizes come and go; where blocks lie is checked, not which. */
static void trace_in_little_memory(size_t most_bytes, size_t capacity_bytes,
                                   const char *const *options, uint64_t seed)
{
    enum { LIVE = 120, STEPS = 6000 };
    struct stack stack = make_pool(capacity_bytes, options);
    struct rs_allocation live[LIVE] = {{0}};
    size_t refused = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        struct rs_allocation *allocation = &live[test_random(&seed) % LIVE];
        if (allocation->size_bytes) {
            give(&stack, allocation);
            allocation->size_bytes = 0;
        } else if (rs_mr_allocate(stack.mr, 1 + random_size(&seed) % most_bytes, NULL,
                                  allocation) != CUDA_SUCCESS) {
            refused++;
            continue;
        }
        for (size_t i = 0; allocation->size_bytes && i < LIVE; i++)
            assert_true(&live[i] == allocation || !live[i].size_bytes ||
                        live[i].address + live[i].size_bytes <= allocation->address ||
                        allocation->address + allocation->size_bytes <= live[i].address);
        if (allocation->size_bytes) {
            assert_int_equal(allocation->address % RS_BLOCK_ALIGNMENT, 0);
            assert_true(fake_leaf_owns(stack.leaf, allocation->address, allocation->size_bytes));
        }
        assert_true(rs_mr_check(stack.mr));
    }
    assert_true(refused > 10);
    end_stack(&stack);
}

static void nothing_overlaps_or_sticks_out_when_memory_is_short(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed <= 15; seed++) {
        trace_in_little_memory(512 * KIB, 8 * MIB + 777, NULL, seed);
        trace_in_little_memory(512 * KIB, 8 * MIB + 777, OPTIONS("growth=rmm"), seed);
        trace_in_little_memory(512 * KIB, 8 * MIB + 777,
                               OPTIONS("growth=rmm", "maximum_size=5000192"), seed);
        trace_in_little_memory(512 * KIB, 8 * MIB + 777,
                               OPTIONS("initial_size=5000192", "maximum_size=5000192"), seed);
    }
}

/* Small ones at the end and large ones at the beginning, until they meet. */
static void nothing_overlaps_where_both_ends_are_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 21; seed <= 25; seed++) {
        trace_in_little_memory(128 * MIB, GIB + GIB / 4, OPTIONS("initial_size=1GiB"), seed);
        trace_in_little_memory(700 * MIB, 4 * GIB,
                               OPTIONS("initial_size=2147484160", "maximum_size=3GiB"), seed);
    }
}

/* ---- RMM's random workload ---- */

static void random_workload_is_rmms(void **state)
{
    static const struct {
        size_t allocations, max_mib;
        uint64_t hash;
        size_t peak_count, peak_mib;
    } golden[] = {
        {1000, 1, 0x0a01169c41d5b10b, 638, 309},
        {1000, 4, 0xf71e86c0cad1d323, 642, 1270},
        {1000, 64, 0x42dd185240e2338e, 528, 16000},
        {1000, 256, 0x98bbb3669b011909, 150, 15999},
        {1000, 1024, 0x6d9b0c730cae0bcc, 44, 15999},
        {1000, 4096, 0xf33f6e239df3e016, 15, 15998},
        {10000, 1, 0xb48179f771930716, 6204, 3104},
        {10000, 4, 0x7226a43ee708d374, 6203, 12445},
        {10000, 4096, 0x6f0f19a4aa2588c7, 16, 15999},
        {100000, 1, 0xe20b4cec1688e184, 36071, 16000},
        {100000, 4, 0x1c19b69f55857e88, 9714, 16000},
        {100000, 64, 0x66153dddcb931511, 644, 16000},
        {100000, 256, 0x3acdfd4ef230c976, 176, 16000},
        {100000, 1024, 0xac6cc5d403dbc081, 53, 16000},
        {100000, 4096, 0x0114dd316b70ed04, 19, 16000},
    };
    static size_t sizes[100000];

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(golden); i++) {
        struct random_workload workload;
        struct random_step step;
        random_workload_init(&workload, golden[i].allocations, golden[i].max_mib, sizes);
        while (random_workload_next(&workload, &step))
            ;
        assert_int_equal(workload.hash, golden[i].hash);
        assert_int_equal(workload.live_count, 0);
        assert_int_equal(workload.peak_count, golden[i].peak_count);
        assert_int_equal((workload.peak_bytes + MIB / 2) / MIB, golden[i].peak_mib);
    }
}

static void random_workload_runs_and_leaves_nothing(void **state)
{
    enum { ALLOCATIONS = 10000 };
    static size_t sizes[ALLOCATIONS];
    static struct rs_allocation live[ALLOCATIONS];
    struct stack stack = make_pool(PLENTY, NULL);
    struct random_workload workload;
    struct random_step step;

    (void)state;
    random_workload_init(&workload, ALLOCATIONS, 1, sizes);
    while (random_workload_next(&workload, &step)) {
        if (step.is_allocation) {
            assert_int_equal(rs_mr_allocate(stack.mr, step.size_bytes, NULL, &live[step.index]),
                             CUDA_SUCCESS);
            continue;
        }
        assert_int_equal(live[step.index].size_bytes, step.size_bytes);
        assert_int_equal(rs_mr_deallocate(stack.mr, &live[step.index], NULL), CUDA_SUCCESS);
        live[step.index] = live[workload.live_count];
    }
    assert_int_equal(state_of(&stack).live_bytes, 0);
    assert_true(state_of(&stack).peak_held_bytes <
                state_of(&stack).peak_live_bytes + state_of(&stack).peak_live_bytes / 10);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_count, 0);
    end_stack(&stack);
}

static void the_report_is_exact(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("initial_size=1MiB"));
    struct rs_allocation first = take(&stack, 1000), second = take(&stack, 10 * MIB);
    struct rs_report report = {.count = 0};

    (void)state;
    give(&stack, &second);
    (void)first;
    refuse(&stack, SIZE_MAX);
    stack.mr->ops.report(stack.mr, &report);
#define VALUE(name) rs_report_value(&report, "pool", name, 999)
    assert_int_equal(VALUE("held"), 11 * MIB);
    assert_int_equal(VALUE("held_peak"), 11 * MIB);
    assert_int_equal(VALUE("live"), KIB);
    assert_int_equal(VALUE("live_peak"), KIB + 10 * MIB);
    assert_int_equal(VALUE("free"), 11 * MIB - KIB);
    assert_int_equal(VALUE("largest_free"), 10 * MIB);
    assert_int_equal(VALUE("chunks"), 2);
    assert_int_equal(VALUE("growths"), 1);
    assert_int_equal(VALUE("chunk_returns"), 0);
    assert_int_equal(VALUE("allocations"), 2);
    assert_int_equal(VALUE("failures"), 1);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 11 * MIB - KIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 10 * MIB);
    report.count = 0;
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(VALUE("chunk_returns"), 1);
#undef VALUE
    end_stack(&stack);
}

/* For GPUDirect and dma-buf pages, without wasting what lies between. */
static void large_blocks_are_aligned_to_64_kib(void **state)
{
    struct stack stack = make_pool(64 * MIB, OPTIONS("initial_size=16MiB"));
    struct rs_allocation small = take(&stack, 1000), large[3], between;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        large[i] = take(&stack, MIB + 512 * i);
        assert_int_equal((large[i].address - stack.leaf->live[0].address) % (64 * KIB), 0);
    }
    assert_int_equal(large[0].address - small.address, 64 * KIB);
    between = take(&stack, 60 * KIB); /* in front of the first large one */
    assert_int_equal(between.address - small.address, 1024);
    assert_true(rs_mr_check(stack.mr));
    give(&stack, &between);
    give(&stack, &small);
    for (size_t i = 0; i < 3; i++)
        give(&stack, &large[i]);
    assert_int_equal(state_of(&stack).largest_free_bytes, 16 * MIB);
    /* All of it in one block, and what does not fit aligned is served all the same. */
    small = take(&stack, 512);
    large[0] = take(&stack, 16 * MIB - 512);
    assert_int_equal(stack.leaf->live_count, 2);
    give(&stack, &small);
    give(&stack, &large[0]);
    end_stack(&stack);
}

/* What an allocation past its allowance takes: its own size in the driver's unit, and no step. */
static void allocate_little_takes_no_step(void **state)
{
    static const size_t sizes[] = {80 * MIB, 2 * MIB, 4 * MIB};
    struct stack stack = make_pool(GIB, NULL);
    struct rs_allocation little;

    (void)state;
    (void)take(&stack, 80 * MIB);
    assert_int_equal(rs_mr_allocate_held(stack.mr, 1000, NULL, &little), CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_allocate_little(stack.mr, 1000, NULL, &little), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_held(stack.mr, 512 * KIB, NULL, &little), CUDA_SUCCESS);
    /* Also of another kind of size, where it fits. */
    assert_int_equal(rs_mr_allocate_little(stack.mr, MIB, NULL, &little), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_little(stack.mr, 3 * MIB, NULL, &little), CUDA_SUCCESS);
    assert_chunks(&stack, sizes, 3);
    assert_true(rs_mr_check(stack.mr));
    end_stack(&stack);
}

/* Takes blocks of one size, all there is room for, and gives them back in another order. */
static void use_all(struct stack *stack, size_t count, size_t size_bytes)
{
    struct rs_allocation blocks[20];

    for (size_t i = 0; i < count; i++)
        blocks[i] = take(stack, size_bytes);
    for (size_t i = 0; i < count; i++)
        give(stack, &blocks[i * 7 % count]);
    assert_true(stack->leaf->live_bytes <= stack->leaf->capacity_bytes);
}

static void ten_gibibytes_are_served_again_in_other_sizes(void **state)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = make_pool(10 * GIB + 64 * MIB, OPTIONS(growths[i]));
        stack.leaf->is_tight = true; /* aligned, as the driver's large allocations are */
        use_all(&stack, 10, GIB);
        use_all(&stack, 20, GIB / 2);
        use_all(&stack, 5, 2 * GIB);
        use_all(&stack, 10, GIB);
        /* RMM's growth takes more than a request where it can, and that is then in the way. */
        if (i == 0)
            use_all(&stack, 3, 3 * GIB);
        use_all(&stack, 1, 10 * GIB);
        use_all(&stack, 20, GIB / 2);
        end_stack(&stack);
    }
}

/* ---- alignment ---- */

static bool share_a_unit(const struct rs_allocation *a, const struct rs_allocation *b, size_t unit)
{
    CUdeviceptr a_first = a->address / unit, a_last = (a->address + a->size_bytes - 1) / unit;
    CUdeviceptr b_first = b->address / unit, b_last = (b->address + b->size_bytes - 1) / unit;

    return a_first <= b_last && b_first <= a_last;
}

/* The fake leaf aligns to 512 bytes only, so its chunks begin anywhere. */
static void no_two_blocks_share_an_aligned_unit(void **state)
{
    enum { BLOCKS = 64, ROUNDS = 1000 };
    static const size_t units[] = {512, 4 * KIB, 64 * KIB, 2 * MIB};
    static const char *const options[] = {"alignment=512", "alignment=4KiB", "alignment=64KiB",
                                          "alignment=2MiB"};

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(units); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS(options[i], "initial_size=3MiB"));
        struct rs_allocation live[BLOCKS];
        unsigned count = 0;
        uint64_t seed = 11 + i;

        for (unsigned round = 0; round < ROUNDS; round++) {
            unsigned at = (unsigned)(test_random(&seed) % BLOCKS);
            size_t limit = test_random(&seed) % 10 ? 200 * KIB : 5 * MIB;
            if (at < count) {
                give(&stack, &live[at]);
                live[at] = live[--count];
                continue;
            }
            live[count] = take(&stack, 1 + test_random(&seed) % limit);
            assert_int_equal(live[count].address % units[i], 0);
            assert_true(fake_leaf_owns(stack.leaf, live[count].address, live[count].size_bytes));
            for (unsigned j = 0; j < count; j++)
                assert_false(share_a_unit(&live[count], &live[j], units[i]));
            count++;
        }
        end_stack(&stack);
    }
}

/* A chunk of just the request would not hold it; the pool learns that. */
static void a_misaligned_upstream_is_asked_for_more(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB"));
    struct rs_allocation block;

    (void)state;
    stack.leaf->next_address += 512;
    block = take(&stack, 4 * MIB);
    assert_int_equal(block.address % (64 * KIB), 0);
    block = take(&stack, 8 * MIB);
    assert_int_equal(block.address % (64 * KIB), 0);
    assert_int_equal(stack.leaf->allocations, 3);
    assert_int_equal(stack.leaf->live_count, 2); /* what was of no use went back */
    end_stack(&stack);
}

static void the_unaligned_beginning_of_a_chunk_is_not_used(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB", "maximum_size=256KiB"));
    struct rs_allocation block;

    (void)state;
    stack.leaf->next_address += 512;
    for (unsigned i = 0; i < 3; i++)
        block = take(&stack, 60 * KIB);
    refuse(&stack, 513);
    block = take(&stack, 512); /* what the chunk's end has */
    assert_int_equal(block.address % (64 * KIB), 0);
    refuse(&stack, 1);
    end_stack(&stack);
}

static void a_chunk_without_an_aligned_byte_serves_nobody(void **state)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB", "maximum_size=1024"));

    (void)state;
    stack.leaf->next_address += 512;
    refuse(&stack, 1);
    refuse(&stack, 1024);
    end_stack(&stack);
}

static void alignment_is_a_power_of_two_up_to_2_mib(void **state)
{
    static const struct {
        const char *option;
        bool valid;
    } cases[] = {
        {"alignment=512", true},    {"alignment=64KiB", true}, {"alignment=2MiB", true},
        {"alignment=256", false},   {"alignment=4MiB", false}, {"alignment=1000", false},
        {"alignment=96KiB", false}, {"alignment=50%", false},
    };

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char line[300];
        bool valid = options_are_valid(&rs_mr_descriptor_pool, &fake_place,
                                       OPTIONS(cases[i].option), line, sizeof(line));
        if (valid != cases[i].valid)
            fail_msg("%s: %s", cases[i].option, line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_gibibytes_are_served_again_in_other_sizes),
        cmocka_unit_test(allocate_little_takes_no_step),
        cmocka_unit_test(large_blocks_are_aligned_to_64_kib),
        cmocka_unit_test(takes_the_smallest_block_that_fits),
        cmocka_unit_test(takes_the_lowest_address_among_equals),
        cmocka_unit_test(freed_neighbours_become_one_block_in_any_order),
        cmocka_unit_test(chunks_never_merge_even_when_they_touch),
        cmocka_unit_test(odd_end_of_a_chunk_is_served_and_nothing_past_it),
        cmocka_unit_test(geometric_growth_takes_little_ahead),
        cmocka_unit_test(geometric_growth_past_an_initial_size_takes_a_sixteenth_of_what_is_held),
        cmocka_unit_test(rmm_growth_doubles),
        cmocka_unit_test(rmm_growth_takes_half_of_what_is_left_to_the_maximum),
        cmocka_unit_test(rmm_growth_halves_to_odd_sizes),
        cmocka_unit_test(growth_halves_when_upstream_refuses),
        cmocka_unit_test(sizes_that_were_refused_are_not_tried_again_each_time),
        cmocka_unit_test(the_maximum_is_never_exceeded),
        cmocka_unit_test(a_request_above_the_maximum_disturbs_nothing),
        cmocka_unit_test(free_chunks_make_room_below_the_maximum),
        cmocka_unit_test(free_chunks_make_room_upstream),
        cmocka_unit_test(trim_keeps_the_initial_chunk_and_what_it_is_told_to),
        cmocka_unit_test(a_chunk_with_a_live_block_stays),
        cmocka_unit_test(a_small_block_pins_no_chunk_of_large_ones),
        cmocka_unit_test(chunks_too_small_go_back_before_a_growth_past_the_allowance),
        cmocka_unit_test(the_initial_size_is_allowed_and_not_on_top),
        cmocka_unit_test(memory_of_another_kind_serves_before_a_growth_past_the_allowance),
        cmocka_unit_test(rmm_growth_gives_nothing_back_early),
        cmocka_unit_test(early_returns_are_rationed),
        cmocka_unit_test(a_large_request_cuts_no_much_larger_block),
        cmocka_unit_test(the_allowance_is_used_before_a_much_larger_block_is_cut),
        cmocka_unit_test(a_much_larger_chunk_goes_back_where_the_driver_has_refused),
        cmocka_unit_test(where_memory_is_short_a_block_gets_a_chunk_of_its_size),
        cmocka_unit_test(half_of_the_early_returns_are_for_chunks_too_small),
        cmocka_unit_test(returns_in_vain_are_rationed),
        cmocka_unit_test(a_growth_is_better_than_a_block_of_another_kind),
        cmocka_unit_test(what_was_held_at_first_is_for_all_kinds),
        cmocka_unit_test(a_growth_is_better_than_a_much_larger_block),
        cmocka_unit_test(requests_of_one_size_cut_any_block),
        cmocka_unit_test(a_block_is_cut_while_its_rest_serves_the_largest),
        cmocka_unit_test(of_two_much_larger_blocks_the_one_whose_rest_serves_is_cut),
        cmocka_unit_test(a_refused_request_is_not_the_largest),
        cmocka_unit_test(small_ones_gather_at_the_end_of_an_initial_chunk),
        cmocka_unit_test(a_small_one_takes_the_hole_of_one_at_the_end),
        cmocka_unit_test(the_end_of_an_odd_chunk_is_served),
        cmocka_unit_test(free_ends_are_for_large_ones_again),
        cmocka_unit_test(a_small_one_stays_away_from_huge_ones),
        cmocka_unit_test(what_stays_away_is_little),
        cmocka_unit_test(a_small_one_that_cannot_stay_away_takes_the_end),
        cmocka_unit_test(any_block_fits_where_no_growth_can_be_had),
        cmocka_unit_test(a_caller_past_its_own_allowance_gets_chunks_given_back),
        cmocka_unit_test(an_early_return_needs_an_upstream_whose_frees_do_not_wait),
        cmocka_unit_test(a_context_that_is_busy_keeps_its_chunks),
        cmocka_unit_test(held_memory_of_any_kind_is_better_than_a_wait),
        cmocka_unit_test(initial_size_is_taken_by_the_first_context_only),
        cmocka_unit_test(the_initial_size_stays_for_what_cannot_fit),
        cmocka_unit_test(the_initial_size_stays_for_what_upstream_never_has),
        cmocka_unit_test(the_initial_size_comes_back_with_a_growth),
        cmocka_unit_test(a_small_one_that_stays_away_leaves_the_initial_size),
        cmocka_unit_test(only_who_lacks_its_memory_has_the_initial_size_given_back),
        cmocka_unit_test(an_initial_size_larger_than_what_is_free_starts_smaller),
        cmocka_unit_test(no_room_at_all_for_the_initial_size_is_no_error),
        cmocka_unit_test(another_error_for_the_initial_size_fails_creation),
        cmocka_unit_test(contradicting_options_are_complained_about),
        cmocka_unit_test(the_pool_is_usable_during_upstream_calls),
        cmocka_unit_test(a_block_freed_during_a_failing_growth_is_found),
        cmocka_unit_test(only_one_growth_at_a_time_asks_for_more_than_it_needs),
        cmocka_unit_test(threads_that_miss_together_grow_once),
        cmocka_unit_test(a_maximum_being_taken_by_another_thread_is_no_out_of_memory),
        cmocka_unit_test(memory_being_taken_by_another_thread_is_no_out_of_memory),
        cmocka_unit_test(index_finds_what_a_plain_search_finds),
        cmocka_unit_test(index_holds_sizes_to_the_largest),
        cmocka_unit_test(index_stays_shallow_whatever_the_distances),
        cmocka_unit_test(every_step_is_the_best_fit_of_a_plain_list),
        cmocka_unit_test(nothing_overlaps_or_sticks_out_when_memory_is_short),
        cmocka_unit_test(nothing_overlaps_where_both_ends_are_cut),
        cmocka_unit_test(random_workload_is_rmms),
        cmocka_unit_test(random_workload_runs_and_leaves_nothing),
        cmocka_unit_test(the_report_is_exact),
        cmocka_unit_test(no_two_blocks_share_an_aligned_unit),
        cmocka_unit_test(a_misaligned_upstream_is_asked_for_more),
        cmocka_unit_test(the_unaligned_beginning_of_a_chunk_is_not_used),
        cmocka_unit_test(a_chunk_without_an_aligned_byte_serves_nobody),
        cmocka_unit_test(alignment_is_a_power_of_two_up_to_2_mib),
    };

    return cmocka_run_group_tests_name("resource_pool", tests, NULL, NULL);
}
