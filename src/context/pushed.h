/* SPDX-License-Identifier: Apache-2.0 */
/* Resources that a thread has pushed, or that a device was given: while there is one, device memory
 * comes from a stack of its expression instead of the one that the settings give (context.h makes
 * it).  A thread's own come before its device's. */
#pragma once

#include "base/diagnostic.h"
#include "resource/expression.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    RS_PUSHED_MAX = 64, /* different texts in one process: each has a stack in each context */
    RS_PUSHED_DEPTH_MAX = 15
};

/* One for each text, for as long as the process lives. */
struct rs_pushed {
    const struct rs_expression *expression;
    struct rs_source source;
    struct rs_pushed *next;
};

/* The resource of that text.  -EINVAL after reporting it, -ENOMEM, or -ENOSPC when there are too
 * many different ones already. */
int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out);

/* Pushes the resource of that text for the calling thread.  Errors as above, and -ENOSPC when too
 * many are pushed already.  Afterwards rs_thread.pushed is right for any context. */
int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics);

/* Pops the calling thread's latest.  -ERANGE when there is none.  Afterwards the thread has to look
 * its context up again (rs_context_forget_found): what its device was given counts from now on. */
int rs_pushed_pop(void);

/* What the device is given for all threads, NULL: nothing.  Threads that have found a context keep
 * to what they know (rs_context_set_resource tells them). */
void rs_pushed_set(int device, const struct rs_pushed *resource);

/* What the calling thread's device memory comes from in the device's contexts; NULL: from what the
 * settings give. */
const struct rs_pushed *rs_pushed_of(int device);
