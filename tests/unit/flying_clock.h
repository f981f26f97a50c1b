/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that end at once, on a clock that says they did not.  The linker leads clock_gettime and
 * pthread_cond_timedwait here. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SECOND_NS ((uint64_t)1000000000)

extern atomic_bool time_flies;          /* while set, each wait ends at once */
extern _Atomic uint64_t clock_ahead_ns; /* by how much the clock is ahead for it */
