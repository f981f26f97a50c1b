/* SPDX-License-Identifier: Apache-2.0 */
/* Every memory resource of the table over every other one, itself included, over the fake leaf.
 *
 * The fake leaf stands for all leaves, as they call the driver.  So do the few other resources that
 * subjects.h names.  Both are left to the tests with a device, and so are resources that read
 * blocks. A resource with two upstreams gets two of the other one, each over leaves of its own. */
#include "unit.h"

#include "fake_leaf.h"
#include "subjects.h"

#include <stdio.h>
#include <string.h>

#define MIB        ((size_t)1 << 20)
#define LEAF_BYTES (1024 * MIB)

/* ---- a resource over another one ---- */

enum {
    TOWER_MAX = 1 + RS_MR_UPSTREAMS_MAX,
    LEAVES_MAX = RS_MR_UPSTREAMS_MAX * RS_MR_UPSTREAMS_MAX
};

struct pair {
    const struct rs_mr_descriptor *top, *beneath;
};

struct tower {
    struct rs_mr *mr[TOWER_MAX]; /* the top is the last one */
    size_t count;
    struct fake_leaf *leaf[LEAVES_MAX];
    size_t leaf_count;
};

/* Options for a resource beside others, who ask it for megabytes. */
static const struct subject neighbours[] = {
    {"fixed_size", {"block_size=8MiB", "blocks_to_preallocate=2"}, false},
};

static const char *const *options_of(const struct rs_mr_descriptor *descriptor)
{
    const struct subject *subject = subject_of(descriptor);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(neighbours); i++)
        if (strcmp(neighbours[i].name, descriptor->name) == 0)
            return neighbours[i].options;
    return subject ? subject->options : NULL;
}

/* Leaves share no address. */
static struct rs_mr *add_leaf(struct tower *tower)
{
    struct fake_leaf *leaf = fake_leaf_create(LEAF_BYTES);

    leaf->next_address += (CUdeviceptr)tower->leaf_count << 44;
    tower->leaf[tower->leaf_count++] = leaf;
    return &leaf->base;
}

static struct rs_mr *build(struct tower *tower, const struct rs_mr_descriptor *descriptor,
                           const struct rs_mr_descriptor *beneath)
{
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX] = {NULL}, *mr;
    int error;

    for (unsigned i = 0; i < descriptor->upstream_count; i++)
        upstream[i] = beneath ? build(tower, beneath, NULL) : add_leaf(tower);
    mr = make_resource_of_two(&fake_environment, descriptor, upstream[0], upstream[1],
                              options_of(descriptor), &error);
    if (!mr)
        fail_msg("%s cannot be made (%d): has it a row in subjects.h?", descriptor->name, error);
    tower->mr[tower->count++] = mr;
    return mr;
}

static struct tower make_tower(const struct pair *pair)
{
    struct tower tower = {.count = 0};

    (void)build(&tower, pair->top, pair->beneath);
    return tower;
}

static struct rs_mr *top_of(const struct tower *tower)
{
    return tower->mr[tower->count - 1];
}

static void end_tower(struct tower *tower)
{
    assert_true(rs_mr_check(top_of(tower)));
    while (tower->count > 0) {
        struct rs_mr *mr = tower->mr[--tower->count];
        mr->ops.destroy(mr, false);
    }
    for (size_t i = 0; i < tower->leaf_count; i++) {
        assert_int_equal(tower->leaf[i]->live_count, 0);
        assert_int_equal(tower->leaf[i]->wrong_calls, 0);
        fake_leaf_destroy(tower->leaf[i]);
    }
}

/* ---- allocations ---- */

enum { LIVE_MAX = 24 };

struct live {
    struct rs_allocation allocation[LIVE_MAX];
    size_t count;
};

static bool is_owned(const struct tower *tower, const struct rs_allocation *allocation)
{
    for (size_t i = 0; i < tower->leaf_count; i++)
        if (fake_leaf_owns(tower->leaf[i], allocation->address, allocation->size_bytes))
            return true;
    return false;
}

static void check_new(const struct tower *tower, const struct live *live,
                      const struct rs_allocation *new)
{
    assert_int_equal(new->address % RS_BLOCK_ALIGNMENT, 0);
    assert_true(is_owned(tower, new));
    for (size_t i = 0; i < live->count; i++) {
        const struct rs_allocation *other = &live->allocation[i];
        assert_true(other->address + other->size_bytes <= new->address ||
                    new->address + new->size_bytes <= other->address);
    }
}

