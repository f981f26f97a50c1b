/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the recording of the process (recording/format.h), one file for all stacks.
 *
 * Each thread index (base/thread.h) has a chunk of its own, so that recording an event takes no
 * system call until the chunk is full, and no lock unless the index is shared.  An event of a
 * signal handler that has interrupted this code in its thread is not recorded, but counted.  A
 * forked child finds the recorder all zero, and leaves the recording alone. */
#pragma once

#include "recording/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_call_site;

/* Begins the recording of the process, unless it has begun.  The first call sets the path, whose
 * placeholders the caller has expanded, and the file's greatest size.  If the file cannot be
 * opened, logs that once.  True when the process is recorded to this path.  This and all functions
 * below are thread safe. */
bool rs_recorder_begin(const char *path, size_t size_bytes);

/* Records an event, if the process is recorded.  What address, size_bytes and definition mean
 * depends on the kind (recording/format.h).  place: rs_recorder_place, with the bits of
 * rs_recorder_new_stack for an event of a stack; 0: none. */
void rs_record(enum rs_recording_event_kind kind, uint64_t address, size_t size_bytes,
               uint64_t place, uint32_t definition);

/* Returns the place of an event, all but the stack's number. */
static inline uint64_t rs_recorder_place(unsigned device, enum rs_recording_memory memory,
                                         const void *stream)
{
    return ((uintptr_t)stream & (((uint64_t)1 << RS_RECORDING_STREAM_BITS) - 1)) |
           (uint64_t)device << RS_RECORDING_STREAM_BITS |
           (uint64_t)memory << RS_RECORDING_MEMORY_SHIFT;
}

/* Returns the bits of a place that number a stack: a new number with each call, until they repeat
 * after RS_RECORDING_STACKS. */
uint64_t rs_recorder_new_stack(void);

/* Returns the number of a definition.  Returns 0 if the process is not recorded, if there is no
 * room, or in a signal handler that has interrupted this code.  key: an address that means the same
 * as long as the process lives; all calls with one key return the same number.  With a NULL key
 * each call makes a new definition. */
uint32_t rs_recorder_define(enum rs_recording_definition_kind kind, const void *key, uint64_t value,
                            const void *text, size_t text_bytes);

/* Returns the number of a call site, which is defined with its frames at the first call.  Returns 0
 * for NULL, and where rs_recorder_define does. */
uint32_t rs_recorder_site(const struct rs_call_site *site);

/* Records a phase's begin or end, or a mark (kept: `name` lives as long as the process).  False
 * when the process is not recorded. */
bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name, bool is_kept);

/* Ends the recording, at exit.  Waits for locks only as rs_lock_bound_begin allows. */
void rs_recorder_end(void);
