/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the contexts that have not been dropped (context/end.h); one that a call is ending
 * is still in it. The caller holds rs_contexts_lock, except where a comment says otherwise. */
#pragma once

#include "base/lock.h"
#include "context/context.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An entry maps a handle that the program may make current to the context that owns the memory
 * allocated while it is current: the context of that handle, or, for a green context, its primary.
 */
struct rs_context_entry {
    CUcontext handle;
    unsigned long long id;
    struct rs_context *context;
};

/* Protects everything that the files of this folder know about contexts, unless a comment there
 * says otherwise. No driver call that waits is made under it. */
extern struct rs_mutex rs_contexts_lock;

/* Returns the entry of a handle, or NULL. The pointer is valid until the table changes. */
struct rs_context_entry *rs_contexts_entry(CUcontext handle);

bool rs_contexts_have(const struct rs_context *context);

/* Returns the primary context of the device; NULL while none is in the table. */
struct rs_context *rs_contexts_primary(CUdevice device);

/* Makes room for so many more entries, at most 64; returns false when out of host memory. */
bool rs_contexts_reserve(size_t count);

/* Adds an entry; returns false when out of host memory, which cannot be where there is room. */
bool rs_contexts_add(CUcontext handle, unsigned long long id, struct rs_context *context);

void rs_contexts_remove_entry(struct rs_context_entry *entry);

/* Removes all entries of the context, and makes all threads look up their contexts again. */
void rs_contexts_remove(const struct rs_context *context);

/* ---- walks through stacks ---- */

struct rs_stack_walk {
    struct rs_stack *stack;
    struct rs_mr *mr; /* the resource on top of `stack`; both are those that the walk has reached */

    /* Private: where the walk is, in the table, and among the stacks of one context. */
    size_t entry;
    unsigned index;
    struct rs_pushed_stack *pushed;
    bool holds_lock;
};

/* Goes to the next stack of the context, leaving out those that have not been made; returns false
 * after the last one. The caller sets *walk to zero to begin. May be called without the lock. */
bool rs_context_next_stack(struct rs_context *context, struct rs_stack_walk *walk);

/* Does the same over all contexts in the table, with the lock held. */
bool rs_contexts_next_stack(struct rs_stack_walk *walk);

/* A `for` that goes through the stacks of all contexts in the table under the contexts' lock, which
 * the caller does not hold and the body must not need. If the lock cannot be had
 * (rs_contexts_lock_bounded), the body never runs. */
#define RS_EACH_STACK(walk)                                                                        \
    for (struct rs_stack_walk walk                                                                 \
         __attribute__((cleanup(rs_stack_walk_end))) = rs_stack_walk_begin();                      \
         walk.holds_lock && rs_contexts_next_stack(&walk);)

struct rs_stack_walk rs_stack_walk_begin(void);
void rs_stack_walk_end(struct rs_stack_walk *walk);

/* ---- what keeps a context from ending ---- */

/* Called by rs_ending_begin and rs_ending_finish around each driver call that may end a context:
 * that of `handle`, or, if that is not in the table, the primary one of `device`.
 * rs_context_ending_enter waits for the deallocations under way in that context (rs_context_hold),
 * and returns the context, to be passed to rs_context_ending_leave; NULL when it is not in the
 * table. Between the two calls no thread caches its context. */
struct rs_context *rs_context_ending_enter(CUcontext handle, CUdevice device);
void rs_context_ending_leave(struct rs_context *context);

/* Called around deallocations that the program did not ask for: the context does not end between
 * rs_context_hold and rs_context_release, so these deallocations must not wait for its work
 * (base/request.h). Only on a driver without fences, and outside a request, may they wait
 * (context/visit.c). The two holds return false when the context has ended or a call that may end
 * it is under way; then no deallocation may follow. The caller of rs_context_hold_locked holds the
 * contexts' lock; the other two take it. */
bool rs_context_hold_locked(struct rs_context *context);
bool rs_context_hold(struct rs_context *context);
void rs_context_release(struct rs_context *context);

/* Returns the number of calls that may have ended a context and have returned. The caller holds the
 * contexts' lock. */
uint64_t rs_context_ends_over(void);

/* Waits up to bound_ns for the end of a call that may end a context. Returns true when one has
 * returned since rs_context_ends_over returned `over`; false at once if no such call is under way
 * or this thread must not wait. The caller does not hold the lock. */
bool rs_context_ends_wait(uint64_t over, uint64_t bound_ns);

/* Returns false when this thread must not wait for a context's end, since it is itself inside the
 * end of one, or inside rs_context_creating_begin. */
bool rs_context_may_wait_for_ends(void);

/* True while a call that may end a context is under way. */
bool rs_context_ends_under_way(void);

/* Called around driver calls that look up contexts or make stacks, some of them under the contexts'
 * lock. Another tool's hook may call the library again from inside such a driver call;
 * rs_context_is_creating is true there, and the inner call must not take the lock.
 * rs_context_creating_end, which is called without the lock, also publishes changed stacks, unless
 * `publish` is false: then the caller goes on to make a stack, and publishes both together
 * (rs_context_publish_stacks). */
void rs_context_creating_begin(void);
void rs_context_creating_end(bool publish);
bool rs_context_is_creating(void);

/* Takes the contexts' lock to read the contexts. While the time for locks is bounded, as at exit
 * (base/lock.h), returns false, without the lock, when that time is up; otherwise when this thread
 * is inside rs_context_creating_begin. */
bool rs_contexts_lock_bounded(void);

/* Notes that stacks were made or dropped; the next rs_context_publish_stacks reports that to
 * rs_wiring.stacks_changed. */
void rs_context_stacks_changed(void);

/* Publishes the stacks if they have changed.  The caller must not hold the contexts' lock. */
void rs_context_publish_stacks(void);

/* Called in a forked child, in which no context ends. */
void rs_context_exclusion_forked(void);
