/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks as text: constructor calls, upstream first, then options by name, as in
 * statistics(limiting(pool(cuda, initial_size=1GiB, maximum_size=80%), limit=8GiB)). */
#pragma once

#include "resource/resource.h"

enum { RS_EXPRESSION_DEPTH_MAX = 64, RS_EXPRESSION_TEXT_BYTES = 2048 };

/* A node of the parsed expression: one resource, its option values and its upstreams. */
struct rs_expression {
    const struct rs_mr_descriptor *descriptor;
    const struct rs_source *source; /* the source of the text; outlives the expression */
    const char *at;                 /* the node's place in source->text, or NULL */
    struct rs_option_value values[RS_OPTION_ROWS_MAX];
    struct rs_expression *upstream[RS_MR_UPSTREAMS_MAX];
};

/* Parses the whole of source->text.  Returns NULL after reporting an error. */
struct rs_expression *rs_expression_parse(const struct rs_source *source,
                                          struct rs_diagnostics *diagnostics);

/* Makes a node with all options at their defaults.  The node owns `upstream`, which is NULL for a
 * leaf.  Returns NULL when out of host memory, after freeing the upstream. */
struct rs_expression *rs_expression_node(const struct rs_mr_descriptor *descriptor,
                                         struct rs_expression *upstream,
                                         const struct rs_source *source);

/* Returns the value of a node's option, which the caller may set; NULL if the node's resource has
 * no such option. */
struct rs_option_value *rs_expression_value(struct rs_expression *expression, const char *option);

/* Frees a node and all its upstreams.  expression: may be NULL. */
void rs_expression_free(struct rs_expression *expression);

/* Returns the uppermost node of this resource, first upstreams first; NULL if there is none.
 * expression: may be NULL. */
struct rs_expression *rs_expression_find(struct rs_expression *expression,
                                         const struct rs_mr_descriptor *descriptor);

/* Puts `reuse` above the uppermost node that reuses freed memory at once (RS_FREE_AT_ONCE), so that
 * the node gets back only blocks that no GPU work uses any more.  If a node with two upstreams is
 * above, `reuse` goes above that one.  Does nothing if there is no such node, or `reuse` is there
 * already.  Returns the new top.  Returns NULL when out of host memory, after freeing the
 * expression. */
struct rs_expression *rs_expression_insert_reuse(struct rs_expression *expression);

/* True when every leaf has `reuse` somewhere above it, so that no work uses a block that a leaf
 * gets back. */
bool rs_expression_frees_are_ready(const struct rs_expression *expression);

/* True when a free may wait for work of the program, even a free in the order of a stream. */
bool rs_expression_frees_wait(const struct rs_expression *expression);

/* Makes every node that cuts blocks out of larger ones use multiples of unit_bytes, a power of two,
 * so that no two blocks share a unit.  For this it sets the node's unit option to unit_bytes, if
 * that was not given and its default is no multiple of unit_bytes.  Returns false, after a
 * diagnostic, for a given value that is no multiple of unit_bytes, and for a node that cuts blocks
 * and has no unit option. */
bool rs_expression_set_unit(struct rs_expression *expression, size_t unit_bytes,
                            struct rs_diagnostics *diagnostics);

/* Removes every allocator that cuts blocks out of larger ones, and every `reuse`.  Returns the new
 * top. */
struct rs_expression *rs_expression_without_allocators(struct rs_expression *expression);

/* Returns the kinds of memory of the leaves beneath a node, as bits 1 << rs_memory.  For a leaf
 * that is the kind of its own memory. */
unsigned rs_expression_memories(const struct rs_expression *expression);

/* True when a leaf beneath the node, or the node itself, overcommits: it may hand out more memory
 * than device and host have. */
bool rs_expression_overcommits(const struct rs_expression *expression);

/* Returns the value in bytes of a node's SIZE option.  A percentage is a share of the device's
 * memory.  If the first leaf beneath has host memory, it is a share of the host's memory instead,
 * unless row->of_device. */
size_t rs_expression_resolve(const struct rs_expression *expression, const struct rs_option *row,
                             struct rs_size size, const struct rs_environment *environment);

/* Checks option values against each other (descriptor->validate).  A NULL environment: checks only
 * values that need no device.  Returns false after reporting an error. */
bool rs_expression_validate(const struct rs_expression *expression,
                            const struct rs_environment *environment,
                            struct rs_diagnostics *diagnostics);

/* Makes the stack in *out.  Returns 0, -EINVAL after reporting the error, or another -errno. */
int rs_expression_build(const struct rs_expression *expression,
                        const struct rs_environment *environment,
                        struct rs_diagnostics *diagnostics, struct rs_mr **out);

/* Writes the canonical text of the expression to `text`, and returns it.  The text has the options
 * that were given, and sizes in the largest exact unit.  With an environment, percentages become
 * sizes.  Otherwise parsing the text gives the same expression again. */
const char *rs_expression_format(const struct rs_expression *expression,
                                 const struct rs_environment *environment,
                                 char text[RS_EXPRESSION_TEXT_BYTES]);
