/* SPDX-License-Identifier: Apache-2.0 */
/* A context's stacks for pushed resources, each made at the first allocation under its resource. */
#include "context/pushed_stack.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/thread.h"
#include "config/mode.h"
#include "context/exclusion.h"
#include "context/identity.h"
#include "context/stack.h"
#include "context/table.h"
#include "driver/driver.h"

#include <stdlib.h>

/* Records for reuse.  They are never freed, as a late thread may still read one.  Under the
 * contexts' lock. */
static struct rs_pushed_stack *spare;

void rs_pushed_stack_recycle(struct rs_pushed_stack *pushed)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    while (pushed) {
        struct rs_pushed_stack *next = pushed->next;
        rs_mr_destroy(atomic_load(&pushed->stack.mr), true);
        pushed->next = spare;
        spare = pushed;
        pushed = next;
    }
}

/* May be called with or without the contexts' lock. */
static struct rs_pushed_stack *find_pushed(struct rs_context *context,
                                           const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = atomic_load_explicit(&context->pushed, memory_order_acquire);

    while (pushed && pushed->resource != resource)
        pushed = pushed->next;
    return pushed;
}

/* The caller of take_pushed, add_pushed and deny_pushed holds the contexts' lock. */
static struct rs_pushed_stack *take_pushed(struct rs_context *context,
                                           const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = spare;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (pushed)
        spare = pushed->next;
    else
        pushed = malloc(sizeof(*pushed));
    if (!pushed)
        return NULL;
    *pushed = (struct rs_pushed_stack){
        .stack = {.context = context,
                  .kind = RS_KIND_DEVICE,
                  .counter = context->stack[RS_STACK_DEVICE].counter,
                  .environment = context->stack[RS_STACK_DEVICE].environment,
                  .settled = true},
        .resource = resource,
    };
    return pushed;
}

/* Makes a stack and enters it into the context's list; its mr stays NULL where the driver is to
 * serve the allocations.  False, after reporting it and without an entry, when the resource does
 * not fit this device. */
static bool add_pushed(struct rs_context *context, const struct rs_pushed *resource,
                       struct rs_diagnostics *diagnostics)
{
    struct rs_pushed_stack *pushed = take_pushed(context, resource);
    CUresult result = CUDA_SUCCESS;
    bool entered, good = true;

    RS_ASSERT_SLOW(!find_pushed(context, resource)); /* the first would be found for ever */
    if (!pushed)
        return true; /* out of host memory: the driver serves this allocation */
    entered = rs_driver_context_enter(context->handle, &result);
    if (result == CUDA_SUCCESS && rs_context_owns_memory(context))
        good = rs_stack_make(&pushed->stack, resource->expression, true, diagnostics);
    rs_driver_context_leave(entered);
    if (!good) {
        pushed->next = spare;
        spare = pushed;
        return false;
    }
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
    return true;
}

static void deny_pushed(struct rs_context *context, const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = take_pushed(context, resource);

    RS_ASSERT_SLOW(!find_pushed(context, resource));
    if (!pushed)
        return;
    pushed->denies = true;
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
}

struct rs_stack *rs_pushed_stack_made(struct rs_context *context, bool *denied)
{
    struct rs_pushed_stack *pushed = find_pushed(context, rs_thread.pushed);

    *denied = pushed && pushed->denies;
    return pushed && atomic_load_explicit(&pushed->stack.mr, memory_order_acquire) ? &pushed->stack
                                                                                   : NULL;
}

bool rs_pushed_stack_make(struct rs_context *context, const struct rs_pushed *resource,
                          struct rs_diagnostics *diagnostics, bool deny)
{
    bool good = true;

    if (rs_context_is_creating())
        return true;
    rs_context_creating_begin();
    rs_mutex_lock(&rs_contexts_lock);
    if (!find_pushed(context, resource)) {
        CUstreamCaptureMode mode = rs_capture_relax();
        good = add_pushed(context, resource, diagnostics);
        rs_capture_restore(mode);
        if (!good && deny)
            deny_pushed(context, resource);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end();
    return good;
}

struct rs_stack *rs_pushed_stack_get(struct rs_context *context, bool *denied)
{
    struct rs_stack *stack = rs_pushed_stack_made(context, denied);

    if (RS_LIKELY(stack) || find_pushed(context, rs_thread.pushed))
        return stack;
    *denied = !rs_pushed_stack_make(context, rs_thread.pushed, &rs_mode_diagnostics, true);
    return *denied ? NULL : rs_pushed_stack_made(context, denied);
}
