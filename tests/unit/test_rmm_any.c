/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's own tests of any resource, on stacks of each kind. */
#include "rmm_stack.h"

#include "fake_vmm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

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

TEST_EACH(line_8_one_thread_allocates_another_frees)
{
    struct stack stack = stack_of(state);
    struct hand_over hand_over = {.mr = stack.mr};
    pthread_t thread;
    void *result;

    assert_int_equal(pthread_create(&thread, NULL, consume, &hand_over), 0);
    for (unsigned i = 0; i < HANDED_OVER; i++) {
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
