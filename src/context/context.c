/* SPDX-License-Identifier: Apache-2.0 */
#include "context/context.h"

#include "base/arithmetic.h"
#include "base/host_memory.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/undisturbed.h"
#include "config/life.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "context/pushed.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "ledger/footprint.h"
#include "resource/expression.h"
#include "resource/segment.h"
#include "resource/unfinished.h"
#include "shim/wiring.h"

#include <errno.h>
#include <stdlib.h>

enum {
    ENTRIES_FIRST = 64,
    LIMBO_MAX = 64 /* dropped ones kept, since a thread may still be inside their stack */
};

/* A handle the program may have current, and the context it allocates from: its own, or for a green
 * context the one that owns its memory. */
struct entry {
    CUcontext handle;
    unsigned long long id;
    struct rs_context *context;
};

static struct rs_mutex lock = RS_MUTEX_INIT; /* protects all below; no driver call waits under it */
static struct entry *entries;
static size_t entry_count, entry_room;
static struct rs_context
    *ended; /* dropped, with memory that outlives a context still to give back */
static struct rs_context *dropped, **dropped_end = &dropped; /* oldest first */
static size_t dropped_count;
static bool initial_taken[RS_KINDS][RS_DEVICES_MAX];
static struct rs_report folded[RS_KINDS][RS_DEVICES_MAX];
static struct rs_pushed_stack *spare_pushed; /* recycled, never freed: somebody may be late */
static unsigned endings, trims;              /* under way: no trim begins while a context ends */
static pthread_cond_t trims_done = PTHREAD_COND_INITIALIZER, ends_done = PTHREAD_COND_INITIALIZER;

RS_HOT_DATA _Atomic unsigned rs_context_generation = 1;
_Atomic bool rs_context_has_threshold;

/* A bit for each device whose primary context has not ended since its handle was asked for. */
static _Atomic uint64_t primaries_learnt;

static void learn_primary(CUdevice device);

static __thread bool creating; /* a driver call of ours may come back through another tool's hook */
static __thread bool is_ending; /* this thread is inside a context's end */

/* While this thread holds what others wait for, the driver's calls in between included, no
 * cancellation of it acts. */
static __thread struct {
    unsigned depth;
    struct rs_uncancelled uncancelled;
} busy;

static void busy_begin(void)
{
    if (busy.depth++ == 0)
        rs_uncancelled_begin(&busy.uncancelled);
}

static void busy_end(void)
{
    if (--busy.depth == 0)
        rs_uncancelled_end(&busy.uncancelled);
}

static void creating_begin(void)
{
    busy_begin();
    creating = true;
}

static _Atomic bool unpublished; /* stacks have come or gone */

/* Without the lock. */
static void publish(void)
{
    if (atomic_load_explicit(&unpublished, memory_order_relaxed) &&
        atomic_exchange(&unpublished, false))
        rs_wiring.stacks_changed();
}

static void creating_end(void)
{
    creating = false;
    publish();
    busy_end();
}

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
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

static void drop(struct rs_context *context);
static void visit_stacks(struct rs_context *context,
                         void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                         void *data);
static void visit_all_stacks(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                             void *data);

/* Caller holds the lock. */
static bool is_entered(const struct rs_context *context)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context == context)
            return true;
    return false;
}

/* The context has ended, and its memory with it.  Its handle is current. */
static bool is_gone(struct rs_witness witness)
{
    unsigned long long id = 0;
    CUresult result = CUDA_SUCCESS;

    if (witness.address)
        result =
            rs_driver.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, witness.address);
    return result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && id != witness.id);
}

/* Caller holds the lock.  A handle whose id changed is another context: the old one ended unseen.
 * NULL for a context that is about to end, too. */
static struct rs_context *find(CUcontext handle)
{
    for (size_t i = 0; i < entry_count; i++) {
        struct rs_context *context = entries[i].context;
        if (entries[i].handle != handle)
            continue;
        if (entries[i].id == id_of(handle) && !is_gone(context->witness))
            return atomic_load(&context->alive) ? context : NULL;
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

/* Caller holds the lock. */
static bool has_handle(CUcontext handle)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].handle == handle)
            return true;
    return false;
}

/* False when out of host memory. */
static bool enter(CUcontext handle, struct rs_context *context)
{
    size_t room = entry_room ? 2 * entry_room : ENTRIES_FIRST;
    struct entry *grown;

    if (entry_count == entry_room) {
        grown = realloc(entries, room * sizeof(*entries));
        if (!grown)
            return false;
        entries = grown;
        entry_room = room;
    }
    entries[entry_count++] = (struct entry){handle, id_of(handle), context};
    return true;
}

static void recycle_pushed(struct rs_pushed_stack *pushed)
{
    while (pushed) {
        struct rs_pushed_stack *next = pushed->next;
        rs_mr_destroy(atomic_load(&pushed->stack.mr), true);
        pushed->next = spare_pushed;
        spare_pushed = pushed;
        pushed = next;
    }
}