/* True when it was served; anything but out-of-memory is a failure. */
static bool take(const struct tower *tower, struct live *live, size_t size_bytes)
{
    static const struct rs_allocation untouched = {1, 2, NULL, NULL};
    struct rs_allocation allocation = untouched;
    CUresult result = rs_mr_allocate(top_of(tower), size_bytes, NULL, &allocation);

    if (result != CUDA_SUCCESS) {
        assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
        assert_memory_equal(&allocation, &untouched, sizeof(untouched));
        return false;
    }
    assert_int_equal(allocation.size_bytes, size_bytes);
    check_new(tower, live, &allocation);
    live->allocation[live->count++] = allocation;
    return true;
}

static void give(const struct tower *tower, struct live *live, size_t i)
{
    assert_int_equal(rs_mr_deallocate(top_of(tower), &live->allocation[i], NULL), CUDA_SUCCESS);
    live->allocation[i] = live->allocation[--live->count];
}

static void give_all(const struct tower *tower, struct live *live)
{
    while (live->count > 0)
        give(tower, live, live->count - 1);
}

/* From 1 byte to 8 MiB, every order of magnitude alike. */
static size_t random_size(uint64_t *seed)
{
    size_t most_bytes = (size_t)1 << test_random(seed) % 24;

    return 1 + test_random(seed) % most_bytes;
}

/* ---- tests ---- */

static void random_sizes(const struct tower *tower, struct live *live, uint64_t *seed)
{
    enum { STEPS = 400 };
    size_t served = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        if (live->count < LIVE_MAX && (live->count == 0 || test_random(seed) % 100 < 60))
            served += take(tower, live, random_size(seed));
        else
            give(tower, live, test_random(seed) % live->count);
        if (step % 50 == 49)
            (void)rs_mr_trim(top_of(tower), 0);
        if (step % 20 == 0)
            assert_true(rs_mr_check(top_of(tower)));
    }
    assert_true(served > STEPS / 4);
}

/* All that is held may be used up first. */
static void out_of_memory_comes_through(struct tower *tower, struct live *live)
{
    for (size_t i = 0; i < tower->leaf_count; i++)
        tower->leaf[i]->capacity_bytes = 0;
    while (live->count < LIVE_MAX && take(tower, live, 8 * MIB))
        ;
    assert_false(take(tower, live, 256 * MIB));
    assert_true(rs_mr_check(top_of(tower)));
    give_all(tower, live);
    for (size_t i = 0; i < tower->leaf_count; i++)
        tower->leaf[i]->capacity_bytes = LEAF_BYTES;
    assert_true(take(tower, live, 1000));
    assert_true(take(tower, live, 64 << 10));
    give_all(tower, live);
}

TEST_EACH(two_resources_work_over_each_other)
{
    struct tower tower = make_tower(*state);
    struct live live = {.count = 0};
    uint64_t seed = 1618033988;

    random_sizes(&tower, &live, &seed);
    out_of_memory_comes_through(&tower, &live);
    random_sizes(&tower, &live, &seed);
    give_all(&tower, &live);
    end_tower(&tower);
}

/* ---- the table ---- */

enum { RESOURCES_MAX = 32, PAIRS_MAX = RESOURCES_MAX * RESOURCES_MAX };

static bool is_tested_here(const struct rs_mr_descriptor *descriptor)
{
    return descriptor->upstream_count > 0 && !subject_needs_driver(descriptor) &&
           !subject_looks_inside(descriptor);
}

int unit_prepare(int argc, char **argv)
{
    static struct pair pairs[PAIRS_MAX];
    size_t count = 0;

    (void)argc;
    (void)argv;
    for (size_t i = 0; rs_mr_descriptors[i]; i++) {
        for (size_t j = 0; rs_mr_descriptors[j]; j++) {
            struct pair *pair = &pairs[count];
            *pair = (struct pair){rs_mr_descriptors[i], rs_mr_descriptors[j]};
            if (!is_tested_here(pair->top) || !is_tested_here(pair->beneath))
                continue;
            unit_add_case(pair, "%s over %s", pair->top->name, pair->beneath->name);
            count++; /* unit_add_case ends the program long before there are too many */
        }
    }
    return 0;
}
