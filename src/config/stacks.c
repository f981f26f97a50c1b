/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a stack: whether its leaves may serve its kind of memory, and whether its initial sizes
 * are within the limit. */
#include "config/config.h"

#include <string.h>

/* ---- rules that every stack must keep ---- */

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
    return rs_diagnose(
        diagnostics, stack->source, stack->at,
        stack->descriptor == &rs_mr_descriptor_simulated
            ? "'%s' is only for replaying logs of allocations: its addresses have no memory, so no "
              "program can use them"
        : kind == RS_KIND_PINNED
            ? "pinned memory must come from the memory resource 'pinned', not from '%s'"
        : kind == RS_KIND_MANAGED
            ? "managed memory must come from the memory resource 'managed', not from '%s'"
        : stack->descriptor == &rs_mr_descriptor_pinned
            ? "device memory cannot come from '%s'; for pinned memory use RMM_PINNED_RESOURCE"
            : "device memory cannot come from '%s'",
        stack->descriptor->name);
}

/* Checks that the stack can serve that kind of memory.  Returns it; or NULL, after a diagnostic
 * and with the stack freed, when it cannot.  A NULL stack is allowed. */
static struct rs_expression *checked(enum rs_kind kind, struct rs_expression *stack,
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
    return rs_diagnose(diagnostics, stack->source, stack->at,
                       "%s has an initial size of %s, which is above RMM_LIMIT, %s",
                       stack->descriptor->name,
                       rs_size_format(initial_bytes(stack, environment), initial),
                       rs_size_format(limit_bytes, limit));
}

/* ---- stacks ---- */

/* Builds the expression for each kind of memory on each device from the values of the variables. */

/* The stack that is built.  What is wrong is reported to `diagnostics`. */
struct build {
    const struct rs_config *config;
    enum rs_kind kind;
    int device;
    struct rs_diagnostics *diagnostics;
};

/* A variable's value, and what gave it; NULL both: it is not set. */
struct setting {
    const struct rs_option_value *value;
    const struct rs_source *source;
};

static struct setting setting_of(const struct build *of, int index)
{
    struct setting setting = {.source = NULL};

    setting.value = rs_config_value(of->config->values, of->device, index, &setting.source);
    return setting;
}

/* Puts one more resource on the stack.  Returns NULL, with everything freed, when out of host
 * memory. */
static struct rs_expression *stack_on(const struct rs_mr_descriptor *descriptor,
                                      struct rs_expression *stack, const struct rs_source *source)
{
    return stack ? rs_expression_node(descriptor, stack, source) : NULL;
}

/* Gives an option of the node a value; NULL: none. */
static void set_option(struct rs_expression *node, const char *option,
                       const struct rs_option_value *given)
{
    struct rs_option_value *value = node && given ? rs_expression_value(node, option) : NULL;

    if (!value)
        return;
    *value = *given;
    value->given = true;
}

/* Builds a pool over a leaf; `variable` is the one that gives its initial size. */
static struct rs_expression *build_pool(const struct build *of, int variable,
                                        const struct rs_mr_descriptor *leaf)
{
    struct setting initial = setting_of(of, variable);
    struct rs_expression *stack = rs_expression_node(leaf, NULL, initial.source);

    stack = stack_on(&rs_mr_descriptor_pool, stack, initial.source);
    set_option(stack, "initial_size", initial.value);
    return stack;
}

/* Builds the leaf that RMM_MANAGED and RMM_ASYNC select together. */
static struct rs_expression *build_leaf(const struct build *of)
{
    static const struct rs_mr_descriptor *const leaves[2][2] = {
        {&rs_mr_descriptor_cuda, &rs_mr_descriptor_async},
        {&rs_mr_descriptor_managed, &rs_mr_descriptor_async_managed},
    };
    struct setting managed = setting_of(of, RS_VARIABLE_MANAGED);
    struct setting async = setting_of(of, RS_VARIABLE_ASYNC);

    return rs_expression_node(
        leaves[managed.value && managed.value->count][async.value && async.value->count], NULL,
        async.source ? async.source : managed.source);
}

/* Adds RMM_FALLBACK's second upstream, which serves what `stack` has no memory for.  It gets a
 * pool if the stack has one: allocating 4 KiB of pinned memory takes 0.5 ms, and freeing managed
 * memory waits (tests/conformance/MEASURED.md).  Memory that spills is beyond the limit, so it
 * is not charged against it. */
static struct rs_expression *add_fallback(const struct build *of, struct rs_expression *stack)
{
    struct setting kind = setting_of(of, RS_VARIABLE_FALLBACK);
    bool pooled = stack && stack->upstream[0];
    struct rs_expression *second;

