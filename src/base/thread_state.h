/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's state that every allocation and free reads: two cache lines at most per
 * call.  Separate thread-local variables would lie on separate lines, and the offset of each
 * would be read from yet another line (five variables took six lines more, all cold after other
 * code ran between the program's calls). */
#pragma once

#include "base/check.h"

#include <stdint.h>

struct CUctx_st;
struct rs_context;
struct rs_pushed;
struct rs_stack;

/* A return address of calls that allocate, and the object that it lies in (trace/object.h). */
struct rs_recent_caller {
    const void *address;
    uint16_t object;
};

/* The context that the thread found last.  Green contexts are never entered: their handles come
 * and go without a hook that tells. */
struct rs_context_found {
    struct CUctx_st *handle;
    unsigned generation; /* of rs_context_generation, when it was found */
    struct rs_context *context;
};

enum { RS_RUNTIME_FUNCTIONS = 3, RS_RECENT_CALLERS = 8 };

/* Each member is written only by the file that is named beside it. */
struct rs_thread {
    _Alignas(RS_CACHE_LINE) unsigned index_plus_one; /* base/thread_index.c.  0: none yet */
    struct rs_context_found found;                   /* context/context.c */
    const struct rs_pushed *pushed; /* context/pushed.c: the thread's latest pushed resource; else
                                       that of the found context's device (context/context.c);
                                       NULL: neither has one */
    void *forwarding_to; /* hook/runtime.c: the runtime's function that is being called */
    const struct rs_stack *refused; /* shim/shim.c: the stack that refused the runtime layer's
                                       latest request, or NULL */
    unsigned forwarding_for; /* hook/caller.c: the object whose request a runtime is passing on to
                                the driver; 0: none */

    /* hook/runtime.c: return addresses of callers that stacks have served on the fast path; such
     * a caller is always served. */
    _Alignas(RS_CACHE_LINE) struct rs_recent_caller
        served_callers[RS_RUNTIME_FUNCTIONS][RS_RECENT_CALLERS];

    struct rs_recent_caller callers[RS_RECENT_CALLERS]; /* hook/caller.c: of the driver's functions,
                                                           and of a runtime's that was looked up */
};

extern __thread struct rs_thread rs_thread;
