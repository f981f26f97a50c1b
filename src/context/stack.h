/* SPDX-License-Identifier: Apache-2.0 */
/* Makes stacks. */
#pragma once

#include "base/log.h"
#include "context/context.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_expression;

/* A stack of the process has, or had, a release threshold. */
extern _Atomic bool rs_context_has_threshold;

/* Builds the stack from its expression.  The context that owns the memory is current, and the
 * caller holds the contexts' lock.  False, after reporting it, when the expression does not fit the
 * device.  True with stack->mr NULL when the driver refused or host memory ran out: the driver then
 * serves its allocations. */
bool rs_stack_make(struct rs_stack *stack, const struct rs_expression *expression,
                   bool takes_initial, struct rs_diagnostics *diagnostics);

/* Makes the stack of the settings, unless that was tried before.  The caller does not hold the
 * contexts' lock.  Sets *denied where the settings are invalid and allocations are to be refused.
 */
void rs_stack_settle(struct rs_stack *stack, bool *denied);

/* Lets the next stack of this kind and device take the initial sizes, as this one ends.  The caller
 * holds the contexts' lock. */
void rs_stack_release_initial(const struct rs_stack *stack);

/* Returns an empty record for the stack of a pushed resource in a context; NULL when out of host
 * memory.  The caller holds the contexts' lock, here and below. */
struct rs_pushed_stack *rs_pushed_stack_take(struct rs_context *context,
                                             const struct rs_pushed *resource);

/* Destroys the stacks of a list, and keeps their records for reuse. */
void rs_pushed_stack_recycle(struct rs_pushed_stack *pushed);
