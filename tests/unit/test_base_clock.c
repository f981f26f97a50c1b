/* SPDX-License-Identifier: Apache-2.0 */
/* Time by which waits are bounded, on a clock that goes and on one that stands still, as a
 * program's own clock_gettime may. */
#include "unit.h"

#include "base/lock.h"

#include <pthread.h>
#include <stdatomic.h>

enum { NAP_NS = 1000 * 1000, NAPS = 20 };

static atomic_bool stands;
static struct timespec stood;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!atomic_load(&stands))
        return __real_clock_gettime(clock, now);
    *now = stood;
    return 0;
}

static void let_it_stand(void)
{
    assert_int_equal(__real_clock_gettime(CLOCK_MONOTONIC, &stood), 0);
    atomic_store(&stands, true);
}

static int let_it_go(void **state)
{
    (void)state;
    atomic_store(&stands, false);
    return 0;
}

/* Whatever has gone by in another test, the time of a thread that has not slept is the clock's. */
static void *look_in_new_thread(void *data)
{
    uint64_t now_ns = rs_clock_ns();

    assert_int_equal(rs_clock_own_ns(now_ns), now_ns);
    for (int i = 0; i < NAPS; i++) {
        rs_nap(NAP_NS);
        rs_poll_pause(0);
        now_ns = rs_clock_ns();
        assert_int_equal(rs_clock_own_ns(now_ns), now_ns);
    }
    return data;
}

TEST(on_a_clock_that_goes_naps_change_nothing)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, look_in_new_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST_WITH(NULL, let_it_go, naps_end_a_wait_on_a_clock_that_stands)
{
    uint64_t begin_ns;
    int naps = 0;

    let_it_stand();
    begin_ns = rs_clock_ns();
    assert_int_equal(rs_clock_ns(), begin_ns);
    while (rs_clock_ns() - begin_ns < NAPS * NAP_NS) {
        rs_nap(NAP_NS);
        naps++;
    }
    assert_in_range(naps, NAPS / 4, NAPS);
    let_it_go(NULL); /* time does not go back then */
    assert_true(rs_clock_ns() >= begin_ns + NAPS * NAP_NS);
}

TEST_WITH(NULL, let_it_go, looks_end_a_wait_on_a_clock_that_stands)
{
    uint64_t begin_ns;

    let_it_stand();
    begin_ns = rs_clock_ns();
    while (rs_clock_ns() - begin_ns < NAP_NS / 10)
        rs_poll_pause(0);
}

TEST_WITH(NULL, let_it_go, a_condition_ends_a_wait_on_a_clock_that_stands)
{
    struct rs_mutex mutex;
    pthread_cond_t condition;
    uint64_t until_ns;

    rs_mutex_init(&mutex, RS_RANK_RESOURCE);
    rs_condition_init(&condition);
    let_it_stand();
    for (int i = 0; i < NAPS; i++) {
        until_ns = rs_clock_ns() + NAP_NS;
        rs_mutex_lock(&mutex);
        while (rs_clock_ns() < until_ns)
            (void)rs_condition_wait_until_ns(&condition, &mutex, until_ns);
        rs_mutex_unlock(&mutex);
    }
    pthread_cond_destroy(&condition);
    rs_mutex_destroy(&mutex);
}
