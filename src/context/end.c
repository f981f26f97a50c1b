/* SPDX-License-Identifier: Apache-2.0 */
/* Ends contexts: folds their counters into reports, gives back the memory that outlives them, and
 * recycles a record once no thread can still be inside its stacks. */
#include "context/end.h"

#include "base/lock.h"
#include "context/exclusion.h"
#include "context/identity.h"
#include "context/pushed_stack.h"
#include "context/stack.h"
#include "context/table.h"
#include "ledger/footprint.h"
#include "shim/wiring.h"

#include <stdlib.h>

enum { LIMBO_MAX = 64 /* dropped records kept, since a thread may still be inside their stacks */ };

/* All of the following are protected by the contexts' lock. */
/* Dropped contexts whose outliving memory is still to be given back. */
static struct rs_context *ended;
static struct rs_context *dropped, **dropped_end = &dropped; /* oldest first */
static size_t dropped_count;
static struct rs_report folded[RS_KINDS][RS_DEVICES_MAX];

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
    if (dropped_count <= LIMBO_MAX || rs_context_ends_under_way())
        return new_record();
    context = dropped;
    RS_ASSERT(!atomic_load(&context->alive) && context->next_dropped);
    dropped = context->next_dropped;
    dropped_count--;
    for (int i = 0; i < RS_STACKS; i++)
        rs_mr_destroy(atomic_load(&context->stack[i].mr), true);
    rs_pushed_stack_recycle(atomic_load(&context->pushed));
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
}

/* Sums the peaks of all stacks of one kind on one device. */
struct peaks {
    enum rs_kind kind;
    CUdevice device;
    struct rs_report report;
};

static void add_peaks(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct peaks *peaks = data;

    if (stack->kind == peaks->kind && stack->environment.device == peaks->device)
        rs_mr_report(mr, &peaks->report);
}

/* Raises the folded peaks to the sum over the going context and all others of its device, whose
 * memory was held at the same time.  The caller has taken the going context from the table. */
static void fold_peaks(struct rs_context *going)
{
    static struct peaks peaks; /* under the lock */

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT_SLOW(!rs_contexts_have(going)); /* what it has would be counted twice */
    peaks.device = going->device;
    for (int kind = 0; kind < RS_KINDS && going->device < RS_DEVICES_MAX; kind++) {
        peaks.kind = (enum rs_kind)kind;
        rs_report_clear(&peaks.report);
        rs_context_visit_stacks(going, add_peaks, &peaks);
        rs_contexts_visit_stacks(add_peaks, &peaks);
        rs_report_raise_peaks(&folded[kind][going->device], &peaks.report);
    }
}

static void drop_stack(struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load(&stack->mr);

    RS_ASSERT_SLOW(!atomic_load(&stack->context->alive));
    if (!mr)
        return;
    rs_context_stacks_changed();
    rs_stack_release_initial(stack);
    fold_report(stack, mr);
    rs_wiring.stack_gone(stack, mr);
}

void rs_context_drop(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    atomic_store(&context->alive, false);
    rs_contexts_remove(context);
    rs_wiring.context_gone(context);
    for (int i = 0; i < RS_STACKS; i++)
        drop_stack(&context->stack[i]);
    for (struct rs_pushed_stack *pushed = atomic_load(&context->pushed); pushed;
         pushed = pushed->next)
        drop_stack(&pushed->stack);
    fold_peaks(context);
    RS_ASSERT(context != ended);
    context->next_dropped = ended;
    ended = context;
}

struct rs_context *rs_context_find(CUcontext handle)
{
    struct rs_context_entry *entry = rs_contexts_entry(handle);
    struct rs_context *context = entry ? entry->context : NULL;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (!entry)
        return NULL;
    if (entry->id == rs_context_id_of(handle) && !rs_context_is_gone(context->witness))
        return atomic_load(&context->alive) ? context : NULL;
    if (context->handle == handle)
        rs_context_drop(context);
    else /* a green context: only its handle is stale */
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

static void end_stack(struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load(&stack->mr);

    if (mr)
        rs_mr_context_ended(mr);
}

void rs_context_give_back_ended(void)
{
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    while ((context = ended)) {
        ended = context->next_dropped;
        rs_mutex_unlock(&rs_contexts_lock);
        for (int i = 0; i < RS_STACKS; i++)
            end_stack(&context->stack[i]);
        for (struct rs_pushed_stack *pushed = atomic_load(&context->pushed); pushed;
             pushed = pushed->next)
            end_stack(&pushed->stack);
        rs_account_lose(&context->account);
        rs_footprint_lose(&context->account);
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

/* Its table entries stay, so that no look-up enters the context anew meanwhile. */
struct rs_context *rs_context_take_out(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    if (context)
        atomic_store(&context->alive, false);
    return context;
}

struct rs_context *rs_context_end_begin(CUcontext handle)
{
    const struct rs_context_entry *entry;
    struct rs_context *context = NULL;

    rs_mutex_lock(&rs_contexts_lock);
    entry = rs_contexts_entry(handle);
    if (entry && entry->context->handle == handle)
        context = rs_context_take_out(entry->context);
    rs_mutex_unlock(&rs_contexts_lock);
    return context;
}

void rs_context_end_finish(struct rs_context *context, bool destroyed)
{
    if (!context)
        return;
    rs_mutex_lock(&rs_contexts_lock);
    if (!rs_contexts_have(context)) {
        /* a look-up has found that the handle is another context, and dropped this one */
    } else if (destroyed) {
        rs_context_drop(context);
    } else {
        atomic_store(&context->alive, true);
    }
    rs_mutex_unlock(&rs_contexts_lock);
    if (destroyed)
        rs_context_give_back_ended();
}

const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device)
{
    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    return &folded[kind][device];
}
