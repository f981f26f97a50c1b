/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a `run` did, gathered from their pages when they are gone. */
#pragma once

#include "report/publish.h"
#include "tool/process.h"
#include "tool/run/unserved.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one process did on one device.  Counts are of all kinds of memory. */
struct summary_device {
    int device;
    uint64_t used_peak_bytes;    /* most that the program had allocated, pinned memory left out */
    uint64_t held_peak_bytes;    /* most that was taken from the driver for it */
    uint64_t spilled_peak_bytes; /* of what is used: most that did not fit on the device */
    uint64_t limit_bytes;        /* 0: none */
    uint64_t total_bytes;        /* of the device; 0: not known */
    uint64_t refused;            /* out-of-memory errors that the program received */
    uint64_t internal_refusals;  /* as in report/usage.h */
    uint64_t allocations;
    uint64_t waited_ns;
    uint64_t unfreed_bytes, unfreed_blocks; /* allocated by the program, served and not freed */
};

struct summary_process {
    int number;
    bool has_ended;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* empty: of no interpreter */
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none is known */
    struct summary_device *devices;     /* in ascending order of `device` */
    size_t device_count;
};

struct summary {
    struct summary_process *processes; /* in the order in which they ended */
    size_t count, capacity;
    struct unserved *unserved; /* seen without the library */
    size_t unserved_count;
    size_t missed; /* processes that were served and whose page is not held */
    bool is_short; /* there was no memory for all, or nothing could be held */
};

/* Adds a process by its mapped page, and by the script that it runs, or an empty text. */
void summary_add(struct summary *summary, int number, bool has_ended, const void *file,
                 const char *script);

/* By what a person knows it: the script, or else the program. */
const char *summary_name(const struct summary_process *process);

/* True when a process that used CUDA, or may have, is not among `processes`. */
bool summary_is_incomplete(const struct summary *summary);

/* Empties it and frees its memory. */
void summary_clear(struct summary *summary);

/* The most that the program of a process used, and that was held for it, on any device. */
uint64_t summary_used_peak(const struct summary_process *process);
uint64_t summary_held_peak(const struct summary_process *process);
