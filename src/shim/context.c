/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/context.h"

#include "base/lock.h"
#include "base/log.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "resource/expression.h"
#include "resource/segment.h"
#include "shim/block.h"
#include "shim/life.h"

#include <errno.h>
#include <stdlib.h>

enum {
    CONTEXTS_MAX = 512, /* alive at the same time */
    LIMBO_MAX = 64      /* dropped ones kept, since a thread may still be inside their stack */
};

/* A handle the program may have current, and the context it allocates from: its own, or for a green
 * context the one that owns its memory. */
struct entry {
    CUcontext handle;
    unsigned long long id;
    struct rs_context *context;
};

static struct rs_mutex lock = RS_MUTEX_INIT; /* protects all below; no driver call waits under it */
static struct entry entries[CONTEXTS_MAX];
static size_t entry_count;
static struct rs_context *dropped, **dropped_end = &dropped; /* oldest first */
static size_t dropped_count;
static bool device_used[RS_DEVICES_MAX];
static struct rs_report folded[RS_DEVICES_MAX];
static struct rs_account accounts[RS_DEVICES_MAX];

/* Goes up with every change that makes a cached entry wrong. */
static _Atomic unsigned generation = 1;

/* What the thread found last.  Entries of green contexts are not cached: their handles come and go
 * without our seeing it. */
static __thread struct {
    CUcontext handle;
    unsigned generation;
    struct rs_context *context;
} cache;

static __thread bool creating; /* a driver call of ours may come back through another tool's hook */

static unsigned long long id_of(CUcontext handle)
{
    unsigned long long id = 0;

    if (!rs_driver.cuCtxGetId || rs_driver.cuCtxGetId(handle, &id) != CUDA_SUCCESS)
        return 0;
    return id;
}

static void remove_entries_of(const struct rs_context *context)
{
    for (size_t i = 0; i < entry_count;) {
        if (entries[i].context == context)
            entries[i] = entries[--entry_count];
        else
            i++;
    }
    atomic_fetch_add_explicit(&generation, 1, memory_order_release);
}

static void drop(struct rs_context *context);

/* Caller holds the lock.  A handle whose id changed is another context: the old one ended unseen.
 */
static struct rs_context *find(CUcontext handle)
{
    for (size_t i = 0; i < entry_count; i++) {
        struct rs_context *context = entries[i].context;
        if (entries[i].handle != handle)
            continue;
        if (entries[i].id == id_of(handle))
            return context;
        if (context->handle != handle) { /* a green context's: only the handle is stale */
            entries[i] = entries[--entry_count];
            return NULL;
        }
        atomic_store(&context->alive, false);
        remove_entries_of(context);
        drop(context);
        return NULL;
    }
    return NULL;
}

static bool enter(CUcontext handle, struct rs_context *context)
{
    static bool said;

    if (entry_count == CONTEXTS_MAX) {
        if (rs_log_once(&said))
            rs_log("more than %d contexts at once: further ones use the driver's own allocations",
                   CONTEXTS_MAX);
        return false;
    }
    entries[entry_count++] = (struct entry){handle, id_of(handle), context};
    return true;
}

static struct rs_context *take_record(void)
{
    struct rs_context *context;

    if (dropped_count <= LIMBO_MAX)
        return calloc(1, sizeof(*context));
    context = dropped;
    dropped = context->next_dropped;
    dropped_count--;
    rs_mr_destroy(context->stack, true);
    *context = (struct rs_context){.handle = NULL};
    return context;
}

/* Caller holds the lock; the context's memory is gone. */
static void drop(struct rs_context *context)
{
    rs_block_forget_all(context);
    rs_segment_remove_all(&context->place);
    rs_account_lose(&context->account);
    if (context->stack) {
        static struct rs_report gone; /* under the lock */
        gone.count = 0;
        rs_mr_report(context->stack, &gone);
        rs_report_fold_gone(&folded[context->place.device], &gone);
    }
    context->next_dropped = NULL;
    *dropped_end = context;
    dropped_end = &context->next_dropped;
    dropped_count++;
}

/* The context that owns memory allocated while `handle` is current: itself, or a green context's
 * primary. */
static CUcontext memory_owner(CUcontext handle)
{
    CUcontext owner = handle;
    CUdeviceptr probe;

    if (rs_driver.cuMemAlloc_v2(&probe, 512) != CUDA_SUCCESS)
        return handle;
    if (rs_driver.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, probe) !=
            CUDA_SUCCESS ||
        !owner)
        owner = handle;
    (void)rs_driver.cuMemFree_v2(probe);
    return owner;
}

static bool is_primary(CUcontext handle, CUdevice device)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;

    /* Retaining an inactive one would create it. */
    if (!rs_driver.cuDevicePrimaryCtxGetState || !rs_driver.cuDevicePrimaryCtxRelease_v2 ||
        rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        rs_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return false;
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    return primary == handle;
}

static void say_stack(const struct rs_context *context, const struct rs_expression *expression)
{
    char text[RS_EXPRESSION_TEXT_BYTES];

    if (rs_config.verbose)
        rs_log_asked("device %d: %s", (int)context->place.device,
                     rs_expression_format(expression, &context->place, text));
}

