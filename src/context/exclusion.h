/* SPDX-License-Identifier: Apache-2.0 */
/* Excludes the end of a context and the library's own deallocations in it from each other: a free
 * that reached the driver after the context's end could hit another allocation at the same address.
 * Other contexts do not matter: the end of one may take as long as its kernels. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

struct rs_context;

/* Begin and end of each driver call that may end a context: that of the handle, or the primary one
 * of the device.  The first waits for the deallocations under way in that context, none of which
 * waits for the program's work, and returns the context for the second; NULL: it has no stack.
 * Between the two no thread caches its context, as a handle may become another context's at any
 * moment. */
struct rs_context *rs_context_ending_enter(CUcontext handle);
struct rs_context *rs_context_ending_enter_primary(CUdevice device);
void rs_context_ending_leave(struct rs_context *context);

/* Begin and end of deallocations in a context that the program did not ask for: the context does
 * not end between them, so they must not wait for its work (base/request.h).  False, and then no
 * deallocation may follow, while a call that may end the context is under way, and when it has
 * ended.  The caller of rs_context_hold_locked holds the contexts' lock; the other two take it. */
bool rs_context_hold_locked(struct rs_context *context);
bool rs_context_hold(struct rs_context *context);
void rs_context_release(struct rs_context *context);

/* The number of calls that may end a context and are over.  The caller holds the contexts' lock. */
uint64_t rs_context_ends_over(void);

/* Waits up to bound_ns for a call that may end a context: true when one is over since
 * rs_context_ends_over returned `over`. */
bool rs_context_ends_wait(uint64_t over, uint64_t bound_ns);

/* False where this thread must not wait for a context's end: it is inside one, or inside
 * rs_context_creating_begin. */
bool rs_context_may_wait_for_ends(void);

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

/* Called in a forked child, in which no context ends. */
void rs_context_exclusion_forked(void);
