/* SPDX-License-Identifier: Apache-2.0 */
/* binning: which bin serves which size. */
#include "unit.h"

#include "resource/report.h"
#include "stack.h"

#include <string.h>

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

static struct stack make_binning(size_t capacity_bytes, const char *const *options)
{
    return make_stack(&rs_mr_descriptor_binning, capacity_bytes, options);
}

/* How much the upstream gave for one request: eight blocks of a bin, or the request itself. */
static size_t taken_with(const char *const *options, size_t size_bytes)
{
    struct stack stack = make_binning(PLENTY, options);
    struct rs_allocation allocation = take(&stack, size_bytes);
    size_t taken_bytes = stack.leaf->live_bytes;

    give(&stack, &allocation);
    end_stack(&stack);
    return taken_bytes;
}

static size_t taken_upstream(size_t size_bytes)
{
    return taken_with(OPTIONS("minimum_size=256KiB", "maximum_size=4MiB"), size_bytes);
}

static size_t taken_from_a_list(size_t size_bytes)
{
    return taken_with(OPTIONS("bins=1MiB+300000+256KiB+5MiB"), size_bytes);
}

/* Blocks are multiples of 512 bytes: 300000 becomes 300032, and serves that too. */
TEST(bins_of_any_size_serve_what_fits)
{
    assert_int_equal(taken_from_a_list(1), 8 * 256 * KIB);
    assert_int_equal(taken_from_a_list(256 * KIB), 8 * 256 * KIB);
    assert_int_equal(taken_from_a_list(256 * KIB + 1), 8 * 300032);
    assert_int_equal(taken_from_a_list(300000), 8 * 300032);
    assert_int_equal(taken_from_a_list(300032), 8 * 300032);
    assert_int_equal(taken_from_a_list(300033), 8 * MIB);
    assert_int_equal(taken_from_a_list(512 * KIB), 8 * MIB);
    assert_int_equal(taken_from_a_list(MIB), 8 * MIB);
    assert_int_equal(taken_from_a_list(MIB + 1), 40 * MIB);
    assert_int_equal(taken_from_a_list(4 * MIB + 1), 40 * MIB);
    assert_int_equal(taken_from_a_list(5 * MIB), 40 * MIB);
    assert_int_equal(taken_from_a_list(5 * MIB + 1), 5 * MIB + 1);
}

/* Three in one doubling, which has one place in the table. */
TEST(bins_close_to_each_other_are_told_apart)
{
    static const char *const options[] = {"bins=1100KiB+1200KiB+1300KiB", NULL};

    assert_int_equal(taken_with(options, 1), 8 * 1100 * KIB);
    assert_int_equal(taken_with(options, 1100 * KIB), 8 * 1100 * KIB);
    assert_int_equal(taken_with(options, 1100 * KIB + 1), 8 * 1200 * KIB);
    assert_int_equal(taken_with(options, 1200 * KIB + 1), 8 * 1300 * KIB);
    assert_int_equal(taken_with(options, 1300 * KIB), 8 * 1300 * KIB);
    assert_int_equal(taken_with(options, 1300 * KIB + 1), 1300 * KIB + 1);
    assert_int_equal(taken_with(options, 2 * MIB), 2 * MIB);
}

TEST(a_list_joins_the_powers_of_two)
{
    static const char *const options[] = {"minimum_size=256KiB", "maximum_size=1MiB",
                                          "bins=300000+1MiB+3MiB", "blocks_to_preallocate=2", NULL};
    struct stack stack = make_binning(PLENTY, options);
    struct rs_report report = {.count = 0};

    assert_int_equal(taken_with(options, 256 * KIB), 2 * 256 * KIB);
    assert_int_equal(taken_with(options, 300000), 2 * 300032);
    assert_int_equal(taken_with(options, 300033), 2 * 512 * KIB);
    assert_int_equal(taken_with(options, MIB), 2 * MIB);
    assert_int_equal(taken_with(options, 2 * MIB), 6 * MIB);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 5); /* 1 MiB is one of them */
    end_stack(&stack);
}

TEST(the_smallest_bin_that_fits_serves)
{
    assert_int_equal(taken_upstream(1), 8 * 256 * KIB);
    assert_int_equal(taken_upstream(256 * KIB), 8 * 256 * KIB);
    assert_int_equal(taken_upstream(256 * KIB + 1), 8 * 512 * KIB);
    assert_int_equal(taken_upstream(MIB), 8 * MIB);
    assert_int_equal(taken_upstream(4 * MIB - 1), 32 * MIB);
    assert_int_equal(taken_upstream(4 * MIB), 32 * MIB);
}

TEST(above_the_largest_bin_the_upstream_serves)
{
    assert_int_equal(taken_upstream(4 * MIB + 1), 4 * MIB + 1);
    assert_int_equal(taken_upstream(128 * MIB), 128 * MIB);
}

TEST(bins_take_nothing_before_their_first_use)
{
    struct stack stack = make_binning(PLENTY, OPTIONS("minimum_size=256KiB", "maximum_size=4MiB"));

    assert_int_equal(stack.leaf->allocations, 0);
    end_stack(&stack);
}

