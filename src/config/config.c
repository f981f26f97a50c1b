/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include "base/path.h"
#include "config/variable_name.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const hook_words[] = {"device", "pinned", "managed", "runtime",
                                         "async",  "all",    NULL};

/* The variables for all devices, or for one. */
struct scope {
    struct rs_source source[RS_VARIABLES_MAX]; /* owned texts; .text NULL: not set */
    struct rs_option_value value[RS_VARIABLES_MAX];
};

struct rs_config_values {
    struct scope general;
    struct scope *device[RS_DEVICES_MAX];
};

static void scope_clear(struct scope *scope)
{
    if (!scope)
        return;
    for (size_t i = 0; i < RS_VARIABLES_MAX; i++) {
        free((void *)(uintptr_t)scope->source[i].name);
        free((void *)(uintptr_t)scope->source[i].text);
        rs_option_value_clear(&scope->value[i]);
    }
}

void rs_config_free(struct rs_config *config)
{
    if (!config->values)
        return;
    for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            rs_expression_free(config->stack[kind][i]);
    for (size_t i = 0; i < RS_DEVICES_MAX; i++) {
        scope_clear(config->values->device[i]);
        free(config->values->device[i]);
    }
    scope_clear(&config->values->general);
    free(config->values);
    *config = (struct rs_config){.anything_set = false};
}

static struct scope *scope_for(struct rs_config *config, int device)
{
    if (device < 0)
        return &config->values->general;
    if (!config->values->device[device])
        config->values->device[device] = calloc(1, sizeof(struct scope));
    return config->values->device[device];
}

static void read_entry(struct rs_config *config, const char *entry,
                       struct rs_complaints *complaints)
{
    const char *equals = strchr(entry, '=');
    size_t length = equals ? (size_t)(equals - entry) : 0;
    char name[RS_NAME_BYTES_MAX];
    struct rs_source source = {name, equals ? equals + 1 : ""};
    const struct rs_variable *variable;
    struct scope *scope;
    struct rs_name read;
    int index;

    if (length == 0 || length >= sizeof(name) || !equals[1]) /* NAME= means not set */
        return;
    memcpy(name, entry, length);
    name[length] = '\0';
    rs_name_read(name, &read);
    if (read.kind == RS_NAME_WRONG)
        rs_complain(complaints, &source, NULL, "%s", read.reason);
    if (read.kind != RS_NAME_OURS)
        return;
    index = read.index;
    variable = &rs_variables[index];
    if (variable->later) {
        rs_complain(complaints, &source, NULL, "%s: not in this version of rmmshim",
                    variable->option.help);
        return;
    }
    scope = scope_for(config, read.device);
    if (!scope || scope->source[index].text)
        return; /* the first of two equal names counts, as for getenv */
    scope->source[index] = (struct rs_source){strdup(name), strdup(equals + 1)};
    if (!scope->source[index].name || !scope->source[index].text)
        return;
    (void)rs_option_parse(&variable->option, variable->option.type, &scope->source[index],
                          scope->source[index].text,
                          scope->source[index].text + strlen(scope->source[index].text), complaints,
                          &scope->value[index]);
}

static const struct rs_option_value *value_of(const struct rs_config *config, int device, int index,
                                              const struct rs_source **source)
{
    const struct scope *own = device >= 0 ? config->values->device[device] : NULL;
    const struct scope *scope = own && own->value[index].given ? own : &config->values->general;

    if (!scope->value[index].given)
        return NULL;
    if (source)
        *source = &scope->source[index];
    return &scope->value[index];
}

/* One part more on the stack; NULL (with everything freed) when out of host memory. */
static struct rs_expression *stack_on(const struct rs_mr_descriptor *descriptor,
                                      struct rs_expression *stack, const struct rs_source *source)
{
    return stack ? rs_expression_node(descriptor, stack, source) : NULL;
}

static void set_value(struct rs_expression *node, const char *option, struct rs_size size)
{
    struct rs_option_value *value = node ? rs_expression_value(node, option) : NULL;

    if (value)
        *value = (struct rs_option_value){.given = true, .size = size};
}

