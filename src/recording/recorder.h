/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the recording of the process (recording/format.h), one file for all stacks.
 *
 * Each thread index (base/thread.h) has a chunk of its own, so that to record an event takes no
 * lock and no call of the system until the chunk is full.  An event of a signal handler that has
 * interrupted this code in its thread is not recorded, but counted.  A forked child finds the
 * recorder all zero, and leaves the recording alone. */
#pragma once

#include "recording/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_call_site;

/* Begins the recording of the process, unless it has begun; the first call decides on path (which
 * is expanded) and greatest size.  Where the file cannot be opened, says so once.  True when the
 * process is recorded to this path.  This and all functions below are thread safe. */
bool rs_recorder_begin(const char *path, size_t size_bytes);

/* Records an event, if the process is recorded.  `place` is that of rs_recorder_place, or 0. */
void rs_record(enum rs_recording_event_kind kind, uint64_t address, size_t size_bytes,
               uint64_t place, uint32_t definition);

static inline uint64_t rs_recorder_place(unsigned device, enum rs_recording_memory memory,
                                         const void *stream)
{
    return ((uintptr_t)stream & (((uint64_t)1 << RS_RECORDING_STREAM_BITS) - 1)) |
           (uint64_t)device << RS_RECORDING_STREAM_BITS |
           (uint64_t)memory << RS_RECORDING_MEMORY_SHIFT;
}

/* The part of the place that is the number of a stack, a new one with each call. */
uint64_t rs_recorder_new_stack(void);

/* Returns the number of a definition; 0: the process is not recorded, or there is no room.  The
 * second call with the same key, an address that means the same as long as the process lives,
 * returns the same number; NULL: each call defines anew. */
uint32_t rs_recorder_define(enum rs_recording_definition_kind kind, const void *key, uint64_t value,
                            const void *text, size_t text_bytes);

/* The same of a call site and its frames; 0 for NULL. */
uint32_t rs_recorder_site(const struct rs_call_site *site);

/* Records a phase's begin or end, or a mark (kept: `name` lives as long as the process).  False
 * when the process is not recorded. */
bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name, bool is_kept);

/* Ends the recording, at exit.  Waits for locks only as rs_lock_bound_begin allows. */
void rs_recorder_end(void);
