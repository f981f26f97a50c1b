/* SPDX-License-Identifier: Apache-2.0 */
/* The table of contexts, walks through their stacks, and what keeps a context from ending. */
#include "context/table.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "shim/wiring.h"

#include <stdlib.h>

enum { ENTRIES_FIRST = 64 };

struct rs_mutex rs_contexts_lock = RS_MUTEX_INIT(RS_RANK_CONTEXTS);
RS_RESET_IN_CHILD(context_table, rs_contexts_lock);

/* rs_contexts_lock protects these three variables. */
static struct rs_context_entry *entries;
static size_t entry_count, entry_room;

RS_HOT_DATA _Atomic unsigned rs_context_generation = 1;

struct rs_context_entry *rs_contexts_entry(CUcontext handle)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].handle == handle)
            return &entries[i];
    return NULL;
}

bool rs_contexts_have(const struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context == context)
            return true;
    return false;
}

struct rs_context *rs_contexts_primary(CUdevice device)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->primary && entries[i].context->device == device)
            return entries[i].context;
    return NULL;
}

bool rs_contexts_reserve(size_t count)
{
    size_t room = entry_room ? 2 * entry_room : ENTRIES_FIRST;
    struct rs_context_entry *grown;

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(entry_count <= entry_room && count <= ENTRIES_FIRST);
    if (entry_room - entry_count >= count)
        return true;
    grown = realloc(entries, room * sizeof(*entries));
    if (!grown)
        return false;
    entries = grown;
    entry_room = room;
    return true;
}

void rs_contexts_add(CUcontext handle, unsigned long long id, struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(entry_count < entry_room);
    RS_ASSERT_SLOW(!rs_contexts_entry(handle)); /* a second entry would never be found */
    entries[entry_count++] = (struct rs_context_entry){handle, id, context};
}

void rs_contexts_remove_entry(struct rs_context_entry *entry)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(entry_count > 0 && entry >= entries && entry < entries + entry_count);
    *entry = entries[--entry_count];
}

void rs_contexts_remove(const struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count;) {
        if (entries[i].context == context)
            entries[i] = entries[--entry_count];
        else
            i++;
    }
    RS_ASSERT_SLOW(!rs_contexts_have(context));
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

/* ---- walks through stacks ---- */

bool rs_context_next_stack(struct rs_context *context, struct rs_stack_walk *walk)
{
    do {
        if (walk->index < RS_STACKS) {
            walk->stack = &context->stack[walk->index++];
            walk->pushed = NULL;
        } else {
            walk->pushed = walk->pushed
                               ? walk->pushed->next
                               : atomic_load_explicit(&context->pushed, memory_order_acquire);
            if (!walk->pushed)
                return false;
            walk->stack = &walk->pushed->stack;
        }
        walk->mr = atomic_load_explicit(&walk->stack->mr, memory_order_acquire);
    } while (!walk->mr);
    return true;
}

bool rs_contexts_next_stack(struct rs_stack_walk *walk)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (; walk->entry < entry_count; walk->entry++, walk->index = 0) {
        /* Skips a green context's entry, whose stacks are those of its primary context's entry. */
        if (entries[walk->entry].context->handle == entries[walk->entry].handle &&
            rs_context_next_stack(entries[walk->entry].context, walk))
            return true;
    }
    return false;
}

struct rs_stack_walk rs_stack_walk_begin(void)
{
    return (struct rs_stack_walk){.holds_lock = rs_contexts_lock_bounded()};
}

void rs_stack_walk_end(struct rs_stack_walk *walk)
{
    if (walk->holds_lock)
        rs_mutex_unlock(&rs_contexts_lock);
}

/* ---- what keeps a context from ending ---- */

enum { NAP_NS = 500 * 1000 }; /* the time between two checks whether an end is over */

/* The number of calls under way that may end a context, and the number of such calls that have
 * returned. Protected by the contexts' lock. */
static unsigned endings;
static uint64_t ends_over;
static pthread_cond_t holds_done = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(holds_done, holds_done);

static __thread bool creating; /* this thread is inside rs_context_creating_begin, where another
                                  tool's hook may call the library again */
/* The number of calls that may end a context in which this thread is. */
static __thread unsigned own_endings;

