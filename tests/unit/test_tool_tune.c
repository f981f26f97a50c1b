/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim tune` takes for best, and its intervals. */
#include "unit.h"

#include "base/check.h"
#include "tool/tune/front.h"
#include "tool/tune/interval.h"

#include <stdlib.h>

enum { MANY = 200 };

static void assert_front(const struct tune_point *points, size_t count, const size_t *expected,
                         size_t expected_count)
{
    size_t front[MANY];

    assert_int_equal(tune_front(points, count, front), expected_count);
    for (size_t i = 0; i < expected_count; i++)
        assert_int_equal(front[i], expected[i]);
}

static size_t best_for(const struct tune_point *points, size_t count, enum tune_wish_kind kind,
                       uint64_t limit_bytes)
{
    return tune_best(points, count, &(struct tune_wish){kind, limit_bytes});
}

/* ---- the front ---- */

TEST(the_front_has_what_no_other_point_beats_least_held_first)
{
    const struct tune_point points[] = {{50, 9, .is_out = false},  {10, 30, .is_out = false},
                                        {20, 30, .is_out = false}, {20, 12, .is_out = false},
                                        {60, 1, .is_out = false},  {55, 9, .is_out = false}};

    assert_front(points, 6, (const size_t[]){1, 3, 0, 4}, 4);
}

TEST(of_equal_points_the_front_has_the_first)
{
    const struct tune_point points[] = {
        {9, 9, .is_out = false}, {5, 5, .is_out = false}, {5, 5, .is_out = false}};

    assert_front(points, 3, (const size_t[]){1}, 1);
}

TEST(what_did_not_serve_everything_is_in_no_front)
{
    const struct tune_point points[] = {{1, 1, .is_out = true}, {7, 7, .is_out = false}};

    assert_front(points, 2, (const size_t[]){1}, 1);
    assert_front(points, 1, NULL, 0);
    assert_front(points, 0, NULL, 0);
}

static bool beats_or_equals(const struct tune_point *a, const struct tune_point *b)
{
    return !a->is_out && a->held_bytes <= b->held_bytes && a->stops <= b->stops;
}

/* Each random point is in the front, out, or beaten by one of the front; none of the front is. */
TEST(a_front_of_random_points_is_what_its_definition_says)
{
    static struct tune_point points[MANY];
    size_t front[MANY], count;

    srand(4711);
    for (size_t round = 0; round < 100; round++) {
        for (size_t i = 0; i < MANY; i++)
            points[i] = (struct tune_point){(uint64_t)(rand() % 50), (uint64_t)(rand() % 50),
                                            .is_out = rand() % 4 == 0};
        count = tune_front(points, MANY, front);
        for (size_t i = 0; i < MANY; i++) {
            size_t beaten = 0;
            for (size_t j = 0; j < count; j++)
                beaten += beats_or_equals(&points[front[j]], &points[i]);
            assert_true(points[i].is_out || beaten >= 1);
        }
        for (size_t i = 0; i < count; i++) {
            assert_false(points[front[i]].is_out);
            for (size_t j = 0; j < count; j++)
                assert_true(i == j || !beats_or_equals(&points[front[j]], &points[front[i]]));
        }
    }
}

TEST(a_thinned_front_keeps_its_ends)
{
    size_t front[MANY];

    for (size_t i = 0; i < MANY; i++)
        front[i] = i;
    assert_int_equal(tune_thin(front, 7, 7), 7);
    assert_int_equal(tune_thin(front, MANY, 5), 5);
    assert_int_equal(front[0], 0);
    assert_int_equal(front[4], MANY - 1);
    for (size_t i = 1; i < 5; i++)
        assert_true(front[i] > front[i - 1]);
}

/* ---- wishes ---- */

static const struct tune_point wished[] = {
    {100, 40, .is_out = false}, {80, 90, .is_out = false}, {80, 70, .is_out = false},
    {120, 3, .is_out = false},  {110, 3, .is_out = false}, {10, 1, .is_out = true},
};

TEST(the_best_for_footprint_holds_least_and_then_stops_least)
{
    assert_int_equal(best_for(wished, 6, TUNE_FOOTPRINT, 0), 2);
}

TEST(the_best_for_speed_stops_least_and_then_holds_least)
{
    assert_int_equal(best_for(wished, 6, TUNE_SPEED, 0), 4);
}

TEST(the_best_for_a_limit_stops_least_within_it)
{
    assert_int_equal(best_for(wished, 6, TUNE_LIMIT, 100), 0);
    assert_int_equal(best_for(wished, 6, TUNE_LIMIT, 99), 2);
    assert_true(best_for(wished, 6, TUNE_LIMIT, 79) == TUNE_NONE);
}

TEST(what_refuses_more_is_best_only_where_no_other_point_is)
{
    const struct tune_point points[] = {{10, 1, .is_bounded = true}, {20, 2, .is_bounded = false}};

    for (int kind = TUNE_FOOTPRINT; kind <= TUNE_LIMIT; kind++)
        assert_int_equal(best_for(points, 2, (enum tune_wish_kind)kind, 20), 1);
    assert_int_equal(best_for(points, 2, TUNE_LIMIT, 15), 0);
    assert_int_equal(best_for(points, 1, TUNE_SPEED, 0), 0);
    assert_front(points, 2, (const size_t[]){0}, 1);
}

/* ---- intervals ---- */

static void assert_near(double value, double expected, double by)
{
    assert_true(value > expected - by && value < expected + by);
}

/* As R's t.test says of the same numbers. */
TEST(an_interval_is_that_of_students_t)
{
    const double values[] = {1, 2, 3, 4, 5};
    struct tune_interval interval = tune_interval_of(values, 5);

    assert_near(interval.mean, 3.0, 1e-9);
    assert_near(interval.half, 1.963243, 1e-3);
}

TEST(what_disturbs_both_of_a_pair_is_not_in_the_interval_of_their_difference)
{
    const double values[] = {1.5, 7.5, 3.5}, others[] = {1, 7, 3};
    struct tune_interval interval = tune_interval_of_pairs(values, others, 3);

    assert_near(interval.mean, 0.5, 1e-9);
    assert_near(interval.half, 0.0, 1e-9);
}

TEST(an_interval_of_two_values_and_of_many)
{
    double many[MANY];
    struct tune_interval two = tune_interval_of((const double[]){10, 12}, 2), all;

    for (size_t i = 0; i < MANY; i++)
        many[i] = i % 2 ? 1000.001 : 1000.003;
    all = tune_interval_of(many, MANY);
    assert_near(two.half, 12.706, 1e-3);
    assert_near(all.mean, 1000.002, 1e-6);
    assert_true(all.half > 0.000138 && all.half < 0.000146);
}
