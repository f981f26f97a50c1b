/* SPDX-License-Identifier: Apache-2.0 */
/* The current context and its stacks. A stack is a memory resource with its upstreams, which serves
 * one kind of memory in one context. It is made at the first allocation of its kind and dropped
 * when the context ends. */
#pragma once

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"
#include "config/config.h"
#include "driver/cuda.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "ledger/account.h"
#include "resource/expression.h"
#include "resource/resource.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- pushed resources ---- */

enum {
    /* The most different expressions that one process may push or set. */
    RS_PUSHED_MAX = 64,
    RS_PUSHED_DEPTH_MAX = 15
};

/* A resource that can be pushed: one for each text of an expression, kept as long as the process
 * lives. */
struct rs_pushed {
    const struct rs_expression *expression;
    struct rs_source source;
    struct rs_pushed *next;
};

/* Sets *out to the resource of an expression's text, made if need be. Returns 0; -EINVAL after
 * reporting what is wrong with the text; -ENOMEM; -ENOSPC when RS_PUSHED_MAX texts are known
 * already. Thread safe. */
int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out);

/* Pushes the resource of a text for the calling thread: sets rs_thread.pushed, which applies in
 * every context. Returns 0, an error of rs_pushed_find, or -ENOSPC when RS_PUSHED_DEPTH_MAX
 * resources are pushed. */
int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics);

/* Pops the resource that the calling thread pushed last. Returns 0, or -ERANGE when there is none.
 * The thread then looks up its context again, since from now on the resource set for the device may
 * apply. */
int rs_pushed_pop(void);

/* Sets the resource that serves device memory in the contexts of `device`, for all threads that
 * have pushed none. NULL: the stack of the settings serves it again. */
void rs_pushed_set(int device, const struct rs_pushed *resource);

/* Returns the resource that serves the calling thread's device memory in contexts of the device, or
 * NULL when the settings' stack serves it. */
const struct rs_pushed *rs_pushed_of(int device);

/* ---- contexts and stacks ---- */

enum {
    /* Combinations of portable, device-mapped and write-combined: each has its own stack, since a
     * block must report the flags with which it was allocated. */
    RS_HOST_FLAG_SETS = 8,
    RS_STACK_DEVICE = 0, /* the first of the stacks' indexes in rs_context.stack */
    RS_STACK_MANAGED,
    RS_STACK_PINNED, /* first of RS_HOST_FLAG_SETS, one for each combination of flags */
    RS_STACKS = RS_STACK_PINNED + RS_HOST_FLAG_SETS,
};

/* Whether a context is in service. */
enum {
    RS_CONTEXT_ENDS = 0,
    RS_CONTEXT_SERVES = 1,
    /* In service, but the driver has said that its work has failed: allocations go to the driver,
     * and a free gets the error that the driver still reports (context/end.h). The bit test of a
     * free (rs_block_claim_found) fails for this value. */
    RS_CONTEXT_FAULTY = 0x80,
};

struct rs_stack {
    struct rs_context *context;
    _Atomic(struct rs_mr *) mr; /* NULL: not made, or the driver serves instead */
    struct rs_block_counter *counter;
    enum rs_kind kind;
    bool frees_wait; /* a free may wait for the GPU; always true on a driver without fences */
    bool settled; /* making this stack was tried, so mr does not change any more; protected by the
                     contexts' lock */
    /* The pools of this stack have taken their initial sizes, which only one stack of this kind and
     * device has at a time; protected by the contexts' lock. */
    bool has_initial;
    struct rs_environment environment;
};

static inline const struct rs_stack *rs_stack_of(const struct rs_environment *of)
{
    const char *stack = (const char *)of - offsetof(struct rs_stack, environment);

    return (const struct rs_stack *)(const void *)stack;
}

/* The stack of a pushed resource in one context. */
struct rs_pushed_stack {
    struct rs_stack stack;
    const struct rs_pushed *resource;
    bool denies; /* the stack cannot be made here: allocations are answered with out of memory */
    struct rs_pushed_stack *next;
};

/* A small driver allocation that shows whether its context is alive, for drivers without
 * cuCtxGetId: the context lives as long as the driver reports this allocation id for the address.
 * All zero: the context has no probe. */
struct rs_liveness_probe {
    CUdeviceptr address;
    unsigned long long id;
};

/* Whether a context has ended, or a call under way may end it. */
enum rs_context_ending {
    RS_ENDING_NOT,
    RS_ENDING_MAYBE,  /* a call gives up a reference to it, which may be the last one */
    RS_ENDING_SURELY, /* a call destroys it, unless the driver refuses */
    RS_ENDING_OVER,
};

