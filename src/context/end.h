/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context.  Every call of the program that may end one lies between
 * rs_ending_begin and rs_ending_finish. */
#pragma once

#include "base/check.h"
#include "context/context.h"
#include "resource/report.h"

#include <stdbool.h>

/* ---- which context a handle stands for ---- */

/* Returns the id of cuCtxGetId, or 0 on drivers without it.  Any context may be current. */
unsigned long long rs_context_id_of(CUcontext handle);

/* ---- contexts of which work has failed ---- */

static inline bool rs_context_is_faulty(const struct rs_context *context)
{
    return atomic_load_explicit(&context->alive, memory_order_relaxed) == RS_CONTEXT_FAULTY;
}

/* True once a context of the process was faulty. */
bool rs_context_any_fault(void);

/* The driver answered with an error for which rs_is_fault is true.  Takes no lock, makes no driver
 * call. */
RS_COLD void rs_context_note_fault(struct rs_context *context);

/* rs_environment.note_fault. */
RS_COLD void rs_context_note_fault_of(const struct rs_environment *environment);

/* What the driver's own free in a faulty context answers now.  Not inside a request, as it may
 * wait. CUDA_SUCCESS, and the context is served again, when the driver knows no error of it. */
RS_COLD CUresult rs_context_ask_fault(struct rs_context *context);

/* ---- ends ---- */

/* A driver call that may end a context. */
struct rs_ending {
    struct rs_context *excluded; /* no deallocation of the library's is under way in it */
    struct rs_context *context; /* out of service, or in doubt where it may live on; NULL: it is not
                                   known */
    CUdevice device;            /* whose primary context it may end; -1: none */
    bool is_sure;
};

/* Begin and end of such a call: for the context of the handle, or, with NULL, the primary one of
 * the device (-1: none).  The first waits for the deallocations under way in that context, none of
 * which waits for the program's work.  Then it takes the context out of service, where the call's
 * success is its end (is_sure).  Where the call gives up one reference, which may be the last, the
 * context stays in service, and look-ups ask the driver whether it is still there.
 *
 * Between the two no thread caches its context, as a handle may become another context's at any
 * moment.  The driver may give the context's addresses to others, so look-ups by address step over
 * what belongs to it (rs_context_serves).  Entries go when it has ended, or earlier, when another
 * entry takes their place; if it lives on, they are as before.
 *
 * has_ended: the call has ended the context; for a call that gives up a reference to a primary
 * context, that it succeeded.  Then the driver is asked whether that was the last one, and the
 * context is dropped even where a new primary context exists already. */
void rs_ending_begin(struct rs_ending *ending, CUcontext handle, CUdevice device, bool is_sure);
void rs_ending_finish(const struct rs_ending *ending, bool has_ended);

/* A new context enters service.  The caller holds the contexts' lock. */
void rs_context_begins(struct rs_context *context);

/* False where the context's blocks count no more: it is destroyed, or was. */
bool rs_context_serves(const struct rs_context *context);

/* False once the memory at `address`, which the context had, is the driver's again.  For address 0:
 * false where that may be so. */
bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address);

/* Gives back the memory that outlived dropped contexts (leaves of `async`, mapped memory).  It
 * makes driver calls, so the caller must not hold the contexts' lock. */
void rs_context_give_back_ended(void);

/* True while dropped contexts wait for rs_context_give_back_ended.  The caller holds the contexts'
 * lock. */
bool rs_context_has_ended(void);

/* Returns the context in service that `handle` stands for (a green context's owner), or NULL; NULL
 * also while it is about to end.  When the id or the liveness probe shows that the context ended
 * unseen, this drops it.  The caller holds the contexts' lock, and some context of the process is
 * current.
 */
struct rs_context *rs_context_find(CUcontext handle);

/* Returns an empty record for a new context; NULL when out of host memory.  It may be that of a
 * dropped context, once 64 others were dropped after it.  The caller holds the contexts' lock. */
struct rs_context *rs_context_take_record(void);

/* Returns the folded counters of the dropped stacks of this kind and device. */
const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device);

/* True when a context with a stack of this kind on the device has ended.  Takes no lock. */
bool rs_context_has_folded(enum rs_kind kind, int device);

/* ---- primary contexts ---- */

/* Releases a reference to the device's primary context that the library took for a moment. */
void rs_context_release_primary(CUdevice device);

/* Returns the device's primary context; NULL while it is not active. */
CUcontext rs_context_primary(CUdevice device);

/* Learns whether the current context `handle` is its device's primary one.  Must be called before
 * the context is described. */
void rs_context_learn_current(CUcontext handle);
