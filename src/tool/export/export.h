/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of `rmmshim export`.  A format may write each event as it is read, and at the end
 * what all of them tell. */
#pragma once

#include "tool/report/analysis.h"

#include <stdbool.h>
#include <stdio.h>

struct export
{
    struct analysis_observer observer; /* comes first, since see() casts a pointer to it */
    FILE *to;
    const struct analysis *analysis; /* its last run is the one that is being read */
    struct rs_hash_table tracks;     /* perfetto's: 1 plus the number of open phases, by track */
};

struct export_format {
    bool is_of_one;   /* takes one recording only, since it cannot say which process did
                          something */
    const char *head; /* what the file begins with */
    void (*see)(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event);
    void (*end)(struct export *export); /* this and `see` may be NULL */
};

extern const struct export_format export_perfetto, export_pytorch, export_csv, export_folded;