struct rs_context {
    CUcontext handle;
    /* The context's number from cuCtxGetId: a new context that gets a reused handle has another
     * number. 0 on drivers without that function. */
    unsigned long long id;
    CUdevice device;
    bool primary;
    struct rs_liveness_probe probe;
    struct rs_sentinel sentinel;
    struct rs_own_stream own_stream;
    /* A second own stream. It waits for the work of other contexts, so that own_stream never does.
     */
    struct rs_own_stream joining;
    /* Counts the bytes of this context, which its device's account includes. */
    struct rs_account account;
    _Atomic uint64_t peers;                   /* bit i: device i may access this context's memory */
    _Atomic(struct rs_pushed_stack *) pushed; /* list of stacks; entries are only added */
    bool owns_memory; /* this context is known to own its memory: it is no green context */
    /* The numbers of calls under way that end the context (ends), and of those that may end it
     * because they give up a reference to it (releases). Protected by the contexts' lock. */
    unsigned ends, releases;
    _Atomic unsigned char ending; /* enum rs_context_ending */
    /* The value to which `alive` is set again if the calls have not ended the context. */
    unsigned char alive_before;
    /* RS_CONTEXT_ENDS while a call may be ending the context, and for good once the context has
     * ended; `ending` tells which. Every free reads this flag and the first fields of
     * stack[RS_STACK_DEVICE], which share its cache line. */
    _Alignas(RS_CACHE_LINE) _Atomic unsigned char alive;
    struct rs_stack stack[RS_STACKS]; /* indexed by RS_STACK_... */
    /* The numbers of calls under way that may end the context, and of deallocations under way that
     * keep it from ending (context/table.h). Protected by the contexts' lock. */
    unsigned endings, holds;
    struct rs_context *next_dropped;
};

/* Grows with every change after which a cached context (rs_thread.found) may be wrong. Each thread
 * then looks up its context again. */
extern RS_HOT_DATA _Atomic unsigned rs_context_generation;

/* ---- the current context ---- */

/* Returns the stack that serves this kind of memory for the calling thread, made if need be: the
 * stack of its pushed resource (device memory only) or the settings' stack. `host_flags` are the
 * CU_MEMHOSTALLOC flags of pinned memory, which select its stack. Returns NULL when no context in
 * service is current, when the context's work has failed, and when no stack is wanted or can be
 * made. Then *denied tells whether the allocation must be refused because the settings are invalid
 * for this device. Green contexts share the stacks of their primary context. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied);

/* Makes the stack of a pushed resource for the current context now, so that its errors on this
 * device are reported now. Returns 0, or -EINVAL after reporting the error. Returns 0, doing
 * nothing, when no context is current, and when the context is not of `device` (-1: any device). */
int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics);

/* Returns the stack at index `which` (RS_STACK_DEVICE or RS_STACK_MANAGED) of the current context.
 * Returns NULL when that stack has not been made, and when the context's work has failed. For
 * device memory under a pushed resource, it returns that resource's stack instead. */
struct rs_stack *rs_stack_if_made(unsigned which);

/* Returns the current context if the calling thread's cache has it. Otherwise, and whenever
 * `unusual` is not 0, returns NULL, and the caller must take the slow path. */
RS_HOT_INLINE struct rs_context *rs_context_found_before(uintptr_t unusual)
{
    unsigned now = atomic_load_explicit(&rs_context_generation, memory_order_acquire);
    struct rs_context *context = rs_thread.found.context;
    CUcontext handle = NULL;

    if (RS_UNLIKELY(unusual | RS_DIFFER(rs_thread.found.generation, now) | !context))
        return NULL;
    unusual = (uintptr_t)rs_driver.cuCtxGetCurrent(&handle);
    return RS_LIKELY(!(unusual | RS_DIFFER(rs_thread.found.handle, handle))) ? context : NULL;
}

/* Does what rs_stack_if_made does, but reads only the calling thread's cache, and returns NULL
 * while a resource is pushed. When it returns NULL, the caller must take a slow path
 * (rs_stack_if_made or rs_context_stack). */
RS_HOT_INLINE struct rs_stack *rs_stack_cached(unsigned which)
{
    struct rs_context *context = rs_context_found_before((uintptr_t)rs_thread.pushed);

    return RS_LIKELY(context) &&
                   RS_LIKELY(atomic_load_explicit(&context->stack[which].mr, memory_order_acquire))
               ? &context->stack[which]
               : NULL;
}

/* Returns the context that owns the memory which the calling thread allocates now (for a green
 * context its primary); NULL when no context is current, when a call destroys the context, and when
 * its record cannot be made. A context that is not in the table yet is entered if `make` is set,
 * else the result is NULL. */
struct rs_context *rs_context_current(bool make);

/* True when the latest rs_context_current of this thread could not enter the context for lack of
 * host memory. */
bool rs_context_lacks_host_memory(void);

/* Returns the current context's error if its work has failed, else `result`.  Asks the driver
 * without waiting. */
RS_COLD CUresult rs_context_fault_or(CUresult result);

/* True when the context, which must be current, owns the memory that is allocated in it. A green
 * context that was found while its device had no stacks does not: its memory and its fences belong
 * to the primary. Asks the driver, until it has answered once that the context owns its memory. The
 * caller holds the contexts' lock. */
bool rs_context_owns_memory(struct rs_context *context);
