/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that outlived its context and could not be given back to the driver when the context
 * ended. It is tried again when the next leaf of this kind is made, and when the device is trimmed.
 */
#pragma once

#include <stdbool.h>

/* A member of the leaf whose memory it stands for; all zero at first. */
struct rs_unfinished {
    struct rs_unfinished *next;
    /* Gives the memory back; true when none is left. */
    bool (*finish)(struct rs_unfinished *unfinished);
};

/* Adds a leaf whose context has ended and which no thread is inside.  From now on `finish` is
 * called, by one thread at a time; it takes no lock that is held around a call of these functions.
 */
void rs_unfinished_add(struct rs_unfinished *unfinished,
                       bool (*finish)(struct rs_unfinished *unfinished));

/* Removes an entry; does nothing for one that was never added or is finished. */
void rs_unfinished_remove(struct rs_unfinished *unfinished);

/* Calls `finish` of every entry and drops those that succeed. */
void rs_unfinished_retry(void);
