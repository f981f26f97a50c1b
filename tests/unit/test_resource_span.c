/* SPDX-License-Identifier: Apache-2.0 */
/* Spans against a model: one byte per unit of the range. */
#include "unit.h"

#include "base/check.h"
#include "fake_leaf.h"
#include "heap/alignment.h"
#include "heap/span.h"

#include <string.h>

enum { BASE_UNIT = 3 }; /* not aligned for large requests */

static const CUdeviceptr base = 0x7f0000000000 + BASE_UNIT * RS_SPAN_UNIT;

static struct rs_span *add(struct rs_span_set *set, CUdeviceptr address, uint32_t units)
{
    assert_true(rs_span_reserve(set));
    return rs_span_add(set, address, units, NULL);
}

static struct rs_span *take(struct rs_span_set *set, uint32_t units)
{
    assert_true(rs_span_reserve(set));
    return rs_span_take(set, units, RS_SPAN_ANYWHERE);
}

static CUdeviceptr at(uint32_t unit)
{
    return base + rs_span_bytes(unit);
}

TEST(first_fit_is_the_lowest_address)
{
    struct rs_span_set set = {.root = NULL};
    struct rs_span *range = add(&set, base, 100), *blocks[10];

    for (unsigned i = 0; i < 10; i++)
        blocks[i] = take(&set, 10);
    assert_null(take(&set, 1));
    assert_int_equal(rs_span_largest(&set, RS_SPAN_ANYWHERE), 0);
    rs_span_give(&set, blocks[7]);
    rs_span_give(&set, blocks[2]);
    rs_span_give(&set, blocks[4]);
    rs_span_give(&set, blocks[5]);
    assert_int_equal(rs_span_largest(&set, RS_SPAN_ANYWHERE), 20);
    assert_int_equal(take(&set, 11)->address, at(40));
    assert_int_equal(take(&set, 4)->address, at(20));
    assert_int_equal(take(&set, 9)->address, at(51));
    assert_int_equal(take(&set, 6)->address, at(24));
    assert_int_equal(take(&set, 10)->address, at(70));
    assert_false(rs_span_is_whole(range));
    rs_span_set_destroy(&set);
}

TEST(last_fit_is_the_highest_address)
{
    struct rs_span_set set = {.root = NULL};
    struct rs_span *range = add(&set, base, 100), *low = take(&set, 10), *high;

    assert_true(rs_span_reserve(&set));
    high = rs_span_take_last(&set, 10, RS_SPAN_ANYWHERE);
    assert_int_equal(high->address, at(90));
    assert_int_equal(take(&set, 10)->address, at(10));
    assert_true(rs_span_reserve(&set));
    assert_int_equal(rs_span_take_last(&set, 5, RS_SPAN_ANYWHERE)->address, at(85));
    rs_span_give(&set, high);
    assert_true(rs_span_reserve(&set));
    assert_int_equal(rs_span_take_last(&set, 11, RS_SPAN_ANYWHERE)->address, at(74));
    rs_span_give(&set, low);
    assert_int_equal(take(&set, 10)->address, at(0));
    assert_null(rs_span_take_last(&set, 100, RS_SPAN_ANYWHERE));
    assert_false(rs_span_is_whole(range));
    rs_span_set_destroy(&set);
}

TEST(spans_merge_with_previous_next_and_both)
{
    struct rs_span_set set = {.root = NULL};
    struct rs_span *range = add(&set, base, 30);
    struct rs_span *low = take(&set, 10), *middle = take(&set, 10), *high = take(&set, 10);
    struct rs_span_sums sums;

    rs_span_give(&set, low);
    rs_span_give(&set, middle); /* with previous */
    assert_true(rs_span_tree_check(&set, &sums));
    assert_int_equal(sums.free_spans, 1);
    assert_int_equal(sums.free_units, 20);
    low = take(&set, 10);
    middle = take(&set, 10);
    rs_span_give(&set, middle);
    rs_span_give(&set, low); /* with next */
    assert_int_equal(rs_span_largest(&set, RS_SPAN_ANYWHERE), 20);
    low = take(&set, 10);
    middle = take(&set, 10);
    rs_span_give(&set, low);
    rs_span_give(&set, high);
    rs_span_give(&set, middle); /* with both */
    assert_true(rs_span_is_whole(range));
    assert_int_equal(range->address, base);
    assert_int_equal(range->units, 30);
    rs_span_remove(&set, range);
    assert_null(take(&set, 1));
    rs_span_set_destroy(&set);
}

