/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds memory: live blocks by the call site that allocated them, as `tracking` remembers it,
 * or, where no stack tracks, by the object that did (the program or a library, trace/object.h) and
 * within by size.  For the leak report, the report at out-of-memory and the list of live blocks. */
#pragma once

#include "context/block.h"
#include "context/stack.h"
#include "report/document.h"
#include "trace/call_site.h"
#include "trace/object.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    RS_HOLDERS_MAX = 2048, /* a power of two.  What comes when they are used up is counted
                              together */
    RS_HOLDERS_USED_MAX = RS_HOLDERS_MAX * 3 / 4,
};

/* Live blocks of one device and kind: of one call site, or of one library those whose sizes have
 * the same highest bit. */
struct rs_holder {
    const struct rs_call_site *site; /* NULL: not known */
    unsigned object;                 /* the library; 0: not known */
    unsigned size_class;             /* the highest bit's number plus one; 0: of a call site */
    int device;
    enum rs_kind kind;
    bool context_ended;
    struct rs_block_sum amount; /* no blocks: an empty place in the table */
    size_t smallest_bytes, largest_bytes;
    size_t library_bytes; /* of all sizes; filled in by rs_holders_sort */
    unsigned outside;     /* frames left out at the top: the CUDA runtime's, and this library's */
};

/* All zero is empty. */
struct rs_holders {
    struct rs_holder places[RS_HOLDERS_MAX]; /* hashed, the next place where one is taken; packed
                                                and in order after rs_holders_sort */
    size_t used;
    struct rs_block_sum others; /* what found no place, of whatever device */
};

/* Adds the live blocks of a stack whose topmost resource is mr, as the uppermost tracking resource
 * knows them: others below see what is held.  Under the contexts' lock; without malloc. */
void rs_holders_add(struct rs_holders *holders, const struct rs_stack *stack, struct rs_mr *mr,
                    bool context_ended);

/* Adds a block to its library's.  After rs_object_review no object is named that another one
 * replaced. */
void rs_holders_add_block(struct rs_holders *holders, const struct rs_block_view *view);

/* The kinds of memory of which a call site is known: bits 1 << kind. */
unsigned rs_holders_tracked(const struct rs_holders *holders);

/* Packs the used places to the front: by device, the libraries with the most bytes first and in
 * each its largest size, then call sites by kind, the most bytes first.  Call sites that read alike
 * are one with `merges`, for which the loader is asked.  Returns the number of places.  Nothing can
 * be added afterwards. */
size_t rs_holders_sort(struct rs_holders *holders, bool merges);

/* One call site, or all sizes of one library. */
struct rs_library {
    const char *name; /* NULL: not known, or a call site */
    enum rs_kind kind;
    struct rs_block_sum amount;
    const struct rs_holder *sizes; /* the most bytes first */
    size_t size_count;
};

/* The one that begins at that place after rs_holders_sort. */
struct rs_library rs_holders_library(const struct rs_holder *first, const struct rs_holder *end);

/* Adds a library to a document's list of holders.  Its line of the text names a kind of memory
 * other than the usual one; where the blocks are of one size class it has the sizes too. */
void rs_library_fill(struct rs_node *list, const struct rs_library *library, enum rs_kind usual,
                     bool is_said);

/* Adds a frame to a document's list "frames".  `file_line`: "FILE:LINE", or NULL.  `said`: how many
 * frames of the site have a line of the text already, -1: this one has none. */
void rs_frame_fill(struct rs_node *list, const struct rs_symbol *symbol, const char *file_line,
                   int said);

/* Adds a site to a document's object: the lists "python" and "frames", empty where the site is
 * NULL. The lines of the text stop after some frames. */
void rs_site_fill(struct rs_node *in, const struct rs_call_site *site, unsigned outside,
                  bool has_lines);
