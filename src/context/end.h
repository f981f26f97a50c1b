/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts' ends, and what stays of them.  Ends that the program causes lie between
 * rs_context_ending_enter and _leave (context/exclusion.h). */
#pragma once

#include "context/context_record.h"
#include "resource/report.h"

#include <stdbool.h>

/* begin takes a context out of service before the driver destroys it; finish, after, forgets its
 * memory or (destroyed false) puts it back into service. */
struct rs_context *rs_context_end_begin(CUcontext handle);
void rs_context_end_finish(struct rs_context *context, bool destroyed);

/* The part of begin that needs the lock, which the caller holds; NULL for NULL. */
struct rs_context *rs_context_take_out(struct rs_context *context);

/* The context has ended, and what dies with it is gone: takes it from the table and folds its
 * reports.  The caller holds the lock and calls rs_context_give_back_ended without it. */
void rs_context_drop(struct rs_context *context);

/* Gives back what outlived dropped contexts, which takes driver calls: without the lock. */
void rs_context_give_back_ended(void);

/* Some are dropped and not given back yet.  The caller holds the lock. */
bool rs_context_has_ended(void);

/* The context in service of a handle that is current.  The caller holds the lock.  A handle whose
 * id changed is another context: the old one ended unseen, and is dropped.  NULL for a context that
 * is about to end, too. */
struct rs_context *rs_context_find(CUcontext handle);

/* A record for a new context, an old dropped one's perhaps; NULL when out of host memory.  The
 * caller holds the lock. */
struct rs_context *rs_context_take_record(void);

/* Counters of stacks of this kind and device whose contexts are gone. */
const struct rs_report *rs_context_folded_report(enum rs_kind kind, int device);
