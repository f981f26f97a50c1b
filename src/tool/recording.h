/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a recording (recording/format.h), also one that is being written or that is damaged; and an
 * event log in RMM's CSV format (tool/csv_log.h).
 *
 *     struct tool_recording *recording = tool_recording_open(path, reason);
 *     while (tool_recording_next(recording, &event)) ...
 *     tool_recording_close(recording);
 *
 * tool_recording_open reads the whole file, so later changes of the file have no effect.  Text that
 * these functions return lives until tool_recording_close, may be any bytes (report/plain.h makes
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

/* Reads a file.  Returns NULL if it cannot be read at all, or there is no memory for it; `reason`
 * then says why, in a clause that may follow the path. */
struct tool_recording *tool_recording_open(const char *path, char reason[TOOL_REASON_BYTES]);

const struct tool_recording_facts *tool_recording_facts(const struct tool_recording *recording);

/* Fills in the next event.  Returns false after the last one; the call after that fills in the
 * first event again. */
bool tool_recording_next(struct tool_recording *recording, struct tool_recording_event *event);

/* Fills in at most `room` frames of a call site, innermost first, Python's before others.  Returns
 * the number of all its frames. */
size_t tool_recording_frames(const struct tool_recording *recording, uint32_t site,
                             struct tool_recording_frame *frames, size_t room);

/* Returns a thread's name; "" if it is not known.  Goes through all definitions of the recording,
 * so ask once for each thread. */
const char *tool_recording_thread(const struct tool_recording *recording, uint32_t thread);

void tool_recording_close(struct tool_recording *recording);
