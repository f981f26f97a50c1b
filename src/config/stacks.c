/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the expressions of stacks from the settings, and checks them: whether the leaves
 * (resources that take memory from the driver) may serve their kind of memory, and whether the
 * initial sizes are within the limit. */
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

/* True when the leaf may serve the kind of memory. The second upstream of a stack of device memory,
 * as that of a fallback (is_second), may also be `pinned`. */
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
            ? "'%s' has addresses but no memory: it is only for rmmshim's own tests"
        : kind == RS_KIND_PINNED
            ? "pinned memory must come from the memory resource 'pinned', not from '%s'"
        : kind == RS_KIND_MANAGED
            ? "managed memory must come from the memory resource 'managed', not from '%s'"
            : "device memory cannot come from '%s'; for pinned memory use RMM_PINNED_RESOURCE",
        stack->descriptor->name);
}

/* Returns the initial size of a resource, which it takes at its first allocation, as far as a limit
 * counts it. 0 if the resource has none, if its memory may lie on the host, or if the size is in
 * percent and `environment` is NULL. */
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
                       "'%s' has an initial size of %s, which is above the limit of %s (RMM_LIMIT)",
                       stack->descriptor->name,
                       rs_size_format(initial_bytes(stack, environment), initial),
                       rs_size_format(limit_bytes, limit));
}

/* ---- stacks ---- */

/* A stack that is being built.  Each step adds to it.  A step that returns false has reported what
 * is wrong (or host memory is out); the caller then frees what was built. */
struct build {
    const struct rs_config *config;
    enum rs_kind kind;
    int device;
    struct rs_diagnostics *diagnostics;
    struct rs_expression *stack;
};

static struct rs_setting setting_of(const struct build *build, int index)
{
    return rs_config_value(build->config->values, build->device, index);
}

/* Puts one more resource on the stack.  Returns false when out of host memory. */
static bool stack_on(struct build *build, const struct rs_mr_descriptor *descriptor,
                     const struct rs_source *source)
{
    build->stack = rs_expression_node(descriptor, build->stack, source);
    return build->stack;
}

/* Sets an option of the node to the value `given`, as if the user had given it there.  Does nothing
 * if `node` or `given` is NULL. */
static void set_option(struct rs_expression *node, const char *option,
                       const struct rs_option_value *given)
{
    struct rs_option_value *value = node && given ? rs_expression_value(node, option) : NULL;

    if (!value)
        return;
    *value = *given;
    value->given = true;
}

/* Builds a pool over a leaf; `variable` is the variable that gives the pool's initial size. */
static bool push_pool(struct build *build, int variable, const struct rs_mr_descriptor *leaf)
{
    struct rs_setting initial = setting_of(build, variable);

    if (!stack_on(build, leaf, initial.source) ||
        !stack_on(build, &rs_mr_descriptor_pool, initial.source))
        return false;
    set_option(build->stack, "initial_size", initial.value);
    return true;
}

/* Begins the stack with the leaf that RMM_MANAGED and RMM_ASYNC together select. */
static bool push_leaf(struct build *build)
{
    static const struct rs_mr_descriptor *const leaves[2][2] = {
        {&rs_mr_descriptor_cuda, &rs_mr_descriptor_async},
        {&rs_mr_descriptor_managed, &rs_mr_descriptor_async_managed},
    };
    struct rs_setting managed = setting_of(build, RS_VARIABLE_MANAGED);
    struct rs_setting async = setting_of(build, RS_VARIABLE_ASYNC);

    return stack_on(
        build, leaves[managed.value && managed.value->count][async.value && async.value->count],
        async.source ? async.source : managed.source);
}

/* Adds RMM_FALLBACK's second upstream, which serves requests for which the stack has no memory. It
 * gets a pool if the stack has one: allocating 4 KiB of pinned memory takes 0.5 ms, and freeing
 * managed memory waits (tests/conformance/MEASURED.md). It serves what the limit has no room for,
 * so it is not charged against the limit. */
static bool add_fallback(struct build *build)
{
    struct rs_setting kind = setting_of(build, RS_VARIABLE_FALLBACK);
    bool is_pinned = kind.value && kind.value->count == RS_FALLBACK_PINNED;
    bool is_pooled = build->stack->upstream[0];
    struct build second = {.stack = NULL};

    if (!kind.value)
        return true;
    if (stack_on(&second, is_pinned ? &rs_mr_descriptor_pinned : &rs_mr_descriptor_managed,
                 kind.source)) {
        if (!is_pinned)
            set_option(second.stack, "charged", &(struct rs_option_value){.count = 0});
        if ((!is_pooled || stack_on(&second, &rs_mr_descriptor_pool, kind.source)) &&
            stack_on(build, &rs_mr_descriptor_fallback, kind.source)) {
            build->stack->upstream[1] = second.stack;
            return true;
        }
    }
    rs_expression_free(second.stack);
    return false;
}

