/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on the fake device.  One runs at a time, and the fake clock alone decides which: the one
 * whose time to go on comes first.  So a run with several threads says the same on every machine.
 * A thread hands its turn over where it takes time: in an operation of the program, in a call of
 * the driver that allocates, in a sleep, and where it waits for a lock or a condition. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Runs body(0) to body(count - 1), each in a thread of its own, and returns when all have ended. */
void fake_threads_run(unsigned count, void (*body)(unsigned index));

/* True in a thread of fake_threads_run. */
bool fake_threads_is_one(void);

/* The calling thread takes this time; others run meanwhile.  Outside fake_threads_run the clock
 * goes on by it. */
void fake_threads_pass(uint64_t ns);
