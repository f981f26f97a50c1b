/* SPDX-License-Identifier: Apache-2.0 */
/* Ends contexts: folds their counters into reports, gives back the memory that outlives them, and
 * recycles a record only after 64 others were dropped, since a thread may still be inside its
 * stacks. */
#include "context/end.h"

#include "base/check.h"
#include "base/lock.h"
#include "context/stack.h"
#include "context/table.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "ledger/account.h"
#include "shim/wiring.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

/* ---- which context a handle stands for ---- */

/* Asks the driver for the context's id; 0 if it does not tell. Sets *is_faulty to whether it
 * answered with the error of failed work (rs_is_fault); the context still exists then. */
static unsigned long long ask_id(CUcontext handle, bool *is_faulty)
{
    unsigned long long id = 0;
    CUresult result =
        rs_driver.cuCtxGetId ? rs_driver.cuCtxGetId(handle, &id) : CUDA_ERROR_NOT_SUPPORTED;

    *is_faulty = rs_is_fault(result);
    return result == CUDA_SUCCESS ? id : 0;
}

unsigned long long rs_context_id_of(CUcontext handle)
{
    bool is_faulty;

    return ask_id(handle, &is_faulty);
}

/* True when the probe shows that its context has ended. False without a probe, and for any error of
 * the driver but INVALID_VALUE. */
static bool is_probe_gone(struct rs_liveness_probe probe)
{
    unsigned long long id = 0;
    CUresult result = CUDA_SUCCESS;

    if (probe.address)
        result =
            rs_driver.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, probe.address);
    return result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && id != probe.id);
}

/* Does what is_probe_gone does, for a thread that may have no current context: it makes `handle`
 * current for the question. */
static bool is_gone_there(struct rs_liveness_probe probe, CUcontext handle)
{
    CUresult result;

    if (!probe.address)
        return false;
    RS_CONTEXT_GUARD(handle, &result);
    return result == CUDA_SUCCESS && is_probe_gone(probe);
}

/* Asks the driver whether the context still exists. May be called while a call may be ending the
 * context, since the driver also answers for a handle whose context is gone. */
static bool is_context_there(const struct rs_context *context)
{
    unsigned long long id;
    unsigned flags;
    int active = 1;
    bool is_faulty;

    if (context->primary && rs_driver.cuDevicePrimaryCtxGetState &&
        rs_driver.cuDevicePrimaryCtxGetState(context->device, &flags, &active) == CUDA_SUCCESS &&
        !active)
        return false;
    if (!context->id)
        return !is_probe_gone(context->probe);
    id = ask_id(context->handle, &is_faulty);
    return is_faulty || id == context->id || (id == 0 && context->primary);
}

/* Asks the driver whether the memory at `address` is still the context's. This serves while a call
 * destroys the context, when the driver may be freeing the handle. */
static bool is_at(const struct rs_context *context, CUdeviceptr address)
{
    CUcontext owner = NULL;

    return rs_driver.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
               CUDA_SUCCESS &&
           owner == context->handle && rs_context_id_of(owner) == context->id;
}

/* ---- contexts of which work has failed ---- */

/* Changes context->alive from `from` to `to`, unless another thread or the context's end has
 * changed it meanwhile. After a change each thread looks up its context again. */
static void change_alive(struct rs_context *context, unsigned char from, unsigned char to)
{
    if (atomic_compare_exchange_strong(&context->alive, &from, to))
        atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

static _Atomic bool any_fault;

bool rs_context_any_fault(void)
{
    return atomic_load(&any_fault);
}

RS_COLD void rs_context_note_fault(struct rs_context *context)
{
    atomic_store(&any_fault, true);
    change_alive(context, RS_CONTEXT_SERVES, RS_CONTEXT_FAULTY);
}

static CUresult ask_without_wait(CUcontext handle)
{
    size_t free_bytes, total_bytes;
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(handle, &result);

    return result == CUDA_SUCCESS && rs_driver.cuMemGetInfo_v2
               ? rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes)
               : result;
}

