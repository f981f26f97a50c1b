/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of a program, between hostcuda_request_begin and hostcuda_request_end: no driver call
 * inside one may wait without bound. The caller holds the lock. */
#pragma once

#include "driver/op.h"

/* Returns the id of the allocation that the calling thread is in; 0: in none, or HOSTCUDA_WAITS is
 * off. */
unsigned long long hc_request_id(void);

/* Notes that a fence recorded inside the current allocation was seen done: work that still runs in
 * the context was submitted by other threads since. */
void hc_request_saw_idle(const struct hc_ctx *ctx);

/* Notes that a stream was seen idle inside the current allocation, which permits a wait for that
 * stream. */
void hc_request_saw_stream_idle(const struct hc_stream *stream);

/* Reports the wait for the operation that the calling thread is about to make, unless it is
 * permitted. */
void hc_request_waits(const struct hc_op *op);
