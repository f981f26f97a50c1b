/* SPDX-License-Identifier: Apache-2.0 */
/* The current context and its stacks.  A stack is made at the first allocation of its kind in a
 * context and dropped when the context ends (context/end.h). */
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
    /* The most different texts in one process: each may have a stack in each context. */
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

/* Sets *out to the resource of a text, which is made if need be. Returns 0; -EINVAL after reporting
 * what is wrong with the text; -ENOMEM; -ENOSPC when RS_PUSHED_MAX texts are known already. Thread
 * safe. */
int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out);

/* Pushes the resource of a text for the calling thread, and sets rs_thread.pushed, which then holds
 * for every context. Returns 0, an error of rs_pushed_find, or -ENOSPC when RS_PUSHED_DEPTH_MAX
 * resources are pushed. */
int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics);

/* Pops the resource that the calling thread pushed last. Returns 0, or -ERANGE when there is none.
 * The thread then looks up its context again, since from now on the resource set for the device may
 * apply. */
int rs_pushed_pop(void);

/* From now on device memory in the contexts of `device` comes from the resource, for all threads
 * that have pushed none. If `resource` is NULL, it comes from the stack of the settings again. */
void rs_pushed_set(int device, const struct rs_pushed *resource);

/* Returns the resource that serves the calling thread's device memory in contexts of the device;
 * NULL: the settings' stack does. */
const struct rs_pushed *rs_pushed_of(int device);

/* ---- contexts and stacks ---- */

enum {
    RS_HOST_FLAG_SETS = 8, /* combinations of portable, device-mapped and write-combined: each has
                              its own stack, as each block must answer with its own flags */
    RS_STACK_DEVICE = 0, /* indexes in rs_context.stack: of the stack of device memory, and then of
                            the other kinds */
    RS_STACK_MANAGED,
    RS_STACK_PINNED, /* first of RS_HOST_FLAG_SETS, one for each combination of flags */
    RS_STACKS = RS_STACK_PINNED + RS_HOST_FLAG_SETS,
};

/* Whether a context is in service. */
enum {
    RS_CONTEXT_ENDS = 0,
    RS_CONTEXT_SERVES = 1,
    /* In service, but the driver has said that its work has failed: allocations go to the driver,
     * and a free gets the error that the driver still reports (context/end.h). The fast path of a
     * free tests a mask that leaves this bit out. */
    RS_CONTEXT_FAULTY = 0x80,
};

struct rs_stack {
    struct rs_context *context;
    _Atomic(struct rs_mr *) mr; /* NULL: not made, or the driver serves instead */
    struct rs_block_counter *counter;
    enum rs_kind kind;
    bool frees_wait; /* a free waits for the GPU, or may wait, as on a driver without fences */
    bool settled; /* making the stack was tried, so mr does not change any more; under the contexts'
                     lock */
    bool has_initial; /* this stack has taken the initial sizes of its kind and device; under the
                         contexts' lock */
    struct rs_environment environment;
};

static inline const struct rs_stack *rs_stack_of(const struct rs_environment *of)
{
    const char *stack = (const char *)of - offsetof(struct rs_stack, environment);

    return (const struct rs_stack *)(const void *)stack;
}

/* The stack of a pushed resource in one context, made at the first allocation under the resource.
 */
struct rs_pushed_stack {
    struct rs_stack stack;
    const struct rs_pushed *resource;
    bool denies; /* the stack cannot be made here: allocations are answered with out of memory */
    struct rs_pushed_stack *next;
};

/* A small driver allocation that shows whether its context is alive, for drivers without
 * cuCtxGetId: the context lives as long as the driver reports this allocation id for the address.
 * All zero: there is none.
 */
struct rs_liveness_probe {
    CUdeviceptr address;
    unsigned long long id;
};

