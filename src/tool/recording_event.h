/* SPDX-License-Identifier: Apache-2.0 */
/* What readers return of a recording (tool/recording.h). */
#pragma once

#include "recording/format.h"

#include <stddef.h>
#include <stdint.h>

/* An event. */
struct tool_recording_event {
    enum rs_recording_event_kind kind;
    uint64_t time_ns; /* since the recording began; events come in the order of their times */
    uint64_t address; /* of a block; for RS_RECORDING_SLOW, and HELD, see format.h */
    uint64_t size_bytes;
    uint64_t stream;
    uint32_t thread;
    unsigned device;
    enum rs_recording_memory memory;
    unsigned stack;   /* its number, format.h */
    uint32_t site;    /* for tool_recording_frames; 0: no call site was recorded */
    uint32_t number;  /* its place among the events before they were put in order; 0 in a log */
    const char *name; /* of a phase, a mark's text, a stack's resources; "" where there is none */
};

/* What is known of the whole. */
struct tool_recording_facts {
    struct rs_recording_header header; /* of a log, only begun_real_ns is not 0 */
    uint64_t duration_ns;              /* of the end, or of the last event */
    uint64_t events;                   /* that tool_recording_next returns */
    uint64_t damaged; /* chunks, events and definitions that were left out, as they are damaged */
    uint64_t unknown; /* events of kinds that only a newer version knows, which are left out */
    uint64_t
        sample_bytes;    /* of so many allocated bytes, one block has a call site; 0: all or none */
    const char *program; /* of a log, the name of its file */
    const char *command; /* the command line, with a zero byte after each argument but the last */
    size_t command_bytes; /* 0: not known */
    const char *rank;     /* in its job; "" where there is none */
};
