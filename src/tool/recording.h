/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a recording (recording/format.h), also one that is being written or that is damaged; and an
 * event log in RMM's CSV format (tool/csv_log.h).
 *
 *     struct tool_recording *recording = tool_recording_open(path, reason);
 *     while (tool_recording_next(recording, &event)) ...
 *     tool_recording_close(recording);
 *
 * Everything is read when it is opened; nothing waits, and a file that changes later changes
 * nothing.  Text that it returns lives until it is closed, may be any bytes (report/plain.h makes
 * it plain), and is ended by a zero byte.  Not thread safe. */
#pragma once

#include "tool/recording_event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tool_recording;

enum { TOOL_REASON_BYTES = 160 };

struct tool_recording_frame {
    const char *text;
    bool is_python;
};

/* Reads a file.  NULL: it cannot be read at all, or there is no memory for it, and `reason` says
 * why in a clause that may follow the path. */
struct tool_recording *tool_recording_open(const char *path, char reason[TOOL_REASON_BYTES]);

const struct tool_recording_facts *tool_recording_facts(const struct tool_recording *recording);

/* Fills in the next event.  False when there is none; the call after that begins anew. */
bool tool_recording_next(struct tool_recording *recording, struct tool_recording_event *event);

/* Fills in the frames of a call site, innermost first, Python's before others.  Returns how many
 * there are, of which at most `room` are filled in. */
size_t tool_recording_frames(const struct tool_recording *recording, uint32_t site,
                             struct tool_recording_frame *frames, size_t room);

/* A thread's name; "" where it is not known.  Walks all definitions, so ask once for each thread.
 */
const char *tool_recording_thread(const struct tool_recording *recording, uint32_t thread);

void tool_recording_close(struct tool_recording *recording);
