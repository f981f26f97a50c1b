/* SPDX-License-Identifier: Apache-2.0 */
/* "Is the context idle?", for memory that can only be given back by a driver call that waits. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* True when all work that the context was given so far is done, or within bound_ns.  False also
 * where that cannot be asked: on drivers without context events, and while a stream captures. */
bool rs_context_is_idle(CUcontext context, uint64_t bound_ns);