    if (!kind.value || !stack)
        return stack;
    second = rs_expression_node(kind.value->count == RS_FALLBACK_PINNED ? &rs_mr_descriptor_pinned
                                                                        : &rs_mr_descriptor_managed,
                                NULL, kind.source);
    if (kind.value->count == RS_FALLBACK_MANAGED)
        set_option(second, "charged", &(struct rs_option_value){.count = 0});
    if (pooled)
        second = stack_on(&rs_mr_descriptor_pool, second, kind.source);
    stack = second ? stack_on(&rs_mr_descriptor_fallback, stack, kind.source) : stack;
    if (second && stack) {
        stack->upstream[1] = second;
        return stack;
    }
    rs_expression_free(stack);
    rs_expression_free(second);
    return NULL;
}

static bool has_managed(const struct rs_expression *stack)
{
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && stack->upstream[i]; i++)
        if (has_managed(stack->upstream[i]))
            return true;
    return stack->descriptor->upstream_count == 0 && stack->descriptor->memory == RS_MEMORY_MANAGED;
}

static struct rs_expression *add_prefetch(const struct build *of, struct rs_expression *stack)
{
    struct setting wanted = setting_of(of, RS_VARIABLE_PREFETCH);

    if (!stack || !wanted.value || !wanted.value->count)
        return stack;
    if (has_managed(stack))
        return stack_on(&rs_mr_descriptor_prefetch, stack, wanted.source);
    rs_diagnose(of->diagnostics, wanted.source, NULL,
                "only managed memory can be prefetched: use it with RMM_MANAGED=1 or "
                "RMM_FALLBACK=managed");
    rs_expression_free(stack);
    return NULL;
}

/* The settings of the allocator that cuts larger upstream blocks: of a pool, or of an arena. */
struct allocator {
    struct setting initial, maximum, arena;
};

static const struct rs_source *source_of_pool(const struct allocator *allocator)
{
    return allocator->maximum.source ? allocator->maximum.source : allocator->initial.source;
}

static bool is_own(const struct build *of, struct setting setting)
{
    return rs_config_is_own(of->config->values, of->device, setting.value);
}

/* Chooses between a pool and an arena when both are set: the one that the device's own variables
 * ask for.  Returns false after a diagnostic when neither or both are the device's own. */
static bool choose_allocator(const struct build *of, struct allocator *chosen)
{
    bool own_pool = is_own(of, chosen->initial) || is_own(of, chosen->maximum);
    bool own_arena = is_own(of, chosen->arena);

    if (!source_of_pool(chosen) || !chosen->arena.source)
        return true;
    if (own_pool == own_arena)
        return rs_diagnose(of->diagnostics, chosen->arena.source, NULL,
                           "an arena replaces the pool that %s sets: use only one of them",
                           source_of_pool(chosen)->name);
    if (own_arena)
        chosen->initial.value = chosen->maximum.value = NULL;
    else
        chosen->arena.value = NULL;
    return true;
}

/* Checks that a percentage is at most 100 %, unless the stack's memory can be overcommitted.
 * Returns false after a diagnostic. */
static bool has_share(const struct build *of, const struct rs_expression *stack,
                      struct setting setting)
{
    if (!stack || !setting.value || setting.value->size.kind == RS_SIZE_BYTES ||
        setting.value->size.number <= RS_SIZE_WHOLE || rs_expression_overcommits(stack))
        return true;
    return rs_diagnose(of->diagnostics, setting.source, setting.source->text, "more than 100%%");
}

/* Puts the allocator on the stack.  Returns NULL, with the stack freed, after a diagnostic or
 * when out of host memory. */
static struct rs_expression *stack_allocator(const struct build *of,
                                             const struct allocator *allocator,
                                             struct rs_expression *stack)
{
    if (!has_share(of, stack, allocator->initial) || !has_share(of, stack, allocator->maximum) ||
        !has_share(of, stack, allocator->arena)) {
        rs_expression_free(stack);
        return NULL;
    }
    if (allocator->arena.value) {
        stack = stack_on(&rs_mr_descriptor_arena, stack, allocator->arena.source);
        set_option(stack, "arena_size", allocator->arena.value);
    } else if (allocator->initial.value || allocator->maximum.value) {
        stack = stack_on(&rs_mr_descriptor_pool, stack, source_of_pool(allocator));
        set_option(stack, "initial_size", allocator->initial.value);
        set_option(stack, "maximum_size", allocator->maximum.value);
    }
    return stack;
}

/* Builds a stack for device memory from the short variables.  Returns NULL after a diagnostic
 * when they contradict each other, or when out of host memory. */
