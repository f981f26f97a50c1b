/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"

#include <sched.h>
#include <time.h>

void rs_pause(unsigned turn)
{
    if (turn < 128) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    } else if (turn < 1024) {
        sched_yield();
    } else {
        /* The holder may have a lower real-time priority and get no processor while we yield. */
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

void rs_spinlock_lock_slow(struct rs_spinlock *lock)
{
    unsigned turn = 0;

    do
        while (atomic_load_explicit(&lock->taken, memory_order_relaxed))
            rs_pause(turn++);
    while (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire));
}