static struct rs_context *new_record(void)
{
    struct rs_context *context = aligned_alloc(_Alignof(struct rs_context), sizeof(*context));

    if (context)
        *context = (struct rs_context){.handle = NULL};
    return context;
}

static struct rs_context *take_record(void)
{
    struct rs_context *context;

    if (dropped_count <= LIMBO_MAX || endings > 0) /* whose contexts must not be others meanwhile */
        return new_record();
    context = dropped;
    dropped = context->next_dropped;
    dropped_count--;
    for (int i = 0; i < RS_STACKS; i++)
        rs_mr_destroy(atomic_load(&context->stack[i].mr), true);
    recycle_pushed(atomic_load(&context->pushed));
    *context = (struct rs_context){.handle = NULL};
    return context;
}

static void fold_report(const struct rs_stack *stack, struct rs_mr *mr)
{
    static struct rs_report gone; /* under the lock */

    rs_report_clear(&gone);
    rs_mr_report(mr, &gone);
    rs_report_fold_gone(&folded[stack->kind][stack->place.device], &gone);
}

/* Of the stacks of one kind of a device. */
struct peaks {
    enum rs_kind kind;
    CUdevice device;
    struct rs_report report;
};

static void add_peaks(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct peaks *peaks = data;

    if (stack->kind == peaks->kind && stack->place.device == peaks->device)
        rs_mr_report(mr, &peaks->report);
}

/* What a context takes along was side by side with what the others of its device have.  It is
 * entered no longer. */
static void fold_peaks(struct rs_context *going)
{
    static struct peaks peaks; /* under the lock */

    peaks.device = going->device;
    for (int kind = 0; kind < RS_KINDS && going->device < RS_DEVICES_MAX; kind++) {
        peaks.kind = (enum rs_kind)kind;
        rs_report_clear(&peaks.report);
        visit_stacks(going, add_peaks, &peaks);
        visit_all_stacks(add_peaks, &peaks);
        rs_report_raise_peaks(&folded[kind][going->device], &peaks.report);
    }
}

static void drop_stack(struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load(&stack->mr);

    if (!mr)
        return;
    atomic_store(&unpublished, true);
    if (stack->has_initial)
        initial_taken[stack->kind][stack->place.device] = false;
    fold_report(stack, mr);
    rs_wiring.stack_gone(stack, mr);
}

/* Caller holds the lock and calls give_back_ended without it.  What dies with the context is gone.
 */
static void drop(struct rs_context *context)
{
    rs_wiring.context_gone(context);
    for (int i = 0; i < RS_STACKS; i++)
        drop_stack(&context->stack[i]);
    for (struct rs_pushed_stack *pushed = atomic_load(&context->pushed); pushed;
         pushed = pushed->next)
        drop_stack(&pushed->stack);
    fold_peaks(context);
    context->next_dropped = ended;
    ended = context;
}

static void append_to_dropped(struct rs_context *context)
{
    context->next_dropped = NULL;
    *dropped_end = context;
    dropped_end = &context->next_dropped;
    dropped_count++;
}

static void end_stack(struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load(&stack->mr);

    if (mr)
        rs_mr_context_ended(mr);
}

/* Gives back what outlived dropped contexts, which takes driver calls: without the lock. */
static void give_back_ended(void)
{
    struct rs_context *context;

    rs_mutex_lock(&lock);
    while ((context = ended)) {
        ended = context->next_dropped;
        rs_mutex_unlock(&lock);
        for (int i = 0; i < RS_STACKS; i++)
            end_stack(&context->stack[i]);
        for (struct rs_pushed_stack *pushed = atomic_load(&context->pushed); pushed;
             pushed = pushed->next)
            end_stack(&pushed->stack);
        rs_account_lose(&context->account);
        rs_footprint_lose(&context->account);
        rs_mutex_lock(&lock);
        append_to_dropped(context);
    }
    rs_mutex_unlock(&lock);
    publish();
}

/* The context that owns memory allocated while `handle` is current: itself, or a green context's
 * primary.  The block that shows it is for keep_probe: freeing it would wait for the device. */
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

/* Keeps the block that showed who owns memory as a sentinel, or gives it back in the order of a
 * stream of our own: a kernel may wait for this very thread.  The driver counts it as taken until
 * somebody waits for that stream, which is idle at once unless channels are shared. */
