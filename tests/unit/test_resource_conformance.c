/* SPDX-License-Identifier: Apache-2.0 */
/* What RMM's own tests ask of the resources that exist here, rewritten for this interface.  A test
 * is named after its line in the project's conformance list; what needs a device (attributes of
 * pointers, created streams, real exhaustion) is in the gpu suite. */
#include "unit.h"

#include "driver/own_stream.h"
#include "fake_leaf.h"
#include "fake_vmm.h"
#include "heap/size_class.h"
#include "placing_driver.h"
#include "resource/adaptor/statistics.h"
#include "resource/adaptor/tracking.h"
#include "resource/allocator/pool.h"
#include "resource/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB          ((size_t)1 << 10)
#define MIB          ((size_t)1 << 20)
#define GIB          ((size_t)1 << 30)
#define PIB          ((size_t)1 << 50)
#define DEVICE_BYTES (80 * GIB)

/* ---- stacks under test ---- */

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr;
};

static struct rs_mr *over(const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                          const char *const *options)
{
    return make_resource(descriptor, upstream, options);
}

static struct rs_mr *build_pool(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_pool, leaf, OPTIONS("initial_size=40GiB"));
}

static struct rs_mr *build_growing_pool(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_pool, leaf, NULL);
}

static struct rs_mr *build_rmm_pool(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_pool, leaf, OPTIONS("growth=rmm"));
}

/* As for cudaMallocManaged. */
static struct rs_mr *build_managed_pool(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_pool, leaf, OPTIONS("initial_size=40GiB", "alignment=64KiB"));
}

static struct rs_mr *build_pool_over_pool(struct rs_mr *leaf)
{
    return build_growing_pool(build_pool(leaf));
}

static struct rs_mr *build_arena(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_arena, leaf, NULL);
}

static struct rs_mr *build_arena_over_pool(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_arena, build_growing_pool(leaf), OPTIONS("arena_size=20GiB"));
}

static struct rs_mr *build_pool_over_arena(struct rs_mr *leaf)
{
    return build_growing_pool(build_arena(leaf));
}

static struct rs_mr *build_binning(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_binning, build_pool(leaf),
                OPTIONS("min_size_exponent=18", "max_size_exponent=22"));
}

static struct rs_mr *build_limiting(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_limiting, build_pool(leaf), OPTIONS("limit=79GiB"));
}

static struct rs_mr *build_statistics(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_statistics, build_pool(leaf), NULL);
}

static struct rs_mr *build_aligned(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_aligned, build_pool(leaf), OPTIONS("alignment=4096"));
}

static struct rs_mr *build_prefetch(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_prefetch, build_pool(leaf), NULL);
}

static struct rs_mr *build_fallback(struct rs_mr *leaf)
{
    int error;

    return make_resource_of_two(&fake_environment, &rs_mr_descriptor_fallback, build_pool(leaf),
                                &fake_leaf_create(0)->base, NULL, &error);
}

static struct rs_mr *build_tracking(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_tracking, build_pool(leaf), OPTIONS("capture_stacks=1"));
}

static struct rs_mr *build_logging(struct rs_mr *leaf)
{
    return over(&rs_mr_descriptor_logging, build_pool(leaf), OPTIONS("path=/dev/null"));
}

/* A leaf itself: it takes the fake one's place. */
static struct rs_mr *build_virtual(struct rs_mr *leaf)
{
    static const struct rs_environment environment = {
        .total_bytes = DEVICE_BYTES, .first_on_device = true, .frees_are_ready = true};
    struct rs_mr *mr;
    int error;

    rs_mr_destroy(leaf, false);
    fake_vmm_install(DEVICE_BYTES);
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                          OPTIONS("initial_size=1GiB"), &error);
    assert_non_null(mr);
    return mr;
}

static struct rs_mr *build_pool_over_virtual(struct rs_mr *leaf)
{
    return build_growing_pool(build_virtual(leaf));
}

/* Line 10: any adaptor over any resource, also another of its kind. */
static struct rs_mr *build_tower(struct rs_mr *leaf)
{
    struct rs_mr *mr = build_statistics(leaf);

    mr = over(&rs_mr_descriptor_tracking, mr, NULL);
    mr = over(&rs_mr_descriptor_logging, mr, OPTIONS("path=/dev/null"));
    mr = over(&rs_mr_descriptor_limiting, mr, OPTIONS("limit=79GiB"));
    mr = over(&rs_mr_descriptor_limiting, mr, OPTIONS("limit=78GiB"));
    mr = over(&rs_mr_descriptor_logging, mr, OPTIONS("path=/dev/null"));
    return over(&rs_mr_descriptor_statistics, mr, NULL);
}

/* Line 23 asks for a pool as a pool's upstream. */
static const struct builder {
    const char *name;
    struct rs_mr *(*build)(struct rs_mr *leaf);
} builders[] = {
    {"pool", build_pool},
    {"growing_pool", build_growing_pool},
    {"rmm_pool", build_rmm_pool},
    {"managed_pool", build_managed_pool},
    {"pool_over_pool", build_pool_over_pool},
    {"arena", build_arena},
    {"arena_over_pool", build_arena_over_pool},
    {"pool_over_arena", build_pool_over_arena},
    {"binning", build_binning},
    {"limiting", build_limiting},
    {"statistics", build_statistics},
    {"tracking", build_tracking},
    {"logging", build_logging},
    {"aligned", build_aligned},
    {"prefetch", build_prefetch},
    {"fallback", build_fallback},
    {"tower", build_tower},
    {"virtual", build_virtual},
    {"pool_over_virtual", build_pool_over_virtual},
};

