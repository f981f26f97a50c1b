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

/* Returns false when any thread, the calling one included, holds the mutex. */
static inline bool rs_mutex_try_lock(struct rs_mutex *mutex)
{
    return pthread_mutex_trylock(&mutex->native) == 0;
}

/* Bounded locking, for reports at exit.  There a lock may never be released: its holder may be
 * gone or waiting, or be this very thread, whose signal handler called exit().  Between begin
 * and end, the *_lock_bounded functions of the calling thread wait at most wait_ns for all locks
 * together, and skip a lock that is still held then.  Outside they wait without bound. */
void rs_lock_bound_begin(uint64_t wait_ns);
void rs_lock_bound_end(void);

enum { RS_LOCKS_MISSED_MAX = 8 };

/* True between rs_lock_bound_begin and rs_lock_bound_end. */
bool rs_lock_is_bound(void);

/* Names of the locks that this thread skipped since rs_lock_bound_begin (each once, the first
 * RS_LOCKS_MISSED_MAX), and the number of skips. */
struct rs_locks_missed {
    const char *names[RS_LOCKS_MISSED_MAX];
    unsigned name_count, times;
};

const struct rs_locks_missed *rs_locks_missed(void);

/* Locks the mutex as described at rs_lock_bound_begin.  Returns false when it was skipped.
 * `name` says what the lock protects; the pointer is kept. */
bool rs_mutex_lock_bounded(struct rs_mutex *mutex, const char *name);

static inline void rs_mutex_unlock(struct rs_mutex *mutex)
{
    int failed = pthread_mutex_unlock(&mutex->native);
    RS_ASSERT(!failed);
    (void)failed;
}

/* Wait on a condition variable without being a cancellation point (base/undisturbed.h).
 * rs_condition_wait_until returns 0 or ETIMEDOUT; `until` is an absolute time of the condition's
 * clock. */
void rs_condition_wait(pthread_cond_t *condition, struct rs_mutex *mutex);
int rs_condition_wait_until(pthread_cond_t *condition, struct rs_mutex *mutex,
                            const struct timespec *until);

/* Sleeps for ns nanoseconds, or less when a signal arrives.  No cancellation point. */
void rs_nap(uint64_t ns);

/* Back-off of a spin loop, for its turn number `turn` (from 0): a pause instruction below turn
 * 128, sched_yield below 1024, then a sleep of 50 us. */
__attribute__((cold)) void rs_pause(unsigned turn);

/* A spinlock for short, rarely contended sections (some ten instructions).  Lock and unlock take
 * one locked instruction together; a mutex takes two and two calls.  All zero is unlocked. */
struct rs_spinlock {
    atomic_uint taken;
};

__attribute__((cold)) void rs_spinlock_lock_slow(struct rs_spinlock *lock);

static inline void rs_spinlock_lock(struct rs_spinlock *lock)
{
    if (RS_UNLIKELY(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire)))
        rs_spinlock_lock_slow(lock);
}

/* Locks the spinlock as rs_mutex_lock_bounded locks a mutex. */
bool rs_spinlock_lock_bounded(struct rs_spinlock *lock, const char *name);

static inline void rs_spinlock_unlock(struct rs_spinlock *lock)
{
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}
