/* SPDX-License-Identifier: Apache-2.0 */
/* Resources that a thread has pushed or that were set for a device: while there is one, device
 * memory comes from a stack of its expression instead of the settings' (context/pushed_stack.h
 * makes it).  A resource that the thread has pushed comes before its device's. */
#pragma once

#include "base/log.h"
#include "resource/expression.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    RS_PUSHED_MAX = 64, /* different texts in one process: each has one stack in each context */
    RS_PUSHED_DEPTH_MAX = 15
};

/* A resource, one for each text, kept as long as the process lives. */
struct rs_pushed {
    const struct rs_expression *expression;
    struct rs_source source;
    struct rs_pushed *next;
};

/* Finds or makes the resource of a text.  Returns 0; -EINVAL after reporting what is wrong with the
 * text; -ENOMEM; -ENOSPC when RS_PUSHED_MAX texts are known already.  Thread safe. */
int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out);

/* Pushes the resource of a text for the calling thread, and sets rs_thread.pushed, which is then
 * right in every context.  Errors as rs_pushed_find, and -ENOSPC when RS_PUSHED_DEPTH_MAX resources
 * are pushed. */
int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics);

/* Pops the resource that the calling thread pushed last.  -ERANGE when there is none.  The caller
 * must then make the thread look its context up again (rs_context_forget_found), as the device's
 * resource may count from now on. */
int rs_pushed_pop(void);

/* Sets the resource of a device for all threads; NULL: none.  Threads that have cached a context
 * keep its resource until rs_context_set_resource makes them look up anew. */
void rs_pushed_set(int device, const struct rs_pushed *resource);

/* Returns the resource that serves the calling thread's device memory in contexts of the device;
 * NULL: the settings' stack does. */
const struct rs_pushed *rs_pushed_of(int device);
