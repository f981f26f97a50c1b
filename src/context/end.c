/* SPDX-License-Identifier: Apache-2.0 */
/* Ends contexts: folds their counters into reports, gives back the memory that outlives them, and
 * recycles a record once no thread can still be inside its stacks. */
#include "context/end.h"

#include "base/lock.h"
#include "context/exclusion.h"
#include "context/fault.h"
#include "context/identity.h"
#include "context/pushed_stack.h"
#include "context/stack.h"
#include "context/table.h"
#include "ledger/account.h"
#include "shim/wiring.h"

#include <stdlib.h>

enum { LIMBO_MAX = 64 /* dropped records kept, since a thread may still be inside their stacks */ };

/* All of the following are protected by the contexts' lock. */
/* Dropped contexts whose outliving memory is still to be given back. */
static struct rs_context *ended;
static struct rs_context *dropped, **dropped_end = &dropped; /* oldest first */
static size_t dropped_count;
static struct rs_report folded[RS_KINDS][RS_DEVICES_MAX];
static _Atomic uint64_t folded_of[RS_KINDS]; /* bit i: device i has some; read without the lock */

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
    rs_hash_clear(&context->account.blocks); /* a thread may have been inside when it was lost */
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

/* Every change of what the flags are made of ends here. */
static void set_ending(struct rs_context *context, enum rs_context_ending ending)
{
    unsigned char over = RS_CONTEXT_ENDS;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (ending != RS_ENDING_NOT) { /* who reads `alive` first sees more then */
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

/* A call that may end the context begins or has ended. */
static void update_ending(struct rs_context *context)
{
    if (atomic_load(&context->ending) != RS_ENDING_OVER)
        set_ending(context, context->ends       ? RS_ENDING_SURELY
                            : context->releases ? RS_ENDING_MAYBE
                                                : RS_ENDING_NOT);
}

void rs_context_drop(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    set_ending(context, RS_ENDING_OVER);
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
    unsigned long long id;
    bool is_faulty;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (!entry)
        return NULL;
    id = rs_context_ask_id(handle, &is_faulty);
    if (is_faulty)
        rs_context_note_fault(context);
    if ((is_faulty || id == entry->id) && !rs_context_is_gone(context->witness))
        return atomic_load(&context->ending) <= RS_ENDING_MAYBE ? context : NULL;
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
    if (context) {
        context->ends++;
        update_ending(context);
    }
    return context;
}

struct rs_context *rs_context_doubt(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    if (context) {
        context->releases++;
        update_ending(context);
    }
    return context;
}

/* The context with that handle itself, not one whose memory a green context of that handle uses. */
static struct rs_context *with_handle(CUcontext handle)
{
    const struct rs_context_entry *entry = rs_contexts_entry(handle);

    return entry && entry->context->handle == handle ? entry->context : NULL;
}

struct rs_context *rs_context_end_begin(CUcontext handle)
{
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_take_out(with_handle(handle));
    rs_mutex_unlock(&rs_contexts_lock);
    return context;
}

struct rs_context *rs_context_detach_begin(CUcontext handle)
{
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_doubt(with_handle(handle));
    rs_mutex_unlock(&rs_contexts_lock);
    return context;
}

void rs_context_end_finish(struct rs_context *context, bool destroyed)
{
    if (!context)
        return;
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(context->ends > 0);
    context->ends--;
    /* It is dropped already where a look-up has found that the handle is another context. */
    if (destroyed && rs_contexts_have(context))
        rs_context_drop(context);
    update_ending(context);
    rs_mutex_unlock(&rs_contexts_lock);
    if (destroyed)
        rs_context_give_back_ended();
}

void rs_context_doubt_end(struct rs_context *context, bool has_ended)
{
    if (!context)
        return;
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(context->releases > 0);
    context->releases--;
    if (has_ended && rs_contexts_have(context))
        rs_context_drop(context);
    update_ending(context);
    rs_mutex_unlock(&rs_contexts_lock);
    if (has_ended)
        rs_context_give_back_ended();
}

/* ---- look-ups meanwhile ---- */

bool rs_context_serves(const struct rs_context *context)
{
    if (RS_LIKELY(atomic_load(&context->alive)))
        return true;
    switch ((enum rs_context_ending)atomic_load(&context->ending)) {
    case RS_ENDING_NOT:
        return true;
    case RS_ENDING_MAYBE:
        return rs_context_is_there(context);
    case RS_ENDING_SURELY:
    case RS_ENDING_OVER:
        break;
    }
    return false;
}

bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address)
{
    if (RS_LIKELY(atomic_load(&context->alive)))
        return true;
    if (!address)
        return false;
    return atomic_load(&context->ending) == RS_ENDING_SURELY ? rs_context_is_at(context, address)
                                                             : rs_context_serves(context);
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
