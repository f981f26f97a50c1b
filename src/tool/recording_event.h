/* SPDX-License-Identifier: Apache-2.0 */
/* What readers return of a recording (tool/recording.h). */
#pragma once

#include "recording/format.h"

#include <stddef.h>
#include <stdint.h>

struct tool_recording_event {
    enum rs_recording_event_kind kind;
    uint64_t time_ns; /* since the recording began; events come in the order of their times */
    uint64_t address; /* of a block; RS_RECORDING_SLOW and _HELD store other numbers (format.h) */
    uint64_t size_bytes;
    uint64_t stream;
    uint32_t thread;
    unsigned device;
    enum rs_recording_memory memory;
    unsigned stack;   /* the number of the stack of memory resources (format.h) */
    uint32_t site;    /* for tool_recording_frames; 0: no call site was recorded */
    uint32_t number;  /* its place among the events before they were put in order; 0 in a log */
    const char *name; /* of a phase, a mark's text, a stack's resources; "" where there is none */
};

/* What is known of the whole recording, or of a log in RMM's CSV format. */
struct tool_recording_facts {
    struct rs_recording_header header; /* of a log, only begun_real_ns is not 0 */
    uint64_t duration_ns;              /* until the end, or the last event if that is later */
    uint64_t events;                   /* the number that tool_recording_next returns */
    uint64_t damaged; /* chunks, events and definitions that were left out, as they are damaged */
    uint64_t unknown; /* events of kinds that only a newer version knows, which are left out */
    uint64_t sample_bytes; /* one block in so many bytes has a call site; 0: all or none have */
    const char *program;   /* of a log, the name of its file */
    const char *command;   /* the command line, with a zero byte after each argument but the last */
    size_t command_bytes;  /* 0: not known */
    const char *rank;      /* the process's rank in its job; "" if it has none */
};
