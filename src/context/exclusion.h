/* SPDX-License-Identifier: Apache-2.0 */
/* Excludes the ends of contexts and the library's own deallocations from each other: a free that
 * reached the driver after the context's end could hit another allocation at the same address. */
#pragma once

#include <stdbool.h>

/* Begin and end of each driver call that may end a context.  The first waits, without bound, for
 * trims under way.  Between the two no thread caches its context, as a handle may become another
 * context's at any moment. */
void rs_context_ending_enter(void);
void rs_context_ending_leave(void);

/* Begin and end of deallocations that the program did not ask for, in any context: no context ends
 * between them.  The first waits up to 1 s for an end under way.  False, and then no deallocation
 * may follow: the end took longer, it is this thread's own, or this thread is inside
 * rs_context_creating_begin. */
bool rs_context_ends_hold(void);
void rs_context_ends_release(void);

/* As rs_context_ends_hold, but false at once while a context ends. */
bool rs_context_ends_hold_at_once(void);

/* True while a context's end is under way.  The caller holds the contexts' lock. */
bool rs_context_ends_under_way(void);

/* Begin and end of driver calls that look up contexts or make stacks, partly under the contexts'
 * lock.  Another tool's hook may call the library again from inside such a driver call;
 * rs_context_is_creating is true there, and the inner call must not take the lock.  The end, called
 * without the lock, also publishes changed stacks. */
void rs_context_creating_begin(void);
void rs_context_creating_end(void);
bool rs_context_is_creating(void);

/* Takes the contexts' lock to read the contexts.  False where this thread is inside
 * rs_context_creating_begin, or where the bounded time for locks at exit is up (base/lock.h). */
bool rs_contexts_lock_bounded(void);

/* Notes that stacks were made or dropped; the next rs_context_publish_stacks tells
 * (rs_wiring.stacks_changed). */
void rs_context_stacks_changed(void);

/* Publishes the stacks if they have changed.  The caller must not hold the contexts' lock. */
void rs_context_publish_stacks(void);

/* Called in a forked child, in which no context ends and nothing is trimmed. */
void rs_context_exclusion_forked(void);
