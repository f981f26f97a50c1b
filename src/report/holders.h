/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds memory: live blocks by the call site that allocated them, as `tracking` remembers them.
 * For the leak report and the report at out-of-memory. */
#pragma once

#include "context/stack.h"
#include "report/document.h"
#include "trace/site.h"
#include "trace/symbol.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    RS_HOLDERS_MAX = 2048, /* call sites; a power of two.  What comes when they are used up is
                              counted together */
    RS_HOLDERS_USED_MAX = RS_HOLDERS_MAX * 3 / 4,
};

/* Live blocks of one call site, device and kind. */
struct rs_holder {
    const struct rs_call_site *site; /* NULL: not known */
    int device;
    enum rs_kind kind;
    bool context_ended;
    size_t bytes, blocks; /* no blocks: an empty place in the table */
    unsigned outside;     /* frames left out at the top: the CUDA runtime's, and this library's */
};

/* All zero is empty. */
struct rs_holders {
    struct rs_holder places[RS_HOLDERS_MAX]; /* hashed, the next place where one is taken; packed
                                                and in order after rs_holders_sort */
    size_t used;
    struct rs_holder others; /* what found no place, of whatever device */
};

/* Adds the live blocks of a stack whose topmost resource is mr, as the uppermost tracking resource
 * knows them: others below see what is held.  False where there is none.  Under the contexts'
 * lock; without malloc. */
bool rs_holders_add(struct rs_holders *holders, const struct rs_stack *stack, struct rs_mr *mr,
                    bool context_ended);

/* Packs the used places to the front, by device, then by kind, the most bytes first.  Returns their
 * number.  Nothing can be added afterwards. */
size_t rs_holders_sort(struct rs_holders *holders);

/* As rs_holders_sort, but keeps places apart that read alike, and so asks the loader nothing. */
size_t rs_holders_order(struct rs_holders *holders);

/* Adds a frame to a document's list "frames".  `file_line`: "FILE:LINE", or NULL.  `said`: how many
 * frames of the site have a line of the text already, -1: this one has none. */
void rs_frame_fill(struct rs_node *list, const struct rs_symbol *symbol, const char *file_line,
                   int said);

/* Adds a site to a document's object: the lists "python" and "frames", empty where the site is
 * NULL. The lines of the text stop after some frames. */
void rs_site_fill(struct rs_node *in, const struct rs_call_site *site, unsigned outside,
                  bool has_lines);
