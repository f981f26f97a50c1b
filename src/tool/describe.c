/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add(char text[DESCRIBE_BYTES], const char *format, ...) RS_PRINTF(2, 3);

static void add(char text[DESCRIBE_BYTES], const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + length, DESCRIBE_BYTES - length, format, arguments);
    va_end(arguments);
}

const char *describe_kind(const struct rs_mr_descriptor *descriptor)
{
    static const char *const kinds[] = {"leaf", "over one", "over two"};

    return kinds[descriptor->upstream_count];
}

const char *describe_free(const struct rs_mr_descriptor *descriptor)
{
    switch (descriptor->frees) {
    case RS_FREE_WAITS:
        return "waits for all earlier work of the context";
    case RS_FREE_AT_ONCE:
        return "makes the memory reusable at once";
    case RS_FREE_AS_UPSTREAM:
        break;
    }
    return "as its upstream does";
}

const char *describe_aliases(const char *const *aliases, size_t count, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    for (size_t i = 0; i < count && aliases[i]; i++)
        add(text, "%s%s", i ? ", " : "", aliases[i]);
    return text;
}

const char *describe_option_aliases(const struct rs_option *row, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    for (size_t i = 0; i < RS_OPTION_ALIASES_MAX && row->aliases[i].name; i++)
        add(text, "%s%s%s", i ? ", " : "", row->aliases[i].name,
            row->aliases[i].type == RS_OPTION_EXPONENT ? " (power of two)" : "");
    return text;
}

const char *describe_default(const struct rs_option *row)
{
    return row->default_text ? row->default_text : "";
}

static void add_size(char text[DESCRIBE_BYTES], struct rs_size size)
{
    char bytes[RS_SIZE_TEXT_BYTES];

    if (size.kind == RS_SIZE_BYTES)
        add(text, "%s", rs_size_format((size_t)size.number, bytes));
    else
        add(text, "%g%%%s", (double)size.number * 100 / RS_SIZE_WHOLE,
            size.kind == RS_SIZE_OF_FREE ? "free" : "");
}

const char *describe_size(struct rs_size size, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    add_size(text, size);
    return text;
}

const char *describe_value(const struct rs_option *row, const struct rs_option_value *value,
                           char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    switch (row->type) {
    case RS_OPTION_SIZE:
    case RS_OPTION_EXPONENT:
        if (value->none)
            add(text, "none");
        else
            add_size(text, value->size);
        break;
    case RS_OPTION_RANGE:
        add_size(text, value->size);
        add(text, "-");
        add_size(text, value->size_to);
        break;
    case RS_OPTION_COUNT:
        add(text, "%llu", (unsigned long long)value->count);
        break;
    case RS_OPTION_BOOLEAN:
        add(text, "%s", value->count ? "yes" : "no");
        break;
    case RS_OPTION_WORD:
        add(text, "%s", row->words[value->count]);
        break;
    case RS_OPTION_SIZES:
        add(text, "%s", value->text ? value->text : "none");
        break;
    case RS_OPTION_TEXT:
        add(text, "\"%s\"", value->text ? value->text : "");
        break;
    }
    return text;
}

const char *describe_option_name(const char *name, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    add(text, "--%s", name + strlen("RMM_"));
    for (char *c = text; *c; c++) {
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
        else if (*c == '_')
            *c = '-';
    }
    return text;
}

const char *describe_run_option(const struct rs_variable *variable, char text[DESCRIBE_BYTES])
{
    return describe_option_name(variable->option.name, text);
}

bool describe_is_switch(const struct rs_variable *variable)
{
    return variable->option.type == RS_OPTION_BOOLEAN || variable->is_report;
}