int unit_prepare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(builders); i++)
        unit_add_case(&builders[i], "%s", builders[i].name);
    return 0;
}

static struct stack stack_of(void **state)
{
    const struct builder *builder = *state;
    struct stack stack = {.leaf = fake_leaf_create(DEVICE_BYTES)};

    stack.mr = builder->build(&stack.leaf->base);
    return stack;
}

static struct stack stack_over(size_t capacity_bytes, const struct rs_mr_descriptor *descriptor,
                               const char *const *options)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};

    stack.mr = over(descriptor, &stack.leaf->base, options);
    return stack;
}

static void end(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    rs_mr_destroy(stack->mr, false);
}

static struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_not_equal(allocation.address, 0);
    assert_int_equal(allocation.address % 256, 0);
    return allocation;
}

static void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation = {0};

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(allocation.address, 0);
}

static void give(struct stack *stack, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
}

static uint64_t counter(struct rs_mr *mr, const char *resource, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    mr->ops.report(mr, &report);
    value = rs_report_value(&report, resource, name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

/* ---- any resource ---- */

TEST_EACH(line_1_common_sizes_are_served)
{
    static const size_t sizes[] = {4, KIB, MIB, GIB};
    struct stack stack = stack_of(state);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        struct rs_allocation allocation = take(&stack, sizes[i]);
        give(&stack, &allocation);
    }
    end(&stack);
}

TEST_EACH(line_2_a_pebibyte_is_refused_each_time)
{
    struct stack stack = stack_of(state);

    refuse(&stack, PIB);
    refuse(&stack, PIB);
    end(&stack);
}

TEST_EACH(line_4_two_live_blocks_differ)
{
    struct stack stack = stack_of(state);
    struct rs_allocation first = take(&stack, 8), second = take(&stack, 8);

    assert_int_not_equal(first.address, second.address);
    give(&stack, &first);
    give(&stack, &second);
    end(&stack);
}

enum { RANDOM_COUNT = 100 };

TEST_EACH(line_5_random_sizes_live_at_once)
{
    struct stack stack = stack_of(state);
    struct rs_allocation live[RANDOM_COUNT];
    uint64_t seed = 5;

    for (unsigned i = 0; i < RANDOM_COUNT; i++)
        live[i] = take(&stack, 1 + test_random(&seed) % (5 * MIB));
    for (unsigned i = 0; i < RANDOM_COUNT; i++)
        give(&stack, &live[i]);
    end(&stack);
}

/* 53 % allocations; no assertions, as it runs on many threads. */
static bool mixed(struct rs_mr *mr, uint64_t seed)
{
    struct rs_allocation live[RANDOM_COUNT];
    unsigned live_count = 0, allocated_count = 0;
    bool good = true;

    while (live_count > 0 || allocated_count < RANDOM_COUNT) {
        bool allocates = live_count == 0 || test_random(&seed) % 100 < 53;
        if (allocates && allocated_count < RANDOM_COUNT) {
            size_t size_bytes = 1 + test_random(&seed) % (5 * MIB);
            good &= rs_mr_allocate(mr, size_bytes, NULL, &live[live_count]) == CUDA_SUCCESS &&
                    live[live_count].address % 256 == 0;
            live_count++;
            allocated_count++;
        } else {
            unsigned i = (unsigned)(test_random(&seed) % live_count);
            good &= rs_mr_deallocate(mr, &live[i], NULL) == CUDA_SUCCESS;
            live[i] = live[--live_count];
        }
    }
    return good;
}

TEST_EACH(line_6_mixed_allocations_and_frees)
{
    struct stack stack = stack_of(state);

    assert_true(mixed(stack.mr, 6));
    end(&stack);
}

static void *mixed_thread(void *data)
{
    return mixed(data, 7) ? data : NULL;
}

TEST_EACH(line_7_four_threads_at_once)
{
    struct stack stack = stack_of(state);
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mixed_thread, stack.mr), 0);
    for (unsigned i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    end(&stack);
}

/* Streams and events are the reuse node's; here: freed by another thread than allocated it. */
struct hand_over {
    struct rs_mr *mr;
    atomic_uint produced;
    struct rs_allocation blocks[RANDOM_COUNT];
};

static void *consume(void *data)
{
    struct hand_over *hand_over = data;

    for (unsigned i = 0; i < RANDOM_COUNT; i++) {
        while (atomic_load(&hand_over->produced) <= i)
            sched_yield();
        if (rs_mr_deallocate(hand_over->mr, &hand_over->blocks[i], NULL) != CUDA_SUCCESS)
            return NULL;
    }
    return data;
}

TEST_EACH(line_8_one_thread_allocates_another_frees)
{
    struct stack stack = stack_of(state);
    struct hand_over hand_over = {.mr = stack.mr};
    pthread_t thread;
    void *result;

    assert_int_equal(pthread_create(&thread, NULL, consume, &hand_over), 0);
    for (unsigned i = 0; i < RANDOM_COUNT; i++) {
        hand_over.blocks[i] = take(&stack, 1 + 1000 * i);
        atomic_fetch_add(&hand_over.produced, 1);
    }
    pthread_join(thread, &result);
    assert_non_null(result);
    end(&stack);
}

