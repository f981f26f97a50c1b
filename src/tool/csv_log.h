/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an event log in RMM's CSV format, as RMM's logging adaptor and RMM_LOG write it: a row of
 * Thread,Time,Action,Pointer,Size,Stream for each event.  tool/recording.h uses this, so that
 * commands read a log as they read a recording. */
#pragma once

#include "tool/recording_event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct csv_log {
    struct tool_recording_event *events; /* in the order of the rows; free() is due */
    size_t count;
    uint64_t begun_real_ns; /* see tool_recording_facts; the day is not known, and is 1970-01-02 */
    uint64_t damaged;       /* rows that are no rows of such a log, or cut short */
};

/* True where the file begins with the names of the columns. */
bool csv_log_is(const char *bytes, size_t length);

/* Reads a whole file, after which there is a zero byte.  False: there is no memory for it. */
bool csv_log_read(const char *bytes, size_t length, struct csv_log *log);