TEST(without_sizes_there_are_no_bins)
{
    struct stack stack = make_binning(PLENTY, NULL);
    struct rs_allocation allocation = take(&stack, 1000);

    assert_int_equal(stack.leaf->live_bytes, 1000);
    give(&stack, &allocation);
    end_stack(&stack);
}

TEST(rmms_exponents_are_understood)
{
    struct stack stack = make_binning(
        PLENTY, OPTIONS("min_size_exponent=18", "max_size_exponent=22", "blocks_to_preallocate=1"));

    (void)take(&stack, 1);
    assert_int_equal(stack.leaf->live_bytes, 256 * KIB);
    end_stack(&stack);
}

TEST(bins_below_the_alignment_are_one)
{
    struct stack stack = make_binning(
        PLENTY, OPTIONS("minimum_size=1", "maximum_size=1KiB", "blocks_to_preallocate=1"));
    struct rs_report report = {.count = 0};

    (void)take(&stack, 1);
    assert_int_equal(stack.leaf->live_bytes, 512);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 2);
    end_stack(&stack);
}

TEST(bins_give_way_before_out_of_memory)
{
    struct stack stack = make_binning(16 * MIB, OPTIONS("minimum_size=1MiB", "maximum_size=2MiB"));
    struct rs_allocation allocation = take(&stack, 1);

    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_bytes, 8 * MIB);
    allocation = take(&stack, 12 * MIB); /* past the bins */
    assert_int_equal(stack.leaf->live_bytes, 12 * MIB);
    give(&stack, &allocation);
    for (unsigned i = 0; i < 8; i++) /* the other bin */
        (void)take(&stack, 2 * MIB);
    end_stack(&stack);
}

TEST(contradicting_options_are_diagnosed)
{
    static const char *const wrong[][3] = {
        {"minimum_size=1KiB"},
        {"maximum_size=1KiB"},
        {"minimum_size=1000", "maximum_size=1MiB"},
        {"minimum_size=1KiB", "maximum_size=1MB"},
        {"minimum_size=1MiB", "maximum_size=1KiB"},
        {"minimum_size=1KiB", "max_size_exponent=63"},
        {"minimum_size=1KiB", "bins=1MiB"},
        {"bins=0"},
        {"bins=2TiB"},
        {"bins=1MiB+1024KiB"},
    };
    char line[300];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(wrong); i++)
        assert_false(
            options_are_valid(&rs_mr_descriptor_binning, NULL, wrong[i], line, sizeof(line)));
}

TEST(the_report_adds_the_bins_up)
{
    struct stack stack = make_binning(PLENTY, OPTIONS("minimum_size=1KiB", "maximum_size=4KiB"));
    struct rs_report report = {.count = 0};

    (void)take(&stack, KIB);
    (void)take(&stack, 4 * KIB);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 35 * KIB);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 3);
    assert_int_equal(rs_report_value(&report, "fixed_size", "held", 0), 40 * KIB);
    assert_int_equal(rs_report_value(&report, "fixed_size", "live", 0), 5 * KIB);
    assert_int_equal(rs_report_value(&report, "fixed_size", "allocations", 0), 2);
    end_stack(&stack);
}

/* ---- bins with resources of their own ---- */

/* Over the upstream, and two more beneath a bin each: for 64 KiB a pool, for 1 MiB a leaf. */
struct own {
    struct stack stack;
    struct fake_leaf *leaves[2];
    struct rs_mr *pool;
};

static struct rs_mr *make_bin(struct rs_mr *upstream, const char *size)
{
    return make_resource(&rs_mr_descriptor_bin, upstream, OPTIONS(size));
}

static struct own make_own(size_t capacity_bytes, const char *const *options)
{
    struct own own = {.stack.leaf = fake_leaf_create(capacity_bytes),
                      .leaves = {fake_leaf_create(capacity_bytes), fake_leaf_create(PLENTY)}};
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX] = {&own.stack.leaf->base};
    int error;

    own.leaves[0]->next_address += (CUdeviceptr)1 << 44;
    own.leaves[1]->next_address += (CUdeviceptr)2 << 44;
    own.pool = make_resource(&rs_mr_descriptor_pool, &own.leaves[0]->base, NULL);
    upstream[1] = make_bin(own.pool, "size=64KiB");
    upstream[2] = make_bin(&own.leaves[1]->base, "size=1MiB");
    own.stack.mr =
        make_resource_over(&fake_environment, &rs_mr_descriptor_binning, upstream, options, &error);
    assert_int_equal(error, 0);
    return own;
}

static void end_own(struct own *own)
{
    assert_true(rs_mr_check(own->stack.mr));
    assert_int_equal(own->stack.leaf->wrong_calls + own->leaves[0]->wrong_calls +
                         own->leaves[1]->wrong_calls,
                     0);
    rs_mr_destroy(own->stack.mr, false); /* the leaves too */
}

/* Which of the three a request of this size goes to: it takes from that alone, and gives back
 * there.
 */