static void keep_probe(struct rs_context *context, CUdeviceptr block)
{
    CUstream stream;
    CUresult result;
    bool entered;

    if (block && !rs_driver.cuCtxGetId && !context->witness.address) {
        context->witness.id = rs_driver_allocation_id(block);
        context->witness.address = context->witness.id ? block : 0;
    }
    if (!block || block == context->witness.address || rs_sentinel_add(&context->sentinel, block))
        return;
    stream = rs_own_stream(&context->own_stream, context->handle);
    if (!stream || !rs_driver.cuMemFreeAsync)
        return; /* its 512 bytes go with the context */
    entered = rs_context_enter(context->handle, &result);
    if (result == CUDA_SUCCESS && rs_driver.cuMemFreeAsync(block, stream) == CUDA_SUCCESS)
        (void)rs_own_stream_settle(stream, 0);
    rs_context_leave(entered);
}

/* ---- stacks; the caller holds the lock ---- */

static void say_stack(const struct rs_stack *stack, const struct rs_expression *expression)
{
    char text[RS_EXPRESSION_TEXT_BYTES];

    if (rs_config.verbose)
        rs_log_asked("device %d%s: %s", (int)stack->place.device, rs_kind_texts[stack->kind],
                     rs_expression_format(expression, &stack->place, text));
}

/* Makes the stack; the memory's owner is current.  False when the settings are bad for it. */
static bool make_stack(struct rs_stack *stack, const struct rs_expression *expression,
                       bool takes_initial, struct rs_complaints *complaints)
{
    CUdevice device = stack->place.device;
    struct rs_mr *mr = NULL;
    int result;

    if (rs_driver.cuMemGetInfo_v2(&stack->place.free_bytes, &stack->place.total_bytes) !=
        CUDA_SUCCESS)
        return true; /* a broken context: the driver shall say so itself */
    if (rs_expression_memories(expression) != 1u << RS_MEMORY_DEVICE)
        rs_host_memory(&stack->place.host_total_bytes, &stack->place.host_free_bytes);
    if (!rs_config_fits_limit(expression, rs_limit_get(device), &stack->place, complaints))
        return false;
    stack->place.first_on_device = takes_initial;
    stack->place.frees_are_clean = rs_expression_frees_are_clean(expression);
    stack->frees_wait = rs_expression_frees_wait(expression) || !rs_fence_supported();
    atomic_store(&unpublished, true);
    say_stack(stack, expression);
    rs_sentinel_prepare(&stack->context->sentinel, stack->context->handle); /* before a pool takes
                                                                               all there is */
    result = rs_expression_build(expression, &stack->place, complaints, &mr);
    if (result == -EINVAL)
        return false;
    if (result != 0)
        rs_log("device %d: the stack could not be made (%s): its allocations go to the driver",
               (int)device, result == -ENOMEM ? "out of host memory" : "the driver refused");
    else
        atomic_store_explicit(&stack->mr, mr, memory_order_release);
    if (mr && mr->has_threshold)
        atomic_store(&rs_context_has_threshold, true);
    return true;
}

/* Where host and devices may not use managed memory at the same time, an allocation that no kernel
 * uses may still be used by the host while kernels run: what it is attached to decides, and that is
 * a property of the driver's allocation, which blocks of a pool would share. */
