/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "context/scope.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* Each test has a device of its own: counts last as long as the process. */

static void enter(int device, size_t size_bytes)
{
    rs_block_count_entered(rs_block_counter(RS_KIND_PINNED, device), size_bytes);
}

static void leave(int device, size_t size_bytes)
{
    rs_block_count_left(rs_block_counter(RS_KIND_PINNED, device), size_bytes);
}

static struct rmmshim_counters get(int device)
{
    struct rmmshim_counters level;

    rs_count_levels_get(RS_KIND_PINNED, device, &level);
    return level;
}

static struct rmmshim_counters pop(int device)
{
    struct rmmshim_counters level;

    assert_int_equal(rs_count_levels_pop(RS_KIND_PINNED, device, &level), 0);
    return level;
}

static void push(int device)
{
    assert_int_equal(rs_count_levels_push(RS_KIND_PINNED, device), 0);
}

static void expect_bytes(struct rmmshim_counters level, int64_t live, int64_t peak, int64_t entered)
{
    assert_int_equal(level.used_bytes, live);
    assert_int_equal(level.peak_used_bytes, peak);
    assert_int_equal(level.allocated_bytes, entered);
}

static void expect_blocks(struct rmmshim_counters level, int64_t live, int64_t peak,
                          int64_t entered)
{
    assert_int_equal(level.used_blocks, live);
    assert_int_equal(level.peak_used_blocks, peak);
    assert_int_equal(level.allocations, entered);
}

TEST(without_a_level_all_is_counted)
{
    expect_bytes(get(1), 0, 0, 0);
    enter(1, 1000);
    enter(1, 500);
    leave(1, 1000);
    enter(1, 100);
    expect_bytes(get(1), 600, 1500, 1600);
    expect_blocks(get(1), 2, 2, 3);
}

/* RMM's own example: outer, inner, and what was there before. */
TEST(levels_nest_as_in_rmm)
{
    enter(2, 1000);
    push(2);
    expect_bytes(get(2), 0, 0, 0);
    enter(2, 10);
    push(2);
    enter(2, 20);
    enter(2, 30);
    leave(2, 20);
    expect_bytes(get(2), 30, 50, 50);
    expect_bytes(pop(2), 30, 50, 50);
    expect_bytes(get(2), 40, 60, 60);
    expect_blocks(get(2), 2, 3, 3);
    enter(2, 5);
    expect_bytes(pop(2), 45, 60, 65);
    expect_bytes(get(2), 1045, 1060, 1065);
}

/* Below zero, and a peak that is never below it. */
TEST(what_was_there_before_may_go)
{
    struct rmmshim_counters level;

    enter(3, 1000);
    enter(3, 1000);
    push(3);
    leave(3, 1000);
    enter(3, 300);
    expect_bytes(get(3), -700, 0, 300);
    leave(3, 1000);
    level = pop(3);
    expect_bytes(level, -1700, 0, 300);
    expect_blocks(level, -1, 0, 1);
    expect_bytes(get(3), 300, 2000, 2300);
}

/* A level's peak is its own: higher ones before and after are not in it. */
TEST(peaks_of_neighbours_are_apart)
{
    enter(4, 5000);
    leave(4, 5000);
    push(4);
    enter(4, 700);
    leave(4, 700);
    expect_bytes(pop(4), 0, 700, 700);
    push(4);
    enter(4, 200);
    expect_bytes(pop(4), 200, 200, 200);
    expect_bytes(get(4), 200, 5000, 5900);
}

TEST(nothing_is_popped_twice)
{
    struct rmmshim_counters level;

    push(5);
    (void)pop(5);
    assert_int_equal(rs_count_levels_pop(RS_KIND_PINNED, 5, &level), -ERANGE);
    push(5);
    assert_int_equal(rs_count_levels_pop(RS_KIND_MANAGED, 5, &level), -ERANGE);
    (void)pop(5);
}

TEST(a_reset_peak_begins_at_what_is_live)
{
    enter(6, 100);
    enter(6, 900);
    leave(6, 900);
    push(6);
    enter(6, 300);
    leave(6, 300);
    rs_count_levels_reset_peaks(RS_KIND_PINNED, 6);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 6).peak_live_bytes, 100);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 6).peak_live_blocks, 1);
    enter(6, 50);
    leave(6, 50);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 6).peak_live_bytes, 150);
    expect_bytes(pop(6), 0, 300, 350); /* the level keeps its own */
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 6).peak_live_bytes, 150);
}

/* A push takes nothing from the peak of the whole process. */
TEST(a_push_leaves_the_peak_of_the_process)
{
    enter(7, 4000);
    leave(7, 4000);
    for (int i = 0; i < 3; i++)
        push(7);
    enter(7, 10);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 7).peak_live_bytes, 4000);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 7).peak_live_blocks, 1);
    for (int i = 0; i < 3; i++)
        expect_bytes(pop(7), 10, 10, 10);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 7).entered_bytes, 4010);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 7).left_bytes, 4000);
}

/* ---- levels that come and go while threads allocate ---- */

enum { THREADS = 4, ROUNDS = 20000, SIZE = 1000 };

static atomic_bool stop;
static atomic_uint wrong;

static void *allocate(void *data)
{
    (void)data;
    for (int i = 0; i < ROUNDS; i++) {
        enter(8, SIZE);
        leave(8, SIZE);
    }
    return NULL;
}

static void *look(void *data)
{
    struct rmmshim_counters level;

    (void)data;
    while (!atomic_load(&stop)) {
        push(8);
        level = get(8);
        wrong += level.peak_used_bytes < 0 || level.peak_used_bytes > THREADS * SIZE;
        level = pop(8);
        wrong += level.peak_used_bytes < level.used_bytes || level.peak_used_bytes > THREADS * SIZE;
    }
    return NULL;
}

TEST(threads_lose_nothing)
{
    pthread_t ids[THREADS], looker;

    enter(8, 10 * SIZE);
    leave(8, 10 * SIZE); /* a peak that no level may forget */
    assert_int_equal(pthread_create(&looker, NULL, look, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, allocate, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    atomic_store(&stop, true);
    pthread_join(looker, NULL);
    assert_int_equal(wrong, 0);
    expect_bytes(get(8), 0, 10 * SIZE, (int64_t)SIZE * (10 + THREADS * ROUNDS));
    assert_int_equal(get(8).allocations, 1 + THREADS * ROUNDS);
}