RS_COLD CUresult rs_context_ask_fault(struct rs_context *context)
{
    CUresult result = rs_sentinel_wait(&context->sentinel, context->handle);

    if (result == CUDA_ERROR_OUT_OF_MEMORY) /* other threads are using all sentinels */
        result = ask_without_wait(context->handle);
    if (rs_is_fault(result))
        return result;
    change_alive(context, RS_CONTEXT_FAULTY, RS_CONTEXT_SERVES);
    return CUDA_SUCCESS;
}

/* ---- ends ---- */

/* The number of dropped records that are kept, since a thread may still be inside their stacks. */
enum { LIMBO_MAX = 64 };

/* The contexts' lock protects these variables, except for reads of folded_of. */
/* Dropped contexts for which rs_context_give_back_ended has not run yet. */
static struct rs_context *ended;
static struct rs_context *dropped, **dropped_end = &dropped; /* dropped records, the oldest first */
static size_t dropped_count;
static struct rs_report folded[RS_KINDS][RS_DEVICES_MAX];
static _Atomic uint64_t folded_of[RS_KINDS]; /* bit i: folded[kind][i] has counters */

static struct rs_context *new_record(void)
{
    struct rs_context *context = aligned_alloc(_Alignof(struct rs_context), sizeof(*context));

    if (context)
        *context = (struct rs_context){.handle = NULL};
    return context;
}

struct rs_context *rs_context_take_record(void)
{
    struct rs_context *context;

    RS_ASSERT_HELD(&rs_contexts_lock);
    /* The thread that ends a context still uses its record, so no record is reused meanwhile. */
    if (dropped_count <= LIMBO_MAX || rs_context_ends_under_way() || dropped->holds > 0)
        return new_record();
    context = dropped;
    RS_ASSERT(!atomic_load(&context->alive) && context->next_dropped);
    dropped = context->next_dropped;
    dropped_count--;
    for (int i = 0; i < RS_STACKS; i++)
        rs_mr_destroy(atomic_load(&context->stack[i].mr), true);
    rs_pushed_stack_recycle(atomic_load(&context->pushed));
    /* A thread may have charged the account while the context was dropped. */
    rs_hash_clear(&context->account.blocks);
    *context = (struct rs_context){.handle = NULL};
    return context;
}

static void fold_report(const struct rs_stack *stack, struct rs_mr *mr)
{
    static struct rs_report gone; /* under the lock */

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(stack->environment.device >= 0 && stack->environment.device < RS_DEVICES_MAX);
    rs_report_clear(&gone);
    rs_mr_report(mr, &gone);
    rs_report_fold_gone(&folded[stack->kind][stack->environment.device], &gone);
    atomic_fetch_or(&folded_of[stack->kind], 1ull << stack->environment.device);
}

/* Raises the folded peaks to the sum over `going`, which the caller has removed from the table, and
 * all other contexts of its device: they held their memory at the same time. */
static void fold_peaks(struct rs_context *going)
{
    static struct rs_report sum; /* under the lock */

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT_SLOW(!rs_contexts_have(going)); /* otherwise its counters would be added twice */
    for (int kind = 0; kind < RS_KINDS && going->device < RS_DEVICES_MAX; kind++) {
        rs_report_clear(&sum);
        for (struct rs_stack_walk walk = {0}; rs_context_next_stack(going, &walk);)
            if (walk.stack->kind == (enum rs_kind)kind)
                rs_mr_report(walk.mr, &sum);
        for (struct rs_stack_walk walk = {0}; rs_contexts_next_stack(&walk);)
            if (walk.stack->kind == (enum rs_kind)kind &&
                walk.stack->environment.device == going->device)
                rs_mr_report(walk.mr, &sum);
        rs_report_raise_peaks(&folded[kind][going->device], &sum);
    }
}

static void drop_stack(struct rs_stack *stack, struct rs_mr *mr)
{
    RS_ASSERT_SLOW(!atomic_load(&stack->context->alive));
    rs_context_stacks_changed();
    rs_stack_release_initial(stack);
    fold_report(stack, mr);
    rs_wiring.stack_gone(stack, mr);
}

