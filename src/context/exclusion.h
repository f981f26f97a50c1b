/* SPDX-License-Identifier: Apache-2.0 */
/* Who may be at the contexts' memory: a context's end and deallocations of ours keep each other
 * out. */
#pragma once

#include <stdbool.h>

/* Around each driver call that may end a context: waits for trims under way, whose frees must not
 * reach the driver after the context, when its addresses may be somebody else's.  Until the second,
 * look-ups trust no thread's latest one: a handle may be another context's at any moment. */
void rs_context_ending_enter(void);
void rs_context_ending_leave(void);

/* Around deallocations that the program did not ask for, in any context: no context ends meanwhile.
 * False when nothing may be deallocated now: a context's end took longer than 1 s, or is this
 * thread's. */
bool rs_context_ends_hold(void);
void rs_context_ends_release(void);

/* The first of these without a wait: false at once while a context ends. */
bool rs_context_ends_hold_at_once(void);

/* A context's end is under way.  The caller holds the contexts' lock. */
bool rs_context_ends_under_way(void);

/* Around calls of the driver that make something known, under the contexts' lock in part: a driver
 * call of ours may come back through another tool's hook, which finds rs_context_is_creating then
 * and must not take the lock.  The second, without the lock, publishes stacks too. */
void rs_context_creating_begin(void);
void rs_context_creating_end(void);
bool rs_context_is_creating(void);

/* Takes the contexts' lock for a look at them.  False where this thread has it, or where the time
 * for it is up (base/lock.h). */
bool rs_contexts_lock_bounded(void);

/* Stacks have come or gone: the next publishing tells (rs_wiring.stacks_changed). */
void rs_context_stacks_changed(void);

/* Without the lock. */
void rs_context_publish_stacks(void);
