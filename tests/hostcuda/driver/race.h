/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-order race detector: reports, from the order between operations and not from their timing,
 * memory that is used after its free, used before its allocation is ordered, or handed out again
 * before earlier work is ordered. Does nothing unless HOSTCUDA_RACE is set. The caller holds the
 * lock. */
#pragma once

#include "driver/clock.h"
#include "driver/stream.h"

/* Clock of the work that the program knows to be done, by waiting or asking. All threads share it:
 * work that one thread saw done is done for all. */
extern struct hc_clock hc_host_clock;

/* The program has seen that everything up to this clock is done. */
void hc_race_host_knows(const struct hc_clock *clock);

/* Takes a slot for a new stream's clock. *tick is the count at which its previous owner stopped. */
unsigned hc_race_slot_take(uint64_t *tick);
void hc_race_slot_give(unsigned slot, uint64_t tick);

/* Enters a new operation of the stream into its clock, and checks the memory that it uses. */
void hc_race_tick(struct hc_stream *stream, const struct hc_work *work);

/* Why memory goes back: a free, a free whose turn in its stream has come, the end of its context.
 */
enum hc_race_end { HC_RACE_FREE, HC_RACE_FREE_IN_ORDER, HC_RACE_CONTEXT_ENDS };

/* The driver hands out memory of its own, or takes memory back. */
void hc_race_driver_allocates(uintptr_t address, size_t bytes);
void hc_race_driver_frees(uintptr_t address, size_t bytes, enum hc_race_end why);
/* As the two above, in the order of a stream. */
void hc_race_stream_allocates(const struct hc_stream *stream, uintptr_t address, size_t bytes);
void hc_race_stream_frees(const struct hc_stream *stream, uintptr_t address);