static struct rs_expression *build_device(const struct build *of)
{
    struct allocator allocator = {
        .initial = setting_of(of, RS_VARIABLE_POOL_SIZE),
        .maximum = setting_of(of, RS_VARIABLE_POOL_MAX_SIZE),
        .arena = setting_of(of, RS_VARIABLE_ARENA_SIZE),
    };
    struct setting bins = setting_of(of, RS_VARIABLE_BINNING);
    struct rs_expression *stack;

    if (!choose_allocator(of, &allocator))
        return NULL;
    stack = stack_allocator(of, &allocator, build_leaf(of));
    if (bins.value) {
        stack = stack_on(&rs_mr_descriptor_binning, stack, bins.source);
        set_option(stack, "minimum_size", &(struct rs_option_value){.size = bins.value->size});
        set_option(stack, "maximum_size", &(struct rs_option_value){.size = bins.value->size_to});
    }
    return add_prefetch(of, add_fallback(of, stack));
}

static struct rs_expression *build_parts(const struct build *of)
{
    if (of->kind == RS_KIND_PINNED)
        return build_pool(of, RS_VARIABLE_PINNED_POOL_SIZE, &rs_mr_descriptor_pinned);
    if (of->kind == RS_KIND_MANAGED)
        return build_pool(of, RS_VARIABLE_MANAGED_POOL_SIZE, &rs_mr_descriptor_managed);
    return build_device(of);
}

/* Adds RMM_TRACKING with call sites, unless the expression's own `tracking` sets its option
 * `stacks`. */
static struct rs_expression *add_tracking(const struct build *of, struct rs_expression *stack)
{
    struct rs_expression *tracking = rs_expression_find(stack, &rs_mr_descriptor_tracking);

    if (!tracking)
        tracking = stack = stack_on(&rs_mr_descriptor_tracking, stack,
                                    &of->config->values->general.source[RS_VARIABLE_TRACKING]);
    if (tracking && !rs_expression_value(tracking, "stacks")->given)
        set_option(tracking, "stacks", &(struct rs_option_value){.count = true});
    return stack;
}

/* Adds tracking, statistics and the log on top of the stack, where they see a free at once,
 * before reuse delays it. */
static struct rs_expression *add_observers(const struct build *of, struct rs_expression *stack)
{
    struct setting log = setting_of(of, RS_VARIABLE_LOG);
    struct rs_option_value *path;

    if (stack && of->config->tracking != RS_STATISTICS_NONE)
        stack = add_tracking(of, stack);
    if (stack && of->config->statistics != RS_STATISTICS_NONE &&
        !rs_expression_find(stack, &rs_mr_descriptor_statistics))
        stack = stack_on(&rs_mr_descriptor_statistics, stack,
                         &of->config->values->general.source[RS_VARIABLE_STATISTICS]);
    if (!log.value)
        return stack;
    if (rs_expression_find(stack, &rs_mr_descriptor_logging)) {
        rs_diagnose(
            of->diagnostics, log.source, NULL,
            "RMM_RESOURCE already writes a log: use only one of RMM_RESOURCE and RMM_LOG for it");
        return stack;
    }
    stack = stack_on(&rs_mr_descriptor_logging, stack, log.source);
    path = stack ? rs_expression_value(stack, "path") : NULL;
    if (path) {
        rs_option_value_clear(path);
        *path = (struct rs_option_value){.given = true, .text = strdup(log.value->text)};
    }
    if (path && !path->text) {
        rs_expression_free(stack);
        return NULL;
    }
    return stack;
}

/* Returns the index of a variable of the scope that gives all of the kind's stack (part: a part
 * of it), or -1 when none is set. */
static int scope_gives(const struct rs_config_scope *scope, enum rs_kind kind, bool part)
{
    for (int i = 0; scope && rs_variables[i].option.name; i++) {
        bool wanted = part ? rs_variables[i].builds_a_part && rs_variables[i].kind == kind
                           : i == rs_kind_whole[kind];
        if (wanted && scope->value[i].given)
            return i;
    }
    return -1;
}

/* Returns the stack that the variables ask for, without what is added to every stack.  NULL:
 * with *bad set, after a diagnostic; else no variable asks for one. */
static struct rs_expression *asked_stack(const struct build *of, bool *bad)
{
    const struct rs_config_scope *own =
        of->device >= 0 ? of->config->values->device[of->device] : NULL;
    const struct rs_config_scope *scopes[] = {own, &of->config->values->general};
    struct rs_expression *stack;

