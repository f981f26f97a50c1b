/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the contexts that have not been dropped (context/end.h). A context that a call is
 * ending is still in it. Functions of the first section need rs_contexts_lock, which the caller
 * holds; further below, the comments say when. */
#pragma once

#include "base/lock.h"
#include "context/context.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An entry maps a handle that the program may make current to the context that owns the memory
 * allocated while it is current: that handle's context, or, for a green context, its primary. */
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

/* Adds an entry. rs_contexts_reserve must have made room. */
void rs_contexts_add(CUcontext handle, unsigned long long id, struct rs_context *context);

void rs_contexts_remove_entry(struct rs_context_entry *entry);

/* Removes all entries of the context, and makes all threads look up their contexts again. */
void rs_contexts_remove(const struct rs_context *context);

/* ---- walks through stacks ---- */

struct rs_stack_walk {
    struct rs_stack *stack;
    struct rs_mr *mr; /* the topmost resource of `stack`, the stack that the walk has reached */

    /* Private: the walk's position in the table and among the stacks of one context. */
    size_t entry;
    unsigned index;
    struct rs_pushed_stack *pushed;
    bool holds_lock;
};

/* Goes to the next stack of the context, leaving out those that have not been made; returns false
 * after the last one. The caller sets *walk to zero to begin. May be called without the lock. */
bool rs_context_next_stack(struct rs_context *context, struct rs_stack_walk *walk);

/* Goes to the next stack of all contexts in the table, as rs_context_next_stack does. The caller
 * holds the lock. */
bool rs_contexts_next_stack(struct rs_stack_walk *walk);

/* A `for` that goes through the stacks of all contexts in the table. It takes the contexts' lock,
 * so the caller must not hold it, and the body must not take it. If the lock cannot be had
 * (rs_contexts_lock_bounded), the body never runs. */
#define RS_EACH_STACK(walk)                                                                        \
    for (struct rs_stack_walk walk                                                                 \
         __attribute__((cleanup(rs_stack_walk_end))) = rs_stack_walk_begin();                      \
         walk.holds_lock && rs_contexts_next_stack(&walk);)

struct rs_stack_walk rs_stack_walk_begin(void);
void rs_stack_walk_end(struct rs_stack_walk *walk);

/* ---- what keeps a context from ending ---- */

/* Called by rs_ending_begin and rs_ending_finish around each driver call that may end a context:
 * the context of `handle`, or, if that handle is not in the table, the primary context of `device`.
 * rs_context_ending_enter waits for the deallocations under way in that context (rs_context_hold),
 * and returns the context for rs_context_ending_leave; NULL when it is not in the table. Between
 * the two calls no thread caches its context. The caller does not hold the lock. */
struct rs_context *rs_context_ending_enter(CUcontext handle, CUdevice device);
void rs_context_ending_leave(struct rs_context *context);

/* Called around deallocations that the program did not ask for. The context does not end between
 * rs_context_hold and rs_context_release. Therefore these deallocations must not wait for the
 * context's work (base/request.h), except outside a request on a driver without fences
 * (context/visit.c). rs_context_hold and rs_context_hold_locked return false when the context has
 * ended or a call that may end it is under way; then no deallocation may follow. The caller of
 * rs_context_hold_locked holds the contexts' lock; the other two functions take it. */
bool rs_context_hold_locked(struct rs_context *context);
bool rs_context_hold(struct rs_context *context);
void rs_context_release(struct rs_context *context);

/* Returns how many calls that may end a context have returned. The caller holds the lock. */
uint64_t rs_context_ends_over(void);

/* Waits up to bound_ns until a call that may end a context returns. Returns true when one has
 * returned since rs_context_ends_over returned `over`. Returns false at once when no such call is
 * under way, or this thread must not wait. The caller does not hold the lock. */
bool rs_context_ends_wait(uint64_t over, uint64_t bound_ns);

/* Returns false when this thread must not wait for a context's end: it is itself inside a call that
 * may end one, or inside rs_context_creating_begin. Needs no lock. */
bool rs_context_may_wait_for_ends(void);

/* True while a call that may end a context is under way. The caller holds the lock. */
bool rs_context_ends_under_way(void);

/* Called around driver calls that look up contexts or make stacks, some of them under the contexts'
 * lock. Another tool's hook may call the library again from inside such a driver call.
 * rs_context_is_creating is then true, and the inner call must not take the lock.
 *
 * rs_context_creating_end is called without the lock. It also publishes changed stacks, unless
 * `publish` is false because the caller goes on to make a stack and publishes both together. */
void rs_context_creating_begin(void);
void rs_context_creating_end(bool publish);
bool rs_context_is_creating(void);

/* Takes the contexts' lock to read the contexts. Returns false, without the lock, when this thread
 * is inside rs_context_creating_begin. While the time for locks is bounded, as at exit
 * (base/lock.h), it returns false only when that time is up. */
bool rs_contexts_lock_bounded(void);

/* Notes that stacks were made or dropped, so that the next rs_context_publish_stacks calls
 * rs_wiring.stacks_changed. Needs no lock. */
void rs_context_stacks_changed(void);

/* Publishes the stacks if they have changed.  The caller must not hold the contexts' lock. */
void rs_context_publish_stacks(void);

/* Called in a forked child, in which no context ends. */
void rs_context_exclusion_forked(void);
