/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a sequence through a stack: the library's own resources on a device that only counts
 * (device.h). */
#pragma once

#include "base/log.h"
#include "report/document.h"
#include "tool/replay/sequence.h"
#include "tool/tool.h"

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
