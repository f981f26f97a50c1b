/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a sequence through a stack: the library's own resources on a device that only counts
 * (device.h). */
#pragma once

#include "base/log.h"
#include "report/document.h"
#include "tool/report/analysis.h"
#include "tool/tool.h"

/* ---- the requests for device memory of one device, as a recording has them, and the result of a
 * replay ---- */

struct replay_result {
    uint64_t used_peak, held_peak; /* bytes */
    uint64_t driver_calls;         /* calls that take memory from the driver or give it back */
    uint64_t waits, waited_ns;
    uint64_t longer_ns; /* how much longer the run took because of the waits */
    uint64_t refusals;
};

struct sequence_event {
    uint64_t ns;     /* since the recording began */
    uint64_t stream; /* a number: the handle of CUDA's own streams (0 to 2); other streams are
                        numbered from 3 on, in the order of their first requests */
    uint64_t size_bytes;
    size_t block; /* the number of the block; unused for a refused request */
    uint32_t thread;
    unsigned device;
    enum rs_recording_event_kind kind; /* an allocation, a free or a refusal */
};

struct sequence {
    struct analysis_observer observer; /* comes first, since see() casts a pointer to it */
    struct sequence_event *events;
    size_t event_count, block_count;
    unsigned device;
    uint64_t device_bytes; /* the device's memory; 0: not known */
    uint64_t lost; /* the number of events that are known to be missing from the recording */
    struct replay_result recorded; /* the recorded peaks and refusals; the rest is 0. held_peak is 0
                                      if the recording does not tell it */
};

/* Reads the requests for one device from a recording; with -1, for the device with the most
 * allocations. *sequence is all zero before; this may be called once in a process. Returns TOOL_OK,
 * also after a line about missing events; or TOOL_FINDING after saying what is wrong with the file:
 * event_count is 0 if nothing of the file can be used. */
int sequence_read(struct sequence *sequence, char *path, int device);

/* ---- playing it ---- */

enum { REPLAY_LAG_NS = 1000 * 1000 }; /* the lag without --lag */

struct replay_settings {
    uint64_t lag_ns;    /* how far the GPU falls behind the program at most; 0: never */
    size_t limit_bytes; /* as RMM_LIMIT; 0: none */
};

/* The arguments that replay and tune have in common. */
struct replay_wanted {
    char *path; /* NULL: none was given */
    struct replay_settings settings;
    int device; /* -1: any */
    bool as_json;
};

/* Reads the path and the options into *wanted, and takes `own`, an option of the command itself.
 * False after saying what is wrong. */
bool replay_parse(char **arguments, struct tool_option own, struct replay_wanted *wanted);

/* Plays a sequence of at least one event through the stack of an expression, and stores the outcome
 * in *result. False, after a diagnostic, if the stack cannot be made. */
bool replay_play(const struct sequence *sequence, const char *expression,
                 const struct replay_settings *settings, struct rs_diagnostics *diagnostics,
                 struct replay_result *result);

/* The document that the command shows.  replay_begin is called once, and returns the root.
 * replay_put_list adds a list with the head of a table, replay_put adds a result to it as a row,
 * and replay_put_recorded adds the numbers of the recorded run as the last row. */
struct rs_node *replay_begin(const struct sequence *sequence);
struct rs_node *replay_put_list(struct rs_node *root, const char *name);
struct rs_node *replay_put(struct rs_node *list, const char *resource,
                           const struct replay_result *result);
void replay_put_recorded(struct rs_node *root, const struct sequence *sequence);
