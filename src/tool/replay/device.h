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

struct replay_device {
    uint64_t now_ns, lag_ns;
    uint64_t recorded_ns;              /* of now_ns, what replay_device_reach was given */
    uint64_t gpu_ns, busy_ns, idle_ns; /* the GPU's work ends then; it worked and idled so long */
    size_t capacity_bytes;             /* of cuMemAlloc and cuMemCreate, each */
    size_t held_bytes,
        peak_bytes;              /* of cuMemAlloc, in the driver's blocks of 2 MiB from 1 MiB on */
    uint64_t allocations, frees; /* cuMemAlloc and cuMemFree, without the sentinels' */
    uint64_t fences, looks;      /* recorded, and asked for */
    uint64_t free_waits;         /* calls of cuMemFree that found the GPU at work */
};

extern struct replay_device replay_device;

/* Puts the fake in place of the driver's functions, as new. */
void replay_device_install(uint64_t lag_ns, size_t capacity_bytes);

/* The program does one thing more. */
void replay_device_operate(uint64_t operation_ns);

/* The same by a recording's times: the program does nothing for so long, and the GPU is the lag
 * behind it. */
void replay_device_reach(uint64_t ns);

/* From now on clock and sleep are the machine's again. */
void replay_device_remove(void);

/* What is taken from the driver at most, mapped memory included. */
size_t replay_device_peak_bytes(void);

/* The stack of an expression with deferred frees, or with immediate ones; NULL after a
 * diagnostic. A leaf of other memory takes from the device too. */
struct rs_mr *replay_device_stack(const char *text, bool deferred,
                                  struct rs_diagnostics *diagnostics);

/* The driver's units: what a block takes of the device. */
size_t replay_device_taken_bytes(size_t size_bytes);