static bool has_managed(const struct rs_expression *stack)
{
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && stack->upstream[i]; i++)
        if (has_managed(stack->upstream[i]))
            return true;
    return stack->descriptor->upstream_count == 0 && stack->descriptor->memory == RS_MEMORY_MANAGED;
}

static bool add_prefetch(struct build *build)
{
    struct rs_setting wanted = setting_of(build, RS_VARIABLE_PREFETCH);

    if (!wanted.value || !wanted.value->count)
        return true;
    if (has_managed(build->stack))
        return stack_on(build, &rs_mr_descriptor_prefetch, wanted.source);
    return rs_diagnose(build->diagnostics, wanted.source, NULL,
                       "only managed memory can be prefetched: also set RMM_MANAGED=1 or "
                       "RMM_FALLBACK=managed");
}

/* The settings of a pool (initial, maximum) and of an arena. choose_allocator leaves values only in
 * those of one of the two. */
struct allocator {
    struct rs_setting initial, maximum, arena;
};

static const struct rs_source *source_of_pool(const struct allocator *allocator)
{
    return allocator->maximum.source ? allocator->maximum.source : allocator->initial.source;
}

/* If both a pool and an arena are set, chooses the one that the device's own variables ask for.
 * Returns false after a diagnostic when they ask for neither or for both. */
static bool choose_allocator(const struct build *build, struct allocator *chosen)
{
    bool own_pool = chosen->initial.is_own || chosen->maximum.is_own;
    bool own_arena = chosen->arena.is_own;

    if (!source_of_pool(chosen) || !chosen->arena.source)
        return true;
    if (own_pool == own_arena)
        return rs_diagnose(build->diagnostics, chosen->arena.source, NULL,
                           "an arena is a pool itself, so it cannot be used together with the pool "
                           "of %s: set only one of the two",
                           source_of_pool(chosen)->name);
    if (own_arena)
        chosen->initial.value = chosen->maximum.value = NULL;
    else
        chosen->arena.value = NULL;
    return true;
}

/* Checks that a size in percent is at most 100 %, unless the stack's memory can be overcommitted.
 * Returns false after a diagnostic. */
static bool has_share(const struct build *build, struct rs_setting setting)
{
    return !setting.value || setting.value->size.kind == RS_SIZE_BYTES ||
           setting.value->size.number <= RS_SIZE_WHOLE || rs_expression_overcommits(build->stack) ||
           rs_diagnose(build->diagnostics, setting.source, setting.source->text, "more than 100%%");
}

static bool push_allocator(struct build *build, const struct allocator *allocator)
{
    if (!has_share(build, allocator->initial) || !has_share(build, allocator->maximum) ||
        !has_share(build, allocator->arena))
        return false;
    if (allocator->arena.value) {
        if (!stack_on(build, &rs_mr_descriptor_arena, allocator->arena.source))
            return false;
        set_option(build->stack, "arena_size", allocator->arena.value);
    } else if (allocator->initial.value || allocator->maximum.value) {
        if (!stack_on(build, &rs_mr_descriptor_pool, source_of_pool(allocator)))
            return false;
        set_option(build->stack, "initial_size", allocator->initial.value);
        set_option(build->stack, "maximum_size", allocator->maximum.value);
    }
    return true;
}

static bool add_bins(struct build *build)
{
    struct rs_setting bins = setting_of(build, RS_VARIABLE_BINNING);

    if (!bins.value)
        return true;
    if (!stack_on(build, &rs_mr_descriptor_binning, bins.source))
        return false;
    set_option(build->stack, "minimum_size", &(struct rs_option_value){.size = bins.value->size});
    set_option(build->stack, "maximum_size",
               &(struct rs_option_value){.size = bins.value->size_to});
    return true;
}

/* Builds the stack of the kind from the variables that each describe a part of it. */
static bool build_parts(struct build *build)
{
    struct allocator allocator = {
        .initial = setting_of(build, RS_VARIABLE_POOL_SIZE),
        .maximum = setting_of(build, RS_VARIABLE_POOL_MAX_SIZE),
        .arena = setting_of(build, RS_VARIABLE_ARENA_SIZE),
    };

    if (build->kind == RS_KIND_PINNED)
        return push_pool(build, RS_VARIABLE_PINNED_POOL_SIZE, &rs_mr_descriptor_pinned);
    if (build->kind == RS_KIND_MANAGED)
        return push_pool(build, RS_VARIABLE_MANAGED_POOL_SIZE, &rs_mr_descriptor_managed);
    return choose_allocator(build, &allocator) && push_leaf(build) &&
           push_allocator(build, &allocator) && add_bins(build) && add_fallback(build) &&
           add_prefetch(build);
}

