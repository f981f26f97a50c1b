/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of events: the processor's counter where it counts evenly, which takes 10 ns to read
 * where CLOCK_MONOTONIC takes 25.  The counters of all processors count alike. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* True where the counter runs at one rate in all power states ("invariant TSC"). */
static inline bool rs_recording_clock_is_counter(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
}

/* Without a fence, which would take 16 ns: the processor may read the counter some 10 ns early.  Of
 * a free and the allocation that has its block next, the later one may so have the earlier time;
 * the reader (tool/recording) puts the two in order. */
static inline uint64_t rs_recording_counter(void)
{
    return __builtin_ia32_rdtsc();
}
#elif defined(__aarch64__)
static inline bool rs_recording_clock_is_counter(void)
{
    return true;
}

static inline uint64_t rs_recording_counter(void)
{
    uint64_t ticks;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
    return ticks;
}
#else
static inline bool rs_recording_clock_is_counter(void)
{
    return false;
}

static inline uint64_t rs_recording_counter(void)
{
    return rs_clock_ns();
}
#endif

/* Which of the two it is, is found once and stays. */
extern bool rs_recording_has_counter;

static inline void rs_recording_clock_begin(void)
{
    rs_recording_has_counter = rs_recording_clock_is_counter();
}

/* The present ticks since an earlier moment. */
static inline uint64_t rs_recording_clock_ticks(uint64_t since_ticks)
{
    return (rs_recording_has_counter ? rs_recording_counter() : rs_clock_ns()) - since_ticks;
}
