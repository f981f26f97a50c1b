/* SPDX-License-Identifier: Apache-2.0 */
/* Advice, from the counts in a process's page, about a setting that would serve from a pool what
 * the process has taken from the driver call by call. */
#pragma once

#include "config/config.h"

#include <stddef.h>

struct publication;

struct advice {
    char text[96];    /* "4,200 pinned allocations went to the driver one by one" */
    const char *step; /* static text: "add --pinned-pool-size 0, ..." */
};

/* Fills in the advice for a process. page: what publication_read has read from `file`, the
 * process's mapped page. variable(data, name) returns the value of a variable of the process, NULL
 * if it is not set.  Returns the number of pieces of advice. */
size_t advice_of(const struct publication *page, const void *file,
                 const char *(*variable)(void *data, const char *name), void *data,
                 struct advice advices[RS_KINDS]);
