/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of counters: they grow as needed, and fold equal counters into one. */
#include "unit.h"

#include "resource/report.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MANY = 5000, NAME_BYTES = 24 };

static char names[MANY][NAME_BYTES];

static void add_many(struct rs_report *report, uint64_t first)
{
    for (size_t i = 0; i < MANY; i++) {
        snprintf(names[i], NAME_BYTES, "counter%zu", i);
        rs_report_add(report, "resource", names[i], RS_COUNTER_TOTAL, RS_UNIT_COUNT, first + i);
    }
}

TEST(a_table_holds_as_many_counters_as_there_are)
{
    struct rs_report report = {.count = 0};

    add_many(&report, 0);
    assert_int_equal(report.count, MANY);
    for (size_t i = 0; i < MANY; i += 97)
        assert_int_equal(rs_report_value(&report, "resource", names[i], 99), i);
    add_many(&report, 1);
    assert_int_equal(report.count, MANY);
    assert_int_equal(rs_report_value(&report, "resource", names[MANY - 1], 0), 2 * MANY - 1);
    rs_report_release(&report);
    assert_int_equal(report.count, 0);
}

/* Another process reads counters that are fields by their addresses, so it must know the others. */
TEST(a_value_is_no_field_that_another_process_could_read)
{
    struct rs_report report = {.count = 0};

    rs_report_add(&report, "pool", "growths", RS_COUNTER_TOTAL, RS_UNIT_COUNT, 3);
    assert_true(report.counters[0].is_computed);
    rs_report_release(&report);
}

TEST(a_cleared_table_can_be_filled_again)
{
    struct rs_report report = {.count = 0};

    add_many(&report, 0);
    rs_report_clear(&report);
    assert_int_equal(report.count, 0);
    add_many(&report, 5);
    assert_int_equal(rs_report_value(&report, "resource", names[7], 0), 12);
    rs_report_release(&report);
}

static void add_four(struct rs_report *report)
{
    rs_report_add(report, "pool", "growths", RS_COUNTER_TOTAL, RS_UNIT_COUNT, 3);
    rs_report_add(report, "pool", "live", RS_COUNTER_LIVE, RS_UNIT_BYTES, 5);
    rs_report_add(report, "pool", "peak", RS_COUNTER_PEAK, RS_UNIT_BYTES, 7);
    rs_report_add(report, "pool", "largest_free", RS_COUNTER_LARGEST, RS_UNIT_BYTES, 2);
}

static void expect(const struct rs_report *report, uint64_t growths, uint64_t live, uint64_t peak,
                   uint64_t largest_free)
{
    assert_int_equal(rs_report_value(report, "pool", "growths", 0), growths);
    assert_int_equal(rs_report_value(report, "pool", "live", 0), live);
    assert_int_equal(rs_report_value(report, "pool", "peak", 0), peak);
    assert_int_equal(rs_report_value(report, "pool", "largest_free", 0), largest_free);
}

/* Each may have been at its peak when the others were at theirs; and no peak is below what is live.
 */
TEST(what_is_side_by_side_adds_up)
{
    struct rs_report report = {.count = 0}, other = {.count = 0};

    add_four(&report);
    add_four(&report);
    expect(&report, 6, 10, 14, 2);
    add_four(&other);
    rs_report_fold(&report, &other);
    expect(&report, 9, 15, 21, 2);
    assert_int_equal(other.count, 4);
    rs_report_release(&report);
    rs_report_release(&other);
}

/* The highest of the peaks, and nothing of it is live. */
TEST(what_came_after_one_another_does_not)
{
    struct rs_report report = {.count = 0}, gone = {.count = 0};

    add_four(&gone);
    rs_report_fold_gone(&report, &gone);
    expect(&report, 3, 0, 7, 0);
    rs_report_fold_gone(&report, &gone);
    expect(&report, 6, 0, 7, 0);
    rs_report_add(&gone, "pool", "peak", RS_COUNTER_PEAK, RS_UNIT_BYTES, 2);
    rs_report_fold_gone(&report, &gone);
    expect(&report, 9, 0, 9, 0);
    rs_report_release(&report);
    rs_report_release(&gone);
}

/* Peaks of all that was side by side before a part of it ended. */
TEST(peaks_alone_can_be_raised)
{
    struct rs_report report = {.count = 0}, together = {.count = 0};

    add_four(&together);
    add_four(&together);
    rs_report_raise_peaks(&report, &together);
    assert_int_equal(report.count, 4);
    expect(&report, 0, 0, 14, 0);
    add_four(&report);
    rs_report_raise_peaks(&report, &together);
    expect(&report, 3, 5, 21, 2);
    rs_report_release(&report);
    rs_report_release(&together);
}
