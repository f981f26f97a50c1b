/* SPDX-License-Identifier: Apache-2.0 */
/* Locks.  A child after fork() never takes one: it only forwards (config/mode.h), so locks need no
 * fork handlers. */
#pragma once

#include "base/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct rs_mutex {
    pthread_mutex_t native;
};

#define RS_MUTEX_INIT                                                                              \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER                                                                  \
    }

static inline void rs_mutex_init(struct rs_mutex *mutex)
{
    pthread_mutex_init(&mutex->native, NULL);
}

static inline void rs_mutex_destroy(struct rs_mutex *mutex)
{
    pthread_mutex_destroy(&mutex->native);
}

static inline void rs_mutex_lock(struct rs_mutex *mutex)
{
    int failed = pthread_mutex_lock(&mutex->native);
    RS_ASSERT(!failed);
    (void)failed;
}

/* False when somebody, the calling thread included, holds it. */
static inline bool rs_mutex_try_lock(struct rs_mutex *mutex)
{
    return pthread_mutex_trylock(&mutex->native) == 0;
}

/* What a report at exit needs may be locked for ever: by a thread that is gone or waits, or by this
 * one, whose signal handler calls exit().  Between these two, locks that are taken bounded are
 * waited for until wait_ns have passed for all of them together, and then left out; elsewhere they
 * are waited for as any other. */
void rs_lock_bound_begin(uint64_t wait_ns);
void rs_lock_bound_end(void);

enum { RS_LOCKS_MISSED_MAX = 8 };

bool rs_lock_is_bound(void);

/* What was left out so far, each name once and the first ones only; and how often. */
struct rs_locks_missed {
    const char *names[RS_LOCKS_MISSED_MAX];
    unsigned name_count, times;
};

const struct rs_locks_missed *rs_locks_missed(void);

/* False when it was left out.  The name says of what, and is kept. */
bool rs_mutex_lock_bounded(struct rs_mutex *mutex, const char *name);

static inline void rs_mutex_unlock(struct rs_mutex *mutex)
{
    int failed = pthread_mutex_unlock(&mutex->native);
    RS_ASSERT(!failed);
    (void)failed;
}

/* Waits of a condition, in which no cancellation acts (base/undisturbed.h).  The second one returns
 * 0 or ETIMEDOUT. */
void rs_condition_wait(pthread_cond_t *condition, struct rs_mutex *mutex);
int rs_condition_wait_until(pthread_cond_t *condition, struct rs_mutex *mutex,
                            const struct timespec *until);

/* Sleeps, and no cancellation acts in it. */
void rs_nap(uint64_t ns);

/* Between two looks at what another thread is about to change, which has been looked at `turn`
 * times: pauses, later yields, later naps. */
__attribute__((cold)) void rs_pause(unsigned turn);

/* For some ten instructions that threads seldom meet in: one locked instruction for a pair of lock
 * and unlock, where a mutex takes two and two calls.  All zero is unlocked. */
struct rs_spinlock {
    atomic_uint taken;
};

__attribute__((cold)) void rs_spinlock_lock_slow(struct rs_spinlock *lock);

static inline void rs_spinlock_lock(struct rs_spinlock *lock)
{
    if (RS_UNLIKELY(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire)))
        rs_spinlock_lock_slow(lock);
}

bool rs_spinlock_lock_bounded(struct rs_spinlock *lock, const char *name);

static inline void rs_spinlock_unlock(struct rs_spinlock *lock)
{
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}
