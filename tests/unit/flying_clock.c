/* SPDX-License-Identifier: Apache-2.0 */
#include "flying_clock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

atomic_bool time_flies, clock_stands, waits_have_no_end, naps_take_no_time;
_Atomic uint64_t clock_ahead_ns, clock_step_ns;

/* What a look at the clock takes while time flies, so that code which only looks gets to an end. */
enum { LOOK_NS = 100 * 1000 };

static _Atomic uint64_t stands_at_ns; /* while it stands or flies; 0: nobody has read it since */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);
    uint64_t ns = (uint64_t)now->tv_sec * SECOND_NS + (uint64_t)now->tv_nsec, none = 0;

    if (!atomic_load(&clock_stands) && !atomic_load(&time_flies))
        atomic_store(&stands_at_ns, 0);
    else if (clock == CLOCK_MONOTONIC && !atomic_compare_exchange_strong(&stands_at_ns, &none, ns))
        ns = none;
    ns += atomic_fetch_add(&clock_ahead_ns,
                           atomic_load(&clock_step_ns) + (atomic_load(&time_flies) ? LOOK_NS : 0));
    now->tv_sec = (time_t)(ns / SECOND_NS);
    now->tv_nsec = (long)(ns % SECOND_NS);
    return result;
}

/* The library notes the time of a whole nap, none of one that a signal has ended. */
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    int result = __real_nanosleep(time, left);

    if (result != 0 || !atomic_load(&naps_take_no_time))
        return result;
    errno = EINTR;
    return -1;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    struct timespec now, real = *until;
    uint64_t ahead_ns = atomic_load(&clock_ahead_ns);

    if (atomic_load(&waits_have_no_end))
        return pthread_cond_wait(condition, mutex);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (atomic_load(&time_flies)) {
        atomic_fetch_add(&clock_ahead_ns,
                         (uint64_t)((int64_t)(until->tv_sec - now.tv_sec) * (int64_t)SECOND_NS +
                                    until->tv_nsec - now.tv_nsec));
        return ETIMEDOUT;
    }
    real.tv_sec -= (time_t)(ahead_ns / SECOND_NS);
    real.tv_nsec -= (long)(ahead_ns % SECOND_NS);
    if (real.tv_nsec < 0) {
        real.tv_sec--;
        real.tv_nsec += (long)SECOND_NS;
    }
    return __real_pthread_cond_timedwait(condition, mutex, &real);
}
