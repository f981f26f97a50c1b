/* SPDX-License-Identifier: Apache-2.0 */
/* What every allocation and free reads of the calling thread, in two cache lines at most.
 * Thread-local variables of their own would lie on lines of their own, and where each of them is
 * would be read from yet another (five of them made six lines more, all cold where other code has
 * run between a program's calls). */
#pragma once

#include "base/check.h"

struct CUctx_st;
struct rs_context;
struct rs_pushed;
struct rs_stack;

/* What the thread found last.  Green contexts are not: their handles come and go without our seeing
 * it. */
struct rs_context_found {
    struct CUctx_st *handle;
    unsigned generation;
    struct rs_context *context;
};

enum { RS_RUNTIME_FUNCTIONS = 3, RS_RECENT_CALLERS = 8 };

/* Each member is written by the one file that is named. */
struct rs_thread {
    _Alignas(RS_CACHE_LINE) unsigned index_plus_one; /* base/thread_index.c.  0: none yet */
    struct rs_context_found found;                   /* context/context.c */
    const struct rs_pushed *pushed; /* context/pushed.c: the latest resource; without one that of
                                       the found context's device (context/context.c); NULL: none */
    void *forwarding_to;            /* hook/runtime.c: what is being called instead of us */
    const struct rs_stack
        *refused; /* shim/shim.c: the runtime layer's latest request, NULL: none */

    /* hook/runtime.c: that were served at once before; a caller once served, always served. */
    _Alignas(RS_CACHE_LINE) const void *served_callers[RS_RUNTIME_FUNCTIONS][RS_RECENT_CALLERS];
};

extern __thread struct rs_thread rs_thread;