static bool is_managed_poolable(void)
{
    static bool said;
    int devices = 0, without = 0;

    if (!rs_driver.cuDeviceGetCount || rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return false;
    while (without < devices &&
           rs_driver_device_has(without, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS))
        without++;
    if (without < devices && rs_log_once(&said))
        rs_log("device %d has no concurrent access to managed memory: cudaMallocManaged goes to "
               "the driver",
               without);
    return without == devices;
}

/* One set of settings may be for machines of several sizes, and a process may see a part of one. */
static void say_absent_devices(void)
{
    static bool said;
    const struct rs_source *first;
    int devices = 0, device;
    unsigned count;

    if (!rs_driver.cuDeviceGetCount || rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return;
    count = rs_config_count_absent(&rs_config, devices, &first, &device);
    if (count == 0 || !rs_log_once(&said))
        return;
    rs_log("%s is for device %d, and the process has %d device%s: ignored%s", first->name, device,
           devices, devices == 1 ? "" : "s",
           count > 2    ? ", as are others"
           : count == 2 ? ", as is another"
                        : "");
}

/* Of the stacks of a kind and a device one has taken its initial sizes, until it ends: two contexts
 * would take twice as much. */
static bool make_settled(struct rs_stack *stack, const struct rs_expression *expression)
{
    bool *taken = &initial_taken[stack->kind][stack->place.device];
    bool good = make_stack(stack, expression, !*taken, &rs_life_complaints);

    stack->has_initial = !*taken && atomic_load(&stack->mr);
    *taken = *taken || stack->has_initial;
    return good;
}

static void settle(struct rs_stack *stack, bool *denied)
{
    const struct rs_expression *expression =
        rs_config_stack(&rs_config, stack->kind, stack->place.device);
    CUresult result = CUDA_SUCCESS;
    bool entered;

    stack->settled = true;
    say_absent_devices();
    if (!expression || (stack->kind == RS_KIND_MANAGED && !is_managed_poolable()))
        return;
    entered = rs_context_enter(stack->context->handle, &result);
    if (result == CUDA_SUCCESS && !make_settled(stack, expression))
        *denied = rs_life_bad_settings() == RS_MODE_DENY;
    rs_context_leave(entered);
}

/* ---- stacks of pushed resources; the caller holds the lock but where it says so ---- */

/* Without the lock too. */
static struct rs_pushed_stack *find_pushed(struct rs_context *context,
                                           const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = atomic_load_explicit(&context->pushed, memory_order_acquire);

    while (pushed && pushed->resource != resource)
        pushed = pushed->next;
    return pushed;
}

static struct rs_pushed_stack *take_pushed(struct rs_context *context,
                                           const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = spare_pushed;

    if (pushed)
        spare_pushed = pushed->next;
    else
        pushed = malloc(sizeof(*pushed));
    if (!pushed)
        return NULL;
    *pushed = (struct rs_pushed_stack){
        .stack = {.context = context,
                  .kind = RS_KIND_DEVICE,
                  .counter = context->stack[RS_STACK_DEVICE].counter,
                  .place = context->stack[RS_STACK_DEVICE].place,
                  .settled = true},
        .resource = resource,
    };
    return pushed;
}

/* A context that was found while no stack was wanted on its device may be a green one; its memory
 * is its primary's, and so would its fences have to be. */
static bool owns_memory(struct rs_context *context)
{
    CUdeviceptr block = 0;

    if (context->owns_memory)
        return true;
    context->owns_memory = memory_owner(context->handle, &block) == context->handle;
    keep_probe(context, block);
    return context->owns_memory;
}

/* Enters the stack into the context's list, with mr NULL where allocations are to be the driver's
 * own.  False, after complaining and with nothing entered, when it cannot be made on this device.
 */
static bool add_pushed(struct rs_context *context, const struct rs_pushed *resource,
                       struct rs_complaints *complaints)
{
    struct rs_pushed_stack *pushed = take_pushed(context, resource);
    CUresult result = CUDA_SUCCESS;
    bool entered, good = true;

    if (!pushed)
        return true; /* out of host memory: the driver's own, this time */
    entered = rs_context_enter(context->handle, &result);
    if (result == CUDA_SUCCESS && owns_memory(context))
        good = make_stack(&pushed->stack, resource->expression, true, complaints);
    rs_context_leave(entered);
    if (!good) {
        pushed->next = spare_pushed;
        spare_pushed = pushed;
        return false;
    }
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
    return true;
}

static void deny_pushed(struct rs_context *context, const struct rs_pushed *resource)
{
    struct rs_pushed_stack *pushed = take_pushed(context, resource);

    if (!pushed)
        return;
    pushed->denies = true;
    pushed->next = atomic_load(&context->pushed);
    atomic_store_explicit(&context->pushed, pushed, memory_order_release);
}

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

static bool reclaim(const struct rs_place *place, const struct rs_refusal *refusal, bool may_wait)
{
    return rs_wiring.reclaim(place->device, refusal, may_wait);
}

static struct rs_context *describe(CUcontext handle, CUdevice device)
{
    struct rs_context *context = take_record();

    if (!context)
        return NULL;
    context->handle = handle;
    context->id = id_of(handle);
    context->device = device;
    context->primary = rs_context_known_primary(device) == handle;
    context->account.device = rs_limit_account(device);
    atomic_store(&context->peers,
                 rs_wiring.peer_devices(handle) & ~(1ull << (unsigned)device % RS_DEVICES_MAX));
    atomic_store(&context->alive, true);
    for (unsigned i = 0; i < RS_STACKS; i++) {
        struct rs_stack *stack = &context->stack[i];
        stack->context = context;
        stack->kind = kind_at(i);
        stack->counter = rs_block_counter(stack->kind, (int)((unsigned)device % RS_DEVICES_MAX));
        stack->place = (struct rs_place){
            .device = device,
            .context = handle,
            .sentinel = &context->sentinel,
            .own_stream = &context->own_stream,
            .account = &context->account,
            .peers = &context->peers,
            .reclaim = reclaim,
            .forget_holder = rs_wiring.forget_holder,
            .host_flags = i < RS_STACK_PINNED ? CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
                                              : i - RS_STACK_PINNED,
        };
    }
    if (!enter(handle, context)) {
        free(context);
        return NULL;
    }
    rs_life_note_context();
    atomic_store(&unpublished, true);
    return context;
}

static struct rs_context *create(CUcontext handle)
{
    struct rs_context *context = NULL;
    CUdeviceptr block = 0;
    CUcontext owner;
    CUdevice device;

    if (rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || has_handle(handle))
        return NULL; /* it is about to end: its allocations are the driver's own */
    rs_limit_resolve(device);
    if (!wants_stacks(device) && !rs_pushed_of(device))
        return describe(handle, device);
    owner = memory_owner(handle, &block);
    if (owner != handle)
        context = find(owner);
    if (!context && !has_handle(owner))
        context = describe(owner, device);
    if (context)
        context->owns_memory = true;
    if (context && owner != handle)
        (void)enter(handle, context);
    if (context)
        keep_probe(context, block);
    return context;
}

/* ---- primary contexts; without the lock ---- */

CUcontext rs_context_primary(CUdevice device)
{
    if (!rs_context_known_primary(device))
        learn_primary(device);
    return rs_context_active_primary(device);
}

/* Before the current context is described. */
static void learn_current(CUcontext handle)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUdevice device;

    if (rs_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
        rs_context_known_primary(device) != handle &&
        !(atomic_load(&primaries_learnt) >> device % RS_DEVICES_MAX & 1))
        learn_primary(device);
    rs_capture_restore(mode);
}

/* ---- look-up ---- */

/* What threads look at without a lock: the context, where it may be found so again, and what device
 * memory comes from there.  While contexts end, this one may have become another one of the same
 * handle at any moment: the next look-up asks for its id again. */
static void note_found(CUcontext handle, struct rs_context *context, unsigned generation)
{
    const struct rs_pushed *resource = rs_pushed_of(context->device);

    if (context->handle == handle && endings == 0)
        rs_thread.found = (struct rs_context_found){handle, generation, context};
    else if (rs_thread.pushed != resource)
        rs_context_forget_found(); /* it is another device's, whose resource that was */
    rs_thread.pushed = resource;
}

static struct rs_context *find_current(bool make)
{
    struct rs_context *context = rs_context_found_before(0);
    CUcontext handle = NULL;
    unsigned now;

    if (RS_LIKELY(context))
        return context;
    if (rs_driver.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle || creating)
        return NULL;
    creating_begin();
    rs_mutex_lock(&lock);
    context = find(handle);
    if (ended || (!context && make)) {
        rs_mutex_unlock(&lock);
        give_back_ended();
        if (make)
            learn_current(handle);
        rs_mutex_lock(&lock);
        context = find(handle);
    }
    if (!context && make) {
        CUstreamCaptureMode mode = rs_capture_relax();
        context = create(handle);
        rs_capture_restore(mode);
    }
    now = atomic_load_explicit(&rs_context_generation, memory_order_acquire);
    if (context)
        note_found(handle, context, now);
    rs_mutex_unlock(&lock);
    creating_end();
    return context;
}

static void settle_locking(struct rs_stack *stack, bool *denied)
{
    if (creating)
        return;
    creating_begin();
    rs_mutex_lock(&lock);
    if (!stack->settled) {
        CUstreamCaptureMode mode = rs_capture_relax();
        settle(stack, denied);
        rs_capture_restore(mode);
    }
    rs_mutex_unlock(&lock);
    creating_end();
}

/* What pushes are worth for that context: its stack, or NULL for the driver's own. */
static struct rs_stack *made_pushed(struct rs_context *context, bool *denied)
{
    struct rs_pushed_stack *pushed = find_pushed(context, rs_thread.pushed);

    *denied = pushed && pushed->denies;
    return pushed && atomic_load_explicit(&pushed->stack.mr, memory_order_acquire) ? &pushed->stack
                                                                                   : NULL;
}

/* False after complaining.  Later allocations are denied then, where `deny` is set. */
static bool make_pushed_locking(struct rs_context *context, const struct rs_pushed *resource,
                                struct rs_complaints *complaints, bool deny)
{
    bool good = true;

    if (creating)
        return true;
    creating_begin();
    rs_mutex_lock(&lock);
    if (!find_pushed(context, resource)) {
        CUstreamCaptureMode mode = rs_capture_relax();
        good = add_pushed(context, resource, complaints);
        rs_capture_restore(mode);
        if (!good && deny)
            deny_pushed(context, resource);
    }
    rs_mutex_unlock(&lock);
    creating_end();
    return good;
}

static struct rs_stack *pushed_stack(struct rs_context *context, bool *denied)
{
    struct rs_stack *stack = made_pushed(context, denied);

    if (RS_LIKELY(stack) || find_pushed(context, rs_thread.pushed))
        return stack;
    *denied = !make_pushed_locking(context, rs_thread.pushed, &rs_life_complaints, true);
    return *denied ? NULL : made_pushed(context, denied);
}

int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_complaints *complaints)
{
    struct rs_context *context = find_current(true);

    if (!context || (device >= 0 && context->device != device) ||
        make_pushed_locking(context, resource, complaints, false))
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
    if (!context)
        return NULL;
    if (RS_UNLIKELY(rs_thread.pushed) && kind == RS_KIND_DEVICE)
        return pushed_stack(context, denied);
    stack = &context->stack[index_of(kind, host_flags)];
    if (RS_LIKELY(atomic_load_explicit(&stack->mr, memory_order_acquire)))
        return stack;
    settle_locking(stack, denied);
    return atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

struct rs_stack *rs_context_made_stack(unsigned which)
{
    struct rs_context *context = find_current(false);
    struct rs_stack *stack = context ? &context->stack[which] : NULL;
    bool denied;

    if (RS_UNLIKELY(rs_thread.pushed) && which == RS_STACK_DEVICE)
        return context ? made_pushed(context, &denied) : NULL;
    return stack && atomic_load_explicit(&stack->mr, memory_order_acquire) ? stack : NULL;
}

struct rs_context *rs_context_owner(void)
{
    return find_current(true);
}

/* Each stack of a context that has been made. */
static void visit_stacks(struct rs_context *context,
                         void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                         void *data)
{
    struct rs_pushed_stack *pushed = atomic_load_explicit(&context->pushed, memory_order_acquire);
    struct rs_mr *mr;

    for (int i = 0; i < RS_STACKS; i++) {
        mr = atomic_load_explicit(&context->stack[i].mr, memory_order_acquire);
        if (mr)
            visit(data, &context->stack[i], mr);
    }
    for (; pushed; pushed = pushed->next) {
        mr = atomic_load_explicit(&pushed->stack.mr, memory_order_acquire);
        if (mr)
            visit(data, &pushed->stack, mr);
    }
}

/* Of all contexts in service. */
static void visit_all_stacks(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                             void *data)
{
    for (size_t i = 0; i < entry_count; i++) {
        if (entries[i].context->handle == entries[i].handle) /* not again for a green one */
            visit_stacks(entries[i].context, visit, data);
    }
}

/* ---- other devices ---- */

struct peer_change {
    CUdevice peer;
    bool allowed;
    CUresult result;
};

static void tell_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct peer_change *change = data;

    (void)stack;
    if (change->result == CUDA_SUCCESS)
        change->result = rs_mr_access_changed(mr, change->peer, change->allowed);
}

