/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, the clock that bounds waits, and counters that are written under a lock.
 *
 * With -Dslow_asserts=true each lock carries its rank and each thread notes the locks that it holds
 * (lock_rank.c); taking a lock out of order fails an assertion that names both locks.  In other
 * builds locks have no rank and threads note nothing. */
#pragma once

#include "base/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* ---- ranks; src/README.md lists which locks have which ---- */

/* A thread that holds locks takes only a lock of a higher rank than each of them.  So two locks of
 * one rank are never held together.  A thread may try to take a lock in any order, since a try does
 * not wait for the lock's holder.  A lock taken by a try counts as held. */
enum rs_lock_rank {
    RS_RANK_NONE, /* the rank of a lock that nobody has initialised; no lock may have it */
    /* A report, and the directory of published counters, while they are made. */
    RS_RANK_REPORT,
    /* The table of contexts; stacks are made and dropped under it. */
    RS_RANK_CONTEXTS,
    /* Tables of records: the driver's pools, charged calls, peers, exports, imports. */
    RS_RANK_RECORDS,
    /* The list of leaves (resources that call the driver) with memory still to give back. */
    RS_RANK_UNFINISHED,
    /* One `reuse` resource: its sealed epochs, and ready blocks that go upstream. */
    RS_RANK_REUSE,
    /* A list of freed blocks in `reuse`: of a shard, in stream order, or refused by upstream. */
    RS_RANK_REUSE_LISTS,
    /* One resource as a whole; never held around a call of its upstream. */
    RS_RANK_RESOURCE,
    /* A part of a resource, whose lock may be taken under the resource's own: the file of a log, a
     * chunk of a recording. */
    RS_RANK_RESOURCE_PART,
    /* Tables under which only RS_RANK_LEDGER may be taken: address map, block records, call sites,
     * published memory and more. */
    RS_RANK_TABLE,
    /* The account of a device. */
    RS_RANK_LEDGER,
    /* Waited for only by a thread that holds no lock; no other lock is waited for under it. */
    RS_RANK_ALONE,
    RS_RANK_COUNT
};

/* What a lock carries for the check of the order.  The name tells the rank and where the lock was
 * initialised. */
struct rs_lock_mark {
    enum rs_lock_rank rank;
    const char *name;
};

#define RS_LOCK_TEXT_OF(value) #value
#define RS_LOCK_TEXT(value)    RS_LOCK_TEXT_OF(value)
#define RS_LOCK_MARK(rank)                                                                         \
    {                                                                                              \
        rank, #rank " of " __FILE__ ":" RS_LOCK_TEXT(__LINE__)                                     \
    }

/* The most locks that a thread may hold at once; the notes have room for no more. */
enum { RS_LOCKS_HELD_MAX = 16 };

/* Called before a thread waits for a lock: fails when the lock is out of order. */
void rs_lock_rank_before(const struct rs_lock_mark *mark);

/* rs_lock_rank_taken is called after a lock was taken, also by a try; rs_lock_rank_left before the
 * lock is released. */
void rs_lock_rank_taken(const struct rs_lock_mark *mark);
void rs_lock_rank_left(const struct rs_lock_mark *mark);

/* Called before a wait on a condition, which releases the lock and takes it again: fails when the
 * thread does not hold that lock, or holds another one of a higher rank. */
void rs_lock_rank_waits(const struct rs_lock_mark *mark);

/* Fails when the calling thread does not hold the lock. */
void rs_lock_rank_must_hold(const struct rs_lock_mark *mark);

#ifdef RS_SLOW_ASSERTS
#define RS_LOCK_MARK_FIELD struct rs_lock_mark mark;
#define RS_LOCK_INIT(free, rank)                                                                   \
    {                                                                                              \
        free, RS_LOCK_MARK(rank)                                                                   \
    }
#define RS_LOCK_SET(lock, value) ((void)((lock)->mark = (value)))
#define RS_LOCK_NOTE(note, lock) note(&(lock)->mark)
#else
#define RS_LOCK_MARK_FIELD
#define RS_LOCK_INIT(free, rank)                                                                   \
    {                                                                                              \
        free                                                                                       \
    }
