/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose GPU and clock are numbers: the library's own stacks run on it (they are linked in,
 * nothing is preloaded), and each run says the same on every machine.  Time passes with the
 * program's operations, and where the library looks at the clock or sleeps.
 *
 * The GPU takes twice as long for an operation as the program, which runs ahead of it by the lag at
 * most and then waits by itself.  So a fence is done up to the lag after it was recorded; a wait of
 * the library's costs the run something only when the GPU has nothing to do meanwhile or after it.
 * Without a lag each fence is done at once. */
#pragma once

#include "resource/resource.h"

#include <stdint.h>

struct fake_device {
    uint64_t now_ns, lag_ns;
    uint64_t gpu_ns, busy_ns, idle_ns; /* the GPU's work ends then; it worked and idled so long */
    size_t capacity_bytes;             /* of cuMemAlloc and cuMemCreate, each */
    size_t held_bytes,
        peak_bytes;              /* of cuMemAlloc, in the driver's blocks of 2 MiB from 1 MiB on */
    uint64_t allocations, frees; /* cuMemAlloc and cuMemFree, without the sentinels' */
    uint64_t fences, looks;      /* recorded, and asked for */
};

extern struct fake_device fake_device;

/* Puts the fake in place of the driver's functions, as new. */
void fake_device_install(uint64_t lag_ns, size_t capacity_bytes);

/* RMM_LIMIT, for stacks that are made afterwards. */
void fake_device_limit(size_t limit_bytes);

/* The program, or one thread of several (fake_threads.h), does one thing more. */
void fake_device_operate(uint64_t operation_ns);

/* What is taken from the driver at most, mapped memory included. */
size_t fake_device_peak_bytes(void);

/* The stack of that expression with deferred frees, or with immediate ones; NULL after a line. */
struct rs_mr *fake_device_stack(const char *expression, bool deferred);

/* The driver's units: what a block takes of the device. */
size_t fake_device_taken_bytes(size_t size_bytes);