/* Under the lock, so that a stack is either told here or made after its context's peers have
 * changed. */
static CUresult apply_peers(struct rs_context *context)
{
    uint64_t before = atomic_load(&context->peers);
    uint64_t now =
        rs_wiring.peer_devices(context->handle) & ~(1ull << context->device % RS_DEVICES_MAX);
    struct peer_change change = {.result = CUDA_SUCCESS};

    atomic_store(&context->peers, now);
    for (uint64_t changed = before ^ now; changed && change.result == CUDA_SUCCESS;
         changed &= changed - 1) {
        change.peer = __builtin_ctzll(changed);
        change.allowed = now >> change.peer & 1;
        visit_stacks(context, tell_stack, &change);
    }
    return change.result;
}

CUresult rs_context_apply_peers(CUcontext handle)
{
    CUstreamCaptureMode mode;
    struct rs_context *context;
    CUresult result = CUDA_SUCCESS;

    if (creating)
        return result; /* this thread holds the lock */
    creating_begin();
    mode = rs_capture_relax();
    rs_mutex_lock(&lock);
    context = find(handle);
    if (context && context->handle == handle)
        result = apply_peers(context);
    rs_mutex_unlock(&lock);
    rs_capture_restore(mode);
    creating_end();
    return result;
}

/* ---- giving back ---- */

