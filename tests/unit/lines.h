/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps diagnostics for a test to look at. */
#pragma once

#include "base/log.h"

#include <stdio.h>

enum { LINES_MAX = 64, LINES_BYTES = 1024 };

struct lines {
    char text[LINES_MAX][LINES_BYTES];
    unsigned count;
    struct rs_diagnostics diagnostics;
};

static inline void lines_keep(void *data, const char *line)
{
    struct lines *lines = data;

    if (lines->count < LINES_MAX)
        snprintf(lines->text[lines->count++], LINES_BYTES, "%s", line);
}

static inline struct rs_diagnostics *lines_begin(struct lines *lines)
{
    lines->count = 0;
    lines->diagnostics = (struct rs_diagnostics){.write = lines_keep, .data = lines};
    return &lines->diagnostics;
}
