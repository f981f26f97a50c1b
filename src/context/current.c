/* SPDX-License-Identifier: Apache-2.0 */
/* Looks the current context up, and describes it where it is new. */
#include "context/context.h"

#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/end.h"
#include "context/limit.h"
#include "context/stack.h"
#include "context/table.h"
#include "driver/driver.h"
#include "resource/segment.h"
#include "shim/wiring.h"

#include <errno.h>
#include <stdlib.h>

/* ---- contexts; the caller holds the lock ---- */

static bool wants_stacks(CUdevice device)
{
    bool wants = false;

    for (int kind = 0; kind < RS_KINDS && device < RS_DEVICES_MAX; kind++)
        wants = wants || rs_config_stack(&rs_config, (enum rs_kind)kind, device);
    return wants;
}

static enum rs_kind kind_at(unsigned index)
{
    return index == RS_STACK_DEVICE    ? RS_KIND_DEVICE
           : index == RS_STACK_MANAGED ? RS_KIND_MANAGED
                                       : RS_KIND_PINNED;
}

static unsigned index_of(enum rs_kind kind, unsigned host_flags)
{
    return kind == RS_KIND_DEVICE    ? RS_STACK_DEVICE
           : kind == RS_KIND_MANAGED ? RS_STACK_MANAGED
                                     : RS_STACK_PINNED + host_flags % RS_HOST_FLAG_SETS;
}

static bool reclaim_for(const struct rs_environment *environment, const struct rs_refusal *refusal,
                        bool may_wait)
{
    return rs_wiring.reclaim(environment->device, refusal, may_wait);
}

static bool has_memory(const struct rs_environment *environment, CUdeviceptr address)
{
    return rs_context_has_memory(rs_stack_of(environment)->context, address);
}

static struct rs_context *describe_context(CUcontext handle, CUdevice device)
{
    struct rs_context *context = rs_context_take_record();

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (!context)
        return NULL;
    context->handle = handle;
    context->id = rs_context_id_of(handle);
    context->device = device;
    context->primary = rs_driver_known_primary(device) == handle;
    rs_account_begin(&context->account, rs_limit_account(device));
    atomic_store(&context->peers,
                 rs_wiring.peer_devices(handle) & ~(1ull << (unsigned)device % RS_DEVICES_MAX));
    rs_context_begins(context);
    for (unsigned i = 0; i < RS_STACKS; i++) {
        struct rs_stack *stack = &context->stack[i];
        stack->context = context;
        stack->kind = kind_at(i);
        stack->counter = rs_block_counter(stack->kind, (int)((unsigned)device % RS_DEVICES_MAX));
        RS_ASSERT_SLOW(i >= RS_STACK_PINNED || index_of(stack->kind, 0) == i);
        stack->environment = (struct rs_environment){
            .device = device,
            .context = handle,
            .sentinel = &context->sentinel,
            .own_stream = &context->own_stream,
            .account = &context->account,
            .peers = &context->peers,
            .reclaim = reclaim_for,
            .note_fault = rs_context_note_fault_of,
            .has_memory = has_memory,
            .host_flags = i < RS_STACK_PINNED ? CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
                                              : i - RS_STACK_PINNED,
        };
    }
    if (!rs_contexts_add(handle, rs_context_id_of(handle), context)) {
        free(context);
        return NULL;
    }
    rs_mode_note_context();
    rs_context_stacks_changed();
    return context;
}

static struct rs_context *create(CUcontext handle)
{
    struct rs_context *context = NULL;
    CUdeviceptr block = 0;
    CUcontext owner;
    CUdevice device;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || rs_contexts_entry(handle))
        return NULL; /* the context is about to end: the driver serves its allocations */
    rs_limit_resolve(device);
    if (!wants_stacks(device) && !rs_pushed_of(device))
        return describe_context(handle, device);
    owner = rs_context_memory_owner(handle, &block);
    if (owner != handle)
        context = rs_context_find(owner);
    if (!context && !rs_contexts_entry(owner))
        context = describe_context(owner, device);
    if (context)
        context->owns_memory = true;
    if (context && owner != handle)
        (void)rs_contexts_add(handle, rs_context_id_of(handle), context);
    if (context)
        rs_context_keep_block(context, block);
    return context;
}

/* ---- stacks of pushed resources ---- */

/* May be called with or without the contexts' lock. */
static struct rs_pushed_stack *find_pushed(struct rs_context *context,
                                           const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = atomic_load_explicit(&context->pushed, memory_order_acquire);

    while (pushed && pushed->resource != resource)
        pushed = pushed->next;
    return pushed;
}

/* Makes a stack and enters it into the context's list; its mr stays NULL where the driver is to
 * serve the allocations.  False, after reporting it, when the resource does not fit this device:
 * then the entry denies allocations, or, without `deny`, there is none. */
static bool add_pushed(struct rs_context *context, const struct rs_pushed *resource,
                       struct rs_diagnostics *diagnostics, bool deny)
{
    struct rs_pushed_stack *pushed = rs_pushed_stack_take(context, resource);
    CUresult result = CUDA_SUCCESS;
    bool entered, good = true;

    RS_ASSERT_SLOW(!find_pushed(context, resource)); /* the first would be found for ever */
    if (!pushed)
        return true; /* out of host memory: the driver serves this allocation */
    entered = rs_driver_context_enter(context->handle, &result);
    if (result == CUDA_SUCCESS && rs_context_owns_memory(context))
        good = rs_stack_make(&pushed->stack, resource->expression, true, diagnostics);
    rs_driver_context_leave(entered);
    if (!good && !deny) {
        rs_pushed_stack_recycle(pushed);
        return false;
    }
    pushed->denies = !good;
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
    return good;
}

