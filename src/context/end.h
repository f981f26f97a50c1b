/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context. Every driver call of the program that may end one is made between
 * rs_ending_begin and rs_ending_finish. */
#pragma once

#include "base/check.h"
#include "context/context.h"
#include "resource/report.h"

#include <stdbool.h>

/* ---- which context a handle stands for ---- */

/* Returns the context's id from cuCtxGetId, or 0 when the driver does not tell. The context of
 * `handle` need not be current. */
unsigned long long rs_context_id_of(CUcontext handle);

/* ---- contexts of which work has failed ---- */

static inline bool rs_context_is_faulty(const struct rs_context *context)
{
    return atomic_load_explicit(&context->alive, memory_order_relaxed) == RS_CONTEXT_FAULTY;
}

/* True once any context of the process has been faulty. */
bool rs_context_any_fault(void);

/* Makes the context faulty: the driver answered with an error for which rs_is_fault is true. Takes
 * no lock and makes no driver call. */
RS_COLD void rs_context_note_fault(struct rs_context *context);

/* Returns the error that the driver's own free would return now in a faulty context. If that is no
 * fault any more (rs_is_fault), returns CUDA_SUCCESS, and the context is served again. It may wait
 * for the GPU, so it is not called inside a request (base/request.h). */
RS_COLD CUresult rs_context_ask_fault(struct rs_context *context);

/* ---- ends ---- */

/* A driver call that may end a context. */
struct rs_ending {
    /* No deallocation of the library begins in this context (rs_context_hold) until
     * rs_ending_finish. */
    struct rs_context *excluded;
    /* The context that the call may end; NULL if it is not in the table, or is a green context. */
    struct rs_context *context;
    CUdevice device; /* the call may end the primary context of this device; -1: of none */
    bool is_sure;
};

/* Called before and after a driver call that may end the context of `handle`, or, if that is NULL,
 * the primary context of `device` (-1: none). rs_ending_begin waits for the deallocations under way
 * in that context (rs_context_hold). With is_sure the call ends the context if it succeeds, so the
 * context is taken out of service. Without is_sure the call gives up one reference, which may be
 * the last one. The context then stays in service, and look-ups ask the driver whether it still
 * exists.
 *
 * Between the two functions no thread caches its context, since a handle may become another
 * context's at any moment. The driver may give the context's addresses to other contexts, so
 * look-ups by address skip the entries of a context that does not serve (rs_context_serves). The
 * entries are removed when the context has ended, or earlier, when another entry takes their place.
 * If the context lives on, they are valid again.
 *
 * has_ended tells rs_ending_finish that the call has ended the context. For a call that gives up a
 * reference to a primary context it means only that the call has succeeded. Then the driver is
 * asked whether that was the last reference, and if so the context is dropped, even if a new
 * primary context exists already. */
void rs_ending_begin(struct rs_ending *ending, CUcontext handle, CUdevice device, bool is_sure);
void rs_ending_finish(const struct rs_ending *ending, bool has_ended);

/* Puts a new context into service.  The caller holds the contexts' lock. */
void rs_context_begins(struct rs_context *context);

/* Returns false when the context has ended or a call destroys it, so that its blocks are not valid.
 * While a call gives up a reference to the context, the driver is asked. */
bool rs_context_serves(const struct rs_context *context);

/* Returns false once the driver has taken back the memory at `address`, which belonged to the
 * context. With address 0, it already returns false if the driver may have taken back the context's
 * memory. */
bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address);

/* Gives memory that outlives its context (of the resource `async`, and mapped memory) back to the
 * driver, for all dropped contexts. It makes driver calls, so the caller must not hold the
 * contexts' lock. */
void rs_context_give_back_ended(void);

/* True while there are dropped contexts for rs_context_give_back_ended. The caller holds the
 * contexts' lock. */
bool rs_context_has_ended(void);

/* Returns the context that `handle` stands for (for a green context, its primary). Returns NULL
 * when it is not in the table, and while a call destroys it. If the id or the liveness probe shows
 * that the context has ended without a hooked call, it is dropped, and the result is NULL. The
 * caller holds the contexts' lock, and some context of the process is current. */
struct rs_context *rs_context_find(CUcontext handle);

/* Returns an empty record for a new context; NULL when out of host memory. The record of a dropped
 * context is reused only after 64 others have been dropped after it, since a thread may still be
 * inside its stacks. The caller holds the contexts' lock. */
struct rs_context *rs_context_take_record(void);

/* Returns the sum of the counters of the dropped stacks of this kind and device. The caller holds
 * the contexts' lock, except in a report at exit that cannot have it. */
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
