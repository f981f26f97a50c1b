/* SPDX-License-Identifier: Apache-2.0 */
/* A device that only counts, for the stacks that `replay` plays on: a driver without a GPU, whose
 * memory is addresses and whose clock is a number.  Each run says the same on every machine.
 *
 * Time passes as the sequence tells, and where the library looks at the clock or sleeps.  The GPU
 * is always the lag behind the program: a fence is done that long after the request at which it was
 * recorded.  Without a lag each fence is done at once.
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

extern CUcontext const replay_device_context;
