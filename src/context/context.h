/* SPDX-License-Identifier: Apache-2.0 */
/* The context that is current, and its stacks: a stack is made at the first allocation of its kind
 * in a context, and dropped when the context ends (context/end.h). */
#pragma once

#include "base/check.h"
#include "base/thread_state.h"
#include "config/config.h"
#include "context/context_record.h"
#include "driver/driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The calling thread's stack for this kind of memory, its pushed resource's where it has one (and
 * these CU_MEMHOSTALLOC flags), made if need be.  NULL when there is no context, when no stack is
 * wanted, or when the settings turned out bad on this device (then *denied tells whether
 * allocations are refused).  Contexts that share memory (green contexts and their primary) share
 * stacks. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied);

/* Makes the resource's stack for the current context, where there is one (of this device; -1: of
 * any), so that what is wrong with it on the device is reported now.  0, or -EINVAL after
 * reporting it. */
int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics);

/* From now on the device memory of all threads that have pushed nothing comes from the resource in
 * this device's contexts; NULL: from what the settings give. */
void rs_context_set_resource(int device, const struct rs_pushed *resource);

/* The calling thread looks its context up again. */
void rs_context_forget_found(void);

/* The stack for device or managed memory (RS_STACK_...) if it has been made. */
struct rs_stack *rs_context_made_stack(unsigned which);

/* The current context as the thread found it before, or NULL: look it up then, as where something
 * else is unusual. */
RS_HOT_INLINE struct rs_context *rs_context_found_before(uintptr_t unusual)
{
    unsigned now = atomic_load_explicit(&rs_context_generation, memory_order_acquire);
    struct rs_context *context = rs_thread.found.context;
    CUcontext handle = NULL;

    if (RS_UNLIKELY(unusual | RS_DIFFER(rs_thread.found.generation, now) | !context))
        return NULL;
    unusual = (uintptr_t)rs_driver.cuCtxGetCurrent(&handle);
    return RS_LIKELY(!(unusual | RS_DIFFER(rs_thread.found.handle, handle))) ? context : NULL;
}

/* rs_context_made_stack in the common case: NULL says nothing. */
RS_HOT_INLINE struct rs_stack *rs_context_stack_before(unsigned which)
{
    struct rs_context *context = rs_context_found_before((uintptr_t)rs_thread.pushed);

    return RS_LIKELY(context) &&
                   RS_LIKELY(atomic_load_explicit(&context->stack[which].mr, memory_order_acquire))
               ? &context->stack[which]
               : NULL;
}

/* The context that owns what the calling thread allocates now, made known if need be; NULL without
 * one. */
struct rs_context *rs_context_owner(void);

/* What the process holds of a device, with its limit; NULL for a number out of range. */
struct rs_account *rs_context_device_account(int device);

/* What the calling thread allocates from where it has one that is known: its current context, or
 * the one that owns a green one's memory.  NULL otherwise. */
struct rs_context *rs_context_current(void);
