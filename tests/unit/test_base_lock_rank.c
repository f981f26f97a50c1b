/* SPDX-License-Identifier: Apache-2.0 */
/* The order of locks: the check passes locks in order, and ends a process that breaks the order.
 *
 * The functions of the check are tested by themselves, so in every build; with slow asserts the
 * locks of base/lock.h call them, and that is tested too. */
#include "unit.h"

#include "base/lock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct rs_lock_mark contexts = RS_LOCK_MARK(RS_RANK_CONTEXTS);
static const struct rs_lock_mark records = RS_LOCK_MARK(RS_RANK_RECORDS);
static const struct rs_lock_mark other_records = RS_LOCK_MARK(RS_RANK_RECORDS);
static const struct rs_lock_mark table = RS_LOCK_MARK(RS_RANK_TABLE);
static const struct rs_lock_mark alone = RS_LOCK_MARK(RS_RANK_ALONE);
static const struct rs_lock_mark unranked;

static void take(const struct rs_lock_mark *mark)
{
    rs_lock_rank_before(mark);
    rs_lock_rank_taken(mark);
}

static void take_in_a_row(const struct rs_lock_mark *first, const struct rs_lock_mark *second)
{
    take(first);
    take(second);
}

/* Whether a child that calls it ends by SIGABRT with a line that has all these texts. */
static void assert_aborts(void (*broken)(void), const char *const texts[], size_t text_count)
{
    char line[2048];
    ssize_t length;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka's handler goes on with the next test */
        dup2(ends[1], STDERR_FILENO);
        broken();
        _exit(0);
    }
    close(ends[1]);
    length = read(ends[0], line, sizeof(line) - 1);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_true(length > 0);
    line[length] = '\0';
    for (size_t i = 0; i < text_count; i++)
        if (!strstr(line, texts[i]))
            fail_msg("no \"%s\" in: %s", texts[i], line);
}