TEST_EACH(line_10_an_adaptor_knows_its_upstream)
{
    struct stack stack = stack_of(state);
    struct rs_mr *mr = stack.mr;

    while (mr->upstream[0])
        mr = mr->upstream[0];
    assert_true(mr == &stack.leaf->base || mr->descriptor == &rs_mr_descriptor_virtual);
    end(&stack);
}

TEST_EACH(line_11_every_block_has_the_drivers_alignment)
{
    struct stack stack = stack_of(state);

    for (size_t size_bytes = 1; size_bytes < 3000; size_bytes += 97)
        assert_int_equal(take(&stack, size_bytes).address % RS_BLOCK_ALIGNMENT, 0);
    end(&stack);
}

/* ---- pool ---- */

static bool pool_options_are_valid(const char *initial, const char *maximum)
{
    char line[300];

    return options_are_valid(&rs_mr_descriptor_pool, &fake_environment, OPTIONS(initial, maximum),
                             line, sizeof(line));
}

TEST(line_16_a_maximum_below_the_initial_size_is_refused)
{
    assert_false(pool_options_are_valid("initial_pool_size=2048", "maximum_pool_size=1024"));
}

TEST(line_17_sizes_are_multiples_of_256)
{
    assert_false(pool_options_are_valid("initial_pool_size=1000031", "maximum_pool_size=1000192"));
    assert_false(pool_options_are_valid("initial_pool_size=1000192", "maximum_pool_size=1000200"));
    assert_true(pool_options_are_valid("initial_pool_size=1000192", "maximum_pool_size=1000448"));
}

TEST(line_18_initial_may_equal_maximum)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                    OPTIONS("initial_size=1000192", "maximum_size=1000192"));
    struct rs_allocation allocation = take(&stack, 1000192);

    refuse(&stack, 1);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_19_nine_tenths_of_the_device_can_be_a_pool)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=90%"));

    assert_in_range(stack.leaf->live_bytes, DEVICE_BYTES * 9 / 10 - 2 * MIB, DEVICE_BYTES * 9 / 10);
    end(&stack);
}

TEST(line_20_two_quarters_of_the_device_from_half_of_it)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=50%"));

    (void)take(&stack, DEVICE_BYTES / 4);
    (void)take(&stack, DEVICE_BYTES / 4);
    assert_int_equal(stack.leaf->allocations, 1);
    end(&stack);
}

TEST(line_21_growth_backs_off_by_halving)
{
    struct stack stack = stack_over(6000, &rs_mr_descriptor_pool, OPTIONS("growth=rmm"));

    (void)take(&stack, 1000);
    (void)take(&stack, 4000);
    (void)take(&stack, 500);
    refuse(&stack, 2000);
    end(&stack);
}

TEST(line_22_growth_stops_at_the_maximum_and_what_is_there_serves)
{
    struct stack stack =
        stack_over(6000, &rs_mr_descriptor_pool, OPTIONS("growth=rmm", "maximum_size=8192"));

    (void)take(&stack, 1000);
    refuse(&stack, 4000);
    (void)take(&stack, 500);
    (void)take(&stack, 2000);
    end(&stack);
}

TEST(line_25_the_pool_holds_at_least_its_initial_size)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool, OPTIONS("initial_size=1MiB"));

    assert_true(counter(stack.mr, "pool", "held") >= MIB);
    end(&stack);
}

TEST(line_26_a_small_maximum_serves_itself_and_no_more)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                    OPTIONS("initial_size=0", "maximum_size=1024"));

    (void)take(&stack, 1024);
    refuse(&stack, 1024);
    end(&stack);
}

TEST(line_27_sizes_as_text_and_almost_the_whole_cap)
{
    static const char *const growths[] = {"growth=geometric", "growth=rmm"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(growths); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_pool,
                                        OPTIONS("maximum_size=8MiB", growths[i]));
        (void)take(&stack, 8 * MIB - 1);
        refuse(&stack, 16 * MIB);
        end(&stack);
    }
}

/* ---- arena; lines 31 to 33, about its blocks and superblocks, are test_resource_span.c's ---- */

static struct stack arena_of(const char *size)
{
    return stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena, OPTIONS(size));
}

TEST(line_30_at_least_a_mebibyte_at_most_nearly_all)
{
    char line[300];
    struct stack stack;

    assert_false(options_are_valid(&rs_mr_descriptor_arena, &fake_environment,
                                   OPTIONS("arena_size=1048448"), line, sizeof(line)));
    stack = arena_of("arena_size=90%");
    assert_in_range(stack.leaf->live_bytes, DEVICE_BYTES * 9 / 10 - 512, DEVICE_BYTES * 9 / 10);
    end(&stack);
    stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena, NULL);
    assert_int_equal(stack.leaf->live_bytes, DEVICE_BYTES / 2);
    (void)take(&stack, 1);
    (void)take(&stack, 64 * MIB);
    (void)take(&stack, DEVICE_BYTES / 3);
    end(&stack);
}

TEST(line_34_mebibytes_in_address_order_then_none_and_back)
{
    struct stack stack = arena_of("arena_size=4MiB");
    struct rs_allocation blocks[4];

    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, MIB);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(blocks[i].address, blocks[0].address + i * MIB);
    refuse(&stack, MIB);
    refuse(&stack, 1);
    give(&stack, &blocks[0]);
    give(&stack, &blocks[1]); /* with previous */
    give(&stack, &blocks[3]);
    give(&stack, &blocks[2]); /* with both */
    assert_int_equal(take(&stack, 4 * MIB).address, blocks[0].address);
    end(&stack);
}

