/* SPDX-License-Identifier: Apache-2.0 */
/* The order of locks, in builds with slow asserts. */
#include "base/lock.h"

#include <stdatomic.h>
#include <stdio.h>

/* The locks that this thread holds.  A signal handler of the thread may take and release locks
 * between any two instructions here, and leaves the marks of locks held before as they were:
 * drop_gone_marks stops at the first slot that is not marked as gone, and a slot that is counted
 * but not filled yet is NULL. */
static __thread struct {
    const struct rs_lock_mark *volatile marks[RS_LOCKS_HELD_MAX];
    _Atomic unsigned count;
} held;

static const struct rs_lock_mark gone = {RS_RANK_NONE, "nothing"};

static bool is_held_mark(const struct rs_lock_mark *mark)
{
    return mark && mark != &gone;
}

static RS_COLD void fail_order(const struct rs_lock_mark *mark, const char *how,
                               const struct rs_lock_mark *other)
{
    char text[512];

    snprintf(text, sizeof(text), "lock order: rank %d (%s) %s rank %d (%s)", (int)mark->rank,
             mark->name ? mark->name : "never initialised", how, (int)other->rank, other->name);
    rs_assert_failed(text, __FILE__, __LINE__);
}

static void check_rank(const struct rs_lock_mark *mark)
{
    if (mark->rank <= RS_RANK_NONE || mark->rank >= RS_RANK_COUNT)
        fail_order(mark, "is taken with a rank that locks do not have, above", &gone);
}

void rs_lock_rank_before(const struct rs_lock_mark *mark)
{
    check_rank(mark);
    for (unsigned i = 0; i < held.count; i++) {
        const struct rs_lock_mark *other = held.marks[i];
        if (is_held_mark(other) && (other->rank >= mark->rank || mark->rank == RS_RANK_ALONE))
            fail_order(mark, "is taken under", other);
    }
}

void rs_lock_rank_taken(const struct rs_lock_mark *mark)
{
    unsigned at = held.count;

    check_rank(mark);
    if (at == RS_LOCKS_HELD_MAX)
        fail_order(mark, "is one lock too many to note, above", held.marks[at - 1]);
    held.count = at + 1;
    held.marks[at] = mark;
}

/* If a signal handler drops marks after the test, the exchange fails, and `at` becomes the new
 * count. */
static void drop_gone_marks(void)
{
    unsigned at = held.count;

    while (at > 0 && held.marks[at - 1] == &gone) {
        held.marks[at - 1] = NULL;
        if (atomic_compare_exchange_strong(&held.count, &at, at - 1))
            at--;
    }
}

/* Returns the index of the lock's slot plus one; 0 when this thread does not hold the lock.  It
 * searches from the lock that was taken last, which most calls ask for. */
static unsigned place_of_mark(const struct rs_lock_mark *mark)
{
    unsigned at = held.count;

    while (at > 0 && held.marks[at - 1] != mark)
        at--;
    return at;
}

void rs_lock_rank_left(const struct rs_lock_mark *mark)
{
    unsigned at = place_of_mark(mark);

    if (at == 0)
        fail_order(mark, "is given back by a thread that does not hold it, but", &gone);
    held.marks[at - 1] = &gone;
    drop_gone_marks();
}

void rs_lock_rank_must_hold(const struct rs_lock_mark *mark)
{
    if (place_of_mark(mark) == 0)
        fail_order(mark, "must be held by the caller, but this thread holds", &gone);
}

void rs_lock_rank_waits(const struct rs_lock_mark *mark)
{
    rs_lock_rank_must_hold(mark);
    for (unsigned i = 0; i < held.count; i++) {
        const struct rs_lock_mark *other = held.marks[i];
        if (is_held_mark(other) && other->rank > mark->rank)
            fail_order(mark, "is waited for on a condition under", other);
    }
}
