/* SPDX-License-Identifier: Apache-2.0 */
/* A report as a tree. It is filled once, and then printed as text, as JSON or as metrics for
 * Prometheus, by one printer each.
 *
 * Values have a unit, so that each printer writes them in its own way. A node may have a line,
 * which the text printer writes at that place of the tree. A value may be a metric, whose labels
 * are fields of the objects around the value.
 *
 * A document may be filled while the process exits: it calls no malloc, takes no lock, and begins
 * in memory of its own. Nodes for which there is no memory, or no room in RS_DOCUMENT_BYTES_MAX,
 * are left out; the document is then marked as short, and its text and JSON say so. */
#pragma once

#include "report/page.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_DOCUMENT_FIRST_BYTES = 32 << 10, RS_DOCUMENT_BYTES_MAX = 64 << 20 };

enum rs_value {
    RS_VALUE_OBJECT,
    RS_VALUE_LIST,
    RS_VALUE_TEXT,
    RS_VALUE_FLAG,
    RS_VALUE_COUNT,
    RS_VALUE_BYTES,
    RS_VALUE_NANOSECONDS,
};

/* An amount of memory: bytes and the number of blocks. */
struct rs_block_sum {
    size_t bytes, blocks;
};

static inline void rs_block_sum_add(struct rs_block_sum *to, struct rs_block_sum amount)
{
    to->bytes += amount.bytes;
    to->blocks += amount.blocks;
}

struct rs_metric {
    const char *name; /* for example "rmmshim_used_bytes" */
    const char *help; /* a sentence */
    bool is_total;    /* the value only grows */
};

struct rs_document;

struct rs_node {
    struct rs_document *document;
    struct rs_node *in, *next, *first, *last;
    const char *name; /* the name of a field; NULL for a node in a list, and for the root */
    enum rs_value value;
    union {
        uint64_t number; /* for a flag 0 or 1 */
        const char *text;
    };

    /* What the text printer writes before and after the node's children; NULL: nothing.  Both texts
     * must live as long as the document.  In them these forms have a meaning:
     *   {name}    the field of that name in this object, or in the nearest object around it that
     *             has one; {} is the node itself
     *   {name:x}  a number in hexadecimal
     *   {name:11} a text with blanks after it, or a number with blanks before it, in 11 columns
     *   {name|block|blocks}  the first word if the number is 1, else the second
     *   [...]     is written only if each field inside that is named without an option exists and
     *             is neither 0 nor empty.  {name?} makes the same condition and writes nothing;
     *             {name!} makes the opposite condition and writes nothing
     *   [[ and ]] the brackets themselves */
    const char *line, *end;

    /* The metric of a number, or NULL; lives as long as the document. */
    const struct rs_metric *metric;
    bool is_label; /* the field is a label of the metrics in its object */
};

struct rs_document {
    struct rs_node root; /* an object */
    struct rs_node lost; /* stands in for nodes for which there is no memory */
    bool is_short;
    struct rs_document_chunk *chunks;
    size_t mapped_bytes;
    char *free;
    size_t free_bytes;
    _Alignas(16) char first_bytes[RS_DOCUMENT_FIRST_BYTES];
};

/* Makes the document an empty object. */
void rs_document_begin(struct rs_document *document);

/* Gives the document's memory back. */
void rs_document_release(struct rs_document *document);

/* These add a node at the end of an object or, with a NULL name, of a list, and return the node.
 * Names must live as long as the document. Without memory they return `lost`, never NULL. */
struct rs_node *rs_node_object(struct rs_node *in, const char *name);
struct rs_node *rs_node_list(struct rs_node *in, const char *name);
struct rs_node *rs_node_number(struct rs_node *in, const char *name, enum rs_value value,
                               uint64_t number);
#define rs_node_flag(in, name, flag)     rs_node_number(in, name, RS_VALUE_FLAG, flag)
#define rs_node_count(in, name, count)   rs_node_number(in, name, RS_VALUE_COUNT, count)
#define rs_node_bytes(in, name, bytes)   rs_node_number(in, name, RS_VALUE_BYTES, bytes)
#define rs_node_nanoseconds(in, name, n) rs_node_number(in, name, RS_VALUE_NANOSECONDS, n)

/* Adds the fields "bytes" and "blocks". */
void rs_node_block_sum(struct rs_node *in, struct rs_block_sum amount);

/* rs_node_text copies the text.  rs_node_word keeps the pointer, so that the word must live as long
 * as the document. */
struct rs_node *rs_node_text(struct rs_node *in, const char *name, const char *text);
struct rs_node *rs_node_word(struct rs_node *in, const char *name, const char *word);

/* Formats text into memory of the document and returns it; NULL without memory. It is for names of
 * metrics and for lines that are not constants. */
const char *rs_document_format(struct rs_document *document, const char *format, ...)
    RS_PRINTF(2, 3);

/* Returns a last line for a list of holders or sizes, such as "and 1.00 MiB in 2 more blocks" after
 * the text `before`. `amount` is what has no line of its own; if it has no blocks, returns NULL. */
const char *rs_document_rest(struct rs_document *document, const char *before,
                             struct rs_block_sum amount);

/* Returns a new metric, whose texts must live as long as the document. Returns NULL without memory,
 * or if `name` is NULL. */
const struct rs_metric *rs_document_metric(struct rs_document *document, const char *name,
                                           const char *help, bool is_total);

/* Print a tree as text, or as JSON. Text is made plain (report/plain.h). In JSON each object in a
 * list begins a new line, unless the whole text is to be one line. */
void rs_document_put_text(struct rs_page *page, const struct rs_node *root);
void rs_document_put_json(struct rs_page *page, const struct rs_node *root, bool in_one_line);

/* Prints the metrics of a tree. All samples of a metric stand together. A sample is left out if its
 * type is not that of the first metric of the same name. */
void rs_document_put_metrics(struct rs_page *page, const struct rs_node *root);
