/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the counters of all stacks of this process, with those of ended contexts folded in. */
#pragma once

#include "report/format.h"
#include "resource/expression.h"

#include <stdbool.h>

/* The counters of one gathering. */
struct rs_gathered {
    struct rs_reported_stack stacks[RS_DEVICES_MAX * RS_KINDS]; /* sorted by device, then by kind */
    size_t count;       /* the number of entries in `stacks` */
    size_t made_stacks; /* the number of stacks that the entries come from */
    bool is_short;      /* there was no memory for some counters */
};

/* Gathers anew into an object that is all zero before the first time.  Uses no malloc, and takes
 * only bounded locks where base/lock.h bounds them.  Thread safe for different objects. */
void rs_gather(struct rs_gathered *gathered);

/* As rs_gather, and also gathers the program's own counters (context/block_counts.h) and accounts
 * without a count yet, for readers of published memory. */
void rs_gather_all(struct rs_gathered *gathered);

/* Writes the expression that the stacks are made from to `text`, and returns it. */
const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES]);