#define RS_LOCK_SET(lock, value) ((void)(value))
#define RS_LOCK_NOTE(note, lock) ((void)0)
#endif

/* For a function whose caller must hold a lock: asserts that the calling thread holds it.  Only
 * with slow asserts. */
#define RS_ASSERT_HELD(lock) RS_LOCK_NOTE(rs_lock_rank_must_hold, lock)

/* Asserts that a call of pthreads has succeeded; `failed` is its result.  Such a call fails only if
 * this code is wrong. */
static inline void rs_lock_must(int failed)
{
    RS_ASSERT(!failed);
    (void)failed;
}

struct rs_mutex {
    pthread_mutex_t native;
    RS_LOCK_MARK_FIELD
};

#define RS_MUTEX_INIT(rank) RS_LOCK_INIT(PTHREAD_MUTEX_INITIALIZER, rank)

/* Assigns the initial value instead of calling pthread_mutex_init: in a program that was built with
 * ThreadSanitizer, the sanitizer sees that call, but not the atomics by which other threads come to
 * know the mutex, and would report a race. */
static inline void rs_mutex_init_marked(struct rs_mutex *mutex, struct rs_lock_mark mark)
{
    mutex->native = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    RS_LOCK_SET(mutex, mark);
}

#define rs_mutex_init(mutex, rank)                                                                 \
    rs_mutex_init_marked(mutex, (struct rs_lock_mark)RS_LOCK_MARK(rank))

static inline void rs_mutex_destroy(struct rs_mutex *mutex)
{
    rs_lock_must(pthread_mutex_destroy(&mutex->native)); /* EBUSY: the mutex is held */
}

static inline void rs_mutex_lock(struct rs_mutex *mutex)
{
    RS_LOCK_NOTE(rs_lock_rank_before, mutex);
    rs_lock_must(pthread_mutex_lock(&mutex->native));
    RS_LOCK_NOTE(rs_lock_rank_taken, mutex);
}

/* Returns false when any thread, the calling one included, holds the mutex. */
static inline bool rs_mutex_try_lock(struct rs_mutex *mutex)
{
    if (pthread_mutex_trylock(&mutex->native) != 0)
        return false;
    RS_LOCK_NOTE(rs_lock_rank_taken, mutex);
    return true;
}

/* Bounded locking, for reports at exit.  At exit a lock may never be released: its holder may have
 * ended or be waiting, or may be this very thread, whose signal handler called exit().  Between
 * begin and end, the calls of *_lock_bounded functions by this thread wait until wait_ns after the
 * begin at most, and skip a lock that is still held then.  Outside of such a pair they wait without
 * bound. */
void rs_lock_bound_begin(uint64_t wait_ns);
void rs_lock_bound_end(void);

enum { RS_LOCKS_MISSED_MAX = 8 };

/* True between rs_lock_bound_begin and rs_lock_bound_end. */
bool rs_lock_is_bound(void);

/* The locks that this thread has skipped since rs_lock_bound_begin: the first RS_LOCKS_MISSED_MAX
 * different names, and the number of all skips. */
struct rs_locks_missed {
    const char *names[RS_LOCKS_MISSED_MAX];
    unsigned name_count, times;
};

const struct rs_locks_missed *rs_locks_missed(void);

/* Locks the mutex as described at rs_lock_bound_begin.  Returns false when it was skipped, and so
 * is not locked.  `name` says what the lock protects; rs_locks_missed keeps the pointer. */
bool rs_mutex_lock_bounded(struct rs_mutex *mutex, const char *name);

static inline void rs_mutex_unlock(struct rs_mutex *mutex)
{
    RS_LOCK_NOTE(rs_lock_rank_left, mutex);
    rs_lock_must(pthread_mutex_unlock(&mutex->native));
}

static inline struct rs_mutex *rs_mutex_guard(struct rs_mutex *mutex)
{
    rs_mutex_lock(mutex);
    return mutex;
}

static inline void rs_mutex_guard_end(struct rs_mutex *const *mutex)
{
    rs_mutex_unlock(*mutex);
}