static void set_word(struct rs_expression *node, const char *option, uint64_t index)
{
    struct rs_option_value *value = node ? rs_expression_value(node, option) : NULL;

    if (value)
        *value = (struct rs_option_value){.given = true, .count = index};
}

/* A pool over a leaf, from the variable that gives its initial size. */
static struct rs_expression *build_pool(const struct rs_config *config, int device, int variable,
                                        const struct rs_mr_descriptor *leaf)
{
    const struct rs_source *source = NULL;
    const struct rs_option_value *initial = value_of(config, device, variable, &source);
    struct rs_expression *stack = rs_expression_node(leaf, NULL, source);

    stack = stack_on(&rs_mr_descriptor_pool, stack, source);
    set_value(stack, "initial_size", initial->size);
    return stack;
}

/* What lies beneath: RMM_MANAGED and RMM_ASYNC, in each combination. */
static struct rs_expression *build_leaf(const struct rs_config *config, int device)
{
    static const struct rs_mr_descriptor *const leaves[2][2] = {
        {&rs_mr_descriptor_cuda, &rs_mr_descriptor_async},
        {&rs_mr_descriptor_managed, &rs_mr_descriptor_async_managed},
    };
    const struct rs_source *source = NULL;
    const struct rs_option_value *managed = value_of(config, device, RS_VARIABLE_MANAGED, &source);
    const struct rs_option_value *async = value_of(config, device, RS_VARIABLE_ASYNC, &source);

    return rs_expression_node(leaves[managed && managed->count][async && async->count], NULL,
                              source);
}

/* A second upstream for what `stack` is out of memory for, with a pool where the stack has one:
 * pinned memory costs 0.5 ms for 4 KiB, and freeing managed memory waits (cuda-measured.md).  What
 * is spilled lies beyond a limit, so it is not charged against one. */
static struct rs_expression *add_fallback(const struct rs_config *config, int device,
                                          struct rs_expression *stack)
{
    const struct rs_source *source = NULL;
    const struct rs_option_value *kind = value_of(config, device, RS_VARIABLE_FALLBACK, &source);
    bool pooled = stack && stack->upstream[0];
    struct rs_expression *second;

    if (!kind || !stack)
        return stack;
    second = rs_expression_node(kind->count == RS_FALLBACK_PINNED ? &rs_mr_descriptor_pinned
                                                                  : &rs_mr_descriptor_managed,
                                NULL, source);
    if (kind->count == RS_FALLBACK_MANAGED)
        set_word(second, "charged", 0);
    if (pooled)
        second = stack_on(&rs_mr_descriptor_pool, second, source);
    stack = second ? stack_on(&rs_mr_descriptor_fallback, stack, source) : stack;
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

static struct rs_expression *add_prefetch(const struct rs_config *config, int device,
                                          struct rs_expression *stack,
                                          struct rs_complaints *complaints)
{
    const struct rs_source *source = NULL;
    const struct rs_option_value *wanted = value_of(config, device, RS_VARIABLE_PREFETCH, &source);

    if (!stack || !wanted || !wanted->count)
        return stack;
    if (has_managed(stack))
        return stack_on(&rs_mr_descriptor_prefetch, stack, source);
    rs_complain(complaints, source, NULL,
                "only managed memory can be prefetched: use it with RMM_MANAGED=1 or "
                "RMM_FALLBACK=managed");
    rs_expression_free(stack);
    return NULL;
}

/* What large blocks are cut up by. */
struct allocator {
    const struct rs_option_value *initial, *maximum; /* of a pool */
    const struct rs_option_value *arena;
    const struct rs_source *source, *arena_source; /* NULL: none given */
    const struct rs_source *initial_source;
};

static struct allocator allocator_of(const struct rs_config *config, int device)
{
    struct allocator found = {.source = NULL};

