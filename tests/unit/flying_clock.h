/* SPDX-License-Identifier: Apache-2.0 */
/* A clock that tests lead, and waits that end at once or when they must.  The linker leads
 * clock_gettime, nanosleep and pthread_cond_timedwait here. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SECOND_NS ((uint64_t)1000000000)

extern atomic_bool
    time_flies; /* while set, each wait ends at once, and only waits and looks take time */
extern _Atomic uint64_t clock_ahead_ns; /* by how much the clock is ahead, for it or for a test */
extern _Atomic uint64_t clock_step_ns;  /* by how much it goes ahead when it is read */
extern atomic_bool clock_stands;        /* while set, it goes by these two alone */
extern atomic_bool waits_have_no_end;   /* while set, a wait ends when somebody ends it */
extern atomic_bool naps_take_no_time;   /* while set, the library counts none that it sleeps */