#define ASSERT_ABORTS(broken, ...)                                                                 \
    assert_aborts(broken, (const char *const[]){__VA_ARGS__},                                      \
                  sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* ---- what passes ---- */

TEST(locks_in_the_order_of_ranks_pass)
{
    for (int i = 0; i < 2; i++) {
        take(&contexts);
        take(&records);
        take(&table);
        rs_lock_rank_left(&table);
        rs_lock_rank_left(&records);
        rs_lock_rank_left(&contexts);
    }
    take(&alone);
    rs_lock_rank_left(&alone);
}

TEST(locks_may_be_given_back_in_any_order)
{
    take(&contexts);
    take(&records);
    take(&table);
    rs_lock_rank_left(&contexts);
    rs_lock_rank_left(&table);
    take(&table); /* under records alone */
    rs_lock_rank_left(&records);
    rs_lock_rank_left(&table);
    take(&contexts); /* nothing is held */
    rs_lock_rank_left(&contexts);
}

TEST(a_try_may_go_against_the_order)
{
    take(&table);
    rs_lock_rank_taken(&contexts);
    rs_lock_rank_left(&contexts);
    rs_lock_rank_left(&table);
}

TEST(a_wait_for_the_highest_lock_passes)
{
    take(&contexts);
    take(&records);
    rs_lock_rank_waits(&records);
    rs_lock_rank_left(&records);
    rs_lock_rank_left(&contexts);
}

TEST(as_many_locks_as_there_is_room_for_are_noted)
{
    for (int i = 0; i < RS_LOCKS_HELD_MAX; i++)
        rs_lock_rank_taken(&records);
    for (int i = 0; i < RS_LOCKS_HELD_MAX; i++)
        rs_lock_rank_left(&records);
    take(&contexts);
    rs_lock_rank_left(&contexts);
}

/* ---- what aborts ---- */

static void take_lower(void)
{
    take_in_a_row(&records, &contexts);
}

TEST(a_lower_rank_aborts_and_names_both_locks)
{
    ASSERT_ABORTS(take_lower, "assertion failed: lock order:", "rank 2 (RS_RANK_CONTEXTS of ",
                  "test_base_lock_rank.c", ") is taken under rank 3 (RS_RANK_RECORDS of ");
}

static void take_equal(void)
{
    take_in_a_row(&records, &other_records);
}

TEST(two_locks_of_one_rank_abort)
{
    ASSERT_ABORTS(take_equal, "(RS_RANK_RECORDS of ", "is taken under rank 3 (RS_RANK_RECORDS of ");
}

static void take_below_the_highest(void)
{
    take(&contexts);
    take(&table);
    rs_lock_rank_left(&contexts);
    take(&records);
}

TEST(what_is_still_held_counts_after_others_were_given_back)
{
    ASSERT_ABORTS(take_below_the_highest, "(RS_RANK_RECORDS of ", "under rank",
                  "(RS_RANK_TABLE of ");
}

static void take_after_a_try(void)
{
    rs_lock_rank_taken(&table);
    take(&records);
}

TEST(a_lock_that_a_try_had_counts_as_held)
{
    ASSERT_ABORTS(take_after_a_try, "(RS_RANK_RECORDS of ", "(RS_RANK_TABLE of ");
}

static void take_alone_under_another(void)
{
    take_in_a_row(&contexts, &alone);
}

static void take_another_under_alone(void)
{
    take_in_a_row(&alone, &table);
}

TEST(what_is_taken_alone_aborts_in_company)
{
    ASSERT_ABORTS(take_alone_under_another, "(RS_RANK_ALONE of ", "(RS_RANK_CONTEXTS of ");
    ASSERT_ABORTS(take_another_under_alone, "(RS_RANK_TABLE of ", "(RS_RANK_ALONE of ");
}

static void wait_under_a_higher_one(void)
{
    take_in_a_row(&contexts, &records);
    rs_lock_rank_waits(&contexts);
}

TEST(a_wait_under_a_higher_lock_aborts)
{
    ASSERT_ABORTS(wait_under_a_higher_one, "(RS_RANK_CONTEXTS of ", "waited for on a condition");
}

static void take_unranked(void)
{
    rs_lock_rank_before(&unranked);
}

TEST(a_lock_without_a_rank_aborts)
{
    ASSERT_ABORTS(take_unranked, "never initialised");
}

static void give_back_what_is_not_held(void)
{
    take(&contexts);
    rs_lock_rank_left(&records);
}

TEST(giving_back_what_is_not_held_aborts)
{
    ASSERT_ABORTS(give_back_what_is_not_held, "(RS_RANK_RECORDS of ", "does not hold it");
}

static void take_too_many(void)
{
    for (int i = 0; i <= RS_LOCKS_HELD_MAX; i++)
        rs_lock_rank_taken(&records);
}

TEST(one_lock_too_many_aborts)
{
    ASSERT_ABORTS(take_too_many, "too many");
}

/* ---- the locks themselves ---- */

static struct rs_mutex mutex = RS_MUTEX_INIT(RS_RANK_RECORDS);
static struct rs_spinlock spinlock = RS_SPINLOCK_INIT(RS_RANK_TABLE);
static struct rs_shared_lock gate = RS_SHARED_LOCK_INIT(RS_RANK_ALONE);

static void mutex_under_spinlock(void)
{
    rs_spinlock_lock(&spinlock);
    rs_mutex_lock(&mutex);
}

static void spinlock_under_gate(void)
{
    if (rs_shared_lock_try_shared(&gate))
        rs_spinlock_lock(&spinlock);
}

static void spinlock_never_initialised(void)
{
    static struct rs_spinlock zero;

    rs_spinlock_lock(&zero);
}

TEST(the_locks_check_their_ranks_with_slow_asserts)
{
    rs_mutex_lock(&mutex);
    rs_spinlock_lock(&spinlock);
    assert_true(rs_shared_lock_try_alone(&gate));
    rs_shared_lock_unlock(&gate);
    rs_spinlock_unlock(&spinlock);
    rs_mutex_unlock(&mutex);
#ifdef RS_SLOW_ASSERTS
    ASSERT_ABORTS(mutex_under_spinlock, "(RS_RANK_RECORDS of ", "(RS_RANK_TABLE of ");
    ASSERT_ABORTS(spinlock_under_gate, "(RS_RANK_TABLE of ", "(RS_RANK_ALONE of ");
    ASSERT_ABORTS(spinlock_never_initialised, "never initialised");
#else
    (void)mutex_under_spinlock;
    (void)spinlock_under_gate;
    (void)spinlock_never_initialised;
    /* Not by skip(): Meson takes cmocka's "not ok # SKIP" for a failure. */
    print_message("# skipped: locks carry no rank in a build without -Dslow_asserts=true\n");
#endif
}
