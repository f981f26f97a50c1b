/* SPDX-License-Identifier: Apache-2.0 */
/* A request of the program's for memory, while the calling thread serves it.
 *
 * The driver's own allocations never wait, and the GPU may be waiting for this very thread, so
 * inside a request no driver call is made that can wait without bound, and all bounded waits of one
 * request end together, retries and other contexts included.  Only slow paths begin a request: what
 * is served at once calls no driver. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Requests nest: the outermost pair of the thread counts. */
void rs_request_begin(void);
void rs_request_end(void);

/* True between the two. */
bool rs_request_is_under_way(void);

/* How long the request may still wait: 15 s from the first time that it asks.  0 outside a request.
 */
uint64_t rs_request_patience_ns(void);

/* For one request that is served in several pieces: when its patience ends, 0 where it has not
 * waited yet, and the same at the beginning of the next piece. */
uint64_t rs_request_deadline_ns(void);
void rs_request_begin_until(uint64_t deadline_ns);

/* The driver, or a limit, has refused memory to the request: what the whole device keeps may help,
 * not only what its own stack does. */
void rs_request_note_short(void);
bool rs_request_is_short(void);

/* Whether what was last asked of a device is more than it could have free, whatever is given back:
 * then nothing is that was set aside. */
void rs_request_note_hopeless(bool hopeless);
bool rs_request_is_hopeless(void);

/* A context was found busy: nothing is given back by waiting frees for the rest of the request. */
void rs_request_note_busy(void);
bool rs_request_is_busy(void);

/* For a refusal that may be stale, as other threads take and give back meanwhile, for ever perhaps:
 * true at once some times, then after naps that grow, and false when that has taken 0.1 s; half as
 * long each time that it was in vain for the thread's latest request. */
bool rs_request_may_repeat(void);

/* Whether the request, as far as it has come, is refused. */
void rs_request_note_refused(bool refused);

/* The same where little speaks for it: a few times, within half a millisecond. */
bool rs_request_may_look_again(void);