    found.initial = value_of(config, device, RS_VARIABLE_POOL_SIZE, &found.initial_source);
    found.source = found.initial_source;
    found.maximum = value_of(config, device, RS_VARIABLE_POOL_MAX_SIZE, &found.source);
    found.arena = value_of(config, device, RS_VARIABLE_ARENA_SIZE, &found.arena_source);
    return found;
}

/* True when a device's own variable says so, and not the one for all devices. */
static bool is_own(const struct rs_config *config, int device, const struct rs_option_value *value)
{
    const struct scope *own = device >= 0 ? config->values->device[device] : NULL;

    return own && value >= own->value && value < own->value + RS_VARIABLES_MAX;
}

/* A pool or an arena, of which a device's own counts.  False when it is both. */
static bool choose_allocator(const struct rs_config *config, int device, struct allocator *chosen,
                             struct rs_complaints *complaints)
{
    bool own_pool =
        is_own(config, device, chosen->initial) || is_own(config, device, chosen->maximum);
    bool own_arena = is_own(config, device, chosen->arena);

    if (!chosen->source || !chosen->arena_source)
        return true;
    if (own_pool == own_arena) {
        rs_complain(complaints, chosen->arena_source, NULL,
                    "an arena stands in place of a pool, and %s gives one: use one of them",
                    chosen->source->name);
        return false;
    }
    if (own_arena)
        chosen->initial = chosen->maximum = NULL;
    else
        chosen->arena = NULL;
    return true;
}

/* False after complaining about a percentage that this memory has not. */
static bool has_share(const struct rs_expression *stack, const struct rs_option_value *value,
                      const struct rs_source *source, struct rs_complaints *complaints)
{
    if (!stack || !value || value->size.kind == RS_SIZE_BYTES ||
        value->size.number <= RS_SIZE_WHOLE || rs_expression_overcommits(stack))
        return true;
    rs_complain(complaints, source, source->text, "more than 100%%");
    return false;
}

static bool has_shares(const struct rs_expression *stack, const struct allocator *of,
                       struct rs_complaints *complaints)
{
    return has_share(stack, of->initial, of->initial_source, complaints) &&
           has_share(stack, of->maximum, of->source, complaints) &&
           has_share(stack, of->arena, of->arena_source, complaints);
}

/* NULL with the stack freed after complaining, or when out of host memory. */
static struct rs_expression *stack_allocator(const struct allocator *allocator,
                                             struct rs_expression *stack,
                                             struct rs_complaints *complaints)
{
    if (!has_shares(stack, allocator, complaints)) {
        rs_expression_free(stack);
        return NULL;
    }
    if (allocator->arena) {
        stack = stack_on(&rs_mr_descriptor_arena, stack, allocator->arena_source);
        set_value(stack, "arena_size", allocator->arena->size);
        return stack;
    }
    if (!allocator->initial && !allocator->maximum)
        return stack;
    stack = stack_on(&rs_mr_descriptor_pool, stack, allocator->source);
    if (allocator->initial)
        set_value(stack, "initial_size", allocator->initial->size);
    if (allocator->maximum)
        set_value(stack, "maximum_size", allocator->maximum->size);
    return stack;
}

/* NULL when settings contradict each other, or out of host memory. */
static struct rs_expression *build_device(const struct rs_config *config, int device,
                                          struct rs_complaints *complaints)
{
    const struct rs_source *source = NULL;
    struct allocator allocator = allocator_of(config, device);
    const struct rs_option_value *bins;
    struct rs_expression *stack;

