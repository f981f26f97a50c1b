/* SPDX-License-Identifier: Apache-2.0 */
/* Which setting would pool what a process had from the driver call by call, as its page counts. */
#pragma once

#include "config/config.h"

#include <stddef.h>

struct publication;

struct advice {
    char text[96];    /* "4,200 pinned allocations went to the driver one by one" */
    const char *step; /* static text: "add --pinned-pool-size 0 (RMM_PINNED_POOL_SIZE)" */
};

/* What would help, of the page that was read; `file` is the page as it is mapped, and `variable`
 * gives the process's variables, NULL where it has none.  Returns how many there are. */
size_t advice_of(const struct publication *page, const void *file,
                 const char *(*variable)(void *data, const char *name), void *data,
                 struct advice advices[RS_KINDS]);
