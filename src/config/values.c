/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the values of the environment variables, for all devices and for single ones. */
#include "config/values.h"

#include "base/log.h"
#include "config/variable_name.h"

#include <stdlib.h>
#include <string.h>

static void scope_clear(struct rs_config_scope *scope)
{
    if (!scope)
        return;
    for (size_t i = 0; i < RS_VARIABLE_COUNT; i++) {
        free((void *)(uintptr_t)scope->source[i].name);
        free((void *)(uintptr_t)scope->source[i].text);
        rs_option_value_clear(&scope->value[i]);
    }
}

void rs_config_values_free(struct rs_config_values *values)
{
    if (!values)
        return;
    for (size_t i = 0; i < RS_DEVICES_MAX; i++) {
        scope_clear(values->device[i]);
        free(values->device[i]);
    }
    scope_clear(&values->general);
    free(values);
}

static struct rs_config_scope *scope_for(struct rs_config_values *values, int device)
{
    if (device < 0)
        return &values->general;
    if (!values->device[device])
        values->device[device] = calloc(1, sizeof(struct rs_config_scope));
    return values->device[device];
}

/* Where the value of this variable goes, with a copy of the source.  NULL when it has a value, as
 * the first of two equal names counts, as for getenv; or without memory. */
static struct rs_config_scope *claim(struct rs_config_values *values, int device, int index,
                                     const struct rs_source *source)
{
    struct rs_config_scope *scope = scope_for(values, device);

    if (!scope || scope->source[index].text)
        return NULL;
    scope->source[index] = (struct rs_source){strdup(source->name), strdup(source->text)};
    return scope->source[index].name && scope->source[index].text ? scope : NULL;
}

void rs_config_enter(struct rs_config_values *values, int device, int index,
                     const struct rs_source *source, const struct rs_option_value *value)
{
    struct rs_config_scope *scope = claim(values, device, index, source);

    if (scope)
        scope->value[index] = *value;
}

/* An entry of the environment, whose name begins as ours. */
struct entry {
    char name[RS_NAME_BYTES_MAX];
    struct rs_source source;
    struct rs_name read;
};

/* False where it sets nothing. */
static bool take_apart(const char *text, struct entry *entry)
{
    size_t length = strcspn(text, "=");

    if (length >= sizeof(entry->name) || !text[length] ||
        !text[length + 1]) /* NAME= sets nothing */
        return false;
    memcpy(entry->name, text, length);
    entry->name[length] = '\0';
    entry->source = (struct rs_source){entry->name, text + length + 1};
    rs_name_read(entry->name, &entry->read);
    return true;
}

bool rs_config_read_entry(struct rs_config_values *values, const char *text,
                          struct rs_diagnostics *diagnostics)
{
    const struct rs_variable *variable;
    struct rs_config_scope *scope;
    struct entry entry;
    int index;

    if (!take_apart(text, &entry))
        return false;
    if (entry.read.kind == RS_NAME_WRONG)
        rs_diagnose(diagnostics, &entry.source, NULL, "%s", entry.read.reason);
    if (entry.read.kind != RS_NAME_OURS)
        return false;
    index = entry.read.index;
    variable = &rs_variables[index];
    scope = claim(values, entry.read.device, index, &entry.source);
    if (scope)
        (void)rs_option_parse(&variable->option, variable->option.type, &scope->source[index],
                              scope->source[index].text,
                              scope->source[index].text + strlen(scope->source[index].text),
                              diagnostics, &scope->value[index]);
    return true;
}

void rs_config_doubt(const char *text, bool is_error, struct rs_diagnostics *diagnostics)
{
    struct entry entry;

    if (!take_apart(text, &entry) || entry.read.kind != RS_NAME_DOUBTFUL)
        return;
    rs_diagnose(diagnostics, &entry.source, NULL, "%s%s",
                is_error ? "" : "ignored, as no variable of rmmshim is set: ", entry.read.reason);
    diagnostics->count -= !is_error;
}

static void log_asked(void *data, const char *line)
{
    (void)data;
    rs_log_asked("%s", line);
}

void rs_config_say_ignored(char *const *environment)
{
    struct rs_diagnostics asked = {.write = log_asked};
    struct entry entry;

    for (; *environment; environment++)
        if (rs_name_begins_as_ours(*environment) && take_apart(*environment, &entry) &&
            entry.read.kind == RS_NAME_FOREIGN)
            rs_diagnose(&asked, &entry.source, NULL, "%s",
                        strncmp(*environment, "RMM_LOG", 7) == 0
                            ? "belongs to RAPIDS RMM: ignored; rmmshim's event log is RMM_LOG"
                            : "not a variable of rmmshim: ignored");
}

const struct rs_option_value *rs_config_value(const struct rs_config_values *values, int device,
                                              int index, const struct rs_source **source)
{
    const struct rs_config_scope *own = device >= 0 ? values->device[device] : NULL;
    const struct rs_config_scope *scope = own && own->value[index].given ? own : &values->general;

    if (!scope->value[index].given)
        return NULL;
    if (source)
        *source = &scope->source[index];
    return &scope->value[index];
}

bool rs_config_is_own(const struct rs_config_values *values, int device,
                      const struct rs_option_value *value)
{
    const struct rs_config_scope *own = device >= 0 ? values->device[device] : NULL;

    return own && value >= own->value && value < own->value + RS_VARIABLE_COUNT;
}
