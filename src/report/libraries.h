/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds memory where no stack tracks: live blocks by the object that allocated them (the
 * program or a library, trace/object.h) and, within, by size.  For the report at out-of-memory. */
#pragma once

#include "context/block.h"
#include "report/document.h"

#include <stddef.h>

enum {
    RS_SIZE_CLASSES_MAX = 1024, /* of all libraries.  What comes when they are used up is counted
                                   together */
    RS_SIZE_CLASSES_USED_MAX = RS_SIZE_CLASSES_MAX * 3 / 4,
};

/* Live blocks of one object and kind whose sizes have the same highest bit. */
struct rs_size_class {
    unsigned object; /* 0: not known */
    enum rs_kind kind;
    unsigned highest_bit;
    size_t bytes, blocks; /* no blocks: an empty place in the table */
    size_t smallest_bytes, largest_bytes;
};

/* Live blocks of one object and kind. */
struct rs_library {
    const char *name; /* NULL: not known */
    enum rs_kind kind;
    size_t bytes, blocks;
    const struct rs_size_class *classes; /* the most bytes first */
    size_t class_count;
};

/* All zero is empty. */
struct rs_libraries {
    struct rs_size_class classes[RS_SIZE_CLASSES_MAX]; /* hashed, the next place where one is taken;
                                                          packed after rs_libraries_sort */
    size_t used;
    size_t others_bytes, others_blocks; /* what found no place */

    struct rs_library libraries[RS_SIZE_CLASSES_USED_MAX]; /* filled in by rs_libraries_sort */
    size_t count;
};

/* Adds a block.  After rs_object_review no object is named that another one replaced. */
void rs_libraries_add(struct rs_libraries *libraries, const struct rs_block_view *view);

/* Makes the list of libraries, the most bytes first.  Nothing can be added afterwards. */
void rs_libraries_sort(struct rs_libraries *libraries);

/* Adds a library to a document's list of holders.  Its line of the text names a kind of memory
 * other than the usual one; where the blocks are of one size class it has the sizes too. */
void rs_library_fill(struct rs_node *list, const struct rs_library *library, enum rs_kind usual,
                     bool is_said);
