/* SPDX-License-Identifier: Apache-2.0 */
/* What each counter of a report counts, in a sentence: the HELP of its metric. */
#pragma once

#include "resource/report.h"

/* All of them, ended by a row without a name.  The first row that fits a counter counts; a NULL
 * resource is any. */
extern const struct rs_counter_help {
    const char *resource, *name, *help;
} rs_counter_helps[];

/* A static text; for a counter of another version of the library a general one. */
const char *rs_counter_help(const struct rs_counter *counter);
