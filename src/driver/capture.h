/* SPDX-License-Identifier: Apache-2.0 */
/* Stream captures, known exactly: every entry point that begins or ends one is hooked.
 *
 * Recording an event on a context while any of its streams captures fails and spoils that capture,
 * from any thread and in any mode (MEASURED.md, "One fence").  So a begin holds the gate
 * exclusively around the driver's call, and whoever records passes through it.  The gate is shut
 * for the context that the capturing stream belongs to, for a green context's stream also for the
 * primary context, and for all contexts where the driver does not tell.
 *
 * A capture ends with its stream, and with its context.  What ended unseen is found by a review. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* A stream that captures, or what ends captures: a stream, a context, a green context. */
struct rs_capture_stream {
    const void *identity; /* a handle, or for a per-thread default stream the calling thread */
    CUstream handle;
    CUcontext context;             /* NULL: not known */
    unsigned long long context_id; /* tells a context that came back with the same handle */
    CUcontext owner;  /* the context of the memory: a green context's primary, else the same */
    CUgreenCtx green; /* NULL: none */
};

/* What tells streams apart.  No stream is asked about. */
struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default);

/* The same with the contexts, for a stream that is about to capture. */
struct rs_capture_stream rs_capture_origin(CUstream stream, bool per_thread_default);

/* Around the driver's begin.  `began` tells whether it succeeded. */
void rs_capture_begin_enter(void);
void rs_capture_begin_leave(struct rs_capture_stream stream, bool began);

/* The stream's capture was ended. */
void rs_capture_ended(struct rs_capture_stream stream);

/* Around a driver call that may destroy a stream, a context (only `context` is set) or a green
 * context (only `green` is).  Meanwhile no review asks about the streams concerned, whose handles
 * may be invalid at any moment.  `ended` tells whether the captures are gone. */
struct rs_capture_end {
    struct rs_capture_stream what;
    unsigned long long last_begin; /* 0: nothing of it captures */
};

struct rs_capture_end rs_capture_end_begin(struct rs_capture_stream what);
void rs_capture_end_finish(struct rs_capture_end end, bool ended);

/* True while some stream captures, as far as is known. */
bool rs_capture_is_any(void);

/* Asks each stream for which the gate of that context is shut (NULL: of all contexts) whether it
 * still captures.  Never waits: does nothing while a capture begins or ends. */
void rs_capture_review(CUcontext context);

/* A way to begin a capture that we do not know was looked up, or one was used whose work no fence
 * covers: from now on the gate is shut, and rs_capture_is_distrusted is true. */
void rs_capture_distrust(const char *name);
bool rs_capture_is_distrusted(void);

/* True when nothing in the context captures; then nothing can begin to until
 * rs_capture_gate_leave.  Never waits.  A gate that is found shut again and again is reviewed. */
bool rs_capture_gate_enter(CUcontext context);
void rs_capture_gate_leave(void);
