/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's state that every allocation and free reads: two cache lines at most per
 * call.  Separate thread-local variables would lie on separate lines, and the offset of each
 * would be read from yet another line (five variables took six lines more, all cold after other
 * code ran between the program's calls). */
#pragma once

#include "base/check.h"

struct CUctx_st;
struct rs_context;
struct rs_pushed;
struct rs_stack;

/* A return address of calls that allocate, and the number of its shared object (trace/object.h). */
struct rs_recent_caller {
    const void *address;
    uint16_t object;
};

/* The context that the thread found last. Green contexts are never entered here: no hook tells when
 * one of their handles becomes invalid. */
struct rs_context_found {
    struct CUctx_st *handle;
    unsigned generation; /* the value of rs_context_generation when the context was found */
    struct rs_context *context;
};

enum { RS_RUNTIME_FUNCTIONS = 3, RS_RECENT_CALLERS = 8 };

/* Each member is written only by the file that is named beside it. */
struct rs_thread {
    _Alignas(RS_CACHE_LINE) unsigned index_plus_one; /* base/thread.c; 0: none yet */
    /* context/current.c; context/stack.c makes the thread forget the context. */
    struct rs_context_found found;
    /* context/stack.c, context/current.c: the resource used instead of the context's own: what this
     * thread pushed last, else what the found context's device has; NULL: neither. */
    const struct rs_pushed *pushed;
    void *forwarding_to; /* hook/runtime.c: the runtime's function that a hook is calling */
    const struct rs_stack *refused; /* hook/allocation.c: the stack that refused the runtime layer's
                                       latest request, or NULL */
    unsigned forwarding_for; /* hook/caller.c: the object whose request a runtime is passing on to
                                the driver; 0: none */

    /* hook/runtime.c: return addresses of callers that may be served on the fast path.  A caller is
     * checked only before it is entered here. */
    _Alignas(RS_CACHE_LINE) struct rs_recent_caller
        served_callers[RS_RUNTIME_FUNCTIONS][RS_RECENT_CALLERS];

    /* hook/caller.c: return addresses of callers of any other hooked function that allocates. */
    struct rs_recent_caller callers[RS_RECENT_CALLERS];
};

extern __thread struct rs_thread rs_thread;

/* ---- indexes ---- */

/* A small number for each live thread, for arrays with one element per thread.
 *
 * An index above 0 belongs to one live thread at a time, so that thread may write its elements
 * without locked instructions; the next owner of the index sees what the last wrote.  Index 0 is
 * shared by threads that came when all others were taken, and by threads that are ending. */
enum { RS_THREAD_INDEXES = 64, RS_THREAD_INDEX_SHARED = 0 };

/* Slow path of rs_thread_index: gives the calling thread an index, which it keeps until it ends,
 * and returns it. */
RS_COLD unsigned rs_thread_index_take(void);

_Static_assert(RS_THREAD_INDEX_SHARED == 0, "rs_thread_index_if_own may answer it as 0");

/* Registers the function that each thread with an index of its own calls when it ends, while it
 * still owns the index.  The process has one such function: a later call of rs_thread_index_at_end
 * replaces it. */
void rs_thread_index_at_end(void (*ending)(void));

/* Returns the calling thread's index if it has taken one, else RS_THREAD_INDEX_SHARED. */
static inline unsigned rs_thread_index_if_own(void)
{
    unsigned plus_one = rs_thread.index_plus_one;

    return plus_one - (plus_one > 0);
}

/* Returns the calling thread's index; the first call of a thread takes one. */
static inline unsigned rs_thread_index(void)
{
    if (RS_LIKELY(rs_thread.index_plus_one))
        return rs_thread.index_plus_one - 1;
    return rs_thread_index_take();
}

/* ---- threads of the library ---- */

/* Starts a detached thread that blocks all signals, so that the program's own threads handle them;
 * it calls run(NULL).  Returns false when it cannot be started. */
bool rs_thread_start(void *(*run)(void *));