enum { VISITED_AT_ONCE = 64, ENDS_WAIT_MS = 1000, ALL_DEVICES = -1 };

/* What is done with each stack of a device, without the lock, while no context ends. */
struct device_visit {
    int device;     /* or ALL_DEVICES */
    bool all_kinds; /* pinned memory's too */
    bool at_once;   /* or not at all, while a context ends */
    void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr);
    void *data;
    size_t skip, count;
    struct rs_stack *stacks[VISITED_AT_ONCE];
};

static void collect(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct device_visit *visit = data;

    (void)mr;
    if ((stack->place.device != visit->device && visit->device != ALL_DEVICES) ||
        (!visit->all_kinds && stack->kind == RS_KIND_PINNED))
        return;
    if (visit->skip > 0)
        visit->skip--;
    else if (visit->count < VISITED_AT_ONCE)
        visit->stacks[visit->count++] = stack;
}

static void collect_all(struct device_visit *visit)
{
    rs_mutex_lock(&lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->handle == entries[i].handle)
            visit_stacks(entries[i].context, collect, visit);
    rs_mutex_unlock(&lock);
}

/* With its context current. */
static void visit_one(const struct device_visit *visit, struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load_explicit(&stack->mr, memory_order_acquire);
    CUresult result = CUDA_SUCCESS;
    bool entered;

    if (!mr || !atomic_load(&stack->context->alive))
        return;
    entered = rs_context_enter(stack->context->handle, &result);
    if (result == CUDA_SUCCESS)
        visit->visit(visit->data, stack, mr);
    rs_context_leave(entered);
}