TEST(line_35_large_requests_are_first_fit_and_merge_to_the_whole)
{
    struct stack stack = arena_of("arena_size=16MiB");
    struct rs_allocation first = take(&stack, 2 * MIB + 100), second = take(&stack, 3 * MIB + 7);
    struct rs_allocation third = take(&stack, 4 * MIB), whole;

    assert_true(first.address < second.address && second.address < third.address);
    refuse(&stack, 17 * MIB);
    refuse(&stack, 17 * MIB);
    give(&stack, &second);
    second = take(&stack, 2 * MIB);
    assert_true(first.address < second.address && second.address < third.address);
    give(&stack, &third);
    give(&stack, &first);
    give(&stack, &second);
    whole = take(&stack, 16 * MIB);
    give(&stack, &whole);
    end(&stack);
}

TEST(line_36_and_39_blocks_outlive_a_defragmentation)
{
    struct stack stack = arena_of("arena_size=8MiB");
    struct hand_over hand_over = {.mr = stack.mr};
    pthread_t thread;
    void *result;

    for (unsigned i = 0; i < RANDOM_COUNT; i++)
        hand_over.blocks[i] = take(&stack, 20000);
    refuse(&stack, 8 * MIB);
    assert_int_equal(counter(stack.mr, "arena", "live"), RANDOM_COUNT * 20480);
    atomic_store(&hand_over.produced, RANDOM_COUNT);
    assert_int_equal(pthread_create(&thread, NULL, consume, &hand_over), 0);
    pthread_join(thread, &result);
    assert_non_null(result);
    (void)take(&stack, 8 * MIB);
    end(&stack);
}

TEST(line_37_a_threads_arena_is_first_fit_and_gives_back)
{
    struct stack stack = arena_of("arena_size=2MiB");
    struct rs_allocation blocks[8];
    const unsigned order[] = {3, 4, 6, 5, 1, 0, 7, 2}; /* previous, next, both */

    for (unsigned i = 0; i < 8; i++)
        blocks[i] = take(&stack, 256 * KIB);
    for (unsigned i = 1; i < 8; i++)
        assert_int_equal(blocks[i].address, blocks[i - 1].address + 256 * KIB);
    for (unsigned i = 0; i < 8; i++)
        give(&stack, &blocks[order[i]]);
    assert_int_equal(take(&stack, 100 * KIB).address, blocks[0].address);
    refuse(&stack, 2 * MIB);
    end(&stack);

    stack = arena_of("arena_size=2MiB");
    blocks[0] = take(&stack, 100);
    give(&stack, &blocks[0]);
    (void)take(&stack, 2 * MIB);
    assert_int_equal(counter(stack.mr, "arena", "defragmentations"), 1);
    end(&stack);
}

/* While the four still live, each with superblocks of its own. */
struct arena_user {
    pthread_t thread;
    struct rs_mr *mr;
    pthread_barrier_t *is_done, *may_end;
    bool good;
};

static void *use_arena(void *data)
{
    struct arena_user *user = data;

    user->good = true;
    for (unsigned i = 0; i < 100; i++) {
        struct rs_allocation block;
        user->good &= rs_mr_allocate(user->mr, 1 + 1000 * i, NULL, &block) == CUDA_SUCCESS &&
                      rs_mr_deallocate(user->mr, &block, NULL) == CUDA_SUCCESS;
    }
    pthread_barrier_wait(user->is_done);
    pthread_barrier_wait(user->may_end);
    return NULL;
}

TEST(line_38_all_of_it_after_four_threads)
{
    struct stack stack = arena_of("arena_size=8MiB");
    struct arena_user users[4];
    pthread_barrier_t is_done, may_end;
    struct rs_allocation whole;

    pthread_barrier_init(&is_done, NULL, 5);
    pthread_barrier_init(&may_end, NULL, 5);
    for (unsigned i = 0; i < 4; i++) {
        users[i] = (struct arena_user){.mr = stack.mr, .is_done = &is_done, .may_end = &may_end};
        assert_int_equal(pthread_create(&users[i].thread, NULL, use_arena, &users[i]), 0);
    }
    pthread_barrier_wait(&is_done);
    assert_int_equal(counter(stack.mr, "arena", "superblocks"), 4);
    whole = take(&stack, 8 * MIB);
    pthread_barrier_wait(&may_end);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(users[i].thread, NULL);
        assert_true(users[i].good);
    }
    give(&stack, &whole);
    end(&stack);
    pthread_barrier_destroy(&is_done);
    pthread_barrier_destroy(&may_end);
}

TEST(line_41_size_classes)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena,
                                    OPTIONS("arena_size=64MiB", "size_classes=1"));
    struct rs_allocation first = take(&stack, 17 * KIB), second = take(&stack, 17 * KIB);

    assert_int_equal(rs_size_class(8), 256);
    assert_int_equal(rs_size_class(264), 512);
    assert_int_equal(rs_size_class(2048), 2048);
    assert_int_equal(rs_size_class(2049), 2560);
    assert_int_equal(rs_size_class(17 * KIB), 20 * KIB);
    assert_int_equal(rs_size_class(54 * KIB), 56 * KIB);
    assert_int_equal(rs_size_class(13 * MIB), 14 * MIB);
    assert_int_equal(rs_size_class(2500 * MIB), 2560 * MIB);
    assert_int_equal(rs_size_class(256 * GIB), 256 * GIB);
    assert_int_equal(rs_size_class(PIB), SIZE_MAX);
    assert_int_equal(second.address, first.address + 20 * KIB);
    refuse(&stack, PIB);
    end(&stack);
}

