/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of `rmmshim export`.  A format writes events as they are read, and at the end what is
 * known of all. */
#pragma once

#include "tool/report/analysis.h"

#include <stdbool.h>
#include <stdio.h>

struct export
{
    struct analysis_observer observer; /* first, so that it leads here */
    FILE *to;
    const struct analysis *analysis; /* its last run is the one whose events come */
    struct rs_hash_table tracks;     /* of perfetto, by number: 1 plus the phases open on it */
};

struct export_format {
    bool is_of_one;   /* recording: it has no place to say which process did something */
    const char *head; /* what the file begins with */
    void (*see)(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event);
    void (*end)(struct export *export); /* this and `see` may be NULL */
};

extern const struct export_format export_perfetto, export_pytorch, export_csv, export_folded;
