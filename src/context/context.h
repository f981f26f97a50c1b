/* SPDX-License-Identifier: Apache-2.0 */
/* The current context and its stacks.  A stack is made at the first allocation of its kind in a
 * context and dropped when the context ends (context/end.h). */
#pragma once

#include "base/check.h"
#include "base/thread.h"
#include "config/config.h"
#include "context/context_record.h"
#include "driver/driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns the stack that serves this kind of memory for the calling thread, made if need be: the
 * stack of its pushed resource (device memory only) or the settings', for these CU_MEMHOSTALLOC
 * flags (pinned memory only).  NULL when no context is current, when no stack is wanted, or when
 * the settings are invalid for this device; then *denied tells whether the allocation must be
 * refused.  Green contexts share the stacks of their primary context. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied);

/* Makes the stack of a pushed resource for the current context now, so that its errors on this
 * device are reported now.  Does nothing without a current context, or when the context is not of
 * `device` (-1: any device).  Returns 0, or -EINVAL after reporting the error. */
int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics);

/* From now on device memory in the contexts of `device` comes from the resource, for all threads
 * that have pushed none; NULL: from the stack of the settings. */
void rs_context_set_resource(int device, const struct rs_pushed *resource);

/* Makes the calling thread look its context up anew at its next call. */
void rs_context_forget_found(void);

/* Returns the stack at index `which` (RS_STACK_DEVICE or RS_STACK_MANAGED) of the current context
 * if it has been made, else NULL. For device memory a pushed resource comes first. */
struct rs_stack *rs_context_made_stack(unsigned which);

/* Returns the current context from the cache of the calling thread.  NULL: take the slow path; so
 * always when `unusual` is not 0. */
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

/* As rs_context_made_stack, from the cache of the calling thread alone.  NULL: call
 * rs_context_made_stack. */
RS_HOT_INLINE struct rs_stack *rs_context_stack_before(unsigned which)
{
    struct rs_context *context = rs_context_found_before((uintptr_t)rs_thread.pushed);

    return RS_LIKELY(context) &&
                   RS_LIKELY(atomic_load_explicit(&context->stack[which].mr, memory_order_acquire))
               ? &context->stack[which]
               : NULL;
}

/* Returns the context that owns the memory which the calling thread allocates now (for a green
 * context its primary), entering it into the table if need be; NULL when no context is current. */
struct rs_context *rs_context_owner(void);

/* Returns the account of a device, with its limit; NULL for a device number out of range. */
struct rs_account *rs_context_device_account(int device);

/* As rs_context_owner, but NULL when the context is not in the table yet. */
struct rs_context *rs_context_current(void);

/* The current context's error where its work has failed, else `result`.  Asks the driver, without a
 * wait. */
RS_COLD CUresult rs_context_fault_or(CUresult result);
