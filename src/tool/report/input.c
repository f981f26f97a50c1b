/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds recordings (tool/recording.h) into an analysis. */
#include "base/check.h"
#include "tool/objects.h"
#include "tool/recording.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAMES_MAX = 128,               /* the most frames of a call site; outer ones are left out */
    EVENTS_BETWEEN_SHOWS = 1 << 16, /* events between two calls of progress_show */
};

struct input {
    struct analysis *analysis;
    struct run *run;
    struct tool_recording *recording;
    struct rs_hash_table sites; /* number in the analysis by number in the recording; both plus 1 */
};

/* Returns the number of a frame, such as "_ZN3fooEv+0x1c (libfoo.so+0x52)". The name of a C++
 * function is demangled first. */
static uint32_t frame_of(struct input *input, const char *text)
{
    const char *offset = strchr(text, '+');
    char *name = offset ? strndup(text, (size_t)(offset - text)) : NULL;
    char *demangled = name ? elf_demangle(name) : NULL;
    char *whole = demangled ? tool_format("%s%s", demangled, offset) : NULL;
    uint32_t number = analysis_frame(input->analysis, whole ? whole : text);

    free(name);
    free(demangled);
    free(whole);
    return number;
}

/* Returns the number in the analysis of a recording's call site. A recording has Python's lines
 * before the frames of C, both innermost first. Here the frames of C that the innermost line called
 * come first, then the lines. If there are lines, the interpreter's own frames, and the frames
 * outside of it, are left out. */
static uint32_t site_of(struct input *input, uint32_t site)
{
    struct tool_recording_frame frames[FRAMES_MAX];
    uint32_t numbers[FRAMES_MAX], number;
    size_t known = site ? (size_t)rs_hash_get(&input->sites, (uint64_t)site + 1) : 1;
    size_t count, lines = 0, kept = 0;

    if (known)
        return (uint32_t)(known - 1);
    count = rs_min(tool_recording_frames(input->recording, site, frames, FRAMES_MAX), FRAMES_MAX);
    while (lines < count && frames[lines].is_python)
        lines++;
    for (size_t i = lines; i < count && !(lines && tool_begins(frames[i].text, "_PyEval_")); i++)
        numbers[kept++] = frame_of(input, frames[i].text);
    for (size_t i = 0; i < lines; i++)
        numbers[kept++] = frame_of(input, frames[i].text);
    number = analysis_site(input->analysis, numbers, kept);
    tool_remember(&input->sites, (uint64_t)site + 1, (size_t)number + 1);
    return number;
}

/* Adds the blocks whose first event is their free: their allocations are among the lost events, so
 * they were live when what is left of the recording begins. */
static void add_early_blocks(struct input *input)
{
    struct rs_hash_table seen = {.slots = NULL};
    struct tool_recording_event event;

    while (tool_recording_next(input->recording, &event)) {
        bool is_free = event.kind == RS_RECORDING_DEALLOCATE;
        uint64_t address = is_free || event.kind == RS_RECORDING_ALLOCATE ? event.address : 0;
        if (!address || rs_hash_get(&seen, address))
            continue;
        tool_remember(&seen, address, 1);
        event.kind = RS_RECORDING_ALLOCATE;
        event.time_ns = 0;
        event.site = 0;
        if (is_free && event.size_bytes)
            analysis_add(input->run, &event);
    }
    rs_hash_clear(&seen);
}

static void add_events(struct input *input, uint64_t all)
{
    struct tool_recording_event event;

    for (uint64_t i = 0; tool_recording_next(input->recording, &event); i++) {
        if (i % EVENTS_BETWEEN_SHOWS == 0)
            progress_show("reading", i, all);
        event.site = site_of(input, event.site);
        analysis_add(input->run, &event);
    }
}

/* Makes the run's title, and says how many events were skipped.  Returns TOOL_FINDING, after a
 * line, if the recording is damaged. */
static int state_facts(struct run *run)
{
    const struct tool_recording_facts *facts = &run->facts;
    const char *comma = *facts->rank ? ", rank " : "";

    run->title = facts->header.process ? tool_format("%s [%" PRIu32 "]%s%s", facts->program,
                                                     facts->header.process, comma, facts->rank)
                                       : tool_format("%s%s%s", facts->program, comma, facts->rank);
    if (facts->unknown)
        tool_say("%s: skipped %" PRIu64 " event%s that only a newer version of rmmshim knows",
                 run->path, facts->unknown, facts->unknown == 1 ? "" : "s");
    if (!facts->damaged)
        return TOOL_OK;
    snprintf(run->damage, sizeof(run->damage), "%" PRIu64 " part%s of the recording %s damaged",
             facts->damaged, facts->damaged == 1 ? "" : "s", facts->damaged == 1 ? "is" : "are");
    tool_say("%s: %s; the rest is used", run->path, run->damage);
    return TOOL_FINDING;
}

static int read_file(struct analysis *analysis, const char *path)
{
    struct input input = {.analysis = analysis};
    const struct tool_recording_facts *facts;
    char reason[TOOL_REASON_BYTES];
    int code;

    input.recording = tool_recording_open(path, reason);
    if (!input.recording) {
        tool_say("%s: %s", path, reason);
        return TOOL_FINDING;
    }
    facts = tool_recording_facts(input.recording);
    input.run = analysis_begin(analysis, path, facts);
    input.run->recording = input.recording;
    code = state_facts(input.run);
    if (facts->header.lost_events)
        add_early_blocks(&input);
    add_events(&input, facts->events);
    progress_clear();
    analysis_end(input.run);
    rs_hash_clear(&input.sites);
    tool_recording_close(input.recording);
    return code;
}

int input_read(struct analysis *analysis, char *const *files)
{
    int code = TOOL_OK;

    for (; *files; files++)
        if (read_file(analysis, *files) != TOOL_OK)
            code = TOOL_FINDING;
    return code;
}
