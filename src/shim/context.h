/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and their stacks: made at a context's first allocation, dropped when it ends. */
#pragma once

#include "driver/cuda.h"
#include "driver/fence.h"
#include "resource/account.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_context {
    CUcontext handle;
    unsigned long long id; /* cuCtxGetId, 0 where the driver has none: tells a reused handle */
    bool primary;
    struct rs_place place;
    struct rs_sentinel sentinel;
    struct rs_account account; /* what this context holds; part of its device's */
    struct rs_mr *stack;       /* device memory; NULL: the driver's own allocations */
    _Atomic bool alive;        /* false while the context is being destroyed, and ever after */
    struct rs_context *next_dropped;
};

/* The calling thread's context, made known if need be.  NULL when there is none, when it has no
 * stack, or when the settings turned out bad on its device (then *denied tells whether allocations
 * are refused).  Several contexts share one entry when they share memory (green contexts). */
struct rs_context *rs_context_for_allocation(bool *denied);

/* The same without making anything: NULL when this context has no stack yet. */
struct rs_context *rs_context_if_known(void);

/* A context's end.  begin takes it out of service before the driver destroys it; finish, after,
 * forgets its memory or (destroyed false) puts it back into service. */
struct rs_context *rs_context_end_begin(CUcontext handle);
struct rs_context *rs_context_end_begin_primary(CUdevice device);
void rs_context_end_finish(struct rs_context *context, bool destroyed);

/* Calls visit for each context in service, with a lock held that visit must not need. */
void rs_context_each(void (*visit)(void *data, struct rs_context *context), void *data);

/* Counters of contexts of this device that are gone, and what it holds. */
const struct rs_report *rs_context_folded_report(int device);
struct rs_account *rs_context_account(int device);