    if (!choose_allocator(config, device, &allocator, complaints))
        return NULL;
    stack = stack_allocator(&allocator, build_leaf(config, device), complaints);
    bins = value_of(config, device, RS_VARIABLE_BINNING, &source);
    if (bins) {
        stack = stack_on(&rs_mr_descriptor_binning, stack, source);
        set_value(stack, "minimum_size", bins->size);
        set_value(stack, "maximum_size", bins->size_to);
    }
    stack = add_fallback(config, device, stack);
    return add_prefetch(config, device, stack, complaints);
}

static struct rs_expression *build_parts(const struct rs_config *config, enum rs_kind kind,
                                         int device, struct rs_complaints *complaints)
{
    if (kind == RS_KIND_PINNED)
        return build_pool(config, device, RS_VARIABLE_PINNED_POOL_SIZE, &rs_mr_descriptor_pinned);
    if (kind == RS_KIND_MANAGED)
        return build_pool(config, device, RS_VARIABLE_MANAGED_POOL_SIZE, &rs_mr_descriptor_managed);
    return build_device(config, device, complaints);
}

/* With call sites, unless the expression's own tracking says otherwise. */
static struct rs_expression *add_tracking(const struct rs_config *config,
                                          struct rs_expression *stack)
{
    struct rs_expression *tracking = rs_expression_find(stack, &rs_mr_descriptor_tracking);

    if (!tracking)
        tracking = stack = stack_on(&rs_mr_descriptor_tracking, stack,
                                    &config->values->general.source[RS_VARIABLE_TRACKING]);
    if (tracking && !rs_expression_value(tracking, "stacks")->given)
        set_word(tracking, "stacks", true);
    return stack;
}

/* Tracking, counters and the log stand on top, where a free is seen at once. */
static struct rs_expression *add_observers(const struct rs_config *config, int device,
                                           struct rs_expression *stack,
                                           struct rs_complaints *complaints)
{
    const struct rs_source *source = NULL;
    const struct rs_option_value *log = value_of(config, device, RS_VARIABLE_LOG, &source);
    struct rs_option_value *path;

    if (stack && config->tracking != RS_STATISTICS_NONE)
        stack = add_tracking(config, stack);
    if (stack && config->statistics != RS_STATISTICS_NONE &&
        !rs_expression_find(stack, &rs_mr_descriptor_statistics))
        stack = stack_on(&rs_mr_descriptor_statistics, stack,
                         &config->values->general.source[RS_VARIABLE_STATISTICS]);
    if (!log)
        return stack;
    if (rs_expression_find(stack, &rs_mr_descriptor_logging)) {
        rs_complain(complaints, source, NULL, "RMM_RESOURCE has a log of its own: use one");
        return stack;
    }
    stack = stack_on(&rs_mr_descriptor_logging, stack, source);
    path = stack ? rs_expression_value(stack, "path") : NULL;
    if (path) {
        rs_option_value_clear(path);
        *path = (struct rs_option_value){.given = true, .text = strdup(log->text)};
    }
    if (path && !path->text) {
        rs_expression_free(stack);
        return NULL;
    }
    return stack;
}

/* The leaves a program's memory of each kind may come from. */
static const struct rs_mr_descriptor *const leaves_for[RS_KINDS][7] = {
    [RS_KIND_DEVICE] = {&rs_mr_descriptor_cuda, &rs_mr_descriptor_managed, &rs_mr_descriptor_async,
                        &rs_mr_descriptor_async_managed, &rs_mr_descriptor_virtual,
                        &rs_mr_descriptor_system},
    [RS_KIND_PINNED] = {&rs_mr_descriptor_pinned},
    [RS_KIND_MANAGED] = {&rs_mr_descriptor_managed},
};

/* Host memory cannot stand in for device memory, except as what a device falls back on; nothing can
 * stand in for pinned memory, nor for managed memory. */
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
                         struct rs_complaints *complaints)
{
    for (; stack->upstream[0]; stack = stack->upstream[0])
        for (size_t i = 1; i < RS_MR_UPSTREAMS_MAX && stack->upstream[i]; i++)
            if (!check_leaves(kind, stack->upstream[i],
                              is_second || stack->descriptor->upstream_count > 1, complaints))
                return false;
    if (may_serve(stack->descriptor, kind, is_second))
        return true;
    rs_complain(complaints, stack->source, stack->at,
                stack->descriptor == &rs_mr_descriptor_simulated
                    ? "'%s' has addresses without memory, for replaying traces: no program can use "
                      "it"
                : kind == RS_KIND_PINNED ? "a stack for pinned memory stands on 'pinned', not '%s'"
                : kind == RS_KIND_MANAGED
                    ? "a stack for managed memory stands on 'managed', not '%s'"
                : stack->descriptor == &rs_mr_descriptor_pinned
                    ? "a stack for device memory cannot stand on '%s'; RMM_PINNED_RESOURCE is the "
                      "one for pinned memory"
                    : "a stack for device memory cannot stand on '%s'",
                stack->descriptor->name);
    return false;
}

