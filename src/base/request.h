/* SPDX-License-Identifier: Apache-2.0 */
/* The program's request for memory, while the calling thread serves it.  All state here is per
 * thread.
 *
 * The driver's own allocations never wait, and the GPU may be waiting for this very thread.
 * Therefore no driver call inside a request may wait without bound, and all bounded waits of one
 * request share one deadline, across retries and contexts.  Only slow paths begin a request: the
 * fast path makes no driver call that could wait. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Requests nest; only the outermost pair of the thread counts.  No cancellation acts between the
 * two. */
void rs_request_begin(void);
void rs_request_end(void);

/* From now on the outermost pair of a thread adds the ns between its two calls to
 * rs_request_took_ns of the thread, which its user sets to 0. */
void rs_request_time_all(void);

extern __thread uint64_t rs_request_took_ns;

/* True between rs_request_begin and rs_request_end. */
bool rs_request_is_under_way(void);

/* Returns how long, in ns, the request may still wait: 15 s from the first call of this function
 * in the request.  Returns 0 outside a request. */
uint64_t rs_request_patience_ns(void);

/* For one request that is served in several pieces.  rs_request_deadline_ns returns when its
 * patience ends (rs_clock_ns time; 0: it has not waited yet); rs_request_begin_until begins the
 * next piece with that deadline. */
uint64_t rs_request_deadline_ns(void);
void rs_request_begin_until(uint64_t deadline_ns);

/* Notes that the driver, or a limit, refused memory to the request.  From then on the memory
 * kept by all stacks of the device may be reclaimed, not only that of the request's own stack. */
void rs_request_note_short(void);
bool rs_request_is_short(void);

/* Notes whether the latest demand on a device exceeds the memory that the device could have free
 * even if everything was given back.  In that case nothing that was set aside is given back. */
void rs_request_note_hopeless(bool hopeless);
bool rs_request_is_hopeless(void);

/* Notes what the driver's pools hold after they gave back all that they could.  Returns false when
 * they held no more than that at an earlier note of the request: nothing came back since, but what
 * the driver had gathered for the attempt that it refused. */
bool rs_request_note_pools(size_t held_bytes);

/* Notes that a context (a CUcontext) was found busy: until rs_request_forget_busy nothing of it is
 * given back by frees that wait.  may_end: with work of the program; else nobody can tell.  The
 * latest busy context alone is known. */
void rs_request_note_busy(const void *context, bool may_end);
bool rs_request_is_busy(const void *context);

/* True when a context was found busy since rs_request_forget_busy. */
bool rs_request_found_busy(void);

/* Some time has passed, and contexts may be looked at again.  True when one was busy with work that
 * may have ended since. */
bool rs_request_forget_busy(void);

/* Decides whether a refused request is tried again: the refusal may be stale, since other
 * threads take and give back memory meanwhile.  Returns true 8 times at once, then after naps
 * that grow from 20 us to 0.5 ms, and false once the naps have taken 0.1 s.  That time is halved
 * for each consecutive request of this thread that napped and was refused all the same.  Returns
 * false outside a request. */
bool rs_request_may_repeat(void);

/* Notes whether the latest attempt of the request was refused; the last note before
 * rs_request_end tells whether repeating was in vain. */
void rs_request_note_refused(bool refused);

/* Decides as rs_request_may_repeat does, for a case where a retry is unlikely to help: returns
 * true 8 times, the last 6 after a nap of 20 us. */
bool rs_request_may_look_again(void);