TEST(neighbouring_ranges_never_merge)
{
    struct rs_span_set set = {.root = NULL};
    struct rs_span *first = add(&set, base, 10), *second = add(&set, at(10), 10);
    struct rs_span *blocks[2] = {take(&set, 10), take(&set, 10)};

    rs_span_give(&set, blocks[0]);
    rs_span_give(&set, blocks[1]);
    assert_true(rs_span_is_whole(first) && rs_span_is_whole(second));
    assert_null(take(&set, 11));
    rs_span_set_destroy(&set);
}

/* ---- random, against the model ---- */

enum { UNITS = 4000, LIVE_MAX = 200, STEPS = 20000 };

static unsigned char is_taken[UNITS];

static bool has_room(uint32_t unit, uint32_t units)
{
    for (uint32_t i = 0; i < units; i++)
        if (unit + i >= UNITS || is_taken[unit + i])
            return false;
    return true;
}

/* Where first fit must begin, or last fit, or UNITS. */
static uint32_t expected_unit(uint32_t units, enum rs_span_fit fit, bool last)
{
    for (uint32_t i = 0; i < UNITS; i++) {
        uint32_t unit = last ? UNITS - 1 - i : i;
        if ((fit == RS_SPAN_ANYWHERE || at(unit) % RS_LARGE_ALIGNMENT == 0) &&
            has_room(unit, units))
            return unit;
    }
    return UNITS;
}

static void check_set(const struct rs_span_set *set, const struct rs_span *range, size_t live_count)
{
    struct rs_span_sums tree, chain = {0};

    assert_true(rs_span_tree_check(set, &tree));
    assert_true(rs_span_range_check(range, &chain));
    assert_int_equal(tree.free_spans, chain.free_spans);
    assert_int_equal(tree.free_units, chain.free_units);
    assert_int_equal(chain.taken_spans, live_count);
    assert_int_equal(chain.free_units + chain.taken_units, UNITS);
}

TEST(random_steps_agree_with_the_model)
{
    struct rs_span_set set = {.root = NULL};
    struct rs_span *range = add(&set, base, UNITS), *live[LIVE_MAX];
    size_t live_count = 0, refused_count = 0;
    uint64_t seed = 2718281828;

    for (unsigned step = 0; step < STEPS; step++) {
        if (live_count < LIVE_MAX && test_random(&seed) % 100 < 55) {
            enum rs_span_fit fit = test_random(&seed) % 3 ? RS_SPAN_ANYWHERE : RS_SPAN_ALIGNED;
            uint32_t units = 1 + (uint32_t)(test_random(&seed) % 60);
            bool last = test_random(&seed) % 2;
            uint32_t unit = expected_unit(units, fit, last);
            struct rs_span *span;
            assert_true(rs_span_reserve(&set));
            span = last ? rs_span_take_last(&set, units, fit) : rs_span_take(&set, units, fit);
            assert_true((span != NULL) == (unit < UNITS));
            refused_count += !span;
            if (!span)
                continue;
            assert_int_equal(span->address, at(unit));
            assert_int_equal(span->units, units);
            memset(is_taken + unit, 1, units);
            live[live_count++] = span;
        } else if (live_count > 0) {
            size_t i = test_random(&seed) % live_count;
            memset(is_taken + (live[i]->address - base) / RS_SPAN_UNIT, 0, live[i]->units);
            rs_span_give(&set, live[i]);
            live[i] = live[--live_count];
        }
        if (step % 50 == 0)
            check_set(&set, range, live_count);
    }
    assert_true(refused_count > 100);
    while (live_count > 0)
        rs_span_give(&set, live[--live_count]);
    assert_true(rs_span_is_whole(range));
    rs_span_set_destroy(&set);
}

static unsigned height(const struct rs_span *tree)
{
    unsigned left, right;

    if (!tree)
        return 0;
    left = height(tree->left);
    right = height(tree->right);
    return 1 + (left > right ? left : right);
}

TEST(the_tree_stays_shallow)
{
    enum { MANY = 1 << 15 };
    static struct rs_span *blocks[MANY];
    struct rs_span_set set = {.root = NULL};

    (void)add(&set, base, MANY);
    for (unsigned i = 0; i < MANY; i++)
        blocks[i] = take(&set, 1);
    for (unsigned i = 0; i < MANY; i += 2)
        rs_span_give(&set, blocks[i]);
    assert_in_range(height(set.root), 14, 60);
    rs_span_set_destroy(&set);
}