/* Which variable of the scope gives all of the kind's stack, or a part of it; -1: none. */
static int scope_gives(const struct scope *scope, enum rs_kind kind, bool part)
{
    static const int whole[RS_KINDS] = {RS_VARIABLE_RESOURCE, RS_VARIABLE_PINNED_RESOURCE,
                                        RS_VARIABLE_MANAGED_RESOURCE};

    for (int i = 0; scope && rs_variables[i].option.name; i++) {
        bool wanted =
            part ? rs_variables[i].builds_a_part && rs_variables[i].kind == kind : i == whole[kind];
        if (wanted && scope->value[i].given)
            return i;
    }
    return -1;
}

/* What was asked for, without what is added to every stack; NULL with *bad unset: nothing. */
static struct rs_expression *asked_stack(const struct rs_config *config, enum rs_kind kind,
                                         int device, struct rs_complaints *complaints, bool *bad)
{
    const struct scope *own = device >= 0 ? config->values->device[device] : NULL;
    const struct scope *scopes[] = {own, &config->values->general};
    struct rs_expression *stack;

    *bad = false;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(scopes); i++) {
        int part = scope_gives(scopes[i], kind, true), whole = scope_gives(scopes[i], kind, false);
        if (whole >= 0 && part >= 0) {
            rs_complain(complaints, &scopes[i]->source[part], NULL,
                        "builds a part of the stack, and %s gives all of it: use one",
                        scopes[i]->source[whole].name);
            *bad = true;
            return NULL;
        }
        if (whole < 0 && part < 0)
            continue;
        if (whole >= 0)
            stack = rs_expression_parse(&scopes[i]->source[whole], complaints);
        else
            stack = build_parts(config, kind, device, complaints);
        *bad = !stack;
        return stack;
    }
    return NULL;
}

/* What another process may open by the driver's own handle: every block of device memory, since any
 * may be asked for, is an allocation of its own.  NULL after complaining. */
static struct rs_expression *make_dedicated(const struct rs_config *config, int device,
                                            struct rs_expression *stack,
                                            struct rs_complaints *complaints)
{
    const struct rs_source *source = NULL;
    const struct rs_option_value *mode = value_of(config, device, RS_VARIABLE_IPC, &source);
    const struct rs_expression *leaf;

    if (!stack || !mode || mode->count != RS_IPC_DEDICATED)
        return stack;
    stack = rs_expression_without_allocators(stack);
    for (leaf = stack; leaf->upstream[0];)
        leaf = leaf->upstream[0];
    if (leaf->descriptor == &rs_mr_descriptor_cuda)
        return stack;
    rs_complain(complaints, source, NULL,
                "the driver has no handle for memory of '%s', only for "
                "that of 'cuda'",
                leaf->descriptor->name);
    rs_expression_free(stack);
    return NULL;
}

/* Memory that the host uses itself follows no stream: it is never reused at once. */
static struct rs_expression *add_reuse(const struct rs_config *config, enum rs_kind kind,
                                       int device, struct rs_expression *stack)
{
    const struct rs_option_value *mode = value_of(config, device, RS_VARIABLE_FREE, NULL);

    if (!mode || mode->count != RS_FREE_MODE_IMMEDIATE || kind != RS_KIND_DEVICE)
        stack = rs_expression_insert_reuse(stack);
    if (stack && mode && mode->count == RS_FREE_MODE_WAIT)
        set_word(rs_expression_find(stack, &rs_mr_descriptor_reuse), "free", RS_FREE_MODE_WAIT);
    return stack;
}

