/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of counters: they hold as many as there are, and fold the same into one. */
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

static void a_table_holds_as_many_counters_as_there_are(void **state)
{
    struct rs_report report = {.count = 0};

    (void)state;
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

static void a_cleared_table_can_be_filled_again(void **state)
{
    struct rs_report report = {.count = 0};

    (void)state;
    add_many(&report, 0);
    rs_report_clear(&report);
    assert_int_equal(report.count, 0);
    add_many(&report, 5);
    assert_int_equal(rs_report_value(&report, "resource", names[7], 0), 12);
    rs_report_release(&report);
}

static void add_three(struct rs_report *report)
{
    rs_report_add(report, "pool", "growths", RS_COUNTER_TOTAL, RS_UNIT_COUNT, 3);
    rs_report_add(report, "pool", "live", RS_COUNTER_LIVE, RS_UNIT_BYTES, 5);
    rs_report_add(report, "pool", "peak", RS_COUNTER_PEAK, RS_UNIT_BYTES, 7);
}

static void counters_fold_by_their_kind(void **state)
{
    struct rs_report report = {.count = 0}, other = {.count = 0};

    (void)state;
    add_three(&report);
    add_three(&other);
    rs_report_fold(&report, &other);
    assert_int_equal(rs_report_value(&report, "pool", "growths", 0), 6);
    assert_int_equal(rs_report_value(&report, "pool", "live", 0), 10);
    assert_int_equal(rs_report_value(&report, "pool", "peak", 0), 7);
    rs_report_fold_gone(&report, &other);
    assert_int_equal(rs_report_value(&report, "pool", "growths", 0), 9);
    assert_int_equal(rs_report_value(&report, "pool", "live", 0), 10);
    assert_int_equal(other.count, 3);
    rs_report_release(&report);
    rs_report_release(&other);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_holds_as_many_counters_as_there_are),
        cmocka_unit_test(a_cleared_table_can_be_filled_again),
        cmocka_unit_test(counters_fold_by_their_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