/* Applies RMM_TRACKING: adds `tracking` if the stack has none, and has it note call sites, unless
 * an expression sets the option `stacks` of `tracking`. */
static bool add_tracking(struct build *build)
{
    const struct rs_source *source = &build->config->values->general.source[RS_VARIABLE_TRACKING];
    struct rs_expression *tracking = rs_expression_find(build->stack, &rs_mr_descriptor_tracking);

    if (!tracking) {
        if (!stack_on(build, &rs_mr_descriptor_tracking, source))
            return false;
        tracking = build->stack;
    }
    if (!rs_expression_value(tracking, "stacks")->given)
        set_option(tracking, "stacks", &(struct rs_option_value){.count = true});
    return true;
}

/* If the setting is given, puts the resource `writer` on the stack, which writes to the path of the
 * setting. If the stack has such a resource already, reports that and leaves the stack as it is. */
static bool add_writer(struct build *build, struct rs_setting setting,
                       const struct rs_mr_descriptor *writer, const char *what)
{
    const struct rs_expression *other = rs_expression_find(build->stack, writer);
    struct rs_option_value *path;

    if (!setting.value)
        return true;
    if (other) {
        rs_diagnose(build->diagnostics, setting.source, NULL,
                    "%s already writes a %s: remove '%s' from %s, or unset %s", other->source->name,
                    what, writer->name, other->source->name, setting.source->name);
        return true;
    }
    if (!stack_on(build, writer, setting.source))
        return false;
    path = rs_expression_value(build->stack, "path");
    rs_option_value_clear(path);
    *path = (struct rs_option_value){.given = true, .text = strdup(setting.value->text)};
    return path->text;
}

static bool add_recording(struct build *build)
{
    struct rs_setting record = setting_of(build, RS_VARIABLE_RECORD);

    if (!add_writer(build, record, &rs_mr_descriptor_recording, "recording"))
        return false;
    if (record.value && build->stack->descriptor == &rs_mr_descriptor_recording) {
        set_option(build->stack, "size", setting_of(build, RS_VARIABLE_RECORD_SIZE).value);
        set_option(build->stack, "sites", setting_of(build, RS_VARIABLE_RECORD_SITES).value);
        set_option(build->stack, "kind", &(struct rs_option_value){.count = build->kind});
    }
    return true;
}

/* Adds tracking, statistics, the log and the recording on top of the stack.  There, above `reuse`,
 * they see each free when the program makes it, and not when the block is ready. */
static bool add_observers(struct build *build)
{
    const struct rs_config *config = build->config;

    if (config->tracking != RS_STATISTICS_NONE && !add_tracking(build))
        return false;
    if (config->statistics != RS_STATISTICS_NONE &&
        !rs_expression_find(build->stack, &rs_mr_descriptor_statistics) &&
        !stack_on(build, &rs_mr_descriptor_statistics,
                  &config->values->general.source[RS_VARIABLE_STATISTICS]))
        return false;
    return add_writer(build, setting_of(build, RS_VARIABLE_LOG), &rs_mr_descriptor_logging,
                      "log") &&
           add_recording(build);
}

/* Returns the index of a variable that is set in the scope and describes the whole stack of the
 * kind, or, with `part`, a part of it. -1 if there is none. */
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

/* Builds the stack that the variables ask for, without what is added to every stack. The device's
 * own variables count before those for all devices. The stack stays NULL if no variable asks for
 * one. */
static bool build_asked(struct build *build)
{
    const struct rs_config_values *values = build->config->values;
    const struct rs_config_scope *own = build->device >= 0 ? values->device[build->device] : NULL;
    const struct rs_config_scope *scopes[] = {own, &values->general};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(scopes); i++) {
        int part = scope_gives(scopes[i], build->kind, true);
        int whole = scope_gives(scopes[i], build->kind, false);
        if (whole >= 0 && part >= 0)
            return rs_diagnose(
                build->diagnostics, &scopes[i]->source[part], NULL,
                "%s already says which memory resources are used: remove one of the two settings",
                scopes[i]->source[whole].name);
        if (whole >= 0) {
            build->stack = rs_expression_parse(&scopes[i]->source[whole], build->diagnostics);
            return build->stack;
        }
        if (part >= 0)
            return build_parts(build);
    }
    return true;
}

/* Applies RMM_IPC=dedicated: every block of device memory becomes a driver allocation of its own,
 * since another process must be able to open any block by the driver's handle. */
