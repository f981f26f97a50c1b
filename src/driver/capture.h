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

/* A stream that captures, or the thing whose end ends captures: a stream, a context or a green
 * context. */
struct rs_capture_stream {
    const void *identity; /* the stream's handle; for a per-thread default stream an address of the
                             calling thread */
    CUstream handle;
    CUcontext context;             /* the stream's context; NULL: unknown */
    unsigned long long context_id; /* tells a new context from an old one with the same handle */
    CUcontext owner; /* the context that owns the memory: a green context's primary, else `context`;
                        NULL: unknown */
    CUgreenCtx green; /* NULL: not a green context's stream */
};

/* Describes a stream so that it can be told from others.  Makes no driver call about the stream. */
struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default);

/* Describes a stream that is about to capture, with its contexts. */
struct rs_capture_stream rs_capture_origin(CUstream stream, bool per_thread_default);

/* Called around the driver call that begins a capture; the gate is held exclusively in between.
 * `began`: the call has succeeded. */
void rs_capture_begin_enter(void);
void rs_capture_begin_leave(struct rs_capture_stream stream, bool began);

/* Called when the program has ended the stream's capture. */
void rs_capture_ended(struct rs_capture_stream stream);

/* Called around a driver call that may destroy a stream, a context (only `context` is set) or a
 * green context (only `green` is set).  In between, no review asks about the streams concerned,
 * whose handles may become invalid at any moment.  `ended`: the captures have ended. */
struct rs_capture_end {
    struct rs_capture_stream what;
    unsigned long long last_begin; /* the number of the latest begin of a capture before this call;
                                      0: none of the streams concerned captures */
};

struct rs_capture_end rs_capture_end_begin(struct rs_capture_stream what);
void rs_capture_end_finish(struct rs_capture_end end, bool ended);

/* True while any stream is known to capture. */
bool rs_capture_is_any(void);

/* Asks the driver, for each stream that shuts the gate of `context` (NULL: of any context),
 * whether it still captures.  Never waits: does nothing while a capture begins or ends. */
void rs_capture_review(CUcontext context);

/* Called after a look-up of an unknown function that may begin captures, or after the use of a
 * function whose work no fence covers; logs `name` once.  From then on the gate is shut for good,
 * and rs_capture_is_distrusted returns true. */
void rs_capture_distrust(const char *name);
bool rs_capture_is_distrusted(void);

/* Returns true when nothing in the context captures; no capture can begin then until
 * rs_capture_gate_leave.  Never waits.  Every 16th time that it finds the gate shut, it makes a
 * review. */
bool rs_capture_gate_enter(CUcontext context);
void rs_capture_gate_leave(void);