    *bad = false;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(scopes); i++) {
        int part = scope_gives(scopes[i], of->kind, true),
            whole = scope_gives(scopes[i], of->kind, false);
        if (whole >= 0 && part >= 0) {
            rs_diagnose(
                of->diagnostics, &scopes[i]->source[part], NULL,
                "%s already says which memory resources are used: remove one of the two settings",
                scopes[i]->source[whole].name);
            *bad = true;
            return NULL;
        }
        if (whole < 0 && part < 0)
            continue;
        if (whole >= 0)
            stack = rs_expression_parse(&scopes[i]->source[whole], of->diagnostics);
        else
            stack = build_parts(of);
        *bad = !stack;
        return stack;
    }
    return NULL;
}

/* Applies RMM_IPC=dedicated: every block of device memory becomes an allocation of the driver's
 * own, since another process may open any of them by the driver's handle.  Returns NULL, with
 * the stack freed, after a diagnostic. */
static struct rs_expression *make_dedicated(const struct build *of, struct rs_expression *stack)
{
    struct setting mode = setting_of(of, RS_VARIABLE_IPC);
    const struct rs_expression *leaf;

    if (!stack || !mode.value || mode.value->count != RS_IPC_DEDICATED)
        return stack;
    stack = rs_expression_without_allocators(stack);
    for (leaf = stack; leaf->upstream[0];)
        leaf = leaf->upstream[0];
    if (leaf->descriptor == &rs_mr_descriptor_cuda)
        return stack;
    rs_diagnose(of->diagnostics, mode.source, NULL,
                "other processes cannot open memory of the resource '%s', only memory of 'cuda'",
                leaf->descriptor->name);
    rs_expression_free(stack);
    return NULL;
}

/* Adds `reuse`, unless RMM_FREE=immediate.  Pinned and managed memory always get it: the host
 * uses such memory without a stream, so a freed block cannot be reused at once. */
static struct rs_expression *add_reuse(const struct build *of, struct rs_expression *stack)
{
    const struct rs_option_value *mode = setting_of(of, RS_VARIABLE_FREE).value;

    if (!mode || mode->count != RS_FREE_MODE_IMMEDIATE || of->kind != RS_KIND_DEVICE)
        stack = rs_expression_insert_reuse(stack);
    if (stack && mode && mode->count == RS_FREE_MODE_WAIT)
        set_option(rs_expression_find(stack, &rs_mr_descriptor_reuse), "free", mode);
    return stack;
}

struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics)
{
    static struct rs_config_values nothing;
    struct rs_config set = *config;
    struct build of = {&set, RS_KIND_DEVICE, -1, diagnostics};
    struct rs_expression *stack = rs_expression_parse(source, diagnostics);

    if (!set.values)
        set.values = &nothing;
    stack = make_dedicated(&of, stack);
    return stack ? checked(RS_KIND_DEVICE, add_reuse(&of, stack), diagnostics) : NULL;
}

/* True where the settings want a process's memory seen or limited. */
static bool is_observed(const struct build *of)
{
    const struct rs_config *config = of->config;

    return config->statistics != RS_STATISTICS_NONE || setting_of(of, RS_VARIABLE_LIMIT).value ||
           config->control != RS_CONTROL_UNASKED || config->limit_job || config->nvtx_phases ||
           config->tracking != RS_STATISTICS_NONE || config->on_oom != RS_STATISTICS_NONE ||
           setting_of(of, RS_VARIABLE_LOG).value;
}

void rs_config_build_stack(struct rs_config *config, enum rs_kind kind, int device,
                           struct rs_diagnostics *diagnostics)
{
    struct build of = {config, kind, device, diagnostics};
    struct setting limit = setting_of(&of, RS_VARIABLE_LIMIT);
    bool bad;
    struct rs_expression *stack = asked_stack(&of, &bad);

    if (kind == RS_KIND_DEVICE && stack)
        bad = !(stack = make_dedicated(&of, stack));
    if (!stack && !bad && kind == RS_KIND_DEVICE && is_observed(&of))
        stack = rs_expression_node(&rs_mr_descriptor_cuda, NULL, NULL);
    if (!stack)
        return;
    if (kind == RS_KIND_MANAGED && !rs_expression_set_unit(stack, RS_MANAGED_UNIT, diagnostics)) {
        rs_expression_free(stack);
        return;
    }
    stack = checked(kind, add_observers(&of, add_reuse(&of, stack)), diagnostics);
    if (stack && limit.value && limit.value->size.kind == RS_SIZE_BYTES &&
        !rs_config_fits_limit(stack, limit.value->size.number, NULL, diagnostics)) {
        rs_expression_free(stack);
        stack = NULL;
    }
    if (limit.value)
        config->any_limit = limit.source;
    config->stack[kind][device < 0 ? RS_DEVICES_MAX : device] = stack;
}
