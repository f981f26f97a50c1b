/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include "base/arithmetic.h"
#include "base/check.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Less than any system call takes, so that it never counts on a clock that goes. */
enum { YIELD_NS = 20 };

static __thread struct {
    uint64_t last_ns;  /* what the thread was last told */
    uint64_t slept_ns; /* since then, at least */
    uint64_t ahead_ns; /* by how much its time is ahead of the clock */
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

/* By a system call, which nobody interposes. */
static uint64_t kernel_ns(void)
{
    struct timespec now = {0, 0};

    (void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A nap of 20 us takes 70 us or more, so a wait of many would take that much longer. */
void rs_clock_sleep(uint64_t ns)
{
    struct timespec nap = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    uint64_t begin_ns = own.ahead_ns ? kernel_ns() : 0, slept_ns = ns;

    if (nanosleep(&nap, NULL) != 0)
        return; /* a signal has ended it early */
    if (begin_ns)
        slept_ns = rs_max(slept_ns, rs_min(kernel_ns() - begin_ns, 4 * ns));
    rs_clock_note_slept(slept_ns);
}

void rs_clock_yield(void)
{
    sched_yield();
    rs_clock_note_slept(YIELD_NS);
}
