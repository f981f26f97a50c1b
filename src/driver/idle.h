/* SPDX-License-Identifier: Apache-2.0 */
/* "Is the context idle?", for memory that can only be given back by a driver call that waits. */
#pragma once

#include "driver/fence.h"

#include <stdint.h>

/* RS_FENCE_DONE when all work that the context was given so far is done, or within bound_ns;
 * RS_FENCE_BROKEN where nobody can tell: on drivers without context events, while a stream
 * captures, after an error of the context's. */
enum rs_fence_state rs_context_idle(CUcontext context, uint64_t bound_ns);
