/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/describe.h"

#include "base/log.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char *describe_kind(const struct rs_mr_descriptor *descriptor)
{
    static const char *const kinds[] = {"leaf", "1 upstream", "2 upstreams"};

    return kinds[descriptor->upstream_count];
}

const char *describe_aliases(const char *const *aliases, size_t count, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    for (size_t i = 0; i < count && aliases[i]; i++)
        rs_text_add(text, DESCRIBE_BYTES, "%s%s", i ? ", " : "", aliases[i]);
    return text;
}

const char *describe_option_aliases(const struct rs_option *row, char text[DESCRIBE_BYTES])
{
    text[0] = '\0';
    for (size_t i = 0; i < RS_OPTION_ALIASES_MAX && row->aliases[i].name; i++)
        rs_text_add(text, DESCRIBE_BYTES, "%s%s%s", i ? ", " : "", row->aliases[i].name,
                    row->aliases[i].type == RS_OPTION_EXPONENT ? " (as an exponent of 2)" : "");
    return text;
}

const char *describe_default(const struct rs_option *row)
{
    return row->is_required ? "(required)" : row->default_text ? row->default_text : "";
}

const char *describe_option_name(const char *name, char text[DESCRIBE_BYTES])
{
    snprintf(text, DESCRIBE_BYTES, "--%s", name + strlen("RMM_"));
    for (char *c = text; *c; c++)
        *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
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