static bool make_dedicated(struct build *build)
{
    struct rs_setting mode = setting_of(build, RS_VARIABLE_IPC);
    const struct rs_expression *leaf;

    if (!mode.value || mode.value->count != RS_IPC_DEDICATED)
        return true;
    build->stack = rs_expression_without_allocators(build->stack);
    for (leaf = build->stack; leaf->upstream[0];)
        leaf = leaf->upstream[0];
    return leaf->descriptor == &rs_mr_descriptor_cuda ||
           rs_diagnose(build->diagnostics, mode.source, NULL,
                       "other processes cannot open memory of the resource '%s', only memory of "
                       "'cuda': use 'cuda', or remove RMM_IPC",
                       leaf->descriptor->name);
}

/* Adds `reuse`, which hands out a freed block when earlier work is done; with RMM_FREE=wait its
 * frees wait. With RMM_FREE=immediate only pinned and managed memory get it: the host uses such
 * memory outside of any stream, so that reuse at once would not be safe. */
static bool add_reuse(struct build *build)
{
    const struct rs_option_value *mode = setting_of(build, RS_VARIABLE_FREE).value;

    if (!mode || mode->count != RS_FREE_MODE_IMMEDIATE || build->kind != RS_KIND_DEVICE)
        build->stack = rs_expression_insert_reuse(build->stack);
    if (build->stack && mode && mode->count == RS_FREE_MODE_WAIT)
        set_option(rs_expression_find(build->stack, &rs_mr_descriptor_reuse), "free", mode);
    return build->stack;
}

/* Checks that the stack can serve its kind of memory. */
static bool check_stack(const struct build *build)
{
    return check_leaves(build->kind, build->stack, false, build->diagnostics) &&
           rs_expression_validate(build->stack, NULL, build->diagnostics);
}

struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics)
{
    static struct rs_config_values nothing;
    struct rs_config set = *config;
    struct build build = {&set, RS_KIND_DEVICE, -1, diagnostics,
                          rs_expression_parse(source, diagnostics)};

    if (!set.values)
        set.values = &nothing;
    if (build.stack && make_dedicated(&build) && add_reuse(&build) && check_stack(&build))
        return build.stack;
    rs_expression_free(build.stack);
    return NULL;
}

/* True when the settings ask for device memory to be counted, limited or controlled, for which
 * there must be a stack. */
static bool is_observed(const struct build *build)
{
    const struct rs_config *config = build->config;

    return config->statistics != RS_STATISTICS_NONE || setting_of(build, RS_VARIABLE_LIMIT).value ||
           config->control != RS_CONTROL_UNASKED || config->limit_job || config->nvtx_phases ||
           config->tracking != RS_STATISTICS_NONE || config->on_oom != RS_STATISTICS_NONE ||
           setting_of(build, RS_VARIABLE_LOG).value || setting_of(build, RS_VARIABLE_RECORD).value;
}

/* Applies RMM_IPC to the stack for device memory. If no variable asks for a stack, but memory is to
 * be counted, limited or controlled, the stack is the leaf `cuda` alone. */
static bool build_device(struct build *build)
{
    if (build->stack)
        return make_dedicated(build);
    return !is_observed(build) || stack_on(build, &rs_mr_descriptor_cuda, NULL);
}

/* Reports that host memory was lacking for a stack: nothing else was wrong, but it could not be
 * built. The diagnostic names the first variable that is set. */
static void diagnose_no_memory(const struct build *build)
{
    const struct rs_config_values *values = build->config->values;
    const struct rs_config_scope *own = build->device >= 0 ? values->device[build->device] : NULL;
    const struct rs_config_scope *scope = own ? own : &values->general;

    for (int i = 0; i < RS_VARIABLE_COUNT; i++)
        if (scope->source[i].text) {
            rs_diagnose(build->diagnostics, &scope->source[i], NULL,
                        "no host memory is left to set up the memory resources");
            return;
        }
}

void rs_config_build_stack(struct rs_config *config, enum rs_kind kind, int device,
                           struct rs_diagnostics *diagnostics)
{
    struct build build = {config, kind, device, diagnostics, NULL};
    unsigned before = diagnostics->count;
    struct rs_setting limit = setting_of(&build, RS_VARIABLE_LIMIT);
    bool is_good = build_asked(&build) && (kind != RS_KIND_DEVICE || build_device(&build));

    if (is_good && !build.stack)
        return;
    if (is_good && limit.value)
        config->any_limit = limit.source;
    is_good = is_good &&
              (kind != RS_KIND_MANAGED ||
               rs_expression_set_unit(build.stack, RS_MANAGED_UNIT, diagnostics)) &&
              add_reuse(&build) && add_observers(&build) && check_stack(&build) &&
              (!limit.value || limit.value->size.kind != RS_SIZE_BYTES ||
               rs_config_fits_limit(build.stack, limit.value->size.number, NULL, diagnostics));
    if (is_good) {
        config->stack[kind][device < 0 ? RS_DEVICES_MAX : device] = build.stack;
        return;
    }
    rs_expression_free(build.stack);
    if (diagnostics->count == before)
        diagnose_no_memory(&build);
}
