/* SPDX-License-Identifier: Apache-2.0 */
/* aligned: the alignment, the size asked from upstream, and that upstream gets its own allocation
 * back. */
#include "stack.h"

#include "resource/report.h"

#include <string.h>

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

TEST(every_large_block_is_aligned)
{
    struct stack stack = make_stack(&rs_mr_descriptor_aligned, PLENTY,
                                    OPTIONS("alignment=2MiB", "alignment_threshold=1MiB"));
    struct rs_allocation live[40];
    uint64_t seed = 1;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(live); i++) {
        live[i] = take(&stack, MIB + test_random(&seed) % (3 * MIB));
        assert_int_equal(live[i].address % (2 * MIB), 0);
        assert_true(fake_leaf_owns(stack.leaf, live[i].address, live[i].size_bytes));
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(live); i++)
        give(&stack, &live[i]);
    end_stack(&stack);
}

TEST(below_the_threshold_nothing_changes)
{
    struct stack stack = make_stack(&rs_mr_descriptor_aligned, PLENTY,
                                    OPTIONS("alignment=64KiB", "alignment_threshold=10000"));
    struct rs_allocation small, large;

    small = take(&stack, 9999);
    assert_memory_equal(&small, &stack.leaf->live[0], sizeof(small));
    large = take(&stack, 10000);
    assert_int_equal(stack.leaf->live[1].size_bytes, 64 * KIB + 64 * KIB - 512);
    assert_int_equal(large.address % (64 * KIB), 0);
    give(&stack, &large);
    give(&stack, &small);
    end_stack(&stack);
}

TEST(an_upstream_that_is_aligned_by_chance_serves_from_its_beginning)
{
    struct stack stack = make_stack(&rs_mr_descriptor_aligned, PLENTY, OPTIONS("alignment=4KiB"));
    struct rs_allocation allocation;

    stack.leaf->next_address = 64 * KIB;
    allocation = take(&stack, 100);
    assert_int_equal(allocation.address, 64 * KIB);
    give(&stack, &allocation);
    stack.leaf->next_address = 64 * KIB + 512;
    allocation = take(&stack, 100);
    assert_int_equal(allocation.address, 68 * KIB);
    give(&stack, &allocation);
    end_stack(&stack);
}

TEST(the_report_says_what_alignment_costs)
{
    struct stack stack = make_stack(&rs_mr_descriptor_aligned, PLENTY, OPTIONS("alignment=4KiB"));
    struct rs_report report = {.count = 0};
    struct rs_allocation allocation = take(&stack, 4 * KIB);

    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "aligned", "aligned", 99), 1);
    assert_int_equal(rs_report_value(&report, "aligned", "extra", 99), 4 * KIB - 512);
    give(&stack, &allocation);
    report.count = 0;
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "aligned", "extra", 99), 0);
    end_stack(&stack);
}

/* A pool beneath holds memory that serves without asking further. */
TEST(what_is_held_beneath_is_found)
{
    struct fake_leaf *leaf = fake_leaf_create(PLENTY);
    struct rs_mr *pool =
        make_resource(&rs_mr_descriptor_pool, &leaf->base, OPTIONS("initial_size=1MiB"));
    struct rs_mr *mr = make_resource(&rs_mr_descriptor_aligned, pool, OPTIONS("alignment=4KiB"));
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate_with(mr, 2 * MIB, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_allocate_with(mr, SIZE_MAX, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_allocate_with(mr, 5000, NULL, RS_EFFORT_HELD, &allocation),
                     CUDA_SUCCESS);
    assert_int_equal(allocation.address % (4 * KIB), 0);
    assert_int_equal(leaf->allocations, 1);
    assert_int_equal(rs_mr_deallocate(mr, &allocation, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(mr, 3 * MIB, NULL, RS_EFFORT_LITTLE, &allocation),
                     CUDA_SUCCESS);
    assert_int_equal(leaf->live[1].size_bytes, 4 * MIB);
    assert_int_equal(rs_mr_deallocate(mr, &allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(mr));
    rs_mr_destroy(mr, false);
}

TEST(only_powers_of_two_are_alignments)
{
    char line[300];

    assert_false(options_are_valid(&rs_mr_descriptor_aligned, NULL, OPTIONS("alignment=3MiB"), line,
                                   sizeof(line)));
    assert_non_null(strstr(line, "3MiB is not a power of two"));
    assert_false(options_are_valid(&rs_mr_descriptor_aligned, NULL, OPTIONS("alignment=0"), line,
                                   sizeof(line)));
    assert_true(options_are_valid(&rs_mr_descriptor_aligned, NULL, OPTIONS("alignment=1"), line,
                                  sizeof(line)));
}