/* Stores `ending` and the flag `alive` that follows from it. */
static void set_ending(struct rs_context *context, enum rs_context_ending ending)
{
    unsigned char over = RS_CONTEXT_ENDS;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (ending != RS_ENDING_NOT) { /* `alive` changes first: a thread that sees the new `ending`
                                      then also sees the new `alive` */
        unsigned char before = atomic_exchange(&context->alive, RS_CONTEXT_ENDS);
        if (before != RS_CONTEXT_ENDS)
            context->alive_before = before;
    }
    atomic_store(&context->ending, (unsigned char)ending);
    if (ending == RS_ENDING_NOT)
        (void)atomic_compare_exchange_strong(&context->alive, &over, context->alive_before);
}

void rs_context_begins(struct rs_context *context)
{
    context->alive_before = RS_CONTEXT_SERVES;
    set_ending(context, RS_ENDING_NOT);
}

/* Sets `ending` and `alive` by the numbers of calls that end the context or may end it. Every
 * function that changes these numbers calls this. */
static void update_ending(struct rs_context *context)
{
    if (atomic_load(&context->ending) != RS_ENDING_OVER)
        set_ending(context, context->ends       ? RS_ENDING_SURELY
                            : context->releases ? RS_ENDING_MAYBE
                                                : RS_ENDING_NOT);
}

/* Drops a context that has ended: removes it from the table, forgets its blocks and adds its
 * counters to those of the device. The caller calls rs_context_give_back_ended without the lock. */
static void drop(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    set_ending(context, RS_ENDING_OVER);
    rs_contexts_remove(context);
    rs_wiring.context_gone(context);
    for (struct rs_stack_walk walk = {0}; rs_context_next_stack(context, &walk);)
        drop_stack(walk.stack, walk.mr);
    fold_peaks(context);
    RS_ASSERT(context != ended);
    context->next_dropped = ended;
    ended = context;
}

struct rs_context *rs_context_find(CUcontext handle)
{
    struct rs_context_entry *entry = rs_contexts_entry(handle);
    struct rs_context *context = entry ? entry->context : NULL;
    unsigned long long id;
    bool is_faulty;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (!entry)
        return NULL;
    id = ask_id(handle, &is_faulty);
    if (is_faulty)
        rs_context_note_fault(context);
    if ((is_faulty || id == entry->id) && !is_probe_gone(context->probe))
        return atomic_load(&context->ending) <= RS_ENDING_MAYBE ? context : NULL;
    if (context->handle == handle)
        drop(context);
    else /* a green context has ended, and its primary context has not */
        rs_contexts_remove_entry(entry);
    return NULL;
}

static void append_to_dropped(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(!*dropped_end && !atomic_load(&context->alive));
    context->next_dropped = NULL;
    *dropped_end = context;
    dropped_end = &context->next_dropped;
    dropped_count++;
}

