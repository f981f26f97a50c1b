/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs operations that are ready, and when: worker threads at once (real), worker threads after
 * a random delay (random), or only the thread that steps or waits (stepped). The caller holds the
 * lock. */
#pragma once

#include "driver/op.h"

/* Queues an operation that is ready. */
void hc_schedule_push(struct hc_op *op);

/* Starts workers for all queued operations. */
void hc_schedule_wake(void);

/* Wakes the threads in hc_schedule_wait, as an operation was completed. */
void hc_schedule_done(void);

/* Waits, without the lock, until an operation was completed. */
void hc_schedule_wait(void);

/* True if operations without work are delayed too. */
bool hc_schedule_delays_markers(void);

/* Runs the oldest ready operation of a stream (NULL: of any); false if there is none. */
bool hc_schedule_step(const struct hc_stream *stream);
