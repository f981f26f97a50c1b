/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in nanoseconds (CLOCK_MONOTONIC), by which waits are bounded.
 *
 * A program may interpose clock_gettime, and its clock may stand still.  So a thread's time also
 * goes on by what it is known to have slept: a wait that naps, or looks often, ends on any clock.
 */
#pragma once

#include <stdint.h>
#include <time.h>

uint64_t rs_clock_ns(void);

/* The calling thread has slept, or waited, for at least so long.  While the clock goes, that
 * changes nothing. */
void rs_clock_note_slept(uint64_t ns);

/* A time of rs_clock_ns as the clock itself has it, for the kernel. */
uint64_t rs_clock_own_ns(uint64_t time_ns);

/* nanosleep, for rs_nap (base/lock.h), and notes it: on a clock that stands, what it took by the
 * kernel's own clock, but no more than four times what was asked for. */
void rs_clock_sleep(uint64_t ns);

/* sched_yield, for rs_poll_pause (base/lock.h), in a loop that may be bounded by time. */
void rs_clock_yield(void);
