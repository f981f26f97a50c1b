/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of all stacks of this process, those of contexts that are gone folded in. */
#pragma once

#include "report/format.h"
#include "resource/expression.h"

#include <stdbool.h>

struct rs_gathered {
    struct rs_reported_stack stacks[RS_DEVICES_MAX * RS_KINDS]; /* by device, and by kind */
    size_t count;                                               /* of those that have counters */
    size_t made_stacks;                                         /* that they come from */
    bool is_short; /* there was no memory for all counters */
};

/* Fills it anew: all zero before the first time.  Without malloc, and with bounded locks only where
 * these are bounded (base/lock.h).  Thread safe for different objects. */
void rs_gather(struct rs_gathered *gathered);

/* Fills it with the program's own counters (context/block_counts.h) too, and with those of accounts
 * that count nothing yet: for readers of published memory. */
void rs_gather_all(struct rs_gathered *gathered);

/* The expression that the stacks are made from. */
const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES]);