/* ---- binning, fixed_size ---- */

TEST(line_42_a_bin_serves_smaller_requests)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_binning,
                                    OPTIONS("minimum_size=1KiB", "maximum_size=1KiB"));
    struct rs_allocation allocation = take(&stack, 100);

    assert_int_equal(stack.leaf->live_bytes, 8 * KIB);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_44_above_the_largest_bin_goes_upstream)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_binning,
                                    OPTIONS("minimum_size=1KiB", "maximum_size=128KiB"));
    struct rs_allocation allocation = take(&stack, 128 * MIB);

    assert_int_equal(stack.leaf->live_bytes, 128 * MIB);
    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_bytes, 0);
    end(&stack);
}

static const struct rs_environment placing_place = {.device = PLACING_DEVICE,
                                                    .context = PLACING_CONTEXT};

TEST(line_45_bins_work_over_any_resource)
{
    struct fake_leaf *leaf;
    struct rs_mr *headroom;
    struct stack stack;
    int error;

    for (int memory = 0; memory < RS_MEMORIES; memory++) {
        placing_start(false);
        placing.free_bytes = GIB;
        leaf = placing_leaf((enum rs_memory)memory);
        headroom = make_resource_at(&placing_place, &rs_mr_descriptor_headroom, &leaf->base,
                                    OPTIONS("headroom=512MiB"), &error);
        stack = (struct stack){leaf, over(&rs_mr_descriptor_binning, headroom,
                                          OPTIONS("minimum_size=1KiB", "maximum_size=128KiB"))};
        for (size_t size_bytes = 1; size_bytes < MIB; size_bytes *= 3) {
            struct rs_allocation allocation = take(&stack, size_bytes);
            give(&stack, &allocation);
        }
        end(&stack);
    }
}

TEST(line_46_fixed_size_refuses_larger_and_grows)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_fixed_size,
                                    OPTIONS("block_size=1MiB", "blocks_to_preallocate=2"));
    struct rs_allocation blocks[3];

    refuse(&stack, MIB + 1);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = take(&stack, MIB);
    assert_int_not_equal(blocks[0].address, blocks[1].address);
    assert_int_equal(stack.leaf->allocations, 2);
    end(&stack);
}

/* ---- prefetch, headroom ---- */

static struct rs_own_stream placing_stream;

static struct stack prefetching_stack(enum rs_memory memory)
{
    static const struct rs_environment environment = {
        .device = PLACING_DEVICE, .context = PLACING_CONTEXT, .own_stream = &placing_stream};
    struct stack stack;
    int error;

    placing_start(false);
    placing_stream = (struct rs_own_stream){NULL};
    stack.leaf = placing_leaf(memory);
    stack.mr =
        make_resource_at(&environment, &rs_mr_descriptor_prefetch, &stack.leaf->base, NULL, &error);
    return stack;
}

/* The driver's view of the last prefetch is the gpu suite's; here: what it is told. */
TEST(line_53_each_block_is_prefetched_to_the_device)
{
    struct stack stack = prefetching_stack(RS_MEMORY_MANAGED);
    struct rs_allocation allocation = take(&stack, MIB);

    assert_int_equal(placing.count, 1);
    assert_placed(0, PREFETCH, allocation.address, MIB, PLACING_DEVICE);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_54_other_memory_is_not_prefetched_and_no_error)
{
    struct stack stack = prefetching_stack(RS_MEMORY_HOST);
    struct rs_allocation allocation;

    placing.answer = CUDA_ERROR_INVALID_VALUE; /* the driver's for memory that is not managed */
    allocation = take(&stack, MIB);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_55_headroom_above_all_free_memory_keeps_it_on_the_host)
{
    struct stack stack;
    struct rs_allocation allocation;
    int error;

    placing_start(false);
    placing.free_bytes = 80 * GIB - 1;
    stack.leaf = placing_leaf(RS_MEMORY_HOST);
    stack.mr = make_resource_at(&placing_place, rs_mr_find("sam_headroom", &"sam_headroom"[12]),
                                &stack.leaf->base, OPTIONS("headroom=80GiB"), &error);
    allocation = take(&stack, MIB);
    assert_int_equal(placing.count, 1);
    assert_placed(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, allocation.address, MIB, CU_DEVICE_CPU);
    give(&stack, &allocation);
    end(&stack);
}

/* ---- aligned ---- */

static bool alignment_is_valid(const char *alignment)
{
    char line[300];

    return options_are_valid(&rs_mr_descriptor_aligned, NULL, OPTIONS(alignment), line,
                             sizeof(line));
}

TEST(line_72_powers_of_two_only_and_small_ones_are_raised)
{
    static const char *const small[] = {"alignment=32", "alignment=64", "alignment=128"};

    assert_false(alignment_is_valid("alignment=255"));
    assert_false(alignment_is_valid("alignment=768"));
    assert_true(alignment_is_valid("alignment=256"));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned, OPTIONS(small[i]));
        assert_int_equal(take(&stack, 5).address % 256, 0);
        end(&stack);
    }
}

static void passes_through(const char *const *options, size_t size_bytes)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned, options);
    struct rs_allocation allocation = take(&stack, size_bytes);

    assert_int_equal(stack.leaf->live[0].address, allocation.address);
    assert_int_equal(stack.leaf->live[0].size_bytes, size_bytes);
    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_count, 0);
    end(&stack);
}

