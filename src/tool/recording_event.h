/* SPDX-License-Identifier: Apache-2.0 */
/* An event of a recording, as its readers return it. */
#pragma once

#include "recording/format.h"

#include <stdint.h>

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
    const char *name; /* of a phase, a mark's text, a stack's resources; "" where there is none */
};
