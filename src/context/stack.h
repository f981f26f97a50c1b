/* SPDX-License-Identifier: Apache-2.0 */
/* Makes stacks: the resources that serve one kind of memory in a context. */
#pragma once

#include "base/log.h"
#include "context/context.h"

#include <stdatomic.h>
#include <stdbool.h>

/* True once the process has made a stack with a release threshold. */
extern _Atomic bool rs_context_has_threshold;

/* Makes the given stack of the settings, unless that was tried before. Sets *denied if the settings
 * do not fit the device and allocations must be refused. The caller does not hold the contexts'
 * lock. */
void rs_stack_settle(struct rs_stack *stack, bool *denied);

/* Called when a stack is dropped: if it had the initial sizes of its kind and device, the next
 * stack may take them. The caller holds the contexts' lock. */
void rs_stack_release_initial(const struct rs_stack *stack);

/* Makes the stack of a pushed resource in a context, unless that was tried before. Returns false,
 * after reporting why, when the resource does not fit the device; then, with `deny`, allocations
 * under the resource are answered with out of memory from then on. The caller does not hold the
 * contexts' lock. */
bool rs_pushed_stack_make(struct rs_context *context, const struct rs_pushed *resource,
                          struct rs_diagnostics *diagnostics, bool deny);

/* Returns the stack of the resource that the calling thread has pushed, in this context. With
 * `make` it is made if need be. Returns NULL when there is no stack; *denied then tells whether the
 * allocation must be refused. */
struct rs_stack *rs_pushed_stack_get(struct rs_context *context, bool make, bool *denied);

/* Destroys the stacks of a list, and keeps their records for reuse.  The caller holds the contexts'
 * lock. */
void rs_pushed_stack_recycle(struct rs_pushed_stack *pushed);
