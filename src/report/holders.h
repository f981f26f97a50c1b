/* SPDX-License-Identifier: Apache-2.0 */
/* Holders of memory: live blocks grouped by the call site that allocated them, if `tracking` has
 * noted it, or else by the object that allocated them (the program or a library, trace/object.h)
 * and by size.  The leak report, the report at out-of-memory and the list of live blocks use them.
 */
#pragma once

#include "context/block.h"
#include "context/stack.h"
#include "report/document.h"
#include "trace/call_site.h"
#include "trace/object.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    /* RS_HOLDERS_MAX is the size of the table. When RS_HOLDERS_USED_MAX of its places are used, the
     * blocks of further holders are counted together. */
    RS_HOLDERS_MAX = 2048,
    RS_HOLDERS_USED_MAX = RS_HOLDERS_MAX * 3 / 4,
};

/* Live blocks of one device and kind: those of one call site, or those of one library whose sizes
 * have the same highest bit. */
struct rs_holder {
    const struct rs_call_site *site; /* NULL: not known */
    unsigned object;     /* the program or library (trace/object.h); 0: not known, or a call site */
    unsigned size_class; /* the number of the highest bit of the sizes, plus one; 0: the holder is a
                            call site */
    int device;
    enum rs_kind kind;
    bool context_ended;
    struct rs_block_sum amount; /* if this has no blocks, the place in the table is empty */
    size_t smallest_bytes, largest_bytes; /* both are 0 for a call site */
    size_t library_bytes; /* the bytes of the library in all its size classes; filled in by
                             rs_holders_sort */
    unsigned outside; /* the number of frames at the top that reports leave out: the CUDA runtime's,
                         and this library's. 0 before rs_holders_sort, and without `merges` */
};

/* A table of holders; when it is all zero it is empty. */
struct rs_holders {
    struct rs_holder places[RS_HOLDERS_MAX]; /* a hash table with linear probing; packed and sorted
                                                after rs_holders_sort */
    size_t used;
    struct rs_block_sum others; /* blocks for which there was no place, of all devices */
};

/* Adds the live blocks of the stack whose topmost resource is mr, as its uppermost `tracking`
 * resource knows them; a lower one sees what the resources above it hold, and not the program's
 * blocks. Adds nothing if the stack has no `tracking`. The caller holds the contexts' lock. Uses no
 * malloc. */
void rs_holders_add(struct rs_holders *holders, const struct rs_stack *stack, struct rs_mr *mr,
                    bool context_ended);

/* Adds a block to the holder of its library. The caller has called rs_object_review, so that no
 * library is listed under the name of an earlier one at the same addresses. */
void rs_holders_add_block(struct rs_holders *holders, const struct rs_block_view *view);

/* Returns the kinds of memory for which a call site is known: bits 1 << kind. */
unsigned rs_holders_tracked(const struct rs_holders *holders);

/* Moves the used places to the front and sorts them by device. On each device libraries come before
 * call sites. The library with the most bytes comes first, and in it the size class with the most
 * bytes. Call sites are sorted by kind, and then by bytes, the most first. With `merges`, call
 * sites that print the same text become one, for which the loader is asked. Returns the number of
 * used places. Nothing may be added afterwards. */
size_t rs_holders_sort(struct rs_holders *holders, bool merges);

/* One call site, or all sizes of one library. */
struct rs_library {
    const char *name; /* NULL: not known, or a call site */
    enum rs_kind kind;
    struct rs_block_sum amount;
    const struct rs_holder *sizes; /* the most bytes first */
    size_t size_count;
};

/* Returns the call site or library that begins at place `first` after rs_holders_sort. */
struct rs_library rs_holders_library(const struct rs_holder *first, const struct rs_holder *end);

/* Adds a library to a document's list of holders. If is_said, it gets a line of text, which names
 * the kind of memory if that is not `usual`, and the sizes if all blocks are of one size class. */
void rs_library_fill(struct rs_node *list, const struct rs_library *library, enum rs_kind usual,
                     bool is_said);

/* Adds a frame to a document's list "frames". `file_line` is "FILE:LINE", or NULL. `said` tells how
 * many frames of the site have a line of text already; -1: this frame gets none. */
void rs_frame_fill(struct rs_node *list, const struct rs_symbol *symbol, const char *file_line,
                   int said);

/* Adds a call site to a document's object, as the lists "python" and "frames", which are empty if
 * the site is NULL. With has_lines the Python lines and the first frames get a line of text. The
 * first `outside` frames, at the top, are left out. */
void rs_site_fill(struct rs_node *in, const struct rs_call_site *site, unsigned outside,
                  bool has_lines);
