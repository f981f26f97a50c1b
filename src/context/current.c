/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up the current context, and makes a record for it if it is new. */
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

RS_COLD static void note_fault(const struct rs_environment *environment)
{
    rs_context_note_fault(rs_stack_of(environment)->context);
}

static bool has_memory(const struct rs_environment *environment, CUdeviceptr address)
{
    return rs_context_has_memory(rs_stack_of(environment)->context, address);
}

/* True when this thread's latest look-up found no host memory for the record of its context. */
static __thread bool lacks_host_memory;

bool rs_context_lacks_host_memory(void)
{
    return lacks_host_memory;
}

/* Returns an empty record for a new context, and makes room in the table for its handle and a green
 * context's; NULL when out of host memory. This comes before memory_owner allocates, since nobody
 * would free that memory if there were no record. */
static struct rs_context *prepare_record(void)
{
    return rs_contexts_reserve(2) ? rs_context_take_record() : NULL;
}

/* Fills in the record of a context and enters it into the table. prepare_record has made room. */
static struct rs_context *describe_context(struct rs_context *context, CUcontext handle,
                                           CUdevice device)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
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
            .note_fault = note_fault,
            .has_memory = has_memory,
            .host_flags = i < RS_STACK_PINNED ? CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
                                              : i - RS_STACK_PINNED,
        };
    }
    rs_contexts_add(handle, rs_context_id_of(handle), context);
    rs_mode_note_context();
    rs_context_stacks_changed();
    return context;
}

/* Returns the context that owns memory allocated while `handle` is current: `handle` itself, or a
 * green context's primary. To learn that, it allocates 512 bytes and asks the driver whose they
 * are. *block is that allocation, or 0. Freeing it here would wait for the device, so the caller
 * passes it to keep_asked_block. */
static CUcontext memory_owner(CUcontext handle, CUdeviceptr *block)
{
    CUcontext owner = handle;

    *block = 0;
    if (rs_driver.cuMemAlloc_v2(block, RS_SENTINEL_BYTES) != CUDA_SUCCESS) {
        *block = 0;
        return handle;
    }
    if (rs_driver.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, *block) !=
            CUDA_SUCCESS ||
        !owner)
        owner = handle;
    return owner;
}

/* Keeps the block of memory_owner as liveness probe or sentinel, or frees it on the library's own
 * stream: cuMemFree would wait, and a kernel may wait for this very thread. The driver counts the
 * freed block as used until a thread synchronises with that stream. */
static void keep_asked_block(struct rs_context *context, CUdeviceptr block)
{
    CUstream stream;
    CUresult result;

    if (block && !rs_driver.cuCtxGetId && !context->probe.address) {
        context->probe.id = rs_driver_allocation_id(block);
        context->probe.address = context->probe.id ? block : 0;
    }
    RS_ASSERT(!context->probe.address || context->probe.id);
    if (!block || block == context->probe.address || rs_sentinel_add(&context->sentinel, block))
        return;
    stream = rs_own_stream(&context->own_stream, context->handle);
    if (!stream || !rs_driver.cuMemFreeAsync)
        return; /* the 512 bytes stay until the context ends */
    RS_CONTEXT_GUARD(context->handle, &result);
    if (result == CUDA_SUCCESS && rs_driver.cuMemFreeAsync(block, stream) == CUDA_SUCCESS)
        (void)rs_own_stream_settle(stream, 0);
}

bool rs_context_owns_memory(struct rs_context *context)
{
    CUdeviceptr block = 0;

    if (context->owns_memory)
        return true;
    context->owns_memory = memory_owner(context->handle, &block) == context->handle;
    keep_asked_block(context, block);
    return context->owns_memory;
}

