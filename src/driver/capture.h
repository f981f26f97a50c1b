/* SPDX-License-Identifier: Apache-2.0 */
/* Stream captures, known exactly: every entry point that begins or ends one is hooked.
 *
 * Recording an event on a context while any of its streams captures fails and spoils that capture,
 * from any thread and in any mode (cuda-measured.md, "One fence").  So a begin holds the gate
 * exclusively around the driver's call, and whoever records passes through it.  One gate serves all
 * contexts: captures are short, and which context a stream belongs to cannot always be told. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* What tells streams apart: a handle, or for a per-thread default stream the calling thread. */
struct rs_capture_stream {
    const void *identity;
};

struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default);

/* Around the driver's begin.  `began` tells whether it succeeded. */
void rs_capture_begin_enter(void);
void rs_capture_begin_leave(struct rs_capture_stream stream, bool began);

/* The stream captures no longer: its capture was ended, or it was destroyed. */
void rs_capture_ended(struct rs_capture_stream stream);

/* True when this stream is the origin of a capture that we saw begin. */
bool rs_capture_is_origin(struct rs_capture_stream stream);

/* A way to begin a capture that we do not know was looked up, or one was used whose work no fence
 * covers: from now on the gate is shut. */
void rs_capture_distrust(const char *name);

/* True when nothing captures; then nothing can begin to until rs_capture_gate_leave.  Never waits.
 */
bool rs_capture_gate_enter(void);
void rs_capture_gate_leave(void);
