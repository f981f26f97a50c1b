/* SPDX-License-Identifier: Apache-2.0 */
/* Makes stacks from their expressions, and keeps the resources that threads push. */
#include "context/stack.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "config/config.h"
#include "config/mode.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/table.h"
#include "driver/driver.h"
#include "resource/expression.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool initial_taken[RS_KINDS][RS_DEVICES_MAX]; /* protected by the contexts' lock */

_Atomic bool rs_context_has_threshold;

/* True when frees wait only because the driver has no fences: then `reuse` makes each free wait,
 * whatever its options say, unless the memory is the host's. */
static bool waits_for_want_of_fences(const struct rs_expression *expression)
{
    return !rs_fence_supported() && rs_expression_frees_are_ready(expression) &&
           rs_expression_memories(expression) != 1u << RS_MEMORY_HOST;
}

static void say_stack(const struct rs_stack *stack, const struct rs_expression *expression)
{
    static char text[RS_EXPRESSION_TEXT_BYTES]; /* protected by the contexts' lock; too large for
                                                   the thread's stack */

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (rs_config.verbose)
        rs_log_asked("device %d%s: %s%s", (int)stack->environment.device,
                     rs_kind_texts[stack->kind],
                     rs_expression_format(expression, &stack->environment, text),
                     waits_for_want_of_fences(expression)
                         ? "; a free waits for the GPU, because the driver is older than 555"
                         : "");
}

/* Builds the stack from its expression. The context that owns the memory is current, and the caller
 * holds the contexts' lock. Returns false, after reporting why, when the expression does not fit
 * the device. Returns true with stack->mr NULL when the driver refused or host memory ran out: the
 * driver then serves its allocations. */
static bool make_stack(struct rs_stack *stack, const struct rs_expression *expression,
                       bool takes_initial, struct rs_diagnostics *diagnostics)
{
    CUdevice device = stack->environment.device;
    struct rs_mr *mr = NULL;
    int result;

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(!atomic_load(&stack->mr)); /* a stack made before would be lost, with its blocks */
    if (rs_driver.cuMemGetInfo_v2(&stack->environment.free_bytes,
                                  &stack->environment.total_bytes) != CUDA_SUCCESS) {
        /* The context is broken, or the failure is temporary. The driver serves this allocation and
         * reports its own error; the next allocation tries to make the stack again. */
        stack->settled = false;
        return true;
    }
    if (rs_expression_memories(expression) != 1u << RS_MEMORY_DEVICE)
        rs_host_memory(&stack->environment.host_total_bytes, &stack->environment.host_free_bytes);
    if (!rs_config_fits_limit(expression, rs_limit_get(device), &stack->environment, diagnostics))
        return false;
    stack->environment.first_on_device = takes_initial;
    stack->environment.frees_are_ready = rs_expression_frees_are_ready(expression);
    stack->frees_wait = rs_expression_frees_wait(expression) || !rs_fence_supported();
    rs_context_stacks_changed();
    say_stack(stack, expression);
    /* The sentinel is allocated before a pool can take all free memory. */
    rs_sentinel_prepare(&stack->context->sentinel, stack->context->handle);
    rs_unseen_begin();
    result = rs_expression_build(expression, &stack->environment, diagnostics, &mr);
    rs_unseen_end();
    if (result == -EINVAL)
        return false;
    if (result != 0)
        rs_log("device %d: its memory resources could not be set up (%s), so the driver "
               "serves its allocations; a limit still holds",
               (int)device, result == -ENOMEM ? "out of host memory" : "the driver refused");
    else
        atomic_store_explicit(&stack->mr, mr, memory_order_release);
    if (mr && mr->has_threshold)
        atomic_store(&rs_context_has_threshold, true);
    return true;
}

/* True when managed memory may come from a pool. On a device without concurrent access the host
 * must not touch managed memory while kernels run, unless the memory is attached to the host or to
 * one stream. An attachment is a property of a whole driver allocation, so the blocks of a pool
 * would share it. */
