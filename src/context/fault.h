/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts of which work has failed, by an illegal address, say: every driver call about one
 * returns that error until it ends.  Nobody asks the driver for it, but where it said so in passing
 * (in the answer about a fence, or to a wait of the program) the context is faulty: no stack serves
 * it, so that the driver answers its allocations, and a free answers what the driver's own would.
 */
#pragma once

#include "base/check.h"
#include "context/context_record.h"

#include <stdbool.h>

static inline bool rs_context_is_faulty(const struct rs_context *context)
{
    return atomic_load_explicit(&context->alive, memory_order_relaxed) == RS_CONTEXT_FAULTY;
}

/* True once a context of the process was faulty. */
bool rs_context_any_fault(void);

/* The driver answered with an error for which rs_is_fault is true.  Takes no lock, makes no driver
 * call. */
RS_COLD void rs_context_note_fault(struct rs_context *context);

/* rs_environment.note_fault. */
RS_COLD void rs_context_note_fault_of(const struct rs_environment *environment);

/* What the driver's own free in a faulty context answers now.  Not inside a request, as it may
 * wait. CUDA_SUCCESS, and the context is served again, when the driver knows no error of it. */
RS_COLD CUresult rs_context_ask_fault(struct rs_context *context);
