/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include "base/output.h"
#include "base/process.h"
#include "shared/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- texts that have a form of their own ----
 *
 * A row of config/variables.def names the function that reads its text by READ_BY. That function is
 * only called if the variable is set. */

/* Checks the placeholders of a path while the settings are read. A misspelt one is a bad setting
 * now, and not a missing report hours later. Returns false after a diagnostic. */
static bool check_path(const struct rs_source *source, const char *path,
                       struct rs_diagnostics *diagnostics)
{
    RS_PATH_BUFFER(expanded);
    const char *at, *reason;

    /* Without host memory for the expanded path, a mistake shows only when the path is used. */
    if (*path && (!expanded || rs_path_expand(path, expanded, PATH_MAX, &at, &reason)))
        return true;
    return *path ? rs_diagnose(diagnostics, source, at, "%s", reason)
                 : rs_diagnose(diagnostics, source, path, "a path is missing");
}

static const char *const format_words[] = {"0",    "no",   "off",  "false", "1",        "yes", "on",
                                           "true", "text", "json", "prom",  "prom-all", NULL};

bool rs_config_is_report(const char *text)
{
    return rs_option_word(format_words, text, text + strcspn(text, ":")) >= 0 ||
           strcasecmp(text, "none") == 0;
}

/* What the text of a variable that asks for a report may contain. */
struct report_kind {
    /* Whether the formats for Prometheus, and the word "none", are allowed. */
    bool prometheus, none;
    const char *words[5]; /* the words that a misspelt one is compared with */
    const char *expected;
};

static const struct report_kind
    statistics_kind = {true,
                       false,
                       {"text", "json", "prom", "prom-all"},
                       "expected 1, text, text:PATH, json:PATH, prom:PATH or prom-all:PATH"},
    tracking_kind = {false, false, {"text", "json"}, "expected 1, text, text:PATH or json:PATH"},
    out_of_memory_kind = {
        false, true, {"text", "json", "none"}, "expected text, text:PATH, json:PATH or none"};

static enum rs_statistics_format read_report(const struct report_kind *kind,
                                             const struct rs_source *source, const char **path,
                                             struct rs_diagnostics *diagnostics)
{
    static const enum rs_statistics_format formats[] = {
        RS_STATISTICS_NONE, RS_STATISTICS_NONE,       RS_STATISTICS_NONE,
        RS_STATISTICS_NONE, RS_STATISTICS_TEXT,       RS_STATISTICS_TEXT,
        RS_STATISTICS_TEXT, RS_STATISTICS_TEXT,       RS_STATISTICS_TEXT,
        RS_STATISTICS_JSON, RS_STATISTICS_PROMETHEUS, RS_STATISTICS_PROMETHEUS_ALL};
    const char *text = source->text, *colon = text + strcspn(text, ":"), *nearest;
    int found = rs_option_word(format_words, text, colon);

    if (kind->none && strcasecmp(text, "none") == 0)
        return RS_STATISTICS_NONE;
    if (found < 0 || (formats[found] >= RS_STATISTICS_PROMETHEUS && !kind->prometheus)) {
        nearest = rs_nearest_word(text, colon, kind->words);
        rs_diagnose(diagnostics, source, text, nearest ? "unknown value; did you mean '%s'?" : "%s",
                    nearest ? nearest : kind->expected);
        return RS_STATISTICS_NONE;
    }
    if (*colon && check_path(source, colon + 1, diagnostics))
        *path = colon + 1;
    return formats[found];
}

enum rs_statistics_format rs_config_report(const struct rs_source *source, const char **path,
                                           struct rs_diagnostics *diagnostics)
{
    return read_report(&statistics_kind, source, path, diagnostics);
}

static void read_statistics(const struct rs_reading *reading)
{
    reading->config->statistics = read_report(
        &statistics_kind, reading->source, &reading->config->statistics_path, reading->diagnostics);
}

static void read_tracking(const struct rs_reading *reading)
{
    reading->config->tracking = read_report(&tracking_kind, reading->source,
                                            &reading->config->tracking_path, reading->diagnostics);
}

static void read_on_oom(const struct rs_reading *reading)
{
    reading->config->on_oom_given = true;
    reading->config->on_oom = read_report(&out_of_memory_kind, reading->source,
                                          &reading->config->on_oom_path, reading->diagnostics);
}

