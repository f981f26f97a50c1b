/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a sequence through a stack: the library's own resources on a device that only counts
 * (device.h). */
#pragma once

#include "base/log.h"
#include "report/document.h"
#include "tool/report/analysis.h"
#include "tool/tool.h"

/* ---- what a recording says of the device memory of one device, as requests that can be made
 * again; and what became of them ---- */

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

/* ---- playing it ---- */

enum { REPLAY_LAG_NS = 1000 * 1000 }; /* without --lag */

struct replay_settings {
    uint64_t lag_ns;    /* by which the GPU is behind the program at most */
    size_t limit_bytes; /* as RMM_LIMIT; 0: none */
};

/* What `replay` and `tune` are asked for alike. */
struct replay_wanted {
    char *path; /* NULL: none was given */
    struct replay_settings settings;
    int device; /* -1: any */
    bool as_json;
};

/* Reads arguments, with one more option.  False after a line. */
bool replay_parse(char **arguments, struct tool_option own, struct replay_wanted *wanted);

/* False after a diagnostic about the expression. */
bool replay_play(const struct sequence *sequence, const char *expression,
                 const struct replay_settings *settings, struct rs_diagnostics *diagnostics,
                 struct replay_result *result);

/* Begins the document that the command shows, once, and returns its root; adds a list of results,
 * whose first line is the head of a table; an object in it, which is a row; and what the recording
 * tells, which is the last row. */
struct rs_node *replay_begin(const struct sequence *sequence);
struct rs_node *replay_put_list(struct rs_node *root, const char *name);
struct rs_node *replay_put(struct rs_node *list, const char *resource,
                           const struct replay_result *result);
void replay_put_recorded(struct rs_node *root, const struct sequence *sequence);
