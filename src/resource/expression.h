/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks as text: constructor calls, upstream first, then options by name, as in
 * statistics(limiting(pool(cuda, initial_size=1GiB, maximum_size=80%), limit=8GiB)). */
#pragma once

#include "resource/resource.h"

enum { RS_EXPRESSION_DEPTH_MAX = 64, RS_EXPRESSION_TEXT_BYTES = 2048 };

struct rs_expression {
    const struct rs_mr_descriptor *descriptor;
    const struct rs_source *source; /* where it was asked for; outlives the expression */
    const char *at;                 /* the place in source->text, or NULL */
    struct rs_option_value values[RS_OPTION_ROWS_MAX];
    struct rs_expression *upstream[RS_MR_UPSTREAMS_MAX];
};

/* Parses the whole of source->text.  NULL after reporting it. */
struct rs_expression *rs_expression_parse(const struct rs_source *source,
                                          struct rs_diagnostics *diagnostics);

/* A node over upstreams (owned from now on; NULL for a leaf) with all options at their defaults.
 * NULL when out of host memory, upstreams freed. */
struct rs_expression *rs_expression_node(const struct rs_mr_descriptor *descriptor,
                                         struct rs_expression *upstream,
                                         const struct rs_source *source);

/* The value of a node's option, for setting it. */
struct rs_option_value *rs_expression_value(struct rs_expression *expression, const char *option);

void rs_expression_free(struct rs_expression *expression);

/* The uppermost node of that resource, or NULL. */
struct rs_expression *rs_expression_find(struct rs_expression *expression,
                                         const struct rs_mr_descriptor *descriptor);

/* Puts `reuse` above the uppermost node whose free does not wait, where none stands above it: what
 * is below sees only blocks that no work uses any more.  Returns the new top, NULL when out of host
 * memory (expression freed). */
struct rs_expression *rs_expression_insert_reuse(struct rs_expression *expression);

/* True when every leaf has `reuse` somewhere above it: what it gets back is used by no work. */
bool rs_expression_frees_are_ready(const struct rs_expression *expression);

/* True when giving a block back may wait for work of the program's, also where the order of a
 * stream is given. */
bool rs_expression_frees_wait(const struct rs_expression *expression);

/* Makes every node that cuts blocks out of larger ones keep to multiples of unit_bytes, a power of
 * two, so that no two blocks share one of them: an option that was not given gets that value.
 * False after reporting it about one that was given otherwise, or a node that cannot. */
bool rs_expression_set_unit(struct rs_expression *expression, size_t unit_bytes,
                            struct rs_diagnostics *diagnostics);

/* Takes out every node that cuts blocks out of larger ones or keeps freed ones.  Returns the new
 * top. */
struct rs_expression *rs_expression_without_allocators(struct rs_expression *expression);

/* What the leaves beneath and including a node are counted as, bits 1 << rs_memory. */
unsigned rs_expression_memories(const struct rs_expression *expression);

/* True when a leaf beneath has memory of which there may be more than there is. */
bool rs_expression_overcommits(const struct rs_expression *expression);

/* The value of a node's SIZE on a device.  A percentage is of the device's memory, or of the
 * host's, as the (first) leaf beneath lies there. */
size_t rs_expression_resolve(const struct rs_expression *expression, const struct rs_option *row,
                             struct rs_size size, const struct rs_environment *environment);

/* Checks option values against each other (descriptor->validate); with place NULL only what needs
 * no device.  False after reporting it. */
bool rs_expression_validate(const struct rs_expression *expression,
                            const struct rs_environment *environment,
                            struct rs_diagnostics *diagnostics);

/* Makes the stack.  0, -EINVAL after reporting it, or another -errno. */
int rs_expression_build(const struct rs_expression *expression,
                        const struct rs_environment *environment,
                        struct rs_diagnostics *diagnostics, struct rs_mr **out);

/* The canonical text: options that were given, sizes in bytes' exact units; percentages resolved
 * where place is given.  Parses back to the same (apart from percentages). */
const char *rs_expression_format(const struct rs_expression *expression,
                                 const struct rs_environment *environment,
                                 char text[RS_EXPRESSION_TEXT_BYTES]);
