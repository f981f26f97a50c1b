/* SPDX-License-Identifier: Apache-2.0 */
/* The environment is read, and each setting takes its form: reports, hooks, stacks. */
#include "config/config.h"

#include "base/path.h"
#include "config/stacks.h"
#include "config/values.h"
#include "config/variable_name.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const hook_words[] = {"device", "pinned", "managed", "runtime",
                                         "async",  "all",    NULL};

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

/* Checks the placeholders of a path now, so that a misspelt one is a bad setting and not a missing
 * report hours later. */
static bool check_path(const struct rs_source *source, const char *path,
                       struct rs_diagnostics *diagnostics)
{
    char expanded[PATH_MAX];
    const char *at, *reason;

    if (*path && rs_path_expand(path, expanded, sizeof(expanded), &at, &reason))
        return true;
    if (*path)
        rs_diagnose(diagnostics, source, at, "%s", reason);
    else
        rs_diagnose(diagnostics, source, path, "a path is missing");
    return false;
}

enum rs_statistics_format rs_config_report(const struct rs_source *source, bool prometheus,
                                           const char **path, struct rs_diagnostics *diagnostics)
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
        if (colon && check_path(source, colon + 1, diagnostics))
            *path = colon + 1;
        return formats[i];
    }
    nearest = rs_nearest_word(text, text + length, prometheus ? words + 8 : kinds);
    rs_diagnose(diagnostics, source, text,
                nearest      ? "unknown word; did you mean '%s'?"
                : prometheus ? "expected 1, text, text:PATH, json:PATH or prom:PATH%s"
                             : "expected 1, text, text:PATH or json:PATH%s",
                nearest ? nearest : "");
    return RS_STATISTICS_NONE;
}

static enum rs_statistics_format parse_report(const struct rs_config *config,
                                              enum rs_variable_index index, bool prometheus,
                                              const char **path, struct rs_diagnostics *diagnostics)
{
    const struct rs_source *source;

    return rs_config_value(config->values, -1, index, &source)
               ? rs_config_report(source, prometheus, path, diagnostics)
               : RS_STATISTICS_NONE;
}

static void parse_hooks(struct rs_config *config, struct rs_diagnostics *diagnostics)
{
    static const unsigned groups[] = {RS_HOOK_GROUP_DEVICE,  RS_HOOK_GROUP_PINNED,
                                      RS_HOOK_GROUP_MANAGED, RS_HOOK_GROUP_RUNTIME,
                                      RS_HOOK_GROUP_ASYNC,   RS_HOOK_GROUPS_ALL};
    const struct rs_source *source;
    const struct rs_option_value *value =
        rs_config_value(config->values, -1, RS_VARIABLE_HOOKS, &source);
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
            rs_diagnose(diagnostics, source, at,
                        nearest ? "unknown group; did you mean '%s'?"
                                : "unknown group; known are device, pinned, managed, runtime, "
                                  "async, all%s",
                        nearest ? nearest : "");
            return;
        }
        config->hook_groups |= groups[i];
        if (groups[i] == RS_HOOK_GROUP_RUNTIME) /* serves at once what the driver layer began */
            config->hook_groups |= RS_HOOK_GROUP_DEVICE;
        at = end;
        if (!*at)
            return;
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

unsigned rs_config_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                         struct rs_config *config)
{
    unsigned before = diagnostics->count;
    const struct rs_option_value *value;
    const struct rs_source *source;

    *config = (struct rs_config){.on_error = RS_ON_ERROR_ABORT};
    for (char *const *entry = environment; entry && *entry; entry++) { /* NULL after clearenv() */
        if (!rs_name_begins_as_ours(*entry))
            continue;
        if (!config->values) {
            config->values = calloc(1, sizeof(*config->values));
            if (!config->values)
                return ++diagnostics->count - before;
        }
        rs_config_read_entry(config->values, *entry, diagnostics);
    }
    if (!config->values)
        return 0; /* a process without our variables costs one walk over its environment */

    value = rs_config_value(config->values, -1, RS_VARIABLE_ON_ERROR, NULL);
    config->on_error = value ? (enum rs_on_error)value->count : RS_ON_ERROR_ABORT;
    value = rs_config_value(config->values, -1, RS_VARIABLE_VERBOSE, NULL);
    config->verbose = value && value->count;
    if (rs_config_value(config->values, -1, RS_VARIABLE_LIMIT_JOB, &source))
        config->limit_job = source;
    if (rs_config_value(config->values, -1, RS_VARIABLE_JOB, &source))
        config->job_path = source->text;
    value = rs_config_value(config->values, -1, RS_VARIABLE_CONTROL, NULL);
    config->control = value ? (enum rs_control)(value->count + 1) : RS_CONTROL_UNASKED;
    value = rs_config_value(config->values, -1, RS_VARIABLE_MEMORY_TYPE, NULL);
    config->actual_memory_type = value && value->count == RS_MEMORY_TYPE_ACTUAL;
    config->statistics =
        parse_report(config, RS_VARIABLE_STATISTICS, true, &config->statistics_path, diagnostics);
    config->tracking =
        parse_report(config, RS_VARIABLE_TRACKING, false, &config->tracking_path, diagnostics);
    parse_hooks(config, diagnostics);
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
    const struct rs_option_value *limit =
        config->values && device < RS_DEVICES_MAX
            ? rs_config_value(config->values, device, RS_VARIABLE_LIMIT, NULL)
            : NULL;

    return limit ? &limit->size : NULL;
}

const struct rs_size *rs_config_limit_job(const struct rs_config *config)
{
    const struct rs_option_value *limit =
        config->values ? rs_config_value(config->values, -1, RS_VARIABLE_LIMIT_JOB, NULL) : NULL;

    return limit ? &limit->size : NULL;
}
