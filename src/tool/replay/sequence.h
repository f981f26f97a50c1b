/* SPDX-License-Identifier: Apache-2.0 */
/* What a recording says of the device memory of one device, as requests that can be made again; and
 * what became of them. */
#pragma once

#include "tool/report/analysis.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct replay_result {
    uint64_t used_peak, held_peak; /* bytes */
    uint64_t driver_calls;         /* that take memory or give it back */
    uint64_t waits, waited_ns;
    uint64_t longer_ns; /* by how much the run got longer for the waits */
    uint64_t refusals;
};

struct sequence_event {
    uint64_t ns;     /* since the recording began */
    uint64_t stream; /* CUDA's own ones as their handles, then from 3 on as they come first */
    uint64_t size_bytes;
    size_t block; /* its number; of a refused request: none */
    uint32_t thread;
    unsigned device;
    enum rs_recording_event_kind kind; /* one of an allocation, a free and a refusal */
};

struct sequence {
    struct analysis_observer observer; /* first, so that it leads here */
    struct sequence_event *events;
    size_t event_count, block_count;
    unsigned device;
    uint64_t device_bytes;         /* the device's memory; 0: not known */
    uint64_t lost;                 /* events that the recording lacks, as far as can be seen */
    struct replay_result recorded; /* held, calls and waits: 0, where it does not tell */
};

/* Reads, once in a command, a recording of the device, or with -1 of the one with the most
 * allocations, and says in a line what is wrong with it.  Returns TOOL_OK or TOOL_FINDING; there
 * are no events where it cannot be used at all. */
int sequence_read(struct sequence *sequence, char *path, int device);
