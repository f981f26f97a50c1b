/* SPDX-License-Identifier: Apache-2.0 */
/* A device that only counts, for the stacks that `replay` plays on: a driver without a GPU, whose
 * memory is addresses and whose clock is a number.  Each run says the same on every machine.
 *
 * Time passes as the sequence tells, and where the library looks at the clock or sleeps.  With a
 * lag the GPU works for as long as passes from one request to the next.  The program itself takes
 * half of that, so that it runs ahead of the GPU, by the lag at most, and then waits by itself.
 * So a fence is done up to the lag after it was recorded, and a wait of the library's costs the run
 * something only where the GPU has nothing more to do.  Without a lag each fence is done at once.
 *
 * There is one device.  Not thread safe. */
#pragma once

#include "driver/cuda.h"

#include <stddef.h>
#include <stdint.h>

/* Puts the device in place of the driver, and its clock in place of the system's, until
 * replay_device_remove.  All memory that was taken before has been given back. */
void replay_device_install(uint64_t lag_ns, size_t capacity_bytes);
void replay_device_remove(void);

/* So much later, the thread makes its next request. */
void replay_device_pass(uint64_t ns, uint32_t thread);

/* How long the GPU had nothing to do; with a lag it is by so much that the run got longer. */
uint64_t replay_device_idle_ns(void);

/* Its one context. */
#define REPLAY_CONTEXT ((CUcontext)(uintptr_t)0x1000)
