/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and their stacks: a stack is made at the first allocation of its kind in a context, and
 * dropped when the context ends. */
#pragma once

#include "base/check.h"
#include "base/thread_state.h"
#include "config/config.h"
#include "context/pushed.h"
#include "driver/cuda.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/own_stream.h"
#include "ledger/account.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
    RS_HOST_FLAG_SETS = 8, /* portable, device-mapped, write-combined: kept apart, as each block
                              must answer with its own flags */
    RS_STACK_DEVICE = 0,   /* where each kind's stacks are in a context */
    RS_STACK_MANAGED,
    RS_STACK_PINNED, /* by flags */
    RS_STACKS = RS_STACK_PINNED + RS_HOST_FLAG_SETS,
};

struct rs_stack {
    struct rs_context *context;
    _Atomic(struct rs_mr *) mr; /* NULL: not made, or none is wanted */
    struct rs_block_counter *counter;
    enum rs_kind kind;
    bool frees_wait;  /* for work; or may, on a driver without fences */
    bool settled;     /* made, or none is wanted; under the contexts' lock */
    bool has_initial; /* took the initial sizes: the same */
    struct rs_place place;
};

/* A stack for a pushed resource, made at the first allocation under it. */
struct rs_pushed_stack {
    struct rs_stack stack;
    const struct rs_pushed *resource;
    bool denies; /* it cannot be made: allocations are out of memory */
    struct rs_pushed_stack *next;
};

/* A small block of a context's, where the driver has no cuCtxGetId: while it is there, with that id
 * of its allocation, so is the context.  All zero: none. */
struct rs_witness {
    CUdeviceptr address;
    unsigned long long id;
};

struct rs_context {
    CUcontext handle;
    unsigned long long id; /* cuCtxGetId, 0 where the driver has none: tells a reused handle */
    CUdevice device;
    bool primary;
    struct rs_witness witness;
    struct rs_sentinel sentinel;
    struct rs_own_stream own_stream;
    struct rs_own_stream joining; /* waits for other contexts' work, so the first one need not */
    struct rs_account account;    /* what this context holds; part of its device's */
    _Atomic uint64_t peers;       /* devices that may reach its memory, a bit each */
    _Atomic(struct rs_pushed_stack *) pushed; /* only ever added to */
    bool owns_memory;                         /* known not to be a green context's */
    /* False while the context is being destroyed, and ever after.  Each free reads it, and of the
     * stack of device memory what is in the same cache line. */
    _Alignas(RS_CACHE_LINE) _Atomic bool alive;
    struct rs_stack stack[RS_STACKS]; /* RS_STACK_... */
    struct rs_context *next_dropped;
};

/* The calling thread's stack for this kind of memory, its pushed resource's where it has one (and
 * these CU_MEMHOSTALLOC flags), made if
 * need be.  NULL when there is no context, when no stack is wanted, or when the settings turned out
 * bad on this device (then *denied tells whether allocations are refused).  Contexts that share
 * memory (green contexts and their primary) share stacks. */
struct rs_stack *rs_context_stack(enum rs_kind kind, unsigned host_flags, bool *denied);

/* Makes the resource's stack for the current context, where there is one (of this device; -1: of
 * any), so that what is wrong with it on the device is complained about now.  0, or -EINVAL after
 * complaining. */
int rs_context_make_pushed(const struct rs_pushed *resource, int device,
                           struct rs_complaints *complaints);

/* From now on the device memory of all threads that have pushed nothing comes from the resource in
 * this device's contexts; NULL: from what the settings give. */
void rs_context_set_resource(int device, const struct rs_pushed *resource);

/* The calling thread looks its context up again. */
void rs_context_forget_found(void);

/* The stack for device or managed memory (RS_STACK_...) if it has been made. */
struct rs_stack *rs_context_made_stack(unsigned which);

/* Goes up with every change that makes what threads found last (rs_thread.found) wrong. */
extern RS_HOT_DATA _Atomic unsigned rs_context_generation;

/* The current context as the thread found it before, or NULL: look it up then, as where something
 * else is unusual. */
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

/* rs_context_made_stack in the common case: NULL says nothing. */
RS_HOT_INLINE struct rs_stack *rs_context_stack_before(unsigned which)
{
    struct rs_context *context = rs_context_found_before((uintptr_t)rs_thread.pushed);

    return RS_LIKELY(context) &&
                   RS_LIKELY(atomic_load_explicit(&context->stack[which].mr, memory_order_acquire))
               ? &context->stack[which]
               : NULL;
}

/* The context that owns what the calling thread allocates now, made known if need be; NULL without
 * one. */
struct rs_context *rs_context_owner(void);

/* Has every stack of the device's contexts give back its wholly free memory.  *keep_bytes, in:
 * bytes to keep; out: the unused part.  Returns the bytes given back.  No lock may be held: outside
 * a request the driver calls wait.  Waits up to 1 s for a context that is about to end, as the next
 * five do. */
size_t rs_context_trim(int device, size_t *keep_bytes);

/* The same for somebody who is out of memory: nothing stays, but in pinned memory's stacks; an
 * initial size only where its memory is not in initial_of (rs_mr_trim_all). */
size_t rs_context_trim_all(int device, unsigned initial_of);

/* rs_mr_make_ready of all these stacks, until one of them says RS_READY_SOME. */
enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns);

/* What they hold that nobody uses, quarantine included. */
size_t rs_context_idle_bytes(int device);

/* The same of resources over any of these memories, bits 1 << rs_memory. */
size_t rs_context_idle_bytes_of(int device, unsigned memories);

/* Around the program's waits for its work: rs_mr_synchronise of all stacks for device memory that
 * have a threshold.  Without any it costs nothing. */
void rs_context_synchronise_slowly(enum rs_synchronise when);

extern _Atomic bool rs_context_has_threshold; /* a stack of the process, now or before */

static inline void rs_context_synchronise(enum rs_synchronise when)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_context_has_threshold, memory_order_relaxed)))
        rs_context_synchronise_slowly(when);
}

/* Changes with each block that enters or leaves the quarantine of any of them, on any device. */
uint64_t rs_context_moves(void);

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

/* A context's end, between the two above.  begin takes it out of service before the driver destroys
 * it; finish, after, forgets its memory or (destroyed false) puts it back into service. */
struct rs_context *rs_context_end_begin(CUcontext handle);
struct rs_context *rs_context_end_begin_primary(CUdevice device);
void rs_context_end_finish(struct rs_context *context, bool destroyed);

/* A reference to the device's primary context was given up, between the same two: forgets the
 * context's memory if it was the last one, also where there is a new one already. */
void rs_context_released_primary(CUdevice device);

/* Gives one up that the library took for a moment.  No lock may be held. */
void rs_context_release_primary(CUdevice device);

/* The device's primary context, NULL while nobody holds it.  No lock may be held. */
CUcontext rs_context_primary(CUdevice device);

/* Calls visit for each stack of each context in service, with a lock held that visit must not
 * need. */
void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data);

/* The same for the stacks of one kind of a device alone, and at last `gone` with the counters of
 * those whose contexts are gone. */
void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data);

/* Tells the context's stacks which devices may reach its memory now (introspect/peer.h).  After an
 * error some may be told and some not. */
CUresult rs_context_apply_peers(CUcontext handle);

/* What the process holds of a device, with its limit; NULL for a number out of range. */
struct rs_account *rs_context_device_account(int device);

/* What the calling thread allocates from where it has one that is known: its current context, or
 * the one that owns a green one's memory.  NULL otherwise. */
struct rs_context *rs_context_current(void);

/* Counters of stacks of this kind and device whose contexts are gone. */
const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device);
