/* SPDX-License-Identifier: Apache-2.0 */
/* How a stack is made. */
#pragma once

#include "base/diagnostic.h"
#include "context/context_record.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_expression;

extern _Atomic bool rs_context_has_threshold; /* a stack of the process, now or before */

/* Makes the stack; the memory's owner is current, and the caller holds the contexts' lock.  False
 * when the settings are bad for it. */
bool rs_stack_make(struct rs_stack *stack, const struct rs_expression *expression,
                   bool takes_initial, struct rs_diagnostics *diagnostics);

/* Makes what the settings give, unless that was tried before.  Without the lock.  *denied is set
 * where they turn out bad and allocations are refused. */
void rs_stack_settle(struct rs_stack *stack, bool *denied);

/* The stack ends: the next of its kind and device may take the initial sizes.  The caller holds the
 * lock. */
void rs_stack_release_initial(const struct rs_stack *stack);