/* The stack, or NULL (with everything freed) when it is bad. */
static struct rs_expression *checked(enum rs_kind kind, struct rs_expression *stack,
                                     struct rs_complaints *complaints)
{
    if (!stack || (check_leaves(kind, stack, false, complaints) &&
                   rs_expression_validate(stack, NULL, complaints)))
        return stack;
    rs_expression_free(stack);
    return NULL;
}

struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_complaints *complaints)
{
    static struct rs_config_values nothing;
    struct rs_config set = *config;
    struct rs_expression *stack = rs_expression_parse(source, complaints);

    if (!set.values)
        set.values = &nothing;
    stack = make_dedicated(&set, -1, stack, complaints);
    return stack ? checked(RS_KIND_DEVICE, add_reuse(&set, RS_KIND_DEVICE, -1, stack), complaints)
                 : NULL;
}

/* What a resource takes at its first allocation of what a limit counts.  What may lie in the host's
 * memory it does not. */
static size_t initial_bytes(const struct rs_expression *node, const struct rs_place *place)
{
    const struct rs_option *rows = node->descriptor->options;

    if (rs_expression_memories(node) & 1u << RS_MEMORY_HOST)
        return 0;
    for (size_t i = 0; rows[i].name; i++) {
        const struct rs_option_value *value = &node->values[i];
        if (strcmp(rows[i].name, "initial_size") != 0 || rows[i].type != RS_OPTION_SIZE ||
            value->none || (!place && value->size.kind != RS_SIZE_BYTES))
            continue;
        return rs_expression_resolve(node, &rows[i], value->size, place);
    }
    return 0;
}

bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_place *place, struct rs_complaints *complaints)
{
    char initial[RS_SIZE_TEXT_BYTES], limit[RS_SIZE_TEXT_BYTES];
    bool fits = true;

    if (limit_bytes == 0)
        return true;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && fits; i++)
        fits = !stack->upstream[i] ||
               rs_config_fits_limit(stack->upstream[i], limit_bytes, place, complaints);
    if (!fits || initial_bytes(stack, place) <= limit_bytes)
        return fits;
    rs_complain(complaints, stack->source, stack->at, "%s begins with %s, and RMM_LIMIT is %s",
                stack->descriptor->name, rs_size_format(initial_bytes(stack, place), initial),
                rs_size_format(limit_bytes, limit));
    return false;
}

/* The stack for a device (-1: for those without settings of their own). */
static void build_stack(struct rs_config *config, enum rs_kind kind, int device,
                        struct rs_complaints *complaints)
{
    const struct rs_source *limit_source = NULL;
    const struct rs_option_value *limit =
        value_of(config, device, RS_VARIABLE_LIMIT, &limit_source);
    bool observed = config->statistics != RS_STATISTICS_NONE || limit ||
                    config->tracking != RS_STATISTICS_NONE ||
                    value_of(config, device, RS_VARIABLE_LOG, NULL);
    bool bad;
    struct rs_expression *stack = asked_stack(config, kind, device, complaints, &bad);

    if (kind == RS_KIND_DEVICE && stack)
        bad = !(stack = make_dedicated(config, device, stack, complaints));
    if (!stack && !bad && observed && kind == RS_KIND_DEVICE)
        stack = rs_expression_node(&rs_mr_descriptor_cuda, NULL, NULL);
    if (!stack)
        return;
    if (kind == RS_KIND_MANAGED && !rs_expression_set_unit(stack, RS_MANAGED_UNIT, complaints)) {
        rs_expression_free(stack);
        return;
    }
    stack = add_observers(config, device, add_reuse(config, kind, device, stack), complaints);
    stack = checked(kind, stack, complaints);
    if (stack && limit && limit->size.kind == RS_SIZE_BYTES &&
        !rs_config_fits_limit(stack, limit->size.number, NULL, complaints)) {
        rs_expression_free(stack);
        stack = NULL;
    }
    if (limit)
        config->any_limit = limit_source;
    config->stack[kind][device < 0 ? RS_DEVICES_MAX : device] = stack;
}

/* Checks the placeholders of a path now, so that a misspelt one is a bad setting and not a missing
 * report hours later. */