TEST(line_73_default_alignment_and_small_sizes_pass_unchanged)
{
    passes_through(NULL, 5);
    passes_through(OPTIONS("alignment=256"), 5);
    passes_through(OPTIONS("alignment=4096", "alignment_threshold=65536"), 65535);
}

/* RMM's numbers with its base alignment of 256 replaced by ours: it says + 3840. */
TEST(line_74_the_upstream_is_asked_for_room_and_gets_its_own_back)
{
    static const size_t asked[][2] = {{65536, 65536}, {73728, 73728}, {77800, 77824}};
    const size_t extra_bytes = 4096 - RS_BLOCK_ALIGNMENT;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(asked); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned,
                                        OPTIONS("alignment=4096", "alignment_threshold=65536"));
        struct rs_allocation allocation;

        stack.leaf->next_address = 0x10000200;
        allocation = take(&stack, asked[i][0]);
        assert_int_equal(stack.leaf->live[0].size_bytes, asked[i][1] + extra_bytes);
        assert_int_equal(allocation.address, 0x10001000);
        give(&stack, &allocation);
        assert_int_equal(stack.leaf->live_count, 0);
        assert_int_equal(stack.leaf->wrong_calls, 0);
        end(&stack);
    }
}

/* ---- fallback ---- */

static struct stack failing_stack(CUresult error, struct fake_leaf **second)
{
    struct stack stack = {.leaf = fake_leaf_create(DEVICE_BYTES)};
    int failed;

    *second = fake_leaf_create(DEVICE_BYTES);
    (*second)->next_address = (CUdeviceptr)1 << 40;
    stack.mr = make_resource_of_two(&fake_environment, &rs_mr_descriptor_fallback,
                                    &stack.leaf->base, &(*second)->base, NULL, &failed);
    stack.leaf->fail_at = 1;
    stack.leaf->fail_with = error;
    return stack;
}

TEST(line_75_the_second_is_asked_for_the_size_else_the_error_is_the_original)
{
    struct fake_leaf *second;
    struct stack stack = failing_stack(CUDA_ERROR_OUT_OF_MEMORY, &second);
    struct rs_allocation allocation = take(&stack, 5 * MIB);

    assert_int_equal(second->live[0].size_bytes, 5 * MIB);
    give(&stack, &allocation);
    assert_int_equal(second->live_count, 0);
    stack.leaf->capacity_bytes = second->capacity_bytes = 0;
    refuse(&stack, MIB);
    end(&stack);
}

TEST(line_76_only_out_of_memory_falls_back_and_new_errors_surface)
{
    struct rs_allocation allocation;
    struct fake_leaf *second;
    struct stack stack = failing_stack(CUDA_ERROR_UNKNOWN, &second);

    assert_int_equal(rs_mr_allocate(stack.mr, MIB, NULL, &allocation), CUDA_ERROR_UNKNOWN);
    assert_int_equal(second->allocations + second->refusals, 0);
    end(&stack);
    stack = failing_stack(CUDA_ERROR_OUT_OF_MEMORY, &second);
    second->fail_at = 1;
    second->fail_with = CUDA_ERROR_ILLEGAL_STATE;
    assert_int_equal(rs_mr_allocate(stack.mr, MIB, NULL, &allocation), CUDA_ERROR_ILLEGAL_STATE);
    end(&stack);
}

/* ---- limiting ---- */

static uint64_t used(struct rs_mr *mr)
{
    return counter(mr, "limiting", "live");
}

TEST(line_56_one_byte_above_the_limit_is_refused)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));

    refuse(&stack, 10 * MIB + 1);
    assert_int_equal(used(stack.mr), 0);
    end(&stack);
}

TEST(line_57_an_inner_refusal_passes_through)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=5MiB"));
    struct rs_mr *inner = stack.mr;

    stack.mr = over(&rs_mr_descriptor_limiting, inner, OPTIONS("limit=10MiB"));
    (void)take(&stack, MIB);
    refuse(&stack, 5 * MIB);
    assert_int_equal(used(stack.mr), MIB);
    assert_int_equal(used(inner), MIB);
    end(&stack);
}

TEST(line_58_fills_exactly_and_counts_each_step)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));
    struct rs_allocation first = take(&stack, 4 * MIB), second = take(&stack, 4 * MIB), third;

    assert_int_equal(used(stack.mr), 8 * MIB);
    give(&stack, &first);
    assert_int_equal(used(stack.mr), 4 * MIB);
    third = take(&stack, 6 * MIB);
    assert_int_equal(used(stack.mr), 10 * MIB);
    give(&stack, &second);
    give(&stack, &third);
    assert_int_equal(used(stack.mr), 0);
    end(&stack);
}

TEST(line_59_a_refusal_leaves_the_counters)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));

    (void)take(&stack, 4 * MIB);
    refuse(&stack, 7 * MIB);
    assert_int_equal(used(stack.mr), 4 * MIB);
    (void)take(&stack, 6 * MIB);
    refuse(&stack, 1);
    assert_int_equal(used(stack.mr), 10 * MIB);
    end(&stack);
}

/* ---- logging ---- */

static void read_and_remove(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "r");
    size_t length;

    assert_non_null(file);
    length = fread(text, 1, text_bytes - 1, file);
    text[length] = '\0';
    fclose(file);
    unlink(path);
}

