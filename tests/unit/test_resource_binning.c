/* SPDX-License-Identifier: Apache-2.0 */
/* binning: which bin serves what. */
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
static size_t taken_upstream(size_t size_bytes)
{
    struct stack stack = make_binning(PLENTY, OPTIONS("minimum_size=256KiB", "maximum_size=4MiB"));
    struct rs_allocation allocation = take(&stack, size_bytes);
    size_t taken_bytes = stack.leaf->live_bytes;

    give(&stack, &allocation);
    end_stack(&stack);
    return taken_bytes;
}

static void the_smallest_bin_that_fits_serves(void **state)
{
    (void)state;
    assert_int_equal(taken_upstream(1), 8 * 256 * KIB);
    assert_int_equal(taken_upstream(256 * KIB), 8 * 256 * KIB);
    assert_int_equal(taken_upstream(256 * KIB + 1), 8 * 512 * KIB);
    assert_int_equal(taken_upstream(MIB), 8 * MIB);
    assert_int_equal(taken_upstream(4 * MIB - 1), 32 * MIB);
    assert_int_equal(taken_upstream(4 * MIB), 32 * MIB);
}

static void above_the_largest_bin_the_upstream_serves(void **state)
{
    (void)state;
    assert_int_equal(taken_upstream(4 * MIB + 1), 4 * MIB + 1);
    assert_int_equal(taken_upstream(128 * MIB), 128 * MIB);
}

static void bins_take_nothing_before_their_first_use(void **state)
{
    struct stack stack = make_binning(PLENTY, OPTIONS("minimum_size=256KiB", "maximum_size=4MiB"));

    (void)state;
    assert_int_equal(stack.leaf->allocations, 0);
    end_stack(&stack);
}

static void without_sizes_there_are_no_bins(void **state)
{
    struct stack stack = make_binning(PLENTY, NULL);
    struct rs_allocation allocation = take(&stack, 1000);

    (void)state;
    assert_int_equal(stack.leaf->live_bytes, 1000);
    give(&stack, &allocation);
    end_stack(&stack);
}

static void rmms_exponents_are_understood(void **state)
{
    struct stack stack = make_binning(
        PLENTY, OPTIONS("min_size_exponent=18", "max_size_exponent=22", "blocks_to_preallocate=1"));

    (void)state;
    (void)take(&stack, 1);
    assert_int_equal(stack.leaf->live_bytes, 256 * KIB);
    end_stack(&stack);
}

static void bins_below_the_alignment_are_one(void **state)
{
    struct stack stack = make_binning(
        PLENTY, OPTIONS("minimum_size=1", "maximum_size=1KiB", "blocks_to_preallocate=1"));
    struct rs_report report = {.count = 0};

    (void)state;
    (void)take(&stack, 1);
    assert_int_equal(stack.leaf->live_bytes, 512);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 2);
    end_stack(&stack);
}

static void bins_give_way_before_out_of_memory(void **state)
{
    struct stack stack = make_binning(16 * MIB, OPTIONS("minimum_size=1MiB", "maximum_size=2MiB"));
    struct rs_allocation allocation = take(&stack, 1);

    (void)state;
    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_bytes, 8 * MIB);
    allocation = take(&stack, 12 * MIB); /* past the bins */
    assert_int_equal(stack.leaf->live_bytes, 12 * MIB);
    give(&stack, &allocation);
    for (unsigned i = 0; i < 8; i++) /* the other bin */
        (void)take(&stack, 2 * MIB);
    end_stack(&stack);
}

static void contradicting_options_are_complained_about(void **state)
{
    static const char *const wrong[][3] = {
        {"minimum_size=1KiB"},
        {"maximum_size=1KiB"},
        {"minimum_size=1000", "maximum_size=1MiB"},
        {"minimum_size=1KiB", "maximum_size=1MB"},
        {"minimum_size=1MiB", "maximum_size=1KiB"},
        {"minimum_size=1KiB", "max_size_exponent=63"},
    };
    char line[300];

    (void)state;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(wrong); i++)
        assert_false(
            options_are_valid(&rs_mr_descriptor_binning, NULL, wrong[i], line, sizeof(line)));
}

static void the_report_adds_the_bins_up(void **state)
{
    struct stack stack = make_binning(PLENTY, OPTIONS("minimum_size=1KiB", "maximum_size=4KiB"));
    struct rs_report report = {.count = 0};

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_bin_that_fits_serves),
        cmocka_unit_test(above_the_largest_bin_the_upstream_serves),
        cmocka_unit_test(bins_take_nothing_before_their_first_use),
        cmocka_unit_test(without_sizes_there_are_no_bins),
        cmocka_unit_test(rmms_exponents_are_understood),
        cmocka_unit_test(bins_below_the_alignment_are_one),
        cmocka_unit_test(bins_give_way_before_out_of_memory),
        cmocka_unit_test(contradicting_options_are_complained_about),
        cmocka_unit_test(the_report_adds_the_bins_up),
    };

    return cmocka_run_group_tests_name("resource_binning", tests, NULL, NULL);
}