static struct rs_stack *pushed_made(struct rs_context *context, bool *denied)
{
    struct rs_pushed_stack *pushed = find_pushed(context, rs_thread.pushed);

    *denied = pushed && pushed->denies;
    return pushed && atomic_load_explicit(&pushed->stack.mr, memory_order_acquire) ? &pushed->stack
                                                                                   : NULL;
}

static bool make_pushed(struct rs_context *context, const struct rs_pushed *resource,
                        struct rs_diagnostics *diagnostics, bool deny)
{
    bool good = true;

    if (rs_context_is_creating())
        return true;
    rs_context_creating_begin();
    rs_mutex_lock(&rs_contexts_lock);
    if (!find_pushed(context, resource)) {
        CUstreamCaptureMode mode = rs_capture_relax();
        good = add_pushed(context, resource, diagnostics, deny);
        rs_capture_restore(mode);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end();
    return good;
}

static struct rs_stack *get_pushed(struct rs_context *context, bool *denied)
{
    struct rs_stack *stack = pushed_made(context, denied);

    if (RS_LIKELY(stack) || find_pushed(context, rs_thread.pushed))
        return stack;
    *denied = !make_pushed(context, rs_thread.pushed, &rs_mode_diagnostics, true);
    return *denied ? NULL : pushed_made(context, denied);
}

/* ---- look-up ---- */

/* Caches the context for the calling thread (rs_thread.found) and the resource of its device
 * memory.  While a context ends nothing is cached: a handle may become another context's at any
 * moment, so the next look-up must ask for its id again. */
static void note_found(CUcontext handle, struct rs_context *context, unsigned generation)
{
    const struct rs_pushed *resource = rs_pushed_of(context->device);

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (context->handle == handle && !rs_context_ends_under_way() && !rs_context_is_faulty(context))
        rs_thread.found = (struct rs_context_found){handle, generation, context};
    else if (rs_thread.pushed != resource)
        rs_context_forget_found(); /* the cached context is of another device, with that resource */
    rs_thread.pushed = resource;
}

static struct rs_context *find_current(bool make)
{
    struct rs_context *context = rs_context_found_before(0);
    CUcontext handle = NULL;
    unsigned now;

    if (RS_LIKELY(context))
        return context;
    if (rs_driver.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle || rs_context_is_creating())
        return NULL;
    rs_context_creating_begin();
    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_find(handle);
    if (rs_context_has_ended() || (!context && make)) {
        rs_mutex_unlock(&rs_contexts_lock);
        rs_context_give_back_ended();
        if (make)
            rs_context_learn_current(handle);
        rs_mutex_lock(&rs_contexts_lock);
        context = rs_context_find(handle);
    }
    if (!context && make) {
        CUstreamCaptureMode mode = rs_capture_relax();
        context = create(handle);
        rs_capture_restore(mode);
    }
    now = atomic_load_explicit(&rs_context_generation, memory_order_acquire);
    if (context)
        note_found(handle, context, now);
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end();
    return context;
}

int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics)
{
    struct rs_context *context = find_current(true);

    if (!context || (device >= 0 && context->device != device) ||
        make_pushed(context, resource, diagnostics, false))
        return 0;
    return -EINVAL;
}

void rs_context_set_resource(int device, const struct rs_pushed *resource)
{
    rs_pushed_set(device, resource);
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

void rs_context_forget_found(void)
{
    rs_thread.found.context = NULL;
}

struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied)
{
    struct rs_context *context = find_current(true);
    struct rs_stack *stack;

    *denied = false;
    if (!context || rs_context_is_faulty(context))
        return NULL;
    if (RS_UNLIKELY(rs_thread.pushed) && kind == RS_KIND_DEVICE)
        return get_pushed(context, denied);
    stack = &context->stack[index_of(kind, host_flags)];
    if (RS_LIKELY(atomic_load_explicit(&stack->mr, memory_order_acquire)))
        return stack;
    rs_stack_settle(stack, denied);
    return atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

struct rs_stack *rs_stack_if_made(unsigned which)
{
    struct rs_context *context = find_current(false);
    struct rs_stack *stack = context ? &context->stack[which] : NULL;
    bool denied;

    RS_ASSERT(which < RS_STACKS);
    if (RS_UNLIKELY(context && rs_context_is_faulty(context)))
        return NULL;
    if (RS_UNLIKELY(rs_thread.pushed) && which == RS_STACK_DEVICE)
        return context ? pushed_made(context, &denied) : NULL;
    return stack && atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

struct rs_context *rs_context_owner(void)
{
    return find_current(true);
}

struct rs_context *rs_context_current(void)
{
    return find_current(false);
}

RS_COLD CUresult rs_context_fault_or(CUresult result)
{
    CUstreamCaptureMode mode;
    size_t free_bytes, total_bytes;
    struct rs_context *context;
    CUresult fault;

    if (!rs_driver.cuMemGetInfo_v2)
        return result;
    mode = rs_capture_relax();
    fault = rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
    rs_capture_restore(mode);
    if (!rs_is_fault(fault))
        return result;
    context = rs_context_current();
    if (context)
        rs_context_note_fault(context);
    return fault;
}