TEST(line_40_a_failure_writes_the_dump)
{
    char path[] = "/tmp/rmmshim-conformance-XXXXXX", option[64], text[2000];
    int fd = mkstemp(path);
    struct stack stack;

    assert_true(fd >= 0);
    close(fd);
    snprintf(option, sizeof(option), "dump_path=%s", path);
    stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_arena,
                       OPTIONS("arena_size=8MiB", "dump_log_on_failure=1", option));
    (void)take(&stack, 1000);
    (void)take(&stack, 2 * MIB);
    refuse(&stack, 6 * MIB);
    read_and_remove(path, text, sizeof(text));
    assert_non_null(strstr(text, "no room for 6MiB"));
    assert_non_null(strstr(text, "global arena: free 5MiB, largest free 5MiB, fragmentation 0 %"));
    assert_non_null(strstr(text, "2MiB block"));
    assert_non_null(strstr(text, ": 1 blocks, free "));
    end(&stack);
}

/* Takes a row of *text apart and compares all but thread and time. */
static void assert_row(char **text, const char *expected)
{
    char *row = strsep(text, "\n");

    assert_non_null(row);
    row = strchr(row, ',');
    assert_non_null(row);
    row = strchr(row + 1, ',');
    assert_non_null(row);
    assert_string_equal(row + 1, expected);
}

TEST(line_60_and_61_header_and_rows_are_exact)
{
    char path[] = "/tmp/rmmshim-conformance-XXXXXX", option[64], text[1000], expected[100];
    char *at = text;
    int fd = mkstemp(path);
    struct stack stack;
    struct rs_allocation first, second;

    assert_true(fd >= 0);
    close(fd);
    snprintf(option, sizeof(option), "path=%s", path);
    stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_logging, OPTIONS(option));
    first = take(&stack, 100);
    second = take(&stack, 42);
    give(&stack, &first);
    give(&stack, &second);
    refuse(&stack, (size_t)1 << 40);
    end(&stack);

    read_and_remove(path, text, sizeof(text));
    assert_string_equal(strsep(&at, "\n"), "Thread,Time,Action,Pointer,Size,Stream");
    snprintf(expected, sizeof(expected), "allocate,0x%llx,100,0", first.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "allocate,0x%llx,42,0", second.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "free,0x%llx,100,0", first.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "free,0x%llx,42,0", second.address);
    assert_row(&at, expected);
    assert_row(&at, "allocate failure,(nil),1099511627776,0");
    assert_string_equal(at, "");
}

/* ---- statistics ---- */

static void assert_counters(struct rs_mr *mr, int64_t mib, int64_t peak_mib, int64_t total_mib,
                            int64_t count, int64_t peak_count, int64_t total_count)
{
    struct rs_statistics_level level;
    const int64_t mib_bytes = (int64_t)MIB;

    rs_statistics_get(mr, &level);
    assert_int_equal(level.bytes.live, mib * mib_bytes);
    assert_int_equal(level.bytes.peak, peak_mib * mib_bytes);
    assert_int_equal(level.bytes.total, total_mib * mib_bytes);
    assert_int_equal(level.allocations.live, count);
    assert_int_equal(level.allocations.peak, peak_count);
    assert_int_equal(level.allocations.total, total_count);
}

TEST(line_64_all_zero_at_start_and_value_zero_at_end)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation allocation;

    assert_counters(stack.mr, 0, 0, 0, 0, 0, 0);
    allocation = take(&stack, 10 * MIB);
    give(&stack, &allocation);
    assert_counters(stack.mr, 0, 10, 10, 0, 1, 1);
    end(&stack);
}

TEST(line_65_peak_and_total_of_ten_blocks)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation blocks[20];

    for (unsigned i = 0; i < 10; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 0; i < 10; i += 2)
        give(&stack, &blocks[i]);
    assert_counters(stack.mr, 50, 100, 100, 5, 10, 10);
    for (unsigned i = 10; i < 20; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 1; i < 20; i += i < 9 ? 2 : 1)
        give(&stack, &blocks[i]);
    assert_counters(stack.mr, 0, 150, 200, 0, 15, 20);
    end(&stack);
}

TEST(line_66_stacked_adaptors_count_for_themselves)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct stack inner = stack;
    struct rs_allocation blocks[10];

    stack.mr = over(&rs_mr_descriptor_statistics, inner.mr, NULL);
    for (unsigned i = 0; i < 10; i++)
        blocks[i] = take(i % 2 ? &inner : &stack, 10 * MIB);
    assert_counters(stack.mr, 50, 50, 50, 5, 5, 5);
    assert_counters(inner.mr, 100, 100, 100, 10, 10, 10);
    for (unsigned i = 0; i < 10; i++)
        give(&stack, &blocks[i]); /* half of them foreign to the outer one */
    assert_counters(stack.mr, -50, 50, 50, -5, 5, 5);
    assert_counters(inner.mr, 0, 100, 100, 0, 10, 10);
    end(&stack);
}

TEST(line_67_push_and_pop)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_statistics_level level;
    struct rs_allocation first = take(&stack, 10 * MIB), second;

    assert_int_equal(rs_statistics_push(stack.mr, &level), 0);
    assert_int_equal(level.bytes.live, 10 * MIB);
    assert_counters(stack.mr, 0, 0, 0, 0, 0, 0);
    second = take(&stack, 5 * MIB);
    give(&stack, &second);
    assert_int_equal(rs_statistics_pop(stack.mr, &level), 0);
    assert_int_equal(level.bytes.peak, 5 * MIB);
    assert_counters(stack.mr, 10, 15, 15, 1, 2, 2);
    assert_int_equal(rs_statistics_pop(stack.mr, &level), -ERANGE);
    give(&stack, &first);
    end(&stack);
}

