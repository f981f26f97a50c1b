/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a stack: whether its leaves may serve its kind of memory, and whether its initial sizes
 * are within the limit. */
#include "config/stack_check.h"

#include <string.h>

/* The leaves that may serve each kind of the program's memory. */
static const struct rs_mr_descriptor *const leaves_for[RS_KINDS][7] = {
    [RS_KIND_DEVICE] = {&rs_mr_descriptor_cuda, &rs_mr_descriptor_managed, &rs_mr_descriptor_async,
                        &rs_mr_descriptor_async_managed, &rs_mr_descriptor_virtual,
                        &rs_mr_descriptor_system},
    [RS_KIND_PINNED] = {&rs_mr_descriptor_pinned},
    [RS_KIND_MANAGED] = {&rs_mr_descriptor_managed},
};

/* True when the leaf may serve the kind.  Host memory may serve device memory only as the second
 * upstream of a fallback.  No other leaf may serve pinned memory or managed memory. */
static bool may_serve(const struct rs_mr_descriptor *leaf, enum rs_kind kind, bool is_second)
{
    for (int of = 0; of < RS_KINDS; of++)
        for (size_t i = 0; leaves_for[of][i]; i++)
            if (leaves_for[of][i] == leaf &&
                (of == (int)kind || (is_second && kind == RS_KIND_DEVICE)))
                return true;
    return false;
}

static bool check_leaves(enum rs_kind kind, const struct rs_expression *stack, bool is_second,
                         struct rs_diagnostics *diagnostics)
{
    for (; stack->upstream[0]; stack = stack->upstream[0])
        for (size_t i = 1; i < RS_MR_UPSTREAMS_MAX && stack->upstream[i]; i++)
            if (!check_leaves(kind, stack->upstream[i],
                              is_second || stack->descriptor->upstream_count > 1, diagnostics))
                return false;
    if (may_serve(stack->descriptor, kind, is_second))
        return true;
    rs_diagnose(
        diagnostics, stack->source, stack->at,
        stack->descriptor == &rs_mr_descriptor_simulated
            ? "'%s' only replays traces: its addresses have no memory, so no program can use it"
        : kind == RS_KIND_PINNED  ? "pinned memory must come from 'pinned', not from '%s'"
        : kind == RS_KIND_MANAGED ? "managed memory must come from 'managed', not from '%s'"
        : stack->descriptor == &rs_mr_descriptor_pinned
            ? "device memory cannot come from '%s'; for pinned memory use RMM_PINNED_RESOURCE"
            : "device memory cannot come from '%s'",
        stack->descriptor->name);
    return false;
}

struct rs_expression *rs_config_checked(enum rs_kind kind, struct rs_expression *stack,
                                        struct rs_diagnostics *diagnostics)
{
    if (!stack || (check_leaves(kind, stack, false, diagnostics) &&
                   rs_expression_validate(stack, NULL, diagnostics)))
        return stack;
    rs_expression_free(stack);
    return NULL;
}

/* Returns the bytes that a resource takes at its first allocation and that a limit counts.
 * Memory that may lie on the host is not counted. */
static size_t initial_bytes(const struct rs_expression *node,
                            const struct rs_environment *environment)
{
    const struct rs_option *rows = node->descriptor->options;

    if (rs_expression_memories(node) & 1u << RS_MEMORY_HOST)
        return 0;
    for (size_t i = 0; rows[i].name; i++) {
        const struct rs_option_value *value = &node->values[i];
        if (strcmp(rows[i].name, "initial_size") != 0 || rows[i].type != RS_OPTION_SIZE ||
            value->none || (!environment && value->size.kind != RS_SIZE_BYTES))
            continue;
        return rs_expression_resolve(node, &rows[i], value->size, environment);
    }
    return 0;
}

bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_environment *environment,
                          struct rs_diagnostics *diagnostics)
{
    char initial[RS_SIZE_TEXT_BYTES], limit[RS_SIZE_TEXT_BYTES];
    bool fits = true;

    if (limit_bytes == 0)
        return true;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && fits; i++)
        fits = !stack->upstream[i] ||
               rs_config_fits_limit(stack->upstream[i], limit_bytes, environment, diagnostics);
    if (!fits || initial_bytes(stack, environment) <= limit_bytes)
        return fits;
    rs_diagnose(diagnostics, stack->source, stack->at,
                "%s has an initial size of %s, which is above RMM_LIMIT, %s",
                stack->descriptor->name, rs_size_format(initial_bytes(stack, environment), initial),
                rs_size_format(limit_bytes, limit));
    return false;
}
