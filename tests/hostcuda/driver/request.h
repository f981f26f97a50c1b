/* SPDX-License-Identifier: Apache-2.0 */
/* A program's allocations: no driver call inside one may wait without bound. The caller holds the
 * lock. */
#pragma once

#include "driver/op.h"

/* The allocation that the calling thread is in; 0: none, or nobody asks (HOSTCUDA_WAITS). */
unsigned long long hc_request_id(void);

/* A fence recorded inside that allocation was seen complete: what still runs in the context was
 * submitted by others since. */
void hc_request_saw_idle(const struct hc_ctx *ctx);

/* The same for one stream, and a wait for that stream. */
void hc_request_saw_stream_idle(const struct hc_stream *stream);

/* The calling thread is about to wait for the operation. */
void hc_request_waits(const struct hc_op *op);