static int served_by(struct own *own, size_t size_bytes)
{
    const uint64_t before[] = {own->stack.leaf->live_bytes, own->leaves[0]->live_bytes,
                               own->leaves[1]->live_bytes};
    struct rs_allocation allocation = take(&own->stack, size_bytes);
    int leaf = fake_leaf_owns(own->stack.leaf, allocation.address, size_bytes)  ? 0
               : fake_leaf_owns(own->leaves[0], allocation.address, size_bytes) ? 1
                                                                                : 2;

    assert_true(leaf != 2 || fake_leaf_owns(own->leaves[1], allocation.address, size_bytes));
    give(&own->stack, &allocation);
    (void)rs_mr_trim(own->stack.mr, 0);
    assert_int_equal(own->stack.leaf->live_bytes, before[0]);
    assert_int_equal(own->leaves[0]->live_bytes, before[1]);
    assert_int_equal(own->leaves[1]->live_bytes, before[2]);
    return leaf;
}

TEST(a_bin_may_have_a_resource_of_its_own)
{
    struct own own = make_own(PLENTY, NULL);

    assert_int_equal(served_by(&own, 1), 1);
    assert_int_equal(served_by(&own, 64 * KIB), 1);
    assert_int_equal(served_by(&own, 64 * KIB + 1), 2);
    assert_int_equal(served_by(&own, MIB), 2);
    assert_int_equal(served_by(&own, MIB + 1), 0);
    end_own(&own);
}

TEST(it_takes_the_place_of_one_of_blocks)
{
    struct own own = make_own(
        PLENTY, OPTIONS("minimum_size=4KiB", "maximum_size=2MiB", "bins=64KiB+65000+200000"));
    struct rs_report report = {.count = 0};

    assert_int_equal(served_by(&own, 4 * KIB), 0);
    assert_int_equal(served_by(&own, 32 * KIB), 0);
    assert_int_equal(served_by(&own, 65000), 0); /* before 64 KiB, that is 65536 */
    assert_int_equal(served_by(&own, 64 * KIB), 1);
    assert_int_equal(served_by(&own, 200000), 0);
    assert_int_equal(served_by(&own, 512 * KIB), 0);
    assert_int_equal(served_by(&own, MIB), 2);
    assert_int_equal(served_by(&own, 2 * MIB), 0);
    own.stack.mr->ops.report(own.stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 12);
    end_own(&own);
}

/* What it keeps counts once, and goes back like what others keep. */
TEST(its_idle_memory_counts_and_gives_way)
{
    struct own own = make_own(16 * MIB, OPTIONS("bins=32KiB"));
    struct rs_allocation allocation = take(&own.stack, 64 * KIB);
    size_t idle_bytes;

    give(&own.stack, &allocation);
    idle_bytes = own.leaves[0]->live_bytes;
    assert_true(idle_bytes >= 64 * KIB);
    assert_int_equal(rs_mr_idle_bytes(own.stack.mr), idle_bytes);
    assert_int_equal(rs_mr_idle_bytes_best(own.stack.mr), idle_bytes);
    assert_int_equal(rs_mr_free_blocks(own.stack.mr), 1);
    allocation = take(&own.stack, 10 * KIB); /* of blocks: eight at once */
    give(&own.stack, &allocation);
    assert_int_equal(rs_mr_idle_bytes(own.stack.mr), idle_bytes + 8 * 32 * KIB);
    allocation = take(&own.stack, 16 * MIB); /* the upstream's: the blocks were in the way */
    give(&own.stack, &allocation);
    assert_int_equal(own.leaves[0]->live_bytes, 0);
    end_own(&own);
}

/* Another thread's may take it meanwhile, so that no one may be told that nothing can grow. */
TEST(what_may_grow_is_the_best_of_all)
{
    struct fake_leaf *leaves[] = {fake_leaf_create(PLENTY), fake_leaf_create(PLENTY)};
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX] = {NULL};
    struct rs_mr *mr;
    int error;

    upstream[0] =
        make_resource(&rs_mr_descriptor_pool, &leaves[0]->base, OPTIONS("maximum_size=1MiB"));
    upstream[1] = make_bin(
        make_resource(&rs_mr_descriptor_pool, &leaves[1]->base, OPTIONS("maximum_size=4MiB")),
        "size=1KiB");
    mr = make_resource_over(&fake_environment, &rs_mr_descriptor_binning, upstream, NULL, &error);
    assert_int_equal(rs_mr_growable_bytes_best(mr), 4 * MIB);
    rs_mr_destroy(mr, false);
}

TEST(a_bin_alone_refuses_what_is_larger)
{
    struct stack stack = make_stack(&rs_mr_descriptor_bin, PLENTY, OPTIONS("size=1000"));
    struct rs_allocation allocation = take(&stack, 1024); /* rounded up as blocks are */

    give(&stack, &allocation);
    assert_int_equal(rs_mr_allocate(stack.mr, 1025, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 1025, NULL, RS_EFFORT_BEST, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 1025, NULL, RS_EFFORT_LITTLE, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(rs_mr_allocate_with(stack.mr, 1025, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(stack.leaf->allocations, 1);
    end_stack(&stack);
}