/* Locks the mutex until the end of the block. */
#define RS_MUTEX_GUARD(mutex)                                                                      \
    RS_GUARD(struct rs_mutex *const, rs_mutex_guard_end) = rs_mutex_guard(mutex)

/* Initialises a condition variable whose times are those of CLOCK_MONOTONIC. */
void rs_condition_init(pthread_cond_t *condition);

/* Both wait on a condition variable without being a cancellation point (base/file.h).
 * rs_condition_wait_until_ns returns ETIMEDOUT when until_ns, a time of rs_clock_ns, has come, else
 * 0; it needs a condition of rs_condition_init.  Both may also return though nobody has signalled
 * the condition. */
void rs_condition_wait(pthread_cond_t *condition, struct rs_mutex *mutex);
int rs_condition_wait_until_ns(pthread_cond_t *condition, struct rs_mutex *mutex,
                               uint64_t until_ns);

/* Sleeps for ns nanoseconds, or less when a signal arrives.  No cancellation point. */
void rs_nap(uint64_t ns);

/* ---- forks ---- */

/* A forked child has only the thread that forked.  A lock that another thread held would never be
 * released there, so the child resets each lock and condition of the whole process by
 * rs_lock_reset.  For that, RS_RESET_IN_CHILD(name, lock) follows the definition of each, and
 * shim/wiring.c lists the name (scripts/check-locks checks both).  What the lock protects may be
 * half changed: either the child copes with that, or rs_wiring.reset_locks empties it. */
struct rs_lock_to_reset {
    void (*reset)(void *lock);
    void *lock;
};

void rs_lock_reset_mutex(void *mutex);
void rs_lock_reset_shared(void *lock);
void rs_lock_reset_condition(void *condition);

#define RS_RESET_IN_CHILD(name, lock_)                                                             \
    extern const struct rs_lock_to_reset rs_reset_##name;                                          \
    const struct rs_lock_to_reset rs_reset_##name = {                                              \
        _Generic(&(lock_), struct rs_mutex *                                                       \
                 : rs_lock_reset_mutex, struct rs_shared_lock *                                    \
                 : rs_lock_reset_shared, pthread_cond_t *                                          \
                 : rs_lock_reset_condition),                                                       \
        &(lock_)}

static inline void rs_lock_reset(const struct rs_lock_to_reset *one)
{
    one->reset(one->lock);
}

/* Pauses in a loop that waits for another thread; `turn` counts the turns of the loop from 0.  In
 * the first 128 turns it executes a pause instruction, in the next 16 turns it calls sched_yield,
 * and in later turns it naps for 50 us to 0.8 ms.  No cancellation point. */
__attribute__((cold)) void rs_pause(unsigned turn);

/* Pauses in a loop that asks the driver whether some work is done: it calls sched_yield in the
 * first 256 turns (some 0.4 ms), in which most of these loops end, and naps for 50 us in each later
 * turn. */
void rs_poll_pause(unsigned turn);

/* A spinlock for short, rarely contended sections (some ten instructions).  Locking and unlocking
 * it takes one locked instruction in all; a mutex takes two of them, and two function calls.  A
 * zeroed spinlock is unlocked. */
struct rs_spinlock {
    atomic_uint taken;
    RS_LOCK_MARK_FIELD
};

#define RS_SPINLOCK_INIT(rank) RS_LOCK_INIT(0, rank)

static inline void rs_spinlock_init_marked(struct rs_spinlock *lock, struct rs_lock_mark mark)
{
    atomic_init(&lock->taken, 0);
    RS_LOCK_SET(lock, mark);
}

#define rs_spinlock_init(lock, rank)                                                               \
    rs_spinlock_init_marked(lock, (struct rs_lock_mark)RS_LOCK_MARK(rank))

__attribute__((cold)) void rs_spinlock_lock_slow(struct rs_spinlock *lock);

static inline void rs_spinlock_lock(struct rs_spinlock *lock)
{
    RS_LOCK_NOTE(rs_lock_rank_before, lock);
    if (RS_UNLIKELY(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire)))
        rs_spinlock_lock_slow(lock);
    RS_LOCK_NOTE(rs_lock_rank_taken, lock);
}

