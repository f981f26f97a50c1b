/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: what waits for them, and within which bounds. */
#include "unit.h"

#include "base/lock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_NS = 1000 * 1000 };

static const uint64_t long_ns = 60ull * 1000 * 1000 * 1000;

static struct rs_mutex mutex = RS_MUTEX_INIT(RS_RANK_RESOURCE);
static struct rs_spinlock spinlock = RS_SPINLOCK_INIT(RS_RANK_TABLE);
static _Atomic bool held, waiting;

/* Of the whole process, as those of src are. */
static struct rs_mutex own = RS_MUTEX_INIT(RS_RANK_RESOURCE);
RS_RESET_IN_CHILD(own, own);
static struct rs_shared_lock shared = RS_SHARED_LOCK_INIT(RS_RANK_ALONE);
RS_RESET_IN_CHILD(shared, shared);
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(condition, condition);

TEST(a_bounded_lock_takes_what_is_free)
{
    rs_lock_bound_begin(SHORT_NS);
    assert_true(rs_lock_is_bound());
    assert_true(rs_mutex_lock_bounded(&mutex, "mutex"));
    assert_false(rs_mutex_try_lock(&mutex));
    assert_true(rs_spinlock_lock_bounded(&spinlock, "spinlock"));
    assert_int_equal(atomic_load(&spinlock.taken), 1);
    assert_int_equal(rs_locks_missed()->times, 0);
    rs_mutex_unlock(&mutex);
    rs_spinlock_unlock(&spinlock);
    rs_lock_bound_end();
    assert_false(rs_lock_is_bound());
}

TEST(those_of_this_very_thread_are_left_out_and_named_once)
{
    const struct rs_locks_missed *missed;
    uint64_t begin_ns;

    rs_mutex_lock(&mutex);
    rs_spinlock_lock(&spinlock);
    begin_ns = rs_clock_ns();
    rs_lock_bound_begin(SHORT_NS);
    assert_false(rs_mutex_lock_bounded(&mutex, "mutex"));
    assert_in_range(rs_clock_ns() - begin_ns, SHORT_NS, long_ns);
    assert_false(rs_spinlock_lock_bounded(&spinlock, "spinlock"));
    assert_false(rs_mutex_lock_bounded(&mutex, "mutex"));
    rs_lock_bound_end();
    missed = rs_locks_missed();
    assert_int_equal(missed->times, 3);
    assert_int_equal(missed->name_count, 2);
    assert_string_equal(missed->names[0], "mutex");
    assert_string_equal(missed->names[1], "spinlock");
    rs_mutex_unlock(&mutex);
    rs_spinlock_unlock(&spinlock);
}

static void *hold_until_told(void *data)
{
    rs_shared_lock_take_alone(&shared);
    atomic_store(&held, true);
    while (!atomic_load(&waiting))
        rs_nap(SHORT_NS);
    rs_shared_lock_unlock(&shared);
    return data;
}

static void *wait_for_condition(void *data)
{
    rs_mutex_lock(&own);
    atomic_store(&held, true);
    while (!atomic_load(&waiting))
        rs_condition_wait(&condition, &own);
    rs_mutex_unlock(&own);
    return data;
}

static void *signal_condition(void *data)
{
    rs_mutex_lock(&own);
    atomic_store(&waiting, true);
    pthread_cond_signal(&condition);
    rs_mutex_unlock(&own);
    return data;
}

static pthread_t start_and_wait(void *(*run)(void *data))
{
    pthread_t thread;

    atomic_store(&held, false);
    atomic_store(&waiting, false);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
    while (!atomic_load(&held))
        rs_nap(SHORT_NS);
    return thread;
}

/* The child's part: what its parent's threads hold and wait for is not there.  It makes no thread,
 * which ThreadSanitizer and qemu cannot do in a child of several threads. */
static void use_in_child(void)
{
    alarm(60);
    rs_lock_reset(&rs_reset_own);
    rs_lock_reset(&rs_reset_shared);
    rs_lock_reset(&rs_reset_condition);
    rs_shared_lock_take_alone(&shared);
    rs_shared_lock_unlock(&shared);
    rs_mutex_lock(&own);
    (void)rs_condition_wait_until_ns(&condition, &own, rs_clock_ns() + SHORT_NS);
    pthread_cond_broadcast(&condition);
    rs_mutex_unlock(&own);
    _exit(0);
}

