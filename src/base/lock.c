/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"

#include "base/file.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- time ---- */

static __thread struct {
    uint64_t last_ns;  /* the time that rs_clock_ns returned last */
    uint64_t slept_ns; /* the time noted as slept since then */
    /* By how much rs_clock_ns is ahead of CLOCK_MONOTONIC, which stood still. */
    uint64_t ahead_ns;
} own;

uint64_t rs_clock_ns(void)
{
    struct timespec now;
    uint64_t ns;

    clock_gettime(CLOCK_MONOTONIC, &now);
    ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + own.ahead_ns;
    if (RS_UNLIKELY(own.slept_ns)) {
        if (ns < own.last_ns + own.slept_ns) {
            own.ahead_ns += own.last_ns + own.slept_ns - ns;
            ns = own.last_ns + own.slept_ns;
        }
        own.slept_ns = 0;
    }
    return own.last_ns = ns;
}

void rs_clock_note_slept(uint64_t ns)
{
    own.slept_ns += ns;
}

uint64_t rs_clock_own_ns(uint64_t time_ns)
{
    return time_ns > own.ahead_ns ? time_ns - own.ahead_ns : 0;
}

/* Reads the clock by a system call, which no program interposes. */
static uint64_t kernel_ns(void)
{
    struct timespec now = {0, 0};

    (void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sleeps, and notes how long that took: `ns`, or, if the program's clock has stood still, the time
 * by the kernel's own clock, but at most four times `ns`.  A nap of 20 us takes 70 us or more, so
 * if only 20 us were noted, a wait of many naps would take more than three times its bound. */
static void sleep_and_note(uint64_t ns)
{
    struct timespec nap = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    uint64_t begin_ns = own.ahead_ns ? kernel_ns() : 0, slept_ns = ns;

    if (nanosleep(&nap, NULL) != 0)
        return; /* a signal has ended the sleep early */
    if (begin_ns)
        slept_ns = rs_max(slept_ns, rs_min(kernel_ns() - begin_ns, 4 * ns));
    rs_clock_note_slept(slept_ns);
}

/* ---- waits ---- */

void rs_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void rs_condition_wait(pthread_cond_t *condition, struct rs_mutex *mutex)
{
    RS_UNCANCELLED_GUARD();

    RS_LOCK_NOTE(rs_lock_rank_waits, mutex);
    rs_lock_must(pthread_cond_wait(condition, &mutex->native));
}

int rs_condition_wait_until_ns(pthread_cond_t *condition, struct rs_mutex *mutex, uint64_t until_ns)
{
    uint64_t begin_ns = rs_clock_ns(), own_ns = rs_clock_own_ns(until_ns);
    struct timespec until = {(time_t)(own_ns / 1000000000), (long)(own_ns % 1000000000)};
    int result;
    RS_UNCANCELLED_GUARD();

    RS_LOCK_NOTE(rs_lock_rank_waits, mutex);
    result = pthread_cond_timedwait(condition, &mutex->native, &until);
    RS_ASSERT(result == 0 || result == ETIMEDOUT); /* EINVAL: a time with too many nanoseconds */
    if (result == ETIMEDOUT && until_ns > begin_ns)
        rs_clock_note_slept(until_ns - begin_ns);
    return result;
}

void rs_nap(uint64_t ns)
{
    RS_UNCANCELLED_GUARD();

    sleep_and_note(ns);
}

/* The thread that is waited for may have a lower real-time priority.  Then it gets this processor
 * only while the waiting thread sleeps, since sched_yield yields only to threads of the same or a
 * higher priority.  So rs_pause naps in the end. */
enum { PAUSES = 128, YIELDS = 16, POLLS = 256, NAP_NS = 50 * 1000, NAPS_ALIKE = 8, DOUBLINGS = 4 };

/* The time that is noted for a sched_yield.  It is less than any system call takes, so on a clock
 * that runs it changes nothing. */
enum { YIELD_NS = 20 };

void rs_pause(unsigned turn)
{
    if (turn < PAUSES) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    } else if (turn < PAUSES + YIELDS) {
        sched_yield();
    } else {
        rs_nap((uint64_t)NAP_NS << rs_min((turn - PAUSES - YIELDS) / NAPS_ALIKE, DOUBLINGS));
    }
}

void rs_poll_pause(unsigned turn)
{
    if (turn >= POLLS) {
        rs_nap(NAP_NS);
        return;
    }
    sched_yield();
    rs_clock_note_slept(YIELD_NS);
}

void rs_spinlock_lock_slow(struct rs_spinlock *lock)
{
    unsigned turn = 0;

    do
        while (atomic_load_explicit(&lock->taken, memory_order_relaxed))
            rs_pause(turn++);
    while (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire));
}

/* ---- forks ---- */

void rs_lock_reset_mutex(void *mutex)
{
    pthread_mutex_init(&((struct rs_mutex *)mutex)->native, NULL);
}

void rs_lock_reset_shared(void *lock)
{
    pthread_rwlock_init(&((struct rs_shared_lock *)lock)->native, NULL);
}

/* Keeps the default clock of the condition: PTHREAD_COND_INITIALIZER has initialised all conditions
 * that exist once per process. */
void rs_lock_reset_condition(void *condition)
{
    pthread_cond_init(condition, NULL);
}

/* ---- at exit ---- */

static __thread struct {
    uint64_t deadline_ns; /* 0: none */
    struct rs_locks_missed missed;
} bound;

void rs_lock_bound_begin(uint64_t wait_ns)
{
    RS_ASSERT(!rs_lock_is_bound()); /* an inner pair would end the outer one's bound */
    bound.deadline_ns = rs_clock_ns() + wait_ns;
    bound.missed = (struct rs_locks_missed){.times = 0};
}

void rs_lock_bound_end(void)
{
    RS_ASSERT(rs_lock_is_bound());
    bound.deadline_ns = 0;
}

bool rs_lock_is_bound(void)
{
    return bound.deadline_ns != 0;
}

const struct rs_locks_missed *rs_locks_missed(void)
{
    return &bound.missed;
}

static void note_missed(const char *name)
{
    struct rs_locks_missed *missed = &bound.missed;

    missed->times++;
    for (unsigned i = 0; i < missed->name_count; i++)
        if (strcmp(missed->names[i], name) == 0)
            return;
    if (missed->name_count < RS_LOCKS_MISSED_MAX)
        missed->names[missed->name_count++] = name;
}

/* Takes the lock before the deadline, or notes it as skipped and returns false. */
static bool take_bounded(bool (*try)(void *lock), void *lock, const char *name)
{
    for (unsigned turn = 0; !try(lock); turn++) {
        if (rs_clock_ns() >= bound.deadline_ns) {
            note_missed(name);
            return false;
        }
        rs_pause(turn);
    }
    return true;
}

static bool try_mutex(void *mutex)
{
    return rs_mutex_try_lock(mutex);
}

static bool try_spinlock(void *lock)
{
    struct rs_spinlock *spinlock = lock;

    if (atomic_exchange_explicit(&spinlock->taken, 1, memory_order_acquire))
        return false;
    RS_LOCK_NOTE(rs_lock_rank_taken, spinlock);
    return true;
}

bool rs_mutex_lock_bounded(struct rs_mutex *mutex, const char *name)
{
    if (bound.deadline_ns)
        return take_bounded(try_mutex, mutex, name);
    rs_mutex_lock(mutex);
    return true;
}

bool rs_spinlock_lock_bounded(struct rs_spinlock *lock, const char *name)
{
    if (bound.deadline_ns)
        return take_bounded(try_spinlock, lock, name);
    rs_spinlock_lock(lock);
    return true;
}
