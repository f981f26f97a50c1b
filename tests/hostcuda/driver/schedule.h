/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs operations that are ready, and when: worker threads at once (real), worker threads after
 * a random delay (random), or only the thread that steps or waits (stepped). The caller holds the
 * lock. */
#pragma once

#include "driver/op.h"

/* Takes a ready operation. */
void hc_schedule_push(struct hc_op *op);

/* Has workers for all that was pushed. */
void hc_schedule_wake(void);

/* Something was completed: wakes the threads that wait. */
void hc_schedule_done(void);

/* Lets time pass until something was completed; the lock is free meanwhile. */
void hc_schedule_wait(void);

/* True if even a mere place in the order takes its time. */
bool hc_schedule_delays_markers(void);

/* Runs the oldest ready operation of a stream (NULL: of any); false if there is none. */
bool hc_schedule_step(const struct hc_stream *stream);
