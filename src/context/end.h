/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a context.  Every call of the program that may end one lies between
 * rs_context_ending_enter and rs_context_ending_leave (context/exclusion.h). */
#pragma once

#include "context/context_record.h"
#include "resource/report.h"

#include <stdbool.h>

/* While the driver's call is under way, the driver may give the context's addresses to others, so
 * look-ups by address step over what belongs to a context that ends (rs_context_serves).  Entries
 * go when it has ended, or earlier, when another entry takes their place; if it lives on, they are
 * as before.
 *
 * rs_context_end_begin takes the context of the handle out of service before the driver destroys
 * it; NULL when none is known. rs_context_end_finish, after the driver's call, drops the context
 * (destroyed) or puts it back into service. */
struct rs_context *rs_context_end_begin(CUcontext handle);
void rs_context_end_finish(struct rs_context *context, bool destroyed);

/* The same around a call that gives up one reference of the context, which may be the last: the
 * context stays in service, and look-ups ask the driver whether it is still there. */
struct rs_context *rs_context_detach_begin(CUcontext handle);
void rs_context_doubt_end(struct rs_context *context, bool has_ended);

/* The parts of the above that take a context out of service, and that doubt it, and return it; NULL
 * for NULL. The caller holds the contexts' lock. */
struct rs_context *rs_context_take_out(struct rs_context *context);
struct rs_context *rs_context_doubt(struct rs_context *context);

/* A new context enters service.  The caller holds the contexts' lock. */
void rs_context_begins(struct rs_context *context);

/* False where the context's blocks count no more: it is destroyed, or was. */
bool rs_context_serves(const struct rs_context *context);

/* False once the memory at `address`, which the context had, is the driver's again.  For address 0:
 * false where that may be so. */
bool rs_context_has_memory(const struct rs_context *context, CUdeviceptr address);

/* Drops a context that has ended with its memory: takes it from the table, forgets its blocks and
 * folds its counters into those of the device.  The caller holds the contexts' lock and then calls
 * rs_context_give_back_ended without it. */
void rs_context_drop(struct rs_context *context);

/* Gives back the memory that outlived dropped contexts (leaves of `async`, mapped memory).  It
 * makes driver calls, so the caller must not hold the contexts' lock. */
void rs_context_give_back_ended(void);

/* True while dropped contexts wait for rs_context_give_back_ended.  The caller holds the contexts'
 * lock. */
bool rs_context_has_ended(void);

/* Returns the context in service that `handle` stands for (a green context's owner), or NULL; NULL
 * also while it is about to end.  When the id or the witness shows that the context ended unseen,
 * this drops it.  The caller holds the contexts' lock, and some context of the process is current.
 */
struct rs_context *rs_context_find(CUcontext handle);

/* Returns an empty record for a new context; NULL when out of host memory.  It may be that of a
 * dropped context, once 64 others were dropped after it.  The caller holds the contexts' lock. */
struct rs_context *rs_context_take_record(void);

/* Returns the folded counters of the dropped stacks of this kind and device. */
const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device);

/* True when a context with a stack of this kind on the device has ended.  Takes no lock. */
bool rs_context_has_folded(enum rs_kind kind, int device);
