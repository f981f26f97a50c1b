/* SPDX-License-Identifier: Apache-2.0 */
/* What outlives its context and could not be given back to the driver when that ended: tried again
 * when the next leaf of such memory is made, and when the device is trimmed. */
#pragma once

#include <stdbool.h>

/* Part of the leaf that it is about; all zero at first. */
struct rs_unfinished {
    struct rs_unfinished *next;
    bool (*finish)(struct rs_unfinished *unfinished); /* true when nothing is left */
};

/* The leaf's context has ended, and nobody is inside it any more.  `finish` is called from now on,
 * by one thread at a time, and takes no lock that is held around a call of these functions. */
void rs_unfinished_add(struct rs_unfinished *unfinished,
                       bool (*finish)(struct rs_unfinished *unfinished));

/* Also of what was never added, or is finished. */
void rs_unfinished_remove(struct rs_unfinished *unfinished);

/* At once where there is nothing. */
void rs_unfinished_retry(void);
