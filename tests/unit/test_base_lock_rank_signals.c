/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of locks, when a signal handler takes locks between any two instructions. */
#include "unit.h"

#include "base/lock.h"
#include "traps.h"

#include <signal.h>

static const struct rs_lock_mark contexts = RS_LOCK_MARK(RS_RANK_CONTEXTS);
static const struct rs_lock_mark records = RS_LOCK_MARK(RS_RANK_RECORDS);
static const struct rs_lock_mark other_records = RS_LOCK_MARK(RS_RANK_RECORDS);
static const struct rs_lock_mark table = RS_LOCK_MARK(RS_RANK_TABLE);

static unsigned instructions, interrupted;

static void take_and_leave(int signal)
{
    (void)signal;
    if (instructions++ != interrupted)
        return;
    rs_lock_rank_taken(&table);
    rs_lock_rank_left(&table);
}

/* Takes and leaves locks, of which the second leaves a mark in the middle.  The handler takes one
 * after the instruction with the number `interrupted`. */
static void play(void)
{
    instructions = 0;
    rs_lock_rank_taken(&contexts);
    step(true);
    rs_lock_rank_taken(&records);
    rs_lock_rank_taken(&other_records);
    rs_lock_rank_left(&records);
    rs_lock_rank_left(&other_records);
    step(false);
    rs_lock_rank_must_hold(&contexts);
    rs_lock_rank_left(&contexts);
    for (int i = 0; i < RS_LOCKS_HELD_MAX; i++) /* no slot is lost */
        rs_lock_rank_taken(&records);
    for (int i = 0; i < RS_LOCKS_HELD_MAX; i++)
        rs_lock_rank_left(&records);
}

TEST(a_signal_handler_leaves_the_marks_of_its_thread)
{
    struct sigaction action = {.sa_handler = take_and_leave}, before;

    assert_int_equal(sigaction(SIGTRAP, &action, &before), 0);
    do
        play();
    while (instructions > interrupted++);
    assert_int_equal(sigaction(SIGTRAP, &before, NULL), 0);
    assert_true(interrupted > 10);
}