static struct rs_context *create(CUcontext handle)
{
    struct rs_context *context = NULL, *record;
    CUdeviceptr block = 0;
    CUcontext owner;
    CUdevice device;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || rs_contexts_entry(handle))
        return NULL; /* the context of this handle is in the table but ending, so the driver serves
                        its allocations */
    rs_limit_resolve(device);
    record = prepare_record();
    lacks_host_memory = !record;
    if (!record)
        return NULL;
    if (!wants_stacks(device) && !rs_pushed_of(device))
        return describe_context(record, handle, device);
    owner = memory_owner(handle, &block);
    if (owner != handle)
        context = rs_context_find(owner);
    if (!context && !rs_contexts_entry(owner))
        context = describe_context(record, owner, device);
    if (context != record)
        free(record);
    if (context)
        context->owns_memory = true;
    if (context && owner != handle)
        rs_contexts_add(handle, rs_context_id_of(handle), context);
    if (context)
        keep_asked_block(context, block);
    return context;
}

/* ---- look-up ---- */

/* Notes the context (rs_thread.found) and the resource of its device memory (rs_thread.pushed) for
 * the calling thread. Faulty contexts, and contexts found by a green context's handle, are not
 * cached. Nothing is cached while any context may be ending: a handle may become another context's
 * at any moment, so the next look-up must ask the driver for the handle's id. */
static void note_found(CUcontext handle, struct rs_context *context, unsigned generation)
{
    const struct rs_pushed *resource = rs_pushed_of(context->device);

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (context->handle == handle && !rs_context_ends_under_way() && !rs_context_is_faulty(context))
        rs_thread.found = (struct rs_context_found){handle, generation, context};
    else if (rs_thread.pushed != resource)
        rs_thread.found.context =
            NULL; /* the cached context must not be used together with this resource */
    rs_thread.pushed = resource;
}

/* Returns the current context, as rs_context_current does. `publish` is passed to
 * rs_context_creating_end. */
static struct rs_context *look_up(bool make, bool publish)
{
    struct rs_context *context = rs_context_found_before(0);
    CUcontext handle = NULL;
    unsigned now;

    if (RS_LIKELY(context))
        return context;
    lacks_host_memory = false;
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
        RS_RELAXED_GUARD();
        context = create(handle);
    }
    now = atomic_load_explicit(&rs_context_generation, memory_order_acquire);
    if (context)
        note_found(handle, context, now);
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end(publish);
    return context;
}

struct rs_context *rs_context_current(bool make)
{
    return look_up(make, true);
}

int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics)
{
    struct rs_context *context = rs_context_current(true);

    if (!context || (device >= 0 && context->device != device) ||
        rs_pushed_stack_make(context, resource, diagnostics, false))
        return 0;
    return -EINVAL;
}

/* Making the first stack of a new context publishes both together, so look_up publishes nothing. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied)
{
    struct rs_context *context = look_up(true, false);
    struct rs_stack *stack;

    *denied = false;
    if (!context || rs_context_is_faulty(context))
        return NULL;
    if (RS_UNLIKELY(rs_thread.pushed) && kind == RS_KIND_DEVICE)
        return rs_pushed_stack_get(context, true, denied);
    stack = &context->stack[index_of(kind, host_flags)];
    if (RS_LIKELY(atomic_load_explicit(&stack->mr, memory_order_acquire)))
        return stack;
    rs_stack_settle(stack, denied);
    return atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

struct rs_stack *rs_stack_if_made(unsigned which)
{
    struct rs_context *context = rs_context_current(false);
    struct rs_stack *stack = context ? &context->stack[which] : NULL;
    bool denied;

    RS_ASSERT(which < RS_STACKS);
    if (RS_UNLIKELY(context && rs_context_is_faulty(context)))
        return NULL;
    if (RS_UNLIKELY(rs_thread.pushed) && which == RS_STACK_DEVICE)
        return context ? rs_pushed_stack_get(context, false, &denied) : NULL;
    return stack && atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

RS_COLD CUresult rs_context_fault_or(CUresult result)
{
    RS_RELAXED_GUARD();
    size_t free_bytes, total_bytes;
    struct rs_context *context;
    CUresult fault;

    if (!rs_driver.cuMemGetInfo_v2)
        return result;
    fault = rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
    if (!rs_is_fault(fault))
        return result;
    context = rs_context_current(false);
    if (context)
        rs_context_note_fault(context);
    return fault;
}