/* Does for a spinlock what rs_mutex_lock_bounded does for a mutex. */
bool rs_spinlock_lock_bounded(struct rs_spinlock *lock, const char *name);

static inline void rs_spinlock_unlock(struct rs_spinlock *lock)
{
    RS_ASSERT_SLOW(atomic_load_explicit(&lock->taken, memory_order_relaxed) == 1);
    RS_LOCK_NOTE(rs_lock_rank_left, lock);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

/* A read-write lock: many threads may hold it shared, or one alone. */
struct rs_shared_lock {
    pthread_rwlock_t native;
    RS_LOCK_MARK_FIELD
};

#define RS_SHARED_LOCK_INIT(rank) RS_LOCK_INIT(PTHREAD_RWLOCK_INITIALIZER, rank)

static inline void rs_shared_lock_take_alone(struct rs_shared_lock *lock)
{
    RS_LOCK_NOTE(rs_lock_rank_before, lock);
    rs_lock_must(pthread_rwlock_wrlock(&lock->native));
    RS_LOCK_NOTE(rs_lock_rank_taken, lock);
}

static inline bool rs_shared_lock_try_alone(struct rs_shared_lock *lock)
{
    if (pthread_rwlock_trywrlock(&lock->native) != 0)
        return false;
    RS_LOCK_NOTE(rs_lock_rank_taken, lock);
    return true;
}

static inline bool rs_shared_lock_try_shared(struct rs_shared_lock *lock)
{
    if (pthread_rwlock_tryrdlock(&lock->native) != 0)
        return false;
    RS_LOCK_NOTE(rs_lock_rank_taken, lock);
    return true;
}

static inline void rs_shared_lock_unlock(struct rs_shared_lock *lock)
{
    RS_LOCK_NOTE(rs_lock_rank_left, lock);
    rs_lock_must(pthread_rwlock_unlock(&lock->native));
}

/* ---- time ---- */

/* Monotonic time in nanoseconds (CLOCK_MONOTONIC), by which waits are bounded.
 *
 * A program may interpose clock_gettime (to fake time, say) with a clock that stands still.  So
 * this time advances at least by what the thread has noted as slept (rs_clock_note_slept), and a
 * wait that naps or yields between its looks at the time ends even on such a clock. */
uint64_t rs_clock_ns(void);

/* Notes that the calling thread has slept, or waited, for at least `ns`. This changes nothing while
 * the clock advances by itself. */
void rs_clock_note_slept(uint64_t ns);

/* Converts a time of rs_clock_ns to the time of CLOCK_MONOTONIC that a system call must wait
 * for. */
uint64_t rs_clock_own_ns(uint64_t time_ns);

/* ---- counters that are written under their owner's lock and read without it ---- */

/* The owner's lock excludes other writers, so an update is a plain load and store without a locked
 * instruction.  A reader never writes the counter's cache line. */

static inline size_t rs_counter_get(const _Atomic size_t *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}

/* Adds `by` to the counter.  The caller holds the owner's lock. */
static inline void rs_counter_add(_Atomic size_t *counter, size_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_release);
}

/* Subtracts `by` from the counter.  The caller holds the owner's lock. */
static inline void rs_counter_subtract(_Atomic size_t *counter, size_t by)
{
    RS_ASSERT_SLOW(atomic_load_explicit(counter, memory_order_relaxed) >= by);
    rs_counter_add(counter, (size_t)0 - by);
}

/* Raises a peak that several threads may raise at once, without a lock. */
static inline void rs_counter_raise(_Atomic size_t *peak, size_t to)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);

    while (to > seen && !atomic_compare_exchange_weak_explicit(
                            peak, &seen, to, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Returns held minus live bytes: memory that is held and not handed out.  A block that is freed and
 * given back between the two reads makes the result too small, since live is read first.  Memory
 * that is added between them makes it too large. */
static inline size_t rs_counter_idle(const _Atomic size_t *held_bytes,
                                     const _Atomic size_t *live_bytes)
{
    size_t live = rs_counter_get(live_bytes), held = rs_counter_get(held_bytes);

    return held > live ? held - live : 0;
}
