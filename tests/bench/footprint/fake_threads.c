/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_threads.h"

#include "fake_device.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

enum {
    THREADS_MAX = 64,
    LOCK_NS = 500, /* until a thread that found a lock taken looks again */
};

struct thread {
    pthread_t native;
    sem_t turn;        /* posted when the thread is to go on */
    uint64_t ready_ns; /* not before this time */
    bool waits;        /* for a condition */
    bool has_ended;    /* its body has; the thread stays until all have */
};

static struct thread threads[THREADS_MAX];
static unsigned thread_count, running_count;
static void (*thread_body)(unsigned index);
static sem_t all_ended;
static __thread struct thread *self; /* NULL outside fake_threads_run */

bool fake_threads_is_one(void)
{
    return self;
}

/* The thread whose time comes first; of equal ones the next in turn after `from`. */
static struct thread *first_ready(const struct thread *from)
{
    unsigned begin = from ? (unsigned)(from - threads) + 1 : 0;
    struct thread *first = NULL;

    for (unsigned i = 0; i < thread_count; i++) {
        struct thread *thread = &threads[(begin + i) % thread_count];
        if (!thread->has_ended && (!first || thread->ready_ns < first->ready_ns))
            first = thread;
    }
    if (!first || first->ready_ns == UINT64_MAX)
        abort(); /* each waits for another */
    return first;
}

static void await_turn(void)
{
    while (sem_wait(&self->turn) != 0)
        ;
}

static void hand_over(const struct thread *from)
{
    struct thread *next = first_ready(from);

    if (fake_device.now_ns < next->ready_ns)
        fake_device.now_ns = next->ready_ns;
    if (next == from)
        return;
    sem_post(&next->turn);
    if (from)
        await_turn();
}

void fake_threads_pass(uint64_t ns)
{
    if (!self) {
        fake_device.now_ns += ns;
        return;
    }
    self->ready_ns = fake_device.now_ns + ns;
    hand_over(self);
}

static void *run(void *argument)
{
    self = argument;
    await_turn();
    thread_body((unsigned)(self - threads));
    self->has_ended = true;
    if (--running_count > 0) {
        hand_over(self);
    } else {
        sem_post(&all_ended);
        await_turn();
    }
    self = NULL;
    return NULL;
}

void fake_threads_run(unsigned count, void (*body)(unsigned index))
{
    if (count == 0 || count > THREADS_MAX)
        abort();
    thread_count = running_count = count;
    thread_body = body;
    sem_init(&all_ended, 0, 0);
    for (unsigned i = 0; i < count; i++) {
        threads[i] = (struct thread){.ready_ns = fake_device.now_ns};
        sem_init(&threads[i].turn, 0, 0);
        if (pthread_create(&threads[i].native, NULL, run, &threads[i]) != 0)
            abort();
    }
    hand_over(NULL);
    while (sem_wait(&all_ended) != 0)
        ;
    /* What a thread's end takes back is taken back by one thread at a time. */
    for (unsigned i = 0; i < count; i++) {
        sem_post(&threads[i].turn);
        pthread_join(threads[i].native, NULL);
        sem_destroy(&threads[i].turn);
    }
    sem_destroy(&all_ended);
}

/* ---- what threads wait for; the names are the linker's (--wrap) ---- */

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t *lock);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int failed;

    if (!self)
        return __real_pthread_mutex_lock(mutex);
    while ((failed = pthread_mutex_trylock(mutex)) == EBUSY)
        fake_threads_pass(LOCK_NS);
    return failed;
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    int failed;

    if (!self)
        return __real_pthread_rwlock_wrlock(lock);
    while ((failed = pthread_rwlock_trywrlock(lock)) == EBUSY)
        fake_threads_pass(LOCK_NS);
    return failed;
}

/* Any broadcast ends each wait: a caller looks at its condition again, as it must. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    uint64_t until_ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    bool was_woken;

    (void)condition;
    if (!self) {
        fake_device.now_ns = until_ns; /* nobody is there to wake the one thread */
        return ETIMEDOUT;
    }
    self->waits = true;
    self->ready_ns = until_ns;
    pthread_mutex_unlock(mutex);
    hand_over(self);
    was_woken = !self->waits;
    self->waits = false;
    __wrap_pthread_mutex_lock(mutex);
    return was_woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    (void)condition;
    for (unsigned i = 0; i < thread_count; i++) {
        if (!threads[i].waits)
            continue;
        threads[i].waits = false;
        threads[i].ready_ns = fake_device.now_ns;
    }
    return 0;
}