/* Describes the current context and makes its stack.  False when the settings are bad for it. */
static bool make_stack(struct rs_context *context, CUcontext handle, CUdevice device)
{
    const struct rs_expression *expression = rs_config_stack(&rs_config, device);
    int result;

    context->handle = handle;
    context->id = id_of(handle);
    context->primary = is_primary(handle, device);
    context->place =
        (struct rs_place){.device = device, .context = handle, .sentinel = &context->sentinel};
    atomic_store(&context->alive, true);
    if (!expression || device >= RS_DEVICES_MAX)
        return true;
    context->account.device = &accounts[device];
    context->place.account = &context->account;
    context->place.first_on_device = !device_used[device];
    if (rs_driver.cuMemGetInfo_v2(&context->place.free_bytes, &context->place.total_bytes) !=
        CUDA_SUCCESS)
        return true; /* a broken context: the driver shall say so itself */
    say_stack(context, expression);
    rs_sentinel_prepare(&context->sentinel, handle); /* before a pool takes all there is */
    result = rs_expression_build(expression, &context->place, &rs_life_complaints, &context->stack);
    if (result == -EINVAL)
        return false;
    if (result != 0)
        rs_log("device %d: the stack could not be made (%s): its allocations go to the driver",
               (int)device, result == -ENOMEM ? "out of host memory" : "the driver refused");
    device_used[device] = true;
    return true;
}

/* Caller holds the lock.  Driver calls here allocate, which does not wait for the device. */
static struct rs_context *create(CUcontext handle, bool *denied)
{
    CUcontext owner = memory_owner(handle);
    struct rs_context *context = owner == handle ? NULL : find(owner);
    bool entered = false;
    CUresult result = CUDA_SUCCESS;
    CUdevice device;

    if (rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    if (!context) {
        context = take_record();
        if (!context)
            return NULL;
        if (owner != handle)
            entered = rs_context_enter(owner, &result);
        if (result == CUDA_SUCCESS && !make_stack(context, owner, device)) {
            *denied = rs_life_bad_settings() == RS_MODE_DENY;
            result = CUDA_ERROR_INVALID_VALUE;
        }
        if (result != CUDA_SUCCESS || !enter(owner, context)) {
            rs_mr_destroy(context->stack, false);
            free(context);
            context = NULL;
        }
        rs_context_leave(entered);
        rs_life_note_context();
    }
    if (context && owner != handle)
        (void)enter(handle, context);
    return context;
}

static struct rs_context *find_current(bool make, bool *denied)
{
    unsigned now = atomic_load_explicit(&generation, memory_order_acquire);
    struct rs_context *context;
    CUcontext handle = NULL;

    if (rs_driver.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    if (RS_LIKELY(cache.handle == handle && cache.generation == now))
        return cache.context;
    if (creating)
        return NULL;
    creating = true;
    rs_mutex_lock(&lock);
    context = find(handle);
    if (!context && make) {
        CUstreamCaptureMode mode = rs_capture_relax();
        context = create(handle, denied);
        rs_capture_restore(mode);
    }
    now = atomic_load_explicit(&generation, memory_order_acquire);
    rs_mutex_unlock(&lock);
    creating = false;
    if (context && context->handle == handle) {
        cache.handle = handle;
        cache.generation = now;
        cache.context = context;
    }
    return context;
}

struct rs_context *rs_context_for_allocation(bool *denied)
{
    struct rs_context *context;

    *denied = false;
    context = find_current(true, denied);
    return context && context->stack ? context : NULL;
}

struct rs_context *rs_context_if_known(void)
{
    bool denied;
    struct rs_context *context = find_current(false, &denied);

    return context && context->stack ? context : NULL;
}

static struct rs_context *end_begin(struct rs_context *context)
{
    if (!context)
        return NULL;
    atomic_store(&context->alive, false);
    remove_entries_of(context);
    return context;
}

struct rs_context *rs_context_end_begin(CUcontext handle)
{
    struct rs_context *context = NULL;

    rs_mutex_lock(&lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].handle == handle && entries[i].context->handle == handle)
            context = entries[i].context;
    context = end_begin(context);
    rs_mutex_unlock(&lock);
    return context;
}

struct rs_context *rs_context_end_begin_primary(CUdevice device)
{
    struct rs_context *context = NULL;

    rs_mutex_lock(&lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->primary && entries[i].context->place.device == device)
            context = entries[i].context;
    context = end_begin(context);
    rs_mutex_unlock(&lock);
    return context;
}

void rs_context_end_finish(struct rs_context *context, bool destroyed)
{
    if (!context)
        return;
    rs_mutex_lock(&lock);
    if (destroyed) {
        drop(context);
    } else if (enter(context->handle, context)) {
        atomic_store(&context->alive, true);
        atomic_fetch_add_explicit(&generation, 1, memory_order_release);
    }
    rs_mutex_unlock(&lock);
}

void rs_context_each(void (*visit)(void *data, struct rs_context *context), void *data)
{
    if (creating)
        return; /* this thread holds the lock */
    rs_mutex_lock(&lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->handle == entries[i].handle)
            visit(data, entries[i].context);
    rs_mutex_unlock(&lock);
}

const struct rs_report *rs_context_folded_report(int device)
{
    return &folded[device];
}

struct rs_account *rs_context_account(int device)
{
    return &accounts[device];
}
