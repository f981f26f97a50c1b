/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated driver for the stacks that `replay` plays on. There is no GPU: memory is only
 * addresses, and the clock is a number, so a replay gives the same result on every machine.
 *
 * Time passes between requests, as the sequence tells, and when the library reads the clock or
 * sleeps. With a lag, the GPU works for all of the time between two requests, and the program for
 * half of it. So the program runs ahead of the GPU, by the lag at most, and then waits for it. A
 * fence is done at most the lag after it was recorded, and a wait of the library makes the run
 * longer only if the GPU runs out of work. Without a lag each fence is done at once.
 *
 * There is one device. Not thread safe. */
#pragma once

#include "driver/cuda.h"

#include <stddef.h>
#include <stdint.h>

/* Replaces the driver by the device, and the system's clock by the device's, until
 * replay_device_remove.  All memory that the device handed out before must have been freed.  lag_ns
 * may be 0. */
void replay_device_install(uint64_t lag_ns, size_t capacity_bytes);
void replay_device_remove(void);

/* Lets `ns` nanoseconds pass. The requests that follow are made by the thread `thread`. */
void replay_device_pass(uint64_t ns, uint32_t thread);

/* Returns how long the GPU has had no work since replay_device_install.  With a lag, this is how
 * much longer the run took. */
uint64_t replay_device_idle_ns(void);

/* The one context of the device. */
#define REPLAY_CONTEXT ((CUcontext)(uintptr_t)0x1000)