static bool check_path(const struct rs_source *source, const char *path,
                       struct rs_complaints *complaints)
{
    char expanded[PATH_MAX];
    const char *at, *reason;

    if (*path && rs_path_expand(path, expanded, sizeof(expanded), &at, &reason))
        return true;
    if (*path)
        rs_complain(complaints, source, at, "%s", reason);
    else
        rs_complain(complaints, source, path, "a path is missing");
    return false;
}

enum rs_statistics_format rs_config_report(const struct rs_source *source, bool prometheus,
                                           const char **path, struct rs_complaints *complaints)
{
    static const char *const words[] = {"0",  "no",   "off",  "false", "1",    "yes",
                                        "on", "true", "text", "json",  "prom", NULL};
    static const char *const kinds[] = {"text", "json", NULL};
    static const enum rs_statistics_format formats[] = {
        RS_STATISTICS_NONE, RS_STATISTICS_NONE, RS_STATISTICS_NONE,      RS_STATISTICS_NONE,
        RS_STATISTICS_TEXT, RS_STATISTICS_TEXT, RS_STATISTICS_TEXT,      RS_STATISTICS_TEXT,
        RS_STATISTICS_TEXT, RS_STATISTICS_JSON, RS_STATISTICS_PROMETHEUS};
    const char *text = source->text, *nearest;
    size_t length = strcspn(text, ":");
    const char *colon = text[length] ? text + length : NULL;

    for (size_t i = 0; words[i]; i++) {
        if (strlen(words[i]) != length || strncasecmp(words[i], text, length) != 0 ||
            (formats[i] == RS_STATISTICS_PROMETHEUS && !prometheus))
            continue;
        if (colon && check_path(source, colon + 1, complaints))
            *path = colon + 1;
        return formats[i];
    }
    nearest = rs_nearest_word(text, text + length, prometheus ? words + 8 : kinds);
    rs_complain(complaints, source, text,
                nearest      ? "unknown word; did you mean '%s'?"
                : prometheus ? "expected 1, text, text:PATH, json:PATH or prom:PATH%s"
                             : "expected 1, text, text:PATH or json:PATH%s",
                nearest ? nearest : "");
    return RS_STATISTICS_NONE;
}

static enum rs_statistics_format parse_report(const struct rs_config *config,
                                              enum rs_variable_index index, bool prometheus,
                                              const char **path, struct rs_complaints *complaints)
{
    const struct rs_source *source;

    return value_of(config, -1, index, &source)
               ? rs_config_report(source, prometheus, path, complaints)
               : RS_STATISTICS_NONE;
}

static void parse_hooks(struct rs_config *config, struct rs_complaints *complaints)
{
    static const unsigned groups[] = {RS_HOOK_GROUP_DEVICE,  RS_HOOK_GROUP_PINNED,
                                      RS_HOOK_GROUP_MANAGED, RS_HOOK_GROUP_RUNTIME,
                                      RS_HOOK_GROUP_ASYNC,   RS_HOOK_GROUPS_ALL};
    const struct rs_source *source;
    const struct rs_option_value *value = value_of(config, -1, RS_VARIABLE_HOOKS, &source);
    const char *at;

    config->hook_groups = RS_HOOK_GROUPS_DEFAULT;
    if (!value)
        return;
    config->hook_groups = 0;
    for (at = source->text;; at++) {
        const char *end = at + strcspn(at, ",");
        const char *nearest;
        size_t i = 0;
        while (hook_words[i] && (strlen(hook_words[i]) != (size_t)(end - at) ||
                                 strncasecmp(hook_words[i], at, (size_t)(end - at)) != 0))
            i++;
        if (!hook_words[i]) {
            nearest = rs_nearest_word(at, end, hook_words);
            rs_complain(complaints, source, at,
                        nearest ? "unknown group; did you mean '%s'?"
                                : "unknown group; known are device, pinned, managed, runtime, "
                                  "async, all%s",
                        nearest ? nearest : "");
            return;
        }
        config->hook_groups |= groups[i];
        if (groups[i] == RS_HOOK_GROUP_RUNTIME) /* serves at once what the driver door began */
            config->hook_groups |= RS_HOOK_GROUP_DEVICE;
        at = end;
        if (!*at)
            return;
    }
}