TEST(a_forked_child_has_the_locks_of_the_process)
{
    pthread_t waiter = start_and_wait(wait_for_condition), holder;
    pid_t child;
    int status;

    rs_mutex_lock(&own); /* the thread waits now, and no longer holds it */
    rs_mutex_unlock(&own);
    holder = start_and_wait(hold_until_told);
    child = fork();
    if (child == 0)
        use_in_child();
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    (void)signal_condition(NULL);
    assert_int_equal(pthread_join(waiter, NULL), 0);
    assert_int_equal(pthread_join(holder, NULL), 0);
}

TEST(more_names_than_there_is_room_for_do_no_harm)
{
    static char names[2 * RS_LOCKS_MISSED_MAX][2];

    rs_mutex_lock(&mutex);
    rs_lock_bound_begin(0);
    for (int i = 0; i < 2 * RS_LOCKS_MISSED_MAX; i++) {
        names[i][0] = (char)('a' + i);
        assert_false(rs_mutex_lock_bounded(&mutex, names[i]));
    }
    rs_lock_bound_end();
    assert_int_equal(rs_locks_missed()->times, 2 * RS_LOCKS_MISSED_MAX);
    assert_int_equal(rs_locks_missed()->name_count, RS_LOCKS_MISSED_MAX);
    rs_mutex_unlock(&mutex);
}

/* Holds it until somebody is about to wait for it. */
static void *hold(void *data)
{
    rs_mutex_lock(&mutex);
    atomic_store(&held, true);
    while (!atomic_load(&waiting))
        rs_pause(1000);
    rs_mutex_unlock(&mutex);
    return data;
}

static void take_from_other(void)
{
    pthread_t other;

    atomic_store(&held, false);
    atomic_store(&waiting, false);
    assert_int_equal(pthread_create(&other, NULL, hold, NULL), 0);
    for (unsigned turn = 0; !atomic_load(&held); turn++)
        rs_pause(turn);
    atomic_store(&waiting, true);
    assert_true(rs_mutex_lock_bounded(&mutex, "mutex"));
    rs_mutex_unlock(&mutex);
    pthread_join(other, NULL);
}

TEST(those_of_others_are_waited_for)
{
    take_from_other();
    rs_lock_bound_begin(long_ns);
    take_from_other();
    rs_lock_bound_end();
    assert_int_equal(rs_locks_missed()->times, 0);
}

/* ---- how a thread waits ---- */

/* A real-time thread leaves its processor to an ordinary one only while it sleeps. */
enum { YIELDS_MAX = 16, NAPS = 40, LONGEST_NAP_NS = 1000 * 1000 };

static __thread bool is_counting;
static unsigned yields, naps;
static long last_nap_ns, shortest_step_ns;

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_sched_yield(void);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_sched_yield(void);

/* The spinlock's holder is done at the last nap. */
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (!is_counting)
        return __real_nanosleep(time, left);
    assert_int_equal(time->tv_sec, 0);
    if (time->tv_nsec - last_nap_ns < shortest_step_ns)
        shortest_step_ns = time->tv_nsec - last_nap_ns;
    last_nap_ns = time->tv_nsec;
    if (++naps == NAPS)
        atomic_store(&spinlock.taken, 0);
    return 0;
}

int __wrap_sched_yield(void)
{
    yields += is_counting;
    return __real_sched_yield();
}

static int stop_counting(void **state)
{
    (void)state;
    is_counting = false;
    return 0;
}

static void count_naps(void)
{
    yields = naps = 0;
    last_nap_ns = shortest_step_ns = 0;
    is_counting = true;
}

TEST_WITH(NULL, stop_counting, who_waits_for_a_spinlock_naps_after_a_few_turns)
{
    atomic_store(&spinlock.taken, 1);
    count_naps();
    rs_spinlock_lock(&spinlock);
    is_counting = false;
    assert_int_equal(naps, NAPS);
    assert_in_range(yields, 1, YIELDS_MAX);
    assert_int_equal(shortest_step_ns, 0); /* none is shorter than the one before */
    assert_in_range(last_nap_ns, 1, LONGEST_NAP_NS);
    rs_spinlock_unlock(&spinlock);
}

/* The device needs no processor, so that more looks do no harm; without end they would. */
TEST_WITH(NULL, stop_counting, who_waits_for_the_device_naps_too)
{
    count_naps();
    for (unsigned turn = 0; naps == 0; turn++)
        rs_poll_pause(turn);
    assert_in_range(yields, YIELDS_MAX, 1000);
}