static void read_hooks(const struct rs_reading *reading)
{
    static const char *const words[] = {"device", "pinned", "managed", "runtime",
                                        "async",  "all",    NULL};
    static const unsigned groups[] = {
        RS_HOOK_GROUP_DEVICE,
        RS_HOOK_GROUP_PINNED,
        RS_HOOK_GROUP_MANAGED,
        RS_HOOK_GROUP_RUNTIME | RS_HOOK_GROUP_DEVICE, /* the runtime layer only serves what the
                                                         driver layer serves too */
        RS_HOOK_GROUP_ASYNC,
        RS_HOOK_GROUPS_ALL,
    };
    const char *at = reading->source->text, *end;

    reading->config->hook_groups = 0;
    for (;; at = end + 1) {
        int found = rs_option_word(words, at, end = at + strcspn(at, ","));
        const char *nearest = found < 0 ? rs_nearest_word(at, end, words) : NULL;
        if (found < 0) {
            rs_diagnose(reading->diagnostics, reading->source, at,
                        nearest ? "unknown group of functions; did you mean '%s'?"
                                : "unknown group of functions; the possible groups are device, "
                                  "pinned, managed, runtime, async, all%s",
                        nearest ? nearest : "");
            return;
        }
        reading->config->hook_groups |= groups[found];
        if (!*end)
            return;
    }
}

static void read_control(const struct rs_reading *reading)
{
    reading->config->control = (enum rs_control)(RS_CONTROL_CALLS + reading->value->count);
}

static void read_phases(const struct rs_reading *reading)
{
    reading->config->nvtx_phases = true; /* "nvtx" is the only allowed word */
}

static void read_limit_job(const struct rs_reading *reading)
{
    const struct rs_source *source = reading->source;

    if (reading->value->size.kind == RS_SIZE_OF_FREE) {
        rs_diagnose(reading->diagnostics, source, strchr(source->text, '%') + 1,
                    "the free memory differs from process to process, so it cannot set a limit for "
                    "all of them: use a percentage of the total memory, as in 80%%");
        return;
    }
    reading->config->limit_job = source;
    reading->config->limit_job_size = reading->value->size;
}

/* ---- the table ---- */

const char *const rs_kind_names[RS_KINDS] = {"device", "pinned", "managed"};
const char *const rs_kind_texts[RS_KINDS] = {"", ", pinned memory", ", managed memory"};
const int rs_kind_whole[RS_KINDS] = {RS_VARIABLE_RESOURCE, RS_VARIABLE_PINNED_RESOURCE,
                                     RS_VARIABLE_MANAGED_RESOURCE};

/* The type of option whose values have the C type of the field. A field of another type does not
 * compile. */
#define FIELD(field)                                                                               \
    _Generic(((struct rs_config *)0)->field, bool                                                  \
             : RS_OPTION_BOOLEAN, unsigned                                                         \
             : RS_OPTION_WORD, uint64_t                                                            \
             : RS_OPTION_COUNT, const char *                                                       \
             : RS_OPTION_TEXT)
#define ANY_TYPE -1
#define READ_BY(function, field)                                                                   \
    (sizeof(char[offsetof(struct rs_config, field) + 1]) ? ANY_TYPE : 0)