static void build_stacks(struct rs_config *config, int device, struct rs_complaints *complaints)
{
    for (int kind = 0; kind < RS_KINDS; kind++) {
        build_stack(config, (enum rs_kind)kind, device, complaints);
        config->anything_set =
            config->anything_set || config->stack[kind][device < 0 ? RS_DEVICES_MAX : device];
    }
}

/* A stack that tracks without RMM_TRACKING reports as if that were 1. */
static void report_what_is_tracked(struct rs_config *config)
{
    if (value_of(config, -1, RS_VARIABLE_TRACKING, NULL))
        return;
    for (int kind = 0; kind < RS_KINDS; kind++)
        for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
            if (rs_expression_find(config->stack[kind][i], &rs_mr_descriptor_tracking))
                config->tracking = RS_STATISTICS_TEXT;
}

unsigned rs_config_parse(char *const *environment, struct rs_complaints *complaints,
                         struct rs_config *config)
{
    unsigned before = complaints->count;
    const struct rs_option_value *value;

    *config = (struct rs_config){.on_error = RS_ON_ERROR_ABORT};
    for (char *const *entry = environment; entry && *entry; entry++) { /* NULL after clearenv() */
        if (!rs_name_begins_as_ours(*entry))
            continue;
        if (!config->values) {
            config->values = calloc(1, sizeof(*config->values));
            if (!config->values)
                return ++complaints->count - before;
        }
        read_entry(config, *entry, complaints);
    }
    if (!config->values)
        return 0; /* a process without our variables costs one walk over its environment */

    value = value_of(config, -1, RS_VARIABLE_ON_ERROR, NULL);
    config->on_error = value ? (enum rs_on_error)value->count : RS_ON_ERROR_ABORT;
    value = value_of(config, -1, RS_VARIABLE_VERBOSE, NULL);
    config->verbose = value && value->count;
    value = value_of(config, -1, RS_VARIABLE_MEMORY_TYPE, NULL);
    config->actual_memory_type = value && value->count == RS_MEMORY_TYPE_ACTUAL;
    config->statistics =
        parse_report(config, RS_VARIABLE_STATISTICS, true, &config->statistics_path, complaints);
    config->tracking =
        parse_report(config, RS_VARIABLE_TRACKING, false, &config->tracking_path, complaints);
    parse_hooks(config, complaints);
    build_stacks(config, -1, complaints);
    /* What is wrong for all devices is told once. */
    for (int device = 0; device < RS_DEVICES_MAX && complaints->count == before; device++)
        if (config->values->device[device])
            build_stacks(config, device, complaints);
    report_what_is_tracked(config);
    return complaints->count - before;
}

const struct rs_expression *rs_config_stack(const struct rs_config *config, enum rs_kind kind,
                                            int device)
{
    bool own =
        device >= 0 && device < RS_DEVICES_MAX && config->values && config->values->device[device];

    return config->stack[kind][own ? device : RS_DEVICES_MAX];
}

unsigned rs_config_count_absent(const struct rs_config *config, int devices,
                                const struct rs_source **first, int *first_device)
{
    unsigned count = 0;

    for (int device = devices; config->values && device < RS_DEVICES_MAX; device++) {
        const struct scope *own = config->values->device[device];
        for (size_t i = 0; own && i < RS_VARIABLES_MAX; i++) {
            if (!own->source[i].text || count++ > 0)
                continue;
            *first = &own->source[i];
            *first_device = device;
        }
    }
    return count;
}

const struct rs_size *rs_config_limit(const struct rs_config *config, int device)
{
    const struct rs_option_value *limit = config->values && device < RS_DEVICES_MAX
                                              ? value_of(config, device, RS_VARIABLE_LIMIT, NULL)
                                              : NULL;

    return limit ? &limit->size : NULL;
}