static bool is_managed_poolable(void)
{
    static bool said;
    int devices = 0, without = 0;

    if (rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return false;
    while (without < devices &&
           rs_driver_device_has(without, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS))
        without++;
    if (without < devices && rs_log_once(&said))
        rs_log("device %d cannot use managed memory at the same time as the host, so the driver, "
               "not rmmshim, serves cudaMallocManaged",
               without);
    return without == devices;
}

/* Logs once that settings are for absent devices. That is no error: one set of settings may serve
 * machines of several sizes, and a process may see only some devices of one. */
static void say_absent_devices(void)
{
    static bool said;
    const struct rs_source *first;
    int devices = 0, device;
    char others[64] = "";
    unsigned count;

    if (rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return;
    count = rs_config_count_absent(&rs_config, devices, &first, &device);
    if (count == 0 || !rs_log_once(&said))
        return;
    if (count > 1)
        snprintf(others, sizeof(others), ", and so %s %u more setting%s for missing devices",
                 count == 2 ? "is" : "are", count - 1, count == 2 ? "" : "s");
    rs_log("%s is for device %d, but the process has only %d device%s: this setting is ignored%s",
           first->name, device, devices, devices == 1 ? "" : "s", others);
}

/* Makes the stack of the settings. Only one stack of each kind and device has its initial sizes at
 * a time, so that two contexts do not take twice as much. */
static bool make_settled(struct rs_stack *stack, const struct rs_expression *expression)
{
    bool *taken = &initial_taken[stack->kind][stack->environment.device];
    bool good = make_stack(stack, expression, !*taken, &rs_mode_diagnostics);

    RS_ASSERT(!stack->has_initial);
    stack->has_initial = !*taken && atomic_load(&stack->mr);
    *taken = *taken || stack->has_initial;
    return good;
}

void rs_stack_release_initial(const struct rs_stack *stack)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(!stack->has_initial || initial_taken[stack->kind][stack->environment.device]);
    if (stack->has_initial)
        initial_taken[stack->kind][stack->environment.device] = false;
}

/* The caller holds the contexts' lock. */
static void settle_stack(struct rs_stack *stack, bool *denied)
{
    const struct rs_expression *expression =
        rs_config_stack(&rs_config, stack->kind, stack->environment.device);
    CUresult result;

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(!stack->settled);
    stack->settled = true;
    say_absent_devices();
    if (!expression || (stack->kind == RS_KIND_MANAGED && !is_managed_poolable()))
        return;
    RS_CONTEXT_GUARD(stack->context->handle, &result);
    if (result != CUDA_SUCCESS)
        stack->settled = false; /* the next allocation tries again */
    else if (!make_settled(stack, expression))
        *denied = rs_mode_bad_settings() == RS_MODE_DENY;
}

void rs_stack_settle(struct rs_stack *stack, bool *denied)
{
    if (rs_context_is_creating())
        return;
    rs_context_creating_begin();
    rs_mutex_lock(&rs_contexts_lock);
    if (!stack->settled) {
        RS_RELAXED_GUARD();
        settle_stack(stack, denied);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end(true);
}

/* ---- pushed resources ---- */

static __thread struct {
    const struct rs_pushed *resources[RS_PUSHED_DEPTH_MAX];
    unsigned count;
} own;

static _Atomic(const struct rs_pushed *) of_device[RS_DEVICES_MAX];

static struct rs_mutex lock = RS_MUTEX_INIT(
    RS_RANK_ALONE); /* protects the list `all` and its length; no driver call is made under it */
RS_RESET_IN_CHILD(context_pushed, lock);
static struct rs_pushed *all;
static unsigned all_count;

static const struct rs_pushed *find_text(const char *text)
{
    const struct rs_pushed *pushed = all;

    RS_ASSERT_HELD(&lock);
    while (pushed && strcmp(pushed->source.text, text) != 0)
        pushed = pushed->next;
    return pushed;
}

static int make_resource(const char *text, struct rs_diagnostics *diagnostics,
                         const struct rs_pushed **out)
{
    struct rs_pushed *pushed = calloc(1, sizeof(*pushed));
    char *copy = strdup(text);
    unsigned before = diagnostics->count;

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(all_count < RS_PUSHED_MAX);
    if (pushed && copy) {
        pushed->source = (struct rs_source){"expression", copy};
        pushed->expression = rs_config_expression(&rs_config, &pushed->source, diagnostics);
    }
    if (!pushed || !pushed->expression) {
        free(copy);
        free(pushed);
        return diagnostics->count > before ? -EINVAL : -ENOMEM;
    }
    pushed->next = all;
    all = pushed;
    all_count++;
    *out = pushed;
    return 0;
}

int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out)
{
    RS_MUTEX_GUARD(&lock);

    *out = find_text(text);
    if (*out)
        return 0;
    return all_count < RS_PUSHED_MAX ? make_resource(text, diagnostics, out) : -ENOSPC;
}

int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics)
{
    const struct rs_pushed *pushed = NULL;
    int result;

    if (own.count == RS_PUSHED_DEPTH_MAX)
        return -ENOSPC;
    result = rs_pushed_find(text, diagnostics, &pushed);
    if (result != 0)
        return result;
    RS_ASSERT(pushed && pushed->expression);
    own.resources[own.count++] = pushed;
    rs_thread.pushed = pushed;
    return 0;
}

