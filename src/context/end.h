/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context.  Every call of the program that may end one lies between
 * rs_ending_begin and rs_ending_finish. */
#pragma once

#include "base/check.h"
#include "context/context.h"
#include "resource/report.h"

#include <stdbool.h>

/* ---- which context a handle stands for ---- */

/* Returns the id of cuCtxGetId, or 0 on drivers without it. It does not matter which context is
 * current. */
unsigned long long rs_context_id_of(CUcontext handle);

/* ---- contexts of which work has failed ---- */

static inline bool rs_context_is_faulty(const struct rs_context *context)
{
    return atomic_load_explicit(&context->alive, memory_order_relaxed) == RS_CONTEXT_FAULTY;
}

/* True once a context of the process was faulty. */
bool rs_context_any_fault(void);

/* Notes that the driver answered with an error for which rs_is_fault is true. It takes no lock and
 * makes no driver call. */
RS_COLD void rs_context_note_fault(struct rs_context *context);

/* Returns the error that the driver's own free would return now in a faulty context. It may wait,
 * so it is not called inside a request. When the driver no longer reports a fault (rs_is_fault), it
 * returns CUDA_SUCCESS and the context is served again. */
RS_COLD CUresult rs_context_ask_fault(struct rs_context *context);

/* ---- ends ---- */

/* A driver call that may end a context. */
struct rs_ending {
    /* The context in which no deallocation of the library may begin meanwhile. */
    struct rs_context *excluded;
    /* The context that the call may end; NULL: it is not in the table, or is a green context. */
    struct rs_context *context;
    CUdevice device; /* whose primary context it may end; -1: none */
    bool is_sure;
};

/* Called before and after such a call. It concerns the context of `handle`, or, if that is NULL,
 * the primary context of `device` (-1: none). rs_ending_begin waits for the deallocations under way
 * in that context (rs_context_hold). With is_sure the call ends the context if it succeeds; the
 * context is taken out of service. Otherwise the call gives up one reference, which may be the last
 * one; the context stays in service, and look-ups ask the driver whether it still exists.
 *
 * Between the two calls no thread caches its context, since a handle may become another context's
 * at any moment. The driver may give the context's addresses to other contexts, so look-ups by
 * address skip the entries of a context that does not serve (rs_context_serves). The entries are
 * removed when the context has ended, or earlier, when another entry takes their place; if the
 * context lives on, they are valid again.
 *
 * rs_ending_finish is given has_ended if the call has ended the context. For a call that gives up a
 * reference to a primary context it means that the call has succeeded; the driver is then asked
 * whether that was the last reference, and if so the context is dropped, even if a new primary
 * context exists already. */
void rs_ending_begin(struct rs_ending *ending, CUcontext handle, CUdevice device, bool is_sure);
void rs_ending_finish(const struct rs_ending *ending, bool has_ended);

/* Puts a new context into service.  The caller holds the contexts' lock. */
void rs_context_begins(struct rs_context *context);

/* Returns false when the context has been destroyed, or is being destroyed: its blocks are no
 * longer valid. */
bool rs_context_serves(const struct rs_context *context);

/* Returns false once the driver has taken back the memory at `address`, which belonged to the
 * context. With address 0, it already returns false if the driver may have taken back the context's
 * memory. */
bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address);

/* Gives back the memory that outlived dropped contexts (leaves of `async`, mapped memory).  It
 * makes driver calls, so the caller must not hold the contexts' lock. */
void rs_context_give_back_ended(void);

/* True while dropped contexts wait for rs_context_give_back_ended.  The caller holds the contexts'
 * lock. */
bool rs_context_has_ended(void);

/* Returns the context in service that `handle` stands for (for a green context, the one that owns
 * its memory), or NULL; NULL also while a call destroys it. When the id or the liveness probe shows
 * that the context has ended without a hooked call, this drops it. The caller holds the contexts'
 * lock, and some context of the process is current. */
struct rs_context *rs_context_find(CUcontext handle);

/* Returns an empty record for a new context; NULL when out of host memory. A dropped context's
 * record is reused only when 64 others have been dropped after it, since a thread may still be
 * inside its stacks. The caller holds the contexts' lock. */
struct rs_context *rs_context_take_record(void);

/* Returns the sum of the counters of the dropped stacks of this kind and device. */
const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device);

/* True when a context with a stack of this kind on the device has ended.  Takes no lock. */
bool rs_context_has_folded(enum rs_kind kind, int device);

/* ---- primary contexts ---- */

/* Releases a reference to the device's primary context that the library took for a moment. */
void rs_context_release_primary(CUdevice device);

/* Returns the device's primary context; NULL while it is not active. */
CUcontext rs_context_primary(CUdevice device);

/* Learns whether the current context `handle` is its device's primary one. Must be called before
 * the context is entered in the table. */
void rs_context_learn_current(CUcontext handle);
