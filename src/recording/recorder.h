/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the recording of the process (recording/format.h), one file for all stacks.
 *
 * Each thread index (base/thread.h) has a chunk of its own. So recording an event takes no system
 * call until the chunk is full, and no lock unless threads share the index. An event of a signal
 * handler that has interrupted this code in its thread is counted, but not recorded. In a forked
 * child the recorder is all zero, and nothing is recorded. */
#pragma once

#include "recording/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_call_site;

/* Begins the recording of the process, unless it has begun. The first call sets the path, whose
 * placeholders the caller has expanded, and the file's greatest size. If the file cannot be opened,
 * that is logged once. Returns true when the process is recorded to this path. This and all
 * functions below are thread safe. */
bool rs_recorder_begin(const char *path, size_t size_bytes);

/* Records an event, if the process is recorded. What address, size_bytes and definition mean
 * depends on the kind (recording/format.h). `place` is rs_recorder_place, or'ed with
 * rs_recorder_new_stack for an event of a stack; 0: none. */
void rs_record(enum rs_recording_event_kind kind, uint64_t address, size_t size_bytes,
               uint64_t place, uint32_t definition);

/* Returns the place of an event without the stack's number. */
static inline uint64_t rs_recorder_place(unsigned device, enum rs_recording_memory memory,
                                         const void *stream)
{
    return ((uintptr_t)stream & (((uint64_t)1 << RS_RECORDING_STREAM_BITS) - 1)) |
           (uint64_t)device << RS_RECORDING_STREAM_BITS |
           (uint64_t)memory << RS_RECORDING_MEMORY_SHIFT;
}

/* Returns a new number of a stack, as bits of a place. Numbers repeat after RS_RECORDING_STACKS. */
uint64_t rs_recorder_new_stack(void);

/* Makes a definition and returns its number. `key` is an address that means the same as long as the
 * process lives; a later call with the same key makes no new definition and returns the same
 * number. With a NULL key each call makes one. Returns 0 if the process is not recorded, if there
 * is no room, or in a signal handler that has interrupted this code. */
uint32_t rs_recorder_define(enum rs_recording_definition_kind kind, const void *key, uint64_t value,
                            const void *text, size_t text_bytes);

/* Returns the number of a call site, which is defined with its frames at the first call. Returns 0
 * for NULL, and when rs_recorder_define does. */
uint32_t rs_recorder_site(const struct rs_call_site *site);

/* Records a phase's begin or end, or a mark. is_kept: `name` lives as long as the process. Returns
 * false when the process is not recorded. */
bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name, bool is_kept);

/* Ends the recording. Called at exit; waits for locks only as rs_lock_bound_begin allows. */
void rs_recorder_end(void);
