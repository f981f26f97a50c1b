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

/* What is known of the whole. */
struct tool_recording_facts {
    uint32_t process;       /* 0: not known, as of a log */
    uint64_t begun_real_ns; /* CLOCK_REALTIME of the time 0 */
    uint64_t duration_ns;   /* of the end, or of the last event */
    bool is_ended;          /* false: the process ran when the file was read, or did not exit */
    uint64_t events;        /* that tool_recording_next returns */
    uint64_t lost_events, missed_events, lost_definitions; /* format.h */
    uint64_t damaged; /* chunks, events and definitions that were left out, as they are damaged */
    uint64_t unknown; /* events of kinds that only a newer version knows, which are left out */
    uint64_t
        sample_bytes;    /* of so many allocated bytes, one block has a call site; 0: all or none */
    const char *program; /* of a log, the name of its file */
    const char *command; /* the command line, with a zero byte after each argument but the last */
    size_t command_bytes; /* 0: not known */
    const char *rank;     /* in its job; "" where there is none */
};

struct tool_recording_frame {
    const char *text;
    bool is_python;
};

/* Reads a file.  NULL: it cannot be read at all, and `reason` says why in a clause that may follow
 * the path. */
struct tool_recording *tool_recording_open(const char *path, char reason[TOOL_REASON_BYTES]);

const struct tool_recording_facts *tool_recording_facts(const struct tool_recording *recording);

/* Fills in the next event.  False when there is none.  After tool_recording_rewind it is the first
 * one again. */
bool tool_recording_next(struct tool_recording *recording, struct tool_recording_event *event);
void tool_recording_rewind(struct tool_recording *recording);

/* Fills in the frames of a call site, innermost first, Python's before others.  Returns how many
 * there are, of which at most `room` are filled in. */
size_t tool_recording_frames(const struct tool_recording *recording, uint32_t site,
                             struct tool_recording_frame *frames, size_t room);

/* A thread's name; "" where it is not known.  Walks all definitions, so ask once for each thread.
 */
const char *tool_recording_thread(const struct tool_recording *recording, uint32_t thread);

void tool_recording_close(struct tool_recording *recording);