/* While depth is above 0, the thread has something that other threads wait for. Then it cannot be
 * cancelled, not even in its driver calls. */
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
    RS_ASSERT(busy.depth > 0);
    if (--busy.depth == 0)
        rs_uncancelled_end(&busy.uncancelled);
}

void rs_context_creating_begin(void)
{
    RS_ASSERT(!creating); /* pairs do not nest: the inner rs_context_creating_end would end the
                             outer pair too */
    busy_begin();
    creating = true;
}

static _Atomic bool unpublished; /* stacks were made or dropped since the last publishing */

void rs_context_stacks_changed(void)
{
    atomic_store(&unpublished, true);
}

void rs_context_publish_stacks(void)
{
    if (atomic_load_explicit(&unpublished, memory_order_relaxed) &&
        atomic_exchange(&unpublished, false))
        rs_wiring.stacks_changed();
}

void rs_context_creating_end(bool publish)
{
    RS_ASSERT(creating);
    creating = false;
    if (publish)
        rs_context_publish_stacks();
    busy_end();
}

bool rs_context_is_creating(void)
{
    return creating;
}

bool rs_context_ends_under_way(void)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    return endings > 0;
}

void rs_context_exclusion_forked(void)
{
    endings = 0;
}

bool rs_contexts_lock_bounded(void)
{
    return !(creating && !rs_lock_is_bound()) &&
           rs_mutex_lock_bounded(&rs_contexts_lock, "contexts");
}

/* ---- deallocations ---- */

bool rs_context_hold_locked(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    if (context->endings > 0 || !atomic_load(&context->alive))
        return false;
    context->holds++;
    busy_begin();
    return true;
}

bool rs_context_hold(struct rs_context *context)
{
    RS_MUTEX_GUARD(&rs_contexts_lock);

    return rs_context_hold_locked(context);
}

void rs_context_release(struct rs_context *context)
{
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(context->holds > 0);
    if (--context->holds == 0)
        pthread_cond_broadcast(&holds_done);
    rs_mutex_unlock(&rs_contexts_lock);
    busy_end();
}

/* ---- ends ---- */

uint64_t rs_context_ends_over(void)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    return ends_over;
}

bool rs_context_may_wait_for_ends(void)
{
    return !creating && own_endings == 0; /* a thread that is creating may hold the lock; one inside
                                             an end would wait for itself */
}

/* The wait is bounded, since a context's end may wait for work that waits for this thread. It is
 * counted in naps, so that a clock that stands still does not make it longer. */
bool rs_context_ends_wait(uint64_t over, uint64_t bound_ns)
{
    uint64_t napped_ns = 0, nap_ns;
    bool is_over, may_wait = rs_context_may_wait_for_ends();

    if (!may_wait)
        return false;
    for (;; napped_ns += nap_ns) {
        rs_mutex_lock(&rs_contexts_lock);
        is_over = ends_over != over;
        may_wait = endings > 0 && napped_ns < bound_ns;
        rs_mutex_unlock(&rs_contexts_lock);
        if (is_over || !may_wait)
            return is_over;
        nap_ns = rs_min(NAP_NS, bound_ns - napped_ns);
        rs_nap(nap_ns);
    }
}

/* Begins a call that may end `context` (NULL: it is not in the table). From now on no deallocation
 * begins in the context. Its record stays, even when the context is dropped, since no record is
 * recycled while such a call is under way. The caller holds the lock. */
static struct rs_context *enter_end(struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    endings++;
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
    if (context) {
        context->endings++;
        while (context->holds > 0)
            rs_condition_wait(&holds_done, &rs_contexts_lock);
    }
    return context;
}

struct rs_context *rs_context_ending_enter(CUcontext handle, CUdevice device)
{
    const struct rs_context_entry *entry;

    busy_begin();
    own_endings++;
    RS_MUTEX_GUARD(&rs_contexts_lock);
    entry = rs_contexts_entry(handle);
    return enter_end(entry ? entry->context : rs_contexts_primary(device));
}

void rs_context_ending_leave(struct rs_context *context)
{
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(endings > 0 && own_endings > 0 && (!context || context->endings > 0));
    endings--;
    ends_over++;
    if (context)
        context->endings--;
    rs_mutex_unlock(&rs_contexts_lock);
    own_endings--;
    busy_end();
}
