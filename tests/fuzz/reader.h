/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a recording that may be damaged, and walks what the reader (tool/recording.h) makes of it.
 */
#pragma once

#include "base/check.h"
#include "fuzzers/fuzzer.h"
#include "recording/format.h"
#include "tool/recording.h"

#include <fcntl.h>
#include <unistd.h>

enum { FRAMES = 16 };

static inline uint64_t walk_recording(struct tool_recording *recording)
{
    struct tool_recording_frame frames[FRAMES];
    struct tool_recording_event event;
    uint64_t count = 0, letters = 0, latest_ns = 0;

    while (tool_recording_next(recording, &event)) {
        size_t found = tool_recording_frames(recording, event.site, frames, FRAMES);
        count++;
        must(event.kind > 0 && event.kind < RS_RECORDING_EVENT_KINDS, "an unknown kind of event");
        must(event.time_ns >= latest_ns, "times that go back");
        latest_ns = event.time_ns;
        must(event.memory < RS_RECORDING_MEMORIES, "an unknown kind of memory");
        letters += strlen(event.name) + strlen(tool_recording_thread(recording, event.thread));
        for (size_t i = 0; i < rs_min(found, FRAMES); i++)
            letters += strlen(frames[i].text);
    }
    must(letters < 1 << 24, "endless text");
    return count;
}

/* Writes the content to the path and reads it.  All that the reader promises must hold. */
static inline void read_recording(const char *path, const void *content, size_t length)
{
    char reason[TOOL_REASON_BYTES] = "";
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct tool_recording *recording;
    const struct tool_recording_facts *facts;

    must(fd >= 0 && write(fd, content, length) == (ssize_t)length, "the file cannot be written");
    close(fd);
    recording = tool_recording_open(path, reason);
    must((recording != NULL) == !reason[0], "no reason, or one without need");
    if (!recording)
        return;
    facts = tool_recording_facts(recording);
    must(walk_recording(recording) == facts->events, "another number of events than it says");
    must(walk_recording(recording) == facts->events, "other events the second time");
    must(strlen(facts->program) + strlen(facts->rank) < 4096, "endless names");
    tool_recording_close(recording);
}
