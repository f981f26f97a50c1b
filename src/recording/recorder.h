/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a recording (recording/format.h), which all stacks of a process that name its path share.
 *
 * Threads are spread over shards, each with a chunk in the mapped PATH.part: to record an event
 * takes one spinlock and no system call, until the chunk is full and is written to PATH.  An event
 * of a signal's handler that has interrupted this code in its thread is not recorded, but counted.
 * A child after fork finds the recorder all zero, and leaves the recording alone. */
#pragma once

#include "recording/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_call_site;
struct rs_recorder;

/* Returns the recorder of the path, expanded, opening it first; size_bytes then bounds the file.
 * Where the file cannot be opened, says so once and returns a recorder that is off.  NULL: out of
 * host memory.  All functions are thread safe. */
struct rs_recorder *rs_recorder_get(const char *path, size_t size_bytes);

/* False when the recording could not be opened or written, and in a child after fork. */
bool rs_recorder_is_on(const struct rs_recorder *recorder);

/* What an event refers to; 0 where there is no room for the definition.  A stack is entered anew
 * each time. */
unsigned rs_recorder_stack(struct rs_recorder *recorder, int device, unsigned memory,
                           const char *text);
unsigned rs_recorder_site(struct rs_recorder *recorder, const struct rs_call_site *site);

struct rs_recorder_event {
    enum rs_recording_event_kind kind;
    uint64_t address;
    size_t size_bytes;
    const void *stream;
    unsigned stack, site;
};

void rs_recorder_put(struct rs_recorder *recorder, const struct rs_recorder_event *event);

/* Enters a mark, or a phase's begin or end, in every recording of the process.  Returns false when
 * there is none. */
bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name);

/* Seals what is open and closes the recordings; called at exit.  Waits for locks only as
 * rs_lock_bound_begin allows. */
void rs_recorder_end(void);
