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
static void bins_of_any_size_serve_what_fits(void **state)
{
    (void)state;
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
static void bins_close_to_each_other_are_told_apart(void **state)
{
    static const char *const options[] = {"bins=1100KiB+1200KiB+1300KiB", NULL};

    (void)state;
    assert_int_equal(taken_with(options, 1), 8 * 1100 * KIB);
    assert_int_equal(taken_with(options, 1100 * KIB), 8 * 1100 * KIB);
    assert_int_equal(taken_with(options, 1100 * KIB + 1), 8 * 1200 * KIB);
    assert_int_equal(taken_with(options, 1200 * KIB + 1), 8 * 1300 * KIB);
    assert_int_equal(taken_with(options, 1300 * KIB), 8 * 1300 * KIB);
    assert_int_equal(taken_with(options, 1300 * KIB + 1), 1300 * KIB + 1);
    assert_int_equal(taken_with(options, 2 * MIB), 2 * MIB);
}

static void a_list_joins_the_powers_of_two(void **state)
{
    static const char *const options[] = {"minimum_size=256KiB", "maximum_size=1MiB",
                                          "bins=300000+1MiB+3MiB", "blocks_to_preallocate=2", NULL};
    struct stack stack = make_binning(PLENTY, options);
    struct rs_report report = {.count = 0};

    (void)state;
    assert_int_equal(taken_with(options, 256 * KIB), 2 * 256 * KIB);
    assert_int_equal(taken_with(options, 300000), 2 * 300032);
    assert_int_equal(taken_with(options, 300033), 2 * 512 * KIB);
    assert_int_equal(taken_with(options, MIB), 2 * MIB);
    assert_int_equal(taken_with(options, 2 * MIB), 6 * MIB);
    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "binning", "bins", 0), 5); /* 1 MiB is one of them */
    end_stack(&stack);
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
        {"minimum_size=1KiB", "bins=1MiB"},
        {"bins=0"},
        {"bins=2TiB"},
        {"bins=1MiB+1024KiB"},
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
        cmocka_unit_test(bins_of_any_size_serve_what_fits),
        cmocka_unit_test(bins_close_to_each_other_are_told_apart),
        cmocka_unit_test(a_list_joins_the_powers_of_two),
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