static bool wait_for_ends(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ENDS_WAIT_MS / 1000;
    while (endings > 0)
        if (rs_condition_wait_until(&ends_done, &lock, &until) == ETIMEDOUT)
            break;
    return endings == 0;
}

static bool hold_ends(bool may_wait)
{
    bool may;

    if (creating || is_ending)
        return false; /* this thread holds the lock, or would wait for itself */
    rs_mutex_lock(&lock);
    may = may_wait ? wait_for_ends() : endings == 0;
    trims += may;
    rs_mutex_unlock(&lock);
    if (may)
        busy_begin();
    return may;
}

/* A context's end may wait for work that waits for this thread: not for ever. */
bool rs_context_ends_hold(void)
{
    return hold_ends(true);
}

static void visit_device(struct device_visit *visit)
{
    size_t done = 0;

    do {
        visit->skip = done;
        visit->count = 0;
        if (!hold_ends(!visit->at_once))
            break;
        collect_all(visit);
        for (size_t i = 0; i < visit->count; i++)
            visit_one(visit, visit->stacks[i]);
        rs_context_ends_release();
        done += visit->count;
    } while (visit->count == VISITED_AT_ONCE);
}

void rs_context_ends_release(void)
{
    rs_mutex_lock(&lock);
    trims--;
    pthread_cond_broadcast(&trims_done);
    rs_mutex_unlock(&lock);
    busy_end();
}

struct trim {
    size_t *keep_bytes; /* NULL: somebody is out of memory */
    unsigned initial_of;
    size_t returned_bytes;
};

static void trim_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct trim *trim = data;

    (void)stack;
    trim->returned_bytes +=
        trim->keep_bytes ? rs_mr_trim(mr, *trim->keep_bytes) : rs_mr_trim_all(mr, trim->initial_of);
    if (trim->keep_bytes)
        *trim->keep_bytes -= rs_min(*trim->keep_bytes, rs_mr_idle_bytes(mr));
}

static size_t trim_stacks(int device, struct trim *trim)
{
    struct device_visit visit = {
        .device = device, .all_kinds = trim->keep_bytes != NULL, .visit = trim_stack, .data = trim};

    rs_wiring.before_trim();
    rs_unfinished_retry();
    visit_device(&visit);
    return trim->returned_bytes;
}

size_t rs_context_trim(int device, size_t *keep_bytes)
{
    struct trim trim = {.keep_bytes = keep_bytes};

    return trim_stacks(device, &trim);
}

size_t rs_context_trim_all(int device, unsigned initial_of)
{
    struct trim trim = {.initial_of = initial_of};

    return trim_stacks(device, &trim);
}

struct readiness {
    enum rs_readiness best;
    uint64_t wait_ns;
};

static void make_ready(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct readiness *readiness = data;
    enum rs_readiness now;

    (void)stack;
    if (readiness->best == RS_READY_SOME)
        return;
    now = rs_mr_make_ready(mr, readiness->wait_ns);
    readiness->best = now > readiness->best ? now : readiness->best;
}

enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns)
{
    struct readiness readiness = {RS_READY_NOTHING, wait_ns};
    struct device_visit visit = {.device = device, .visit = make_ready, .data = &readiness};

    visit_device(&visit);
    return readiness.best;
}

static void synchronise(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)stack;
    if (mr->has_threshold)
        rs_mr_synchronise(mr, *(const enum rs_synchronise *)data);
}

/* Not while a context ends: the program's wait for another one shall not become longer. */
void rs_context_synchronise_slowly(enum rs_synchronise when)
{
    struct device_visit visit = {
        .device = ALL_DEVICES, .at_once = true, .visit = synchronise, .data = &when};
    CUstreamCaptureMode mode;

    if (!rs_life_serving())
        return;
    mode = rs_capture_relax();
    visit_device(&visit);
    rs_capture_restore(mode);
}

static void add_moves(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    uint64_t *moves = data;

    if (stack->kind != RS_KIND_PINNED)
        *moves += rs_mr_moves(mr);
}

uint64_t rs_context_moves(void)
{
    uint64_t moves = 0;

    rs_context_each_stack(add_moves, &moves);
    return moves;
}

struct idle_bytes {
    unsigned memories;
    size_t bytes;
};

static void add_idle_bytes(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct idle_bytes *idle = data;

    (void)stack;
    idle->bytes += rs_mr_idle_bytes_of(mr, idle->memories);
}

size_t rs_context_idle_bytes_of(int device, unsigned memories)
{
    struct idle_bytes idle = {.memories = memories};
    struct device_visit visit = {.device = device, .visit = add_idle_bytes, .data = &idle};

    visit_device(&visit);
    return idle.bytes;
}

size_t rs_context_idle_bytes(int device)
{
    return rs_context_idle_bytes_of(device, ~0u);
}

void rs_context_ending_enter(void)
{
    busy_begin();
    is_ending = true;
    rs_mutex_lock(&lock);
    endings++;
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
    while (trims > 0)
        rs_condition_wait(&trims_done, &lock);
    rs_mutex_unlock(&lock);
}

