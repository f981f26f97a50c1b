/* SPDX-License-Identifier: Apache-2.0 */
/* The pool and its index of free blocks against plain models, in random steps. */
#include "pool_stack.h"
#include "random_workload.h"
#include "resource/ranges.h"

#include <string.h>

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

TEST(index_finds_what_a_plain_search_finds)
{
    enum { BLOCKS = 400, STEPS = 10000 };
    static struct rs_block_index index;
    static struct rs_block blocks[BLOCKS];
    const struct rs_block *largest;
    size_t free_count = 0, counted;
    uint64_t seed = 99;

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

TEST(index_holds_sizes_to_the_largest)
{
    static const size_t sizes[] = {1, 512, 513, SIZE_MAX / 2, SIZE_MAX - 511, SIZE_MAX};
    static struct rs_block_index index;
    struct rs_block blocks[RS_ARRAY_LENGTH(sizes)];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        blocks[i] = (struct rs_block){.address = 512 * i, .size_bytes = sizes[i], .is_free = true};
        rs_block_index_insert(&index, &blocks[i]);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        assert_ptr_equal(rs_block_index_best_fit(&index, sizes[i]), &blocks[i]);
        assert_ptr_equal(rs_block_index_largest(&index), &blocks[RS_ARRAY_LENGTH(sizes) - 1]);
    }
}

static unsigned height_of(const struct rs_block *tree)
{
    unsigned left, right;

    if (!tree)
        return 0;
    left = height_of(tree->left);
    right = height_of(tree->right);
    return 1 + (left > right ? left : right);
}

TEST(index_stays_shallow_whatever_the_distances)
{
    enum { BLOCKS = 1 << 14 };
    static struct rs_block_index index;
    static struct rs_block blocks[BLOCKS];
    static const size_t distances[] = {512,     1024,       4096,
                                       1 << 20, 1597 * 512, 0x9e3779b97f4aull * 512};
    size_t highest;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(distances); i++) {
        memset(&index, 0, sizeof(index));
        for (size_t j = 0; j < BLOCKS; j++) {
            blocks[j] = (struct rs_block){
                .address = distances[i] * (j + 1), .size_bytes = 512, .is_free = true};
            rs_block_index_insert(&index, &blocks[j]);
        }
        highest = 0;
        for (size_t class = 0; class < RS_BLOCK_CLASSES; class ++)
            highest = rs_max(highest, height_of(index.roots[class]));
        assert_in_range(highest, 14, 60);
    }
}

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
    enum { LIVE = 300, STEPS = 2000 };
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

TEST(every_step_is_the_best_fit_of_a_plain_list)
{
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
    enum { LIVE = 120, STEPS = 3000 };
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

TEST(nothing_overlaps_or_sticks_out_when_memory_is_short)
{
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
TEST(nothing_overlaps_where_both_ends_are_cut)
{
    for (uint64_t seed = 21; seed <= 25; seed++) {
        trace_in_little_memory(128 * MIB, GIB + GIB / 4, OPTIONS("initial_size=1GiB"), seed);
        trace_in_little_memory(700 * MIB, 4 * GIB,
                               OPTIONS("initial_size=2147484160", "maximum_size=3GiB"), seed);
    }
}

TEST(random_workload_is_rmms)
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

TEST(random_workload_runs_and_leaves_nothing)
{
    enum { ALLOCATIONS = 10000 };
    static size_t sizes[ALLOCATIONS];
    static struct rs_allocation live[ALLOCATIONS];
    struct stack stack = make_pool(PLENTY, NULL);
    struct random_workload workload;
    struct random_step step;

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
