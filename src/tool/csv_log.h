/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an event log in RMM's CSV format, as RMM's logging adaptor and RMM_LOG write it: a row of
 * Thread,Time,Action,Pointer,Size,Stream for each event.  tool/recording.h uses this, so that
 * commands read a log as they read a recording. */
#pragma once

#include "tool/recording_event.h"

#include <stdbool.h>
#include <stddef.h>

/* The word for each kind of event; NULL: a log has no rows for that kind. */
extern const char *const csv_log_actions[RS_RECORDING_EVENT_KINDS + 1];

/* True where the file begins with the names of the columns. */
bool csv_log_is(const char *bytes, size_t length);

/* Reads a whole file, for which csv_log_is is true.  Returns its events in the order of the rows,
 * which the caller frees; NULL if there is no memory.  Adds to `facts`, whose numbers are 0 before,
 * what a log tells.  A log does not tell the day, which becomes 1970-01-02. */
struct tool_recording_event *csv_log_read(const char *bytes, size_t length,
                                          struct tool_recording_facts *facts);
