/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/interval.h"
#include "unit.h"

#include <stddef.h>

enum { COUNT_MAX = 100 };

/* Of the numbers 1 to `count`, the highest first. */
static struct interval interval_to(size_t count)
{
    double numbers[COUNT_MAX];

    for (size_t i = 0; i < count; i++)
        numbers[i] = (double)(count - i);
    return interval_of(numbers, count);
}

/* The numbers left out at each end, by the table of the sign test: of 6 none, as all are above the
 * median in one of 64 cases; of 9 one, of 20 five, of 100 thirty-nine. */
TEST(an_interval_covers_the_median_in_95_of_100_cases)
{
    static const struct {
        size_t count, outside;
    } known[] = {{6, 0}, {8, 0}, {9, 1}, {11, 1}, {12, 2}, {20, 5}, {50, 17}, {100, 39}};

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        struct interval interval = interval_to(known[i].count);
        assert_true(interval.low == (double)known[i].outside + 1);
        assert_true(interval.high == (double)(known[i].count - known[i].outside));
    }
}

TEST(the_median_of_an_even_number_lies_between_two)
{
    assert_true(interval_to(7).median == 4);
    assert_true(interval_to(10).median == 5.5);
}

TEST(one_far_number_moves_neither)
{
    double numbers[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 1e9};
    struct interval interval = interval_of(numbers, 10);

    assert_true(interval.median == 4.5 && interval.low == 1 && interval.high == 9);
}
