/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a context is idle, for memory that only a waiting driver call can give back. */
#pragma once

#include "driver/fence.h"

#include <stdbool.h>
#include <stdint.h>

/* Waits at most bound_ns for all work that the context was given so far.  Returns RS_FENCE_DONE
 * when it is done; RS_FENCE_PENDING when it is not; RS_FENCE_FAULT; RS_FENCE_BROKEN when nobody can
 * tell: a driver without context events, a stream that captures, an error of the context. */
enum rs_fence_state rs_context_idle(CUcontext context, uint64_t bound_ns);

/* Inside a request: true when the context is idle, after a wait of at most 0.5 ms; then a driver
 * call that waits for its work does not.  A context that was found busy, or of which nobody can
 * tell, is not looked at again until rs_request_forget_busy. */
bool rs_request_sees_idle(CUcontext context);
