/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps track of all stream captures: every entry point that begins or ends one is hooked.
 *
 * Recording an event on a context while one of its streams captures fails and invalidates the
 * capture, from any thread and in any mode (MEASURED.md, "One fence").  Therefore a begin holds the
 * gate exclusively around the driver's call, and a thread that records an event passes through the
 * gate.  While a stream captures, the gate is shut for the stream's context, for the primary
 * context too when the stream is of a green context, and for all contexts when the driver does not
 * tell the stream's context.
 *
 * A capture also ends with its stream and with its context.  A review finds captures that ended
 * without a hooked call. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Identifies a stream that captures, or a stream, context or green context whose end also ends
 * captures. */
struct rs_capture_stream {
    const void *identity; /* the stream's handle; for a per-thread default stream the address of a
                             variable of the calling thread */
    CUstream handle;
    CUcontext context;             /* the stream's context; NULL: unknown */
    unsigned long long context_id; /* tells a new context from an old one with the same handle */
    CUcontext owner; /* the context that owns the memory: a green context's primary, else `context`;
                        NULL: unknown */
    CUgreenCtx green; /* NULL: not a green context's stream */
};

/* Identifies a stream, so that it can be told from others.  Makes no driver call about the
 * stream. */
struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default);

/* Identifies a stream that is about to capture, and asks the driver for its contexts. */
struct rs_capture_stream rs_capture_origin(CUstream stream, bool per_thread_default);

/* Called around the driver call that begins a capture; the gate is held exclusively in between.
 * `began`: the call has succeeded. */
void rs_capture_begin_enter(void);
void rs_capture_begin_leave(struct rs_capture_stream stream, bool began);

/* Called when the program has ended the stream's capture. */
void rs_capture_ended(struct rs_capture_stream stream);

/* Called around a driver call that may destroy a stream, a context (only `context` is set) or a
 * green context (only `green` is set).  In between, no review asks the driver about the streams
 * concerned, since their handles may become invalid at any moment.  `ended`: the call has ended
 * their captures. */
struct rs_capture_end {
    struct rs_capture_stream what;
    unsigned long long last_begin; /* the number of the capture that had begun last before this
                                      call; 0: none of the streams concerned captures */
};

struct rs_capture_end rs_capture_end_begin(struct rs_capture_stream what);
void rs_capture_end_finish(struct rs_capture_end end, bool ended);

/* True while any stream is known to capture. */
bool rs_capture_is_any(void);

/* Asks the driver, for each stream that shuts the gate for `context` (NULL: for any context),
 * whether it still captures, and forgets the captures that have ended.  Never waits: does nothing
 * while another thread holds the gate. */
void rs_capture_review(CUcontext context);

/* Called after a look-up of an unknown function that may begin captures, or after the use of a
 * function whose work no fence covers; logs `name` once.  From then on the gate is shut for good,
 * and rs_capture_is_distrusted returns true. */
void rs_capture_distrust(const char *name);
bool rs_capture_is_distrusted(void);

/* Returns true when no stream of the context captures; then no capture can begin before the
 * caller's rs_capture_gate_leave.  Returns false when the gate is shut, or a capture begins or ends
 * at this moment.  Never waits.  Every 16th time that it finds the gate shut, it makes a review and
 * tries again. */
bool rs_capture_gate_enter(CUcontext context);
void rs_capture_gate_leave(void);
