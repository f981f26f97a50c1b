/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

__thread struct rs_thread rs_thread;

static _Atomic uint64_t taken = 1u << RS_THREAD_INDEX_SHARED; /* a bit for each index */

/* The key exists for its destructor, which runs when a thread ends. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

_Static_assert(RS_THREAD_INDEXES == 64, "a word has a bit for each index");

static _Atomic(void (*)(void)) at_end;

void rs_thread_index_at_end(void (*ending)(void))
{
    atomic_store(&at_end, ending);
}

static void end_of_index(void *data)
{
    unsigned index = (unsigned)(uintptr_t)data;
    void (*ending)(void) = atomic_load(&at_end);

    if (ending)
        ending();
    RS_ASSERT(index != RS_THREAD_INDEX_SHARED && index + 1 == rs_thread.index_plus_one);
    RS_ASSERT(atomic_load_explicit(&taken, memory_order_relaxed) >> index & 1);
    /* Later destructors of the thread may still free memory: they use the shared index. */
    rs_thread.index_plus_one = RS_THREAD_INDEX_SHARED + 1;
    atomic_fetch_and_explicit(&taken, ~((uint64_t)1 << index), memory_order_release);
}

static void make_index_key(void)
{
    has_key = pthread_key_create(&key, end_of_index) == 0;
}

/* Takes the lowest free index.  Returns the shared one when all are taken. */
static unsigned take_lowest(void)
{
    uint64_t seen = atomic_load_explicit(&taken, memory_order_relaxed);
    unsigned index;

    do {
        if (seen == UINT64_MAX)
            return RS_THREAD_INDEX_SHARED;
        index = (unsigned)__builtin_ctzll(~seen);
    } while (!atomic_compare_exchange_weak_explicit(&taken, &seen, seen | (uint64_t)1 << index,
                                                    memory_order_acquire, memory_order_relaxed));
    RS_ASSERT(index != RS_THREAD_INDEX_SHARED);
    return index;
}

unsigned rs_thread_index_take(void)
{
    unsigned index = RS_THREAD_INDEX_SHARED;

    /* An index that the thread already had would never be free again. */
    RS_ASSERT(rs_thread.index_plus_one == 0);
    /* Set before the calls below, which may allocate: a hook of malloc may need the thread's index,
     * and must not call this function again. */
    rs_thread.index_plus_one = index + 1;
    pthread_once(&once, make_index_key);
    if (has_key)
        index = take_lowest();
    if (index != RS_THREAD_INDEX_SHARED &&
        pthread_setspecific(key, (void *)(uintptr_t)index) != 0) {
        /* The library would not notice the thread's end, and would never free its index.  So the
         * thread gets the shared one. */
        atomic_fetch_and_explicit(&taken, ~((uint64_t)1 << index), memory_order_release);
        index = RS_THREAD_INDEX_SHARED;
    }
    rs_thread.index_plus_one = index + 1;
    return index;
}

bool rs_thread_start(void *(*run)(void *))
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attributes, run, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}