/* How near its end a context is. */
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
    /* Waits for the work of other contexts, so that own_stream never has to. */
    struct rs_own_stream joining;
    /* Counts the bytes of this context, which its device's account includes. */
    struct rs_account account;
    _Atomic uint64_t peers;                   /* bit i: device i may access this context's memory */
    _Atomic(struct rs_pushed_stack *) pushed; /* list of stacks; entries are only added */
    bool owns_memory; /* this context is known to own its memory: it is no green context */
    /* Numbers of calls under way that end the context (ends), or may end it as they give up a
     * reference to it (releases); under the contexts' lock. */
    unsigned ends, releases;
    _Atomic unsigned char ending; /* enum rs_context_ending */
    /* The value that `alive` gets back if the calls have not ended the context. */
    unsigned char alive_before;
    /* RS_CONTEXT_...: RS_CONTEXT_ENDS from the beginning of a call that may end the context, and
     * for good once the context has ended; `ending` tells these apart.  Every free reads this flag
     * and the first fields of stack[RS_STACK_DEVICE], which share its cache line. */
    _Alignas(RS_CACHE_LINE) _Atomic unsigned char alive;
    struct rs_stack stack[RS_STACKS]; /* indexed by RS_STACK_... */
    /* The numbers of calls under way that may end the context, and of deallocations under way that
     * keep it from ending (context/table.h); under the contexts' lock. */
    unsigned endings, holds;
    struct rs_context *next_dropped;
};

/* Rises with every change that makes a cached context (rs_thread.found) wrong; each thread then
 * looks up its context again. */
extern RS_HOT_DATA _Atomic unsigned rs_context_generation;

/* ---- the current context ---- */

/* Returns the stack that serves this kind of memory for the calling thread, made if need be: the
 * stack of its pushed resource (device memory only) or the settings' stack. `host_flags` are the
 * CU_MEMHOSTALLOC flags of pinned memory, which select its stack. Returns NULL when no context in
 * service is current, when its work has failed, and when no stack is wanted or can be made; then
 * *denied tells whether the allocation must be refused, since the settings are invalid for this
 * device. Green contexts share the stacks of their primary context. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied);

/* Makes the stack of a pushed resource for the current context now, so that its errors on this
 * device are reported now. Does nothing, and returns 0, without a current context, or when the
 * context is not of `device` (-1: any device). Otherwise returns 0, or -EINVAL after reporting the
 * error. */
int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_diagnostics *diagnostics);

/* Returns the stack at index `which` (RS_STACK_DEVICE or RS_STACK_MANAGED) of the current context
 * if it has been made, else NULL; NULL also when the context's work has failed. For device memory
 * under a pushed resource, it returns that resource's stack instead. */
struct rs_stack *rs_stack_if_made(unsigned which);

/* Returns the current context from the cache of the calling thread. Returns NULL if the caller must
 * take the slow path, always so when `unusual` is not 0. */
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

/* Does what rs_stack_if_made does, but from the calling thread's cache alone, and not while a
 * resource is pushed. When it returns NULL, the caller must take a slow path (rs_stack_if_made or
 * rs_context_stack). */
RS_HOT_INLINE struct rs_stack *rs_stack_cached(unsigned which)
{
    struct rs_context *context = rs_context_found_before((uintptr_t)rs_thread.pushed);

    return RS_LIKELY(context) &&
                   RS_LIKELY(atomic_load_explicit(&context->stack[which].mr, memory_order_acquire))
               ? &context->stack[which]
               : NULL;
}

/* Returns the context that owns the memory which the calling thread allocates now (for a green
 * context its primary); NULL when no context is current, when a call destroys it, and when its
 * record cannot be made. If the context is not in the table yet, `make` has it entered; without
 * `make` the result is NULL. */
struct rs_context *rs_context_current(bool make);

/* True when the latest rs_context_current of this thread could not enter the context for lack of
 * host memory. */
bool rs_context_lacks_host_memory(void);

/* Returns the current context's error if its work has failed, else `result`.  Asks the driver
 * without waiting. */
RS_COLD CUresult rs_context_fault_or(CUresult result);

/* True when the context, which must be current, owns the memory that is allocated in it. A green
 * context that was found while its device had no stacks does not: its memory and its fences belong
 * to the primary. The driver is asked, until it has once answered that the context owns its memory.
 * The caller holds the contexts' lock. */
bool rs_context_owns_memory(struct rs_context *context);