void rs_context_ending_leave(void)
{
    rs_mutex_lock(&lock);
    endings--;
    pthread_cond_broadcast(&ends_done);
    rs_mutex_unlock(&lock);
    is_ending = false;
    busy_end();
}

/* ---- ends ---- */

/* Its entries stay: who asks meanwhile shall not make it known anew. */
static struct rs_context *end_begin(struct rs_context *context)
{
    if (context)
        atomic_store(&context->alive, false);
    return context;
}

static void forget_learnt(CUdevice device)
{
    atomic_fetch_and(&primaries_learnt, ~(1ull << (unsigned)device % RS_DEVICES_MAX));
}

static struct rs_context *find_primary(CUdevice device)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->primary && entries[i].context->device == device)
            return entries[i].context;
    return NULL;
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
    struct rs_context *context;

    forget_learnt(device);
    rs_mutex_lock(&lock);
    context = end_begin(find_primary(device));
    rs_mutex_unlock(&lock);
    return context;
}

void rs_context_end_finish(struct rs_context *context, bool destroyed)
{
    if (!context)
        return;
    rs_mutex_lock(&lock);
    if (!is_entered(context)) {
        /* a look-up found another context of the same handle, and dropped this one */
    } else if (destroyed) {
        remove_entries_of(context);
        drop(context);
    } else {
        atomic_store(&context->alive, true);
    }
    rs_mutex_unlock(&lock);
    if (destroyed)
        give_back_ended();
}

/* The same, whichever context is current. */
static bool is_gone_there(struct rs_witness witness, CUcontext handle)
{
    CUresult result;
    bool entered, gone;

    if (!witness.address)
        return false;
    entered = rs_context_enter(handle, &result);
    gone = result == CUDA_SUCCESS && is_gone(witness);
    rs_context_leave(entered);
    return gone;
}

/* False once the context has ended, whatever has its handle now. */
static bool is_primary_alive(const struct rs_context *context, struct rs_witness witness)
{
    unsigned long long id;
    unsigned flags;
    int active = 1;

    if (!rs_driver.cuDevicePrimaryCtxGetState ||
        rs_driver.cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS)
        return true;
    if (!active || is_gone_there(witness, context->handle))
        return false;
    id = id_of(context->handle);
    return id == 0 || id == context->id;
}

/* The driver is asked without the lock.  What it says is of the context that was entered before:
 * ids never come again, and no record is used again meanwhile. */
void rs_context_released_primary(CUdevice device)
{
    struct rs_witness witness = {0, 0};
    struct rs_context *context;

    forget_learnt(device);
    rs_mutex_lock(&lock);
    context = find_primary(device);
    if (context)
        witness = context->witness;
    rs_mutex_unlock(&lock);
    if (!context || is_primary_alive(context, witness))
        return;
    rs_mutex_lock(&lock);
    if (is_entered(context)) {
        atomic_store(&context->alive, false);
        remove_entries_of(context);
        drop(context);
    }
    rs_mutex_unlock(&lock);
    give_back_ended();
}

void rs_context_release_primary(CUdevice device)
{
    rs_context_ending_enter();
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    rs_context_released_primary(device);
    rs_context_ending_leave();
}

/* The reference that it takes for a moment may become the last one. */
static void learn_primary(CUdevice device)
{
    if (!rs_context_is_primary_active(device))
        return;
    rs_context_ending_enter();
    (void)rs_context_learn_primary(device);
    rs_context_released_primary(device);
    atomic_fetch_or(&primaries_learnt, 1ull << (unsigned)device % RS_DEVICES_MAX);
    rs_context_ending_leave();
}

/* Not for a thread that has it. */
static bool lock_contexts(void)
{
    return !(creating && !rs_lock_is_bound()) && rs_mutex_lock_bounded(&lock, "contexts");
}

void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data)
{
    if (!lock_contexts())
        return;
    visit_all_stacks(visit, data);
    rs_mutex_unlock(&lock);
}

struct kind_visit {
    enum rs_kind kind;
    int device;
    void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr);
    void *data;
};

static void visit_if_of_kind(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    const struct kind_visit *visit = data;

    if (stack->kind == visit->kind && stack->place.device == visit->device)
        visit->visit(visit->data, stack, mr);
}

void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data)
{
    struct kind_visit of_kind = {kind, device, visit, data};

    if (!lock_contexts())
        return;
    visit_all_stacks(visit_if_of_kind, &of_kind);
    gone(data, &folded[kind][device]);
    rs_mutex_unlock(&lock);
}

struct rs_account *rs_context_device_account(int device)
{
    return rs_limit_account(device);
}

struct rs_context *rs_context_current(void)
{
    return find_current(false);
}

const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device)
{
    return &folded[kind][device];
}
