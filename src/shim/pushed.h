/* SPDX-License-Identifier: Apache-2.0 */
/* Resources that a thread has pushed: while one is, the thread's device memory comes from a stack
 * of its expression instead of the one that the settings give (context.h makes it). */
#pragma once

#include "base/complaint.h"
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

/* Pushes the resource of that text for the calling thread (rs_thread.pushed is the latest). -EINVAL
 * after complaining, -ENOMEM, or -ENOSPC when too many are pushed already or too many different
 * ones were. */
int rs_pushed_push(const char *text, struct rs_complaints *complaints);

/* Pops the calling thread's latest.  -ERANGE when there is none. */
int rs_pushed_pop(void);