/* An upstream that, inside a free and before it returns, lets another thread allocate and free, as
 * a real one may give the address out again at once. */
static struct rs_mr *reused;
static void (*look_inside_free)(void);
static uint64_t live_inside_free, live_count_inside_free;
static CUresult (*real_deallocate)(struct rs_mr *, const struct rs_allocation *, CUstream);

static CUresult free_slowly(struct rs_mr *mr, const struct rs_allocation *allocation,
                            CUstream stream)
{
    CUresult result = real_deallocate(mr, allocation, stream);
    struct rs_allocation again;

    mr->ops.deallocate = real_deallocate;
    if (rs_mr_allocate(reused, allocation->size_bytes, stream, &again) == CUDA_SUCCESS) {
        look_inside_free();
        (void)rs_mr_deallocate(reused, &again, stream);
    }
    return result;
}

static void free_and_look(struct stack *stack, const struct rs_allocation *allocation,
                          void (*look)(void))
{
    reused = stack->mr;
    look_inside_free = look;
    live_inside_free = live_count_inside_free = 0;
    real_deallocate = stack->leaf->base.ops.deallocate;
    stack->leaf->base.ops.deallocate = free_slowly;
    give(stack, allocation);
}

static void look_at_statistics(void)
{
    live_inside_free = counter(reused, "statistics", "live");
    live_count_inside_free = counter(reused, "statistics", "live_allocations");
}

TEST(line_68_memory_reused_during_its_free_is_not_live_twice)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_statistics, NULL);
    struct rs_allocation allocation = take(&stack, 10 * MIB);

    free_and_look(&stack, &allocation, look_at_statistics);
    assert_int_equal(live_inside_free, 10 * MIB);
    assert_int_equal(live_count_inside_free, 1);
    assert_counters(stack.mr, 0, 10, 20, 0, 1, 2);
    end(&stack);
}

/* ---- tracking ---- */

static void count_site(void *data, const struct rs_tracked *tracked)
{
    *(unsigned *)data += tracked->site != NULL;
}

static unsigned sites(struct rs_mr *mr)
{
    unsigned count = 0;

    rs_tracking_each(mr, count_site, &count);
    return count;
}

static void assert_tracked(struct rs_mr *mr, uint64_t mebibytes, uint64_t blocks)
{
    assert_int_equal(counter(mr, "tracking", "live"), mebibytes * MIB);
    assert_int_equal(counter(mr, "tracking", "live_allocations"), blocks);
}

TEST(line_69_live_blocks_are_exact_and_have_stacks_when_asked)
{
    static const char *const options[] = {"capture_stacks=0", "capture_stacks=1"};

    for (unsigned asked = 0; asked < 2; asked++) {
        struct stack stack =
            stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, OPTIONS(options[asked]));
        struct rs_allocation blocks[10];
        for (unsigned i = 0; i < 10; i++)
            blocks[i] = take(&stack, 10 * MIB);
        for (unsigned i = 0; i < 10; i += 2)
            give(&stack, &blocks[i]);
        assert_tracked(stack.mr, 50, 5);
        assert_int_equal(sites(stack.mr), asked ? 5 : 0);
        for (unsigned i = 1; i < 10; i += 2)
            give(&stack, &blocks[i]);
        assert_tracked(stack.mr, 0, 0);
        end(&stack);
    }
}

/* A block that was never allocated here cannot come (its token would not be ours); a wrong size
 * can. */
TEST(line_70_a_free_with_a_wrong_size_keeps_totals_right)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct rs_allocation first = take(&stack, 10 * MIB), second = take(&stack, 10 * MIB);

    first.size_bytes = 5 * MIB;
    give(&stack, &first);
    assert_tracked(stack.mr, 10, 1);
    second.size_bytes = 100 * MIB;
    give(&stack, &second);
    assert_tracked(stack.mr, 0, 0);
    assert_int_equal(stack.leaf->wrong_calls, 0); /* upstream heard the right ones */
    end(&stack);
}

TEST(line_71_nested_trackers_are_independent)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct stack inner = stack;
    struct rs_allocation outer_blocks[5], inner_blocks[5];

    stack.mr = over(&rs_mr_descriptor_tracking, inner.mr, NULL);
    for (unsigned i = 0; i < 5; i++) {
        outer_blocks[i] = take(&stack, 10 * MIB);
        inner_blocks[i] = take(&inner, 10 * MIB);
    }
    assert_tracked(stack.mr, 50, 5);
    assert_tracked(inner.mr, 100, 10);
    for (unsigned i = 0; i < 5; i++)
        give(&stack, &outer_blocks[i]);
    assert_tracked(stack.mr, 0, 0);
    assert_tracked(inner.mr, 50, 5);
    for (unsigned i = 0; i < 5; i++)
        give(&inner, &inner_blocks[i]);
    assert_tracked(inner.mr, 0, 0);
    end(&stack);
}

static void look_at_tracking(void)
{
    live_inside_free = counter(reused, "tracking", "live");
    live_count_inside_free = counter(reused, "tracking", "live_allocations");
}

TEST(line_71_memory_reused_during_its_free_is_not_tracked_afterwards)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_tracking, NULL);
    struct rs_allocation allocation = take(&stack, 10 * MIB);

    free_and_look(&stack, &allocation, look_at_tracking);
    assert_int_equal(live_inside_free, 10 * MIB);
    assert_int_equal(live_count_inside_free, 1);
    assert_tracked(stack.mr, 0, 0);
    end(&stack);
}
