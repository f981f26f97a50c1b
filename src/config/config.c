/* SPDX-License-Identifier: Apache-2.0 */
/* The environment is read, and each setting takes its form: reports, hooks, stacks. */
#include "config/config.h"

#include "config/compat.h"
#include "config/stacks.h"
#include "config/values.h"
#include "config/variable_name.h"
#include "shared/job.h"

#include <stdlib.h>
#include <string.h>

void rs_config_free(struct rs_config *config)
{
    if (!config->values)
        return;
    for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            rs_expression_free(config->stack[kind][i]);
    rs_config_values_free(config->values);
    *config = (struct rs_config){.anything_set = false};
}

/* What the process's own variables are set to (those with a field, config/variables.def). */
static void fill_fields(struct rs_config *config, struct rs_diagnostics *diagnostics)
{
    for (int i = 0; i < RS_VARIABLE_COUNT; i++) {
        const struct rs_variable *variable = &rs_variables[i];
        const struct rs_source *source;
        const struct rs_option_value *value = rs_config_value(config->values, -1, i, &source);

        if (value && variable->read)
            variable->read(value, source, diagnostics, config);
        else if (value && variable->fills_a_field)
            rs_option_store(&variable->option, value, config, 0, 0);
    }
}

static void build_stacks(struct rs_config *config, int device, struct rs_diagnostics *diagnostics)
{
    for (int kind = 0; kind < RS_KINDS; kind++) {
        rs_config_build_stack(config, (enum rs_kind)kind, device, diagnostics);
        config->anything_set =
            config->anything_set || config->stack[kind][device < 0 ? RS_DEVICES_MAX : device];
    }
}

/* A stack that tracks without RMM_TRACKING reports as if that were 1. */
static void report_what_is_tracked(struct rs_config *config)
{
    if (rs_config_value(config->values, -1, RS_VARIABLE_TRACKING, NULL))
        return;
    for (int kind = 0; kind < RS_KINDS; kind++)
        for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
            if (rs_expression_find(config->stack[kind][i], &rs_mr_descriptor_tracking))
                config->tracking = RS_STATISTICS_TEXT;
}

/* Who started the process by `rmmshim run` has asked for something. */
static bool is_of_a_run(const char *entry)
{
    return strncmp(entry, RS_JOB_VARIABLE "=", sizeof(RS_JOB_VARIABLE)) == 0 &&
           entry[sizeof(RS_JOB_VARIABLE)];
}

unsigned rs_config_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                         struct rs_config *config)
{
    unsigned before = diagnostics->count;
    bool is_ours = diagnostics->doubts_are_errors;

    *config = (struct rs_config){.on_error = RS_ON_ERROR_ABORT};
    for (char *const *entry = environment; entry && *entry; entry++) { /* NULL after clearenv() */
        is_ours = is_ours || is_of_a_run(*entry);
        if (!rs_name_begins_as_ours(*entry))
            continue;
        if (!config->values) {
            config->values = calloc(1, sizeof(*config->values));
            if (!config->values)
                return ++diagnostics->count - before;
        }
        is_ours = rs_config_read_entry(config->values, *entry, diagnostics) || is_ours;
    }
    if (!config->values)
        return 0; /* a process without our variables costs one walk over its environment */

    for (char *const *entry = environment; *entry; entry++)
        if (rs_name_begins_as_ours(*entry))
            rs_config_doubt(*entry, is_ours, diagnostics);
    rs_config_read_compat(config->values, environment, diagnostics);
    config->hook_groups = RS_HOOK_GROUPS_DEFAULT;
    fill_fields(config, diagnostics);
    build_stacks(config, -1, diagnostics);
    /* What is wrong for all devices is told once. */
    for (int device = 0; device < RS_DEVICES_MAX && diagnostics->count == before; device++)
        if (config->values->device[device])
            build_stacks(config, device, diagnostics);
    report_what_is_tracked(config);
    return diagnostics->count - before;
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
        const struct rs_config_scope *own = config->values->device[device];
        for (size_t i = 0; own && i < RS_VARIABLE_COUNT; i++) {
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
    const struct rs_option_value *limit =
        config->values && device < RS_DEVICES_MAX
            ? rs_config_value(config->values, device, RS_VARIABLE_LIMIT, NULL)
            : NULL;

    return limit ? &limit->size : NULL;
}
