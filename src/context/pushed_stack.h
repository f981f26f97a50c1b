/* SPDX-License-Identifier: Apache-2.0 */
/* The stacks of pushed resources (context/pushed.h) in a context.  The caller does not hold the
 * contexts' lock, except where a comment says so. */
#pragma once

#include "base/log.h"
#include "context/context_record.h"

#include <stdbool.h>

/* Returns the stack of the resource that the calling thread has pushed if it has been made in this
 * context.  NULL: not made yet, refused (*denied), or the resource is the driver's own allocation.
 */
struct rs_stack *rs_pushed_stack_made(struct rs_context *context, bool *denied);

/* As rs_pushed_stack_made, but makes the stack when it has not been made. */
struct rs_stack *rs_pushed_stack_get(struct rs_context *context, bool *denied);

/* Makes the stack of a resource in a context.  False after reporting why the resource does not fit
 * the device; with `deny`, later allocations under it are then refused. */
bool rs_pushed_stack_make(struct rs_context *context, const struct rs_pushed *resource,
                          struct rs_diagnostics *diagnostics, bool deny);

/* Destroys the stacks of a dropped context's list and keeps their records for reuse.  The caller
 * holds the contexts' lock. */
void rs_pushed_stack_recycle(struct rs_pushed_stack *pushed);
