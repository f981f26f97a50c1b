/* SPDX-License-Identifier: Apache-2.0 */
/* The stacks of pushed resources (context/pushed.h) in a context.  Without the contexts' lock, but
 * where it says so. */
#pragma once

#include "base/diagnostic.h"
#include "context/context_record.h"

#include <stdbool.h>

/* What pushes are worth for the context: the stack of what the thread has pushed where it has been
 * made, or NULL for the driver's own. */
struct rs_stack *rs_pushed_stack_made(struct rs_context *context, bool *denied);

/* The same, made if need be. */
struct rs_stack *rs_pushed_stack_get(struct rs_context *context, bool *denied);

/* False after reporting it.  Later allocations are denied then, where `deny` is set. */
bool rs_pushed_stack_make(struct rs_context *context, const struct rs_pushed *resource,
                          struct rs_diagnostics *diagnostics, bool deny);

/* A context's list is nobody's any more.  The caller holds the contexts' lock. */
void rs_pushed_stack_recycle(struct rs_pushed_stack *pushed);
