/* SPDX-License-Identifier: Apache-2.0 */
/* Plays the allocations of a recording through a stack, on a device that is numbers. */
#pragma once

#include "base/diagnostic.h"
#include "tool/recording/recording.h"

struct replay_settings {
    int device;            /* whose memory is played; pinned host memory is left out */
    uint64_t lag_ns;       /* how far the GPU is behind the program */
    uint64_t operation_ns; /* 0: time passes as recorded. Else the program takes this long for each
                              event, and the GPU twice as long, but is at most the lag behind */
    bool frees_at_once;    /* freed blocks wait for no fence */
    uint64_t capacity_bytes; /* of the device */
};

struct replay_result {
    uint64_t peak_live_bytes, peak_held_bytes;
    uint64_t allocations, refusals; /* of the recording; of the stack, which left them out */
    uint64_t upstream_allocations, upstream_frees; /* calls to the driver */
    uint64_t fences, looks;                        /* recorded, and asked for */
    uint64_t waits, waited_ns;                     /* of allocations, for the GPU */
    uint64_t free_waits;                           /* of the driver's cuMemFree, for the GPU */
    uint64_t longer_ppm;                           /* by how much the run got longer */
};

/* The device with the most allocations. */
int replay_busiest_device(const struct recording *recording);

/* True for a block whose memory is the device's. */
bool replay_is_played(const struct recording *recording, const struct recording_event *block,
                      int device);

/* False after a diagnostic about the expression, or when out of host memory. */
bool replay_play(const struct recording *recording, const struct replay_settings *settings,
                 const char *expression, struct rs_diagnostics *diagnostics,
                 struct replay_result *result);
