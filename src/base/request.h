/* SPDX-License-Identifier: Apache-2.0 */
/* A request: a call of the program for memory, while the calling thread serves it.  All state here
 * is per thread.
 *
 * The driver's own allocations never wait, and the GPU may be waiting for this very thread.
 * Therefore no driver call inside a request may wait without bound, and all bounded waits of one
 * request share one deadline, across retries and contexts.  Only slow paths begin a request: the
 * fast path makes no driver call that could wait. */
#pragma once

#include "base/file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_request {
    unsigned depth; /* how many pairs of begin and end are open; 0: there is no request */
    /* When the patience of the request ends, a time of rs_clock_ns; 0: it has not waited yet. */
    uint64_t deadline_ns;

    /* The driver, or a limit, has refused memory to the request.  From then on the request may
     * reclaim unused memory of all stacks (trees of memory resources) of the device, not only of
     * its own stack. */
    bool is_short;

    /* The latest demand on a device is more than it would have free even if all unused memory came
     * back.  Then reclaiming would be in vain, so the request does not try it. */
    bool is_hopeless;

    /* The latest attempt was refused.  If this is still true when the request ends, its repeats
     * were in vain. */
    bool is_refused;

    /* The CUcontext that was found busy last; NULL: none has been since rs_request_forget_busy. */
    const void *busy;

    /* The fields below are written by base/request.c alone. */
    bool may_end; /* since rs_request_forget_busy, a context was busy with work of the program,
                     which may end */
    /* The number of calls of rs_request_may_repeat and of rs_request_may_look_again. */
    unsigned repeats, looks;
    uint64_t repeated_ns; /* when rs_request_may_repeat first napped */
    /* The least that rs_request_note_pools was told; SIZE_MAX: nothing yet. */
    size_t pool_bytes_least;
    struct rs_uncancelled uncancelled;
    uint64_t begun_ns; /* when the request began, if requests are timed; else 0 */
    unsigned in_vain;  /* number of consecutive requests of this thread, at most 8, that napped and
                          were refused; kept from one request to the next */
};

extern __thread struct rs_request rs_request;

/* Pairs of begin and end nest; only the outermost pair of the thread begins and ends the request.
 * The thread is not cancelled in between. */
void rs_request_begin(void);
void rs_request_end(void);

/* True between rs_request_begin and rs_request_end. */
static inline bool rs_request_is_under_way(void)
{
    return rs_request.depth > 0;
}

/* From this call on each request adds its duration in ns to rs_request_took_ns of its thread.  The
 * reader of that variable sets it to 0. */
void rs_request_time_all(void);

extern __thread uint64_t rs_request_took_ns;

/* Returns how long, in ns, the request may still wait: 15 s from the first call of this function
 * in the request.  Returns 0 outside a request. */
uint64_t rs_request_patience_ns(void);

/* Begins a request as rs_request_begin does, but as a further part of an earlier request, whose
 * patience ends at deadline_ns (0: the earlier request has not waited yet).  Inside another request
 * deadline_ns is ignored. */
void rs_request_begin_until(uint64_t deadline_ns);

/* Notes what the driver's pools hold after they gave back all that they could.  Returns true when
 * that is less than in every earlier note of this request.  Otherwise it returns false: the pools
 * have only given back what the driver had added to them for the attempt that it refused. */
bool rs_request_note_pools(size_t held_bytes);

/* Notes that a context was found busy.  Until rs_request_forget_busy the request makes no driver
 * call that waits for that context's work, and so gives back no memory that needs such a call.
 * may_end: the context works for the program, so that it may become idle; false: that is not known.
 * Only the latest busy context is kept, but a may_end of true is kept for all of them. */
void rs_request_note_busy(const void *context, bool may_end);

/* Called when some time has passed, so that the busy context may be looked at again.  Returns true
 * when a context was noted whose work may have ended since (may_end). */
bool rs_request_forget_busy(void);

/* Decides whether a refused request is tried again: the refusal may be stale, since other threads
 * take and give back memory meanwhile.  Returns true 8 times at once, then after naps that grow
 * from 40 us to 0.5 ms (in some threads up to 1.75 times as long), and false once the naps have
 * taken 0.1 s.  That time is halved for each of the latest consecutive requests of this thread that
 * napped and were refused all the same.  Returns false outside a request. */
bool rs_request_may_repeat(void);

/* Decides as rs_request_may_repeat does, for a case where a retry is unlikely to help: returns
 * true 8 times, the last 6 after a nap of 20 us. */
bool rs_request_may_look_again(void);
