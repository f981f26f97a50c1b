/* SPDX-License-Identifier: Apache-2.0 */
#include "config/compat.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "CUDA_DEVICE_MEMORY_LIMIT";

enum { NAME_BYTES = sizeof(prefix) + 3 /* _63 */ };

/* One of HAMi's variables. */
struct alias {
    char name[NAME_BYTES];
    int device; /* -1: all */
    const char *text;
};

/* Takes an entry of the environment apart.  False where it is another variable, or has no value. */
static bool read_alias(const char *entry, struct alias *alias)
{
    size_t length = strcspn(entry, "="), begin = sizeof(prefix) - 1;
    const char *suffix = entry + begin;

    if (strncmp(entry, prefix, begin) != 0 || length >= sizeof(alias->name) || !entry[length] ||
        !entry[length + 1])
        return false;
    snprintf(alias->name, sizeof(alias->name), "%.*s", (int)length, entry);
    alias->device = -1;
    alias->text = entry + length + 1;
    if (length == begin)
        return true;
    if (length < begin + 2 || suffix[0] != '_' ||
        strspn(suffix + 1, "0123456789") != length - begin - 1 ||
        (suffix[1] == '0' && length > begin + 2)) /* it writes _1, so _01 is another variable */
        return false;
    alias->device = atoi(suffix + 1);
    return alias->device < RS_DEVICES_MAX;
}

static uint64_t unit_of(char suffix)
{
    switch (suffix | 0x20) {
    case 'g':
        return 1ull << 30;
    case 'm':
        return 1ull << 20;
    case 'k':
        return 1ull << 10;
    default:
        return 1;
    }
}

/* A number as strtoul reads it with base 0 (0x: hexadecimal, 0: octal), and one letter or none.
 * HAMi-core stops at the first other character, so it reads 8GiB as 8 bytes; here that is wrong. */
static bool read_bytes(const struct rs_source *source, struct rs_diagnostics *diagnostics,
                       uint64_t *bytes)
{
    const char *text = source->text;
    uint64_t unit;
    char *end;

    errno = 0;
    *bytes = strtoull(text, &end, 0);
    unit = unit_of(*end);
    if (text[0] < '0' || text[0] > '9')
        rs_diagnose(diagnostics, source, text, "a whole number is expected, as in 8g or 8192m");
    else if (end[0] && (unit == 1 || end[1]))
        rs_diagnose(diagnostics, source, unit > 1 ? end + 1 : end,
                    "only one of the letters g, m and k may follow the number, as in 8192m");
    else if (errno == ERANGE || __builtin_mul_overflow(*bytes, unit, bytes) ||
             *bytes > RS_SIZE_ADDRESSABLE)
        rs_diagnose(diagnostics, source, text, "larger than any memory");
    else
        return true;
    return false;
}

static void say_nothing(void *data, const char *line)
{
    (void)data, (void)line;
}

bool rs_config_is_compat_limit(const char *entry, int *device)
{
    struct rs_diagnostics diagnostics = {.write = say_nothing};
    struct rs_source source;
    struct alias alias;
    uint64_t bytes;

    if (!read_alias(entry, &alias))
        return false;
    source = (struct rs_source){alias.name, alias.text};
    *device = alias.device;
    return !read_bytes(&source, &diagnostics, &bytes) || bytes > 0;
}

static bool is_asked(const struct rs_config_values *values)
{
    return rs_config_value(values, -1, RS_VARIABLE_COMPAT, NULL) != NULL;
}

/* RMM_LIMIT or RMM_LIMIT_<N>, by which the alias is not taken; NULL: none. */
static const char *limit_in_front(const struct rs_config_values *values, int device)
{
    const struct rs_source *source = NULL;

    if (rs_config_value(values, device, RS_VARIABLE_LIMIT, &source) && source->name[0] == 'R')
        return source->name;
    return NULL;
}

void rs_config_read_compat(struct rs_config_values *values, char *const *environment,
                           struct rs_diagnostics *diagnostics)
{
    struct alias alias;

    if (!is_asked(values))
        return;
    for (; *environment; environment++) {
        struct rs_option_value value = {.given = true, .size = {.kind = RS_SIZE_BYTES}};
        struct rs_source source = {alias.name, NULL};

        if (!read_alias(*environment, &alias) || limit_in_front(values, alias.device))
            continue;
        source.text = alias.text;
        if (read_bytes(&source, diagnostics, &value.size.number) && value.size.number > 0)
            rs_config_enter(values, alias.device, RS_VARIABLE_LIMIT, &source, &value);
    }
}

void rs_config_say_compat(const struct rs_config_values *values, char *const *environment)
{
    struct alias alias;

    for (; is_asked(values) && *environment; environment++) {
        const struct rs_source *source = NULL;
        const char *front;

        if (!read_alias(*environment, &alias))
            continue;
        front = limit_in_front(values, alias.device);
        (void)rs_config_value(values, alias.device, RS_VARIABLE_LIMIT, &source);
        if (front)
            rs_log_asked("%s=%s is ignored, because %s is set", alias.name, alias.text, front);
        else if (source && strcmp(source->name, alias.name) == 0)
            rs_log_asked("%s=%s is taken as RMM_LIMIT%s", alias.name, alias.text,
                         alias.name + sizeof(prefix) - 1);
        else
            rs_log_asked("%s=%s sets no limit", alias.name, alias.text);
    }
}