#define EARLY      ANY_TYPE
#define PER_DEVICE ANY_TYPE
#define PART       ANY_TYPE
#define VARIABLE(name, value_type, where, ...)                                                     \
    _Static_assert((int)(where) == ANY_TYPE || (int)(where) == RS_OPTION_##value_type,             \
                   "the field of RMM_" #name " has another type than its values");
#include "config/variables.def"
#undef FIELD
#undef READ_BY
#undef EARLY
#undef PER_DEVICE
#undef PART

#define FIELD(field)             .fills_a_field = true, .option.offset = offsetof(struct rs_config, field)
#define READ_BY(function, field) .read = (function)
#define EARLY                    .fills_a_field = false
#define PER_DEVICE               .per_device = true
#define PART                     PER_DEVICE, .builds_a_part = true
#define IN(word)                 .group = RS_GROUP_##word
#define COMMON(word)             IN(word), .is_common = true
#define REPORT                   .is_report = true
#define WORDS(...)                                                                                 \
    .option.words = (const char *const[])                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define GUIDE_WORDS(...)                                                                           \
    .guide_words = {                                                                               \
        __VA_ARGS__,                                                                               \
    }
#define OF_MEMORY     .option.unit_below = 1 << 20, .option.maximum = RS_SIZE_ADDRESSABLE
#define OF_ANY_MEMORY OF_MEMORY, .option.beyond_whole = true
/* Makes a row; the arguments after `where` are the help and fields that the row sets itself. */
#define VARIABLE(index, value_type, where, ...)                                                    \
    {.option.name = "RMM_" #index,                                                                 \
     .option.type = RS_OPTION_##value_type,                                                        \
     where,                                                                                        \
     .option.help = __VA_ARGS__},

const struct rs_variable rs_variables[] = {
#include "config/variables.def"
    {.option = {.name = NULL}},
};

_Static_assert(RS_ARRAY_LENGTH(rs_variables) == RS_VARIABLE_COUNT + 1, "a row each, and the end");

/* ---- the settings ---- */

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

/* Fills in the fields of all variables that have one (config/variables.def). */
static void fill_fields(struct rs_config *config, struct rs_diagnostics *diagnostics)
{
    for (int i = 0; i < RS_VARIABLE_COUNT; i++) {
        const struct rs_variable *variable = &rs_variables[i];
        struct rs_setting set = rs_config_value(config->values, -1, i);

        if (set.value && variable->read)
            variable->read(&(struct rs_reading){set.value, set.source, diagnostics, config});
        else if (set.value && variable->fills_a_field)
            rs_option_store(&variable->option, set.value, config, 0, 0);
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

/* If an expression has `tracking` and RMM_TRACKING is not set, asks for a leak report as
 * RMM_TRACKING=1 does. */
static void report_what_is_tracked(struct rs_config *config)
{
    if (rs_config_value(config->values, -1, RS_VARIABLE_TRACKING).value)
        return;
    for (int kind = 0; kind < RS_KINDS; kind++)
        for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
            if (rs_expression_find(config->stack[kind][i], &rs_mr_descriptor_tracking))
                config->tracking = RS_STATISTICS_TEXT;
}

/* True for the entry by which `rmmshim run` marks its processes. The user of such a process has
 * asked for something even if no variable is set. */
static bool is_of_a_run(const char *entry)
{
    return strncmp(entry, RS_JOB_VARIABLE "=", sizeof(RS_JOB_VARIABLE)) == 0 &&
           entry[sizeof(RS_JOB_VARIABLE)];
}

/* Reports variables that describe a recording if none is asked for. Otherwise the user would not
 * notice before the recording is needed that there is none. */
static void check_recording(const struct rs_config_scope *general,
                            struct rs_diagnostics *diagnostics)
{
    static const int described[] = {RS_VARIABLE_RECORD_SIZE, RS_VARIABLE_RECORD_SITES};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(described); i++)
        if (general->value[described[i]].given && !general->source[RS_VARIABLE_RECORD].text)
            rs_diagnose(diagnostics, &general->source[described[i]], NULL,
                        "nothing is recorded without RMM_RECORD, the path of the recording");
}

static void diagnose_no_memory(const char *entry, struct rs_diagnostics *diagnostics)
{
    size_t length = strcspn(entry, "=");
    char name[RS_NAME_BYTES_MAX];

    snprintf(name, sizeof(name), "%.*s", (int)length, entry);
    rs_diagnose(diagnostics, &(struct rs_source){name, entry + length + (entry[length] == '=')},
                NULL, "no host memory is left to read this setting");
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
            if (!config->values) {
                diagnose_no_memory(*entry, diagnostics);
                return diagnostics->count - before;
            }
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
    check_recording(&config->values->general, diagnostics);
    build_stacks(config, -1, diagnostics);
    /* Skipped after a mistake, which each device would report again if it concerns all devices. */
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
    const struct rs_option_value *limit = NULL;

    if (config->values && device < RS_DEVICES_MAX)
        limit = rs_config_value(config->values, device, RS_VARIABLE_LIMIT).value;
    return limit ? &limit->size : NULL;
}

/* ---- advice ---- */

/* True when compute-sanitizer runs this process, by the variable that it sets: the first one since
 * 2025, the second one before. */
static bool is_sanitizer_there(void)
{
    return rs_environment_get("NV_SANITIZER_INJECTION_PORT_BASE") ||
           rs_environment_get("NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN");
}

static bool shares_allocations(struct rs_expression *stack)
{
    return rs_expression_find(stack, &rs_mr_descriptor_pool) ||
           rs_expression_find(stack, &rs_mr_descriptor_arena) ||
           rs_expression_find(stack, &rs_mr_descriptor_fixed_size) ||
           rs_expression_find(stack, &rs_mr_descriptor_binning) ||
           rs_expression_find(stack, &rs_mr_descriptor_virtual);
}

void rs_sanitizer_advise(const struct rs_config *config)
{
    if (!is_sanitizer_there())
        return;
    for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
        if (shares_allocations(config->stack[RS_KIND_DEVICE][i])) {
            rs_log("compute-sanitizer sees a pool as a single allocation, so it misses accesses "
                   "that leave a block but stay within the pool: set RMM_RESOURCE=cuda; or, to "
                   "find wrong writes without compute-sanitizer, set RMM_FREE=wait "
                   "RMM_RESOURCE='poison(pool(cuda))'");
            return;
        }
}
