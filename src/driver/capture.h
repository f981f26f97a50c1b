/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps track of all stream captures: every entry point that begins or ends one is hooked.
 *
 * Recording an event on a context while one of its streams captures fails and invalidates the
 * capture, from any thread and in any mode (MEASURED.md, "One fence"). A lock, the gate, prevents
 * that. A thread that begins a capture holds the gate exclusively around the driver's call, and a
 * thread that records an event passes through it (rs_capture_gate_enter). While a stream captures,
 * the gate is shut for the stream's context; if that is a green context, also for its primary
 * context. If the driver does not tell the stream's context, the gate is shut for all.
 *
 * A capture also ends with its stream and with its context. A review asks the driver which captures
 * have ended without a hooked call. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Identifies what ends a capture when it ends: the stream that captures, or a context or green
 * context with its streams. */
struct rs_capture_stream {
    const void *identity; /* the stream's handle, or for a per-thread default stream the address of
                             a variable of the calling thread; NULL for a context or green
                             context */
    CUstream handle;
    CUcontext context;             /* the stream's context; NULL: unknown */
    unsigned long long context_id; /* tells `context` from a later one with the same handle */
    CUcontext owner; /* the context that owns the memory: a green context's primary, else `context`;
                        NULL: unknown */
    CUgreenCtx green; /* the stream's green context; NULL: none */
};

/* Identifies a stream. Makes no driver call about the stream. */
struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default);

/* Identifies a stream that is about to begin a capture (the capture's origin), and asks the driver
 * for its contexts. */
struct rs_capture_stream rs_capture_origin(CUstream stream, bool per_thread_default);

/* Called around the driver call that begins a capture. The gate is held exclusively in between.
 * `began` tells whether the call has succeeded. */
void rs_capture_begin_enter(void);
void rs_capture_begin_leave(struct rs_capture_stream stream, bool began);

/* Called when the program has ended the stream's capture. */
void rs_capture_ended(struct rs_capture_stream stream);

/* Called around a driver call that may destroy a stream, a context (only `context` is set) or a
 * green context (only `green` is set). Between the two calls no review asks the driver about the
 * streams concerned, since their handles may become invalid at any moment. `ended` tells whether
 * the call has ended their captures. */
struct rs_capture_end {
    struct rs_capture_stream what;
    unsigned long long last_begin; /* the number of the latest capture that had begun before this
                                      call; 0: none of the streams concerned captures */
};

struct rs_capture_end rs_capture_end_begin(struct rs_capture_stream what);
void rs_capture_end_finish(struct rs_capture_end end, bool ended);

/* True while any stream is known to capture. */
bool rs_capture_is_any(void);

/* Makes a review. Asks the driver, for each stream that shuts the gate for `context` (NULL: for any
 * context), whether it still captures, and forgets the captures that have ended. Never waits: does
 * nothing while another thread holds the gate. */
void rs_capture_review(CUcontext context);

/* Shuts the gate for good; from then on rs_capture_is_distrusted returns true. Called after a
 * look-up of an unknown function that may begin captures, or at a call of a function whose work no
 * fence covers. Logs `name` once. */
void rs_capture_distrust(const char *name);
bool rs_capture_is_distrusted(void);

/* Returns true when no stream of the context captures; then no capture can begin before the
 * caller's rs_capture_gate_leave. Returns false when the gate is shut, or another thread holds it
 * exclusively. Never waits. Every 16th time that it would return false, it makes a review and tries
 * again. */
bool rs_capture_gate_enter(CUcontext context);
void rs_capture_gate_leave(void);