int rs_pushed_pop(void)
{
    if (own.count == 0)
        return -ERANGE;
    RS_ASSERT(own.count <= RS_PUSHED_DEPTH_MAX && own.resources[own.count - 1]);
    own.count--;
    rs_thread.pushed = own.count ? own.resources[own.count - 1] : NULL;
    rs_thread.found.context = NULL;
    return 0;
}

void rs_pushed_set(int device, const struct rs_pushed *resource)
{
    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX);
    atomic_store_explicit(&of_device[device], resource, memory_order_release);
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

const struct rs_pushed *rs_pushed_of(int device)
{
    if (own.count)
        return own.resources[own.count - 1];
    if (device < 0 || device >= RS_DEVICES_MAX)
        return NULL;
    return atomic_load_explicit(&of_device[device], memory_order_acquire);
}

/* ---- stacks of pushed resources ---- */

/* Records for reuse. They are never freed, since a thread that found one before its context was
 * dropped may still read it. Protected by the contexts' lock. */
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

/* Returns an empty record; NULL when out of host memory. */
static struct rs_pushed_stack *take_pushed_record(struct rs_context *context,
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
                  .environment = context->stack[RS_STACK_DEVICE].environment},
        .resource = resource,
    };
    return pushed;
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

/* Makes the stack of a pushed resource and enters it into the context's list. Its mr stays NULL if
 * the driver is to serve the allocations. No entry is made if the next allocation is to try again.
 * Returns false, after reporting why, when the resource does not fit this device. Then the entry
 * denies allocations (`deny`), or no entry is made. */
static bool add_pushed(struct rs_context *context, const struct rs_pushed *resource,
                       struct rs_diagnostics *diagnostics, bool deny)
{
    struct rs_pushed_stack *pushed = take_pushed_record(context, resource);
    CUresult result;
    bool good = true;

    RS_ASSERT_SLOW(!find_pushed(context, resource)); /* only the first entry would ever be found */
    if (!pushed)
        return true; /* out of host memory: the driver serves this allocation */
    RS_CONTEXT_GUARD(context->handle, &result);
    pushed->stack.settled = result == CUDA_SUCCESS;
    if (pushed->stack.settled && rs_context_owns_memory(context))
        good = make_stack(&pushed->stack, resource->expression, true, diagnostics);
    if (!pushed->stack.settled || (!good && !deny)) {
        rs_pushed_stack_recycle(pushed);
        return good;
    }
    pushed->denies = !good;
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
    return good;
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
        RS_RELAXED_GUARD();
        good = add_pushed(context, resource, diagnostics, deny);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end(true);
    return good;
}

struct rs_stack *rs_pushed_stack_get(struct rs_context *context, bool make, bool *denied)
{
    struct rs_pushed_stack *pushed = find_pushed(context, rs_thread.pushed);

    if (RS_UNLIKELY(!pushed) && make) {
        (void)rs_pushed_stack_make(context, rs_thread.pushed, &rs_mode_diagnostics, true);
        pushed = find_pushed(context, rs_thread.pushed);
    }
    *denied = pushed && pushed->denies;
    return pushed && atomic_load_explicit(&pushed->stack.mr, memory_order_acquire) ? &pushed->stack
                                                                                   : NULL;
}
