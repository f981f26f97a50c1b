/* SPDX-License-Identifier: Apache-2.0 */
/* Variables with a reader of their own: reports, groups of hooks, control, phases, the limit of
 * a job. */
#include "config/readers.h"

#include "base/output.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

static const char *const hook_words[] = {"device", "pinned", "managed", "runtime",
                                         "async",  "all",    NULL};

/* Checks the placeholders of a path now, so that a misspelt one is a bad setting and not a missing
 * report hours later. */
static bool check_path(const struct rs_source *source, const char *path,
                       struct rs_diagnostics *diagnostics)
{
    RS_PATH_BUFFER(expanded);
    const char *at, *reason;

    /* Without memory it is seen later. */
    if (*path && (!expanded || rs_path_expand(path, expanded, PATH_MAX, &at, &reason)))
        return true;
    if (*path)
        rs_diagnose(diagnostics, source, at, "%s", reason);
    else
        rs_diagnose(diagnostics, source, path, "a path is missing");
    return false;
}

static const char *const format_words[] = {"0",    "no",   "off",  "false", "1",        "yes", "on",
                                           "true", "text", "json", "prom",  "prom-all", NULL};

bool rs_config_is_report(const char *text)
{
    size_t length = strcspn(text, ":");

    for (size_t i = 0; format_words[i]; i++)
        if (strlen(format_words[i]) == length && strncasecmp(format_words[i], text, length) == 0)
            return true;
    return strcasecmp(text, "none") == 0;
}

/* False when the text begins with none of the words. */
static bool read_format(const struct rs_source *source, bool prometheus,
                        enum rs_statistics_format *format, const char **path,
                        struct rs_diagnostics *diagnostics)
{
    static const enum rs_statistics_format formats[] = {
        RS_STATISTICS_NONE, RS_STATISTICS_NONE,       RS_STATISTICS_NONE,
        RS_STATISTICS_NONE, RS_STATISTICS_TEXT,       RS_STATISTICS_TEXT,
        RS_STATISTICS_TEXT, RS_STATISTICS_TEXT,       RS_STATISTICS_TEXT,
        RS_STATISTICS_JSON, RS_STATISTICS_PROMETHEUS, RS_STATISTICS_PROMETHEUS_ALL};
    const char *text = source->text;
    size_t length = strcspn(text, ":");
    const char *colon = text[length] ? text + length : NULL;

    for (size_t i = 0; format_words[i]; i++) {
        if (strlen(format_words[i]) != length || strncasecmp(format_words[i], text, length) != 0 ||
            (formats[i] >= RS_STATISTICS_PROMETHEUS && !prometheus))
            continue;
        if (colon && check_path(source, colon + 1, diagnostics))
            *path = colon + 1;
        *format = formats[i];
        return true;
    }
    return false;
}

static void say_unknown_format(const struct rs_source *source, const char *const *words,
                               const char *expected, struct rs_diagnostics *diagnostics)
{
    const char *text = source->text;
    const char *nearest = rs_nearest_word(text, text + strcspn(text, ":"), words);

    rs_diagnose(diagnostics, source, text,
                nearest ? "unknown value; did you mean '%s'?" : "expected %s",
                nearest ? nearest : expected);
}

enum rs_statistics_format rs_config_report(const struct rs_source *source, bool prometheus,
                                           const char **path, struct rs_diagnostics *diagnostics)
{
    static const char *const kinds[] = {"text", "json", NULL};
    enum rs_statistics_format format = RS_STATISTICS_NONE;

    if (!read_format(source, prometheus, &format, path, diagnostics))
        say_unknown_format(source, prometheus ? format_words + 8 : kinds,
                           prometheus ? "1, text, text:PATH, json:PATH, prom:PATH or prom-all:PATH"
                                      : "1, text, text:PATH or json:PATH",
                           diagnostics);
    return format;
}

void rs_config_read_statistics(const struct rs_option_value *value, const struct rs_source *source,
                               struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    (void)value;
    config->statistics = rs_config_report(source, true, &config->statistics_path, diagnostics);
}

void rs_config_read_tracking(const struct rs_option_value *value, const struct rs_source *source,
                             struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    (void)value;
    config->tracking = rs_config_report(source, false, &config->tracking_path, diagnostics);
}

void rs_config_read_on_oom(const struct rs_option_value *value, const struct rs_source *source,
                           struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    static const char *const words[] = {"text", "json", "none", NULL};

    (void)value;
    config->on_oom_given = true;
    if (strcasecmp(source->text, "none") != 0 &&
        !read_format(source, false, &config->on_oom, &config->on_oom_path, diagnostics))
        say_unknown_format(source, words, "text, text:PATH, json:PATH or none", diagnostics);
}

void rs_config_read_hooks(const struct rs_option_value *value, const struct rs_source *source,
                          struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    static const unsigned groups[] = {RS_HOOK_GROUP_DEVICE,  RS_HOOK_GROUP_PINNED,
                                      RS_HOOK_GROUP_MANAGED, RS_HOOK_GROUP_RUNTIME,
                                      RS_HOOK_GROUP_ASYNC,   RS_HOOK_GROUPS_ALL};
    const char *at;

    (void)value;
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

void rs_config_read_control(const struct rs_option_value *value, const struct rs_source *source,
                            struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    (void)source;
    (void)diagnostics;
    config->control = (enum rs_control)(RS_CONTROL_CALLS + value->count);
}

void rs_config_read_phases(const struct rs_option_value *value, const struct rs_source *source,
                           struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    (void)value;
    (void)source;
    (void)diagnostics;
    config->nvtx_phases = true; /* the only word there is */
}

void rs_config_read_limit_job(const struct rs_option_value *value, const struct rs_source *source,
                              struct rs_diagnostics *diagnostics, struct rs_config *config)
{
    if (value->size.kind == RS_SIZE_OF_FREE) {
        rs_diagnose(diagnostics, source, strchr(source->text, '%') + 1,
                    "use a percentage of the device's total memory, as in 80%%: the free memory "
                    "differs from process to process");
        return;
    }
    config->limit_job = source;
    config->limit_job_size = value->size;
}
