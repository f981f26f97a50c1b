/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of contexts and the library's own deallocations exclude each other.  A thread is not
 * cancelled inside either, and driver calls that come back through another tool's hook are
 * recognised. */
#include "context/exclusion.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/undisturbed.h"
#include "context/table.h"
#include "shim/wiring.h"

#include <errno.h>
#include <time.h>

enum { ENDS_WAIT_MS = 1000 };

/* Both under way; no trim begins while a context ends; under the contexts' lock. */
static unsigned endings, trims;
static pthread_cond_t trims_done = PTHREAD_COND_INITIALIZER, ends_done = PTHREAD_COND_INITIALIZER;
RS_RESET_IN_CHILD(trims_done);
RS_RESET_IN_CHILD(ends_done);

static __thread bool creating; /* a driver call of ours may come back through another tool's hook */
static __thread bool is_ending; /* this thread is inside a context's end */

/* Cancellation is off while this thread holds what other threads wait for, during its driver calls
 * too. */
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
    RS_ASSERT(!creating); /* the inner end would let others in again */
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

void rs_context_creating_end(void)
{
    RS_ASSERT(creating);
    creating = false;
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
    trims = 0;
}

bool rs_contexts_lock_bounded(void)
{
    return !(creating && !rs_lock_is_bound()) &&
           rs_mutex_lock_bounded(&rs_contexts_lock, "contexts");
}

static bool wait_for_ends(void)
{
    struct timespec until;

    RS_ASSERT_HELD(&rs_contexts_lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ENDS_WAIT_MS / 1000;
    while (endings > 0)
        if (rs_condition_wait_until(&ends_done, &rs_contexts_lock, &until) == ETIMEDOUT)
            break;
    return endings == 0;
}

static bool hold_ends(bool may_wait)
{
    bool may;

    if (creating || is_ending)
        return false; /* this thread may hold the lock, or would wait for itself */
    rs_mutex_lock(&rs_contexts_lock);
    may = may_wait ? wait_for_ends() : endings == 0;
    trims += may;
    rs_mutex_unlock(&rs_contexts_lock);
    if (may)
        busy_begin();
    return may;
}

/* The wait is bounded: a context's end may wait for work that waits for this thread. */
bool rs_context_ends_hold(void)
{
    return hold_ends(true);
}

bool rs_context_ends_hold_at_once(void)
{
    return hold_ends(false);
}

void rs_context_ends_release(void)
{
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(trims > 0);
    trims--;
    pthread_cond_broadcast(&trims_done);
    rs_mutex_unlock(&rs_contexts_lock);
    busy_end();
}

void rs_context_ending_enter(void)
{
    busy_begin();
    is_ending = true;
    rs_mutex_lock(&rs_contexts_lock);
    endings++;
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
    while (trims > 0)
        rs_condition_wait(&trims_done, &rs_contexts_lock);
    RS_ASSERT(trims == 0 && endings > 0);
    rs_mutex_unlock(&rs_contexts_lock);
}

void rs_context_ending_leave(void)
{
    rs_mutex_lock(&rs_contexts_lock);
    RS_ASSERT(endings > 0);
    RS_ASSERT_SLOW(is_ending); /* no context ends within another one's end */
    endings--;
    pthread_cond_broadcast(&ends_done);
    rs_mutex_unlock(&rs_contexts_lock);
    is_ending = false;
    busy_end();
}
