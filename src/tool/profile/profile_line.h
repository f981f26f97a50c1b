/* SPDX-License-Identifier: Apache-2.0 */
/* A line of a profile.  What systemd and docker would not read alike is refused. */
#pragma once

#include <stdbool.h>

enum { PROFILE_REASON_BYTES = 384 };

struct profile_line {
    char *entry;     /* the assignment, in the line's text; NULL: a comment, or nothing */
    int index;       /* the variable's row in rs_variables */
    int device;      /* -1: all */
    unsigned number; /* in its file, counted from 1, as the caller enters it */
};

/* False with the reason why the line, which has no end of line, cannot stand in a profile. */
bool profile_line_parse(char *text, struct profile_line *line, char reason[PROFILE_REASON_BYTES]);