void rs_context_give_back_ended(void)
{
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    while ((context = ended)) {
        ended = context->next_dropped;
        rs_mutex_unlock(&rs_contexts_lock);
        for (struct rs_stack_walk walk = {0}; rs_context_next_stack(context, &walk);)
            rs_mr_context_ended(walk.mr);
        rs_account_lose(&context->account);
        rs_mutex_lock(&rs_contexts_lock);
        append_to_dropped(context);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_publish_stacks();
}

bool rs_context_has_ended(void)
{
    return ended;
}

/* Bit i: the driver has told the handle of device i's primary context, and no call since may have
 * ended that context. */
static _Atomic uint64_t primaries_learnt;

static void forget_learnt(CUdevice device)
{
    atomic_fetch_and(&primaries_learnt, ~(1ull << (unsigned)device % RS_DEVICES_MAX));
}

/* Drops the device's primary context if it has ended. The driver is asked without the lock. Its
 * answer is still about the context that was found under the lock, since ids are never used twice
 * and no record is recycled while a call may be ending a context. */
static void drop_if_ended(CUdevice device)
{
    struct rs_liveness_probe probe = {0, 0};
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    context = rs_contexts_primary(device);
    if (context)
        probe = context->probe;
    rs_mutex_unlock(&rs_contexts_lock);
    if (!context || (is_context_there(context) && !is_gone_there(probe, context->handle)))
        return;
    rs_mutex_lock(&rs_contexts_lock);
    if (rs_contexts_have(context))
        drop(context);
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_give_back_ended();
}

/* The context's entries stay in the table, so that no look-up enters the context a second time
 * before rs_ending_finish. */
void rs_ending_begin(struct rs_ending *ending, CUcontext handle, CUdevice device, bool is_sure)
{
    const struct rs_context_entry *entry;
    struct rs_context *context;

    if (device >= 0 && is_sure)
        forget_learnt(device);
    ending->excluded = rs_context_ending_enter(handle, device);
    ending->device = device;
    ending->is_sure = is_sure;
    RS_MUTEX_GUARD(&rs_contexts_lock);
    entry = rs_contexts_entry(handle);
    context = entry ? entry->context : rs_contexts_primary(device);
    if (entry && context->handle != handle)
        context = NULL; /* the handle is a green context's, and `context` is its primary */
    if (context) {
        ++*(is_sure ? &context->ends : &context->releases);
        update_ending(context);
    }
    ending->context = context;
}

static void finish_call(struct rs_context *context, bool was_sure, bool has_ended)
{
    unsigned *calls = was_sure ? &context->ends : &context->releases;

    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(*calls > 0);
    --*calls;
    /* A look-up may have dropped this context already, if it found that the handle stands for
     * another context by now. */
    if (has_ended && rs_contexts_have(context))
        drop(context);
    update_ending(context);
    rs_mutex_unlock(&rs_contexts_lock);
    if (has_ended)
        rs_context_give_back_ended();
}

void rs_ending_finish(const struct rs_ending *ending, bool has_ended)
{
    bool may_live_on = ending->device >= 0 && !ending->is_sure;

    if (has_ended && may_live_on) {
        forget_learnt(ending->device);
        drop_if_ended(ending->device);
    }
    if (ending->context)
        finish_call(ending->context, ending->is_sure, has_ended && !may_live_on);
    rs_context_ending_leave(ending->excluded);
}

/* ---- look-ups while a context may be ending ---- */

/* Does what rs_context_has_memory does for an address that is not 0, and what rs_context_serves
 * does for address 0. `ending` is read once, since it may change meanwhile. */
static bool is_there_or_at(const struct rs_context *context, CUdeviceptr address)
{
    if (RS_LIKELY(atomic_load(&context->alive)))
        return true;
    switch ((enum rs_context_ending)atomic_load(&context->ending)) {
    case RS_ENDING_NOT:
        return true;
    case RS_ENDING_MAYBE:
        return is_context_there(context);
    case RS_ENDING_SURELY:
        return address && is_at(context, address);
    case RS_ENDING_OVER:
        break;
    }
    return false;
}

bool rs_context_serves(const struct rs_context *context)
{
    return is_there_or_at(context, 0);
}

bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address)
{
    return address ? is_there_or_at(context, address) : atomic_load(&context->alive);
}

bool rs_context_has_folded(enum rs_kind kind, int device)
{
    return atomic_load(&folded_of[kind]) >> device & 1;
}

const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device)
{
    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    return &folded[kind][device];
}

/* ---- primary contexts ---- */

void rs_context_release_primary(CUdevice device)
{
    struct rs_ending ending;

    rs_ending_begin(&ending, NULL, device, false);
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    rs_ending_finish(&ending, true);
}

/* Learns the handle of the device's primary context by retaining and releasing it. Then drops the
 * context if it has ended, since the program may release its last reference in between. */
static void learn_primary(CUdevice device)
{
    struct rs_ending ending;
    bool learnt;

    if (!rs_driver_is_primary_active(device))
        return;
    rs_ending_begin(&ending, NULL, device, false);
    learnt = rs_driver_learn_primary(device) != NULL;
    forget_learnt(device);
    drop_if_ended(device);
    if (learnt)
        atomic_fetch_or(&primaries_learnt, 1ull << (unsigned)device % RS_DEVICES_MAX);
    rs_ending_finish(&ending, false);
}

CUcontext rs_context_primary(CUdevice device)
{
    if (!rs_driver_known_primary(device))
        learn_primary(device);
    return rs_driver_active_primary(device);
}

void rs_context_learn_current(CUcontext handle)
{
    RS_RELAXED_GUARD();
    CUdevice device;

    if (rs_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
        rs_driver_known_primary(device) != handle &&
        !(atomic_load(&primaries_learnt) >> device % RS_DEVICES_MAX & 1))
        learn_primary(device);
}
