/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *tool_option_value(char ***arguments, const char *name, bool *failed)
{
    size_t length = strlen(name);
    const char *word = **arguments, *value;

    if (strncmp(word, name, length) != 0 || (word[length] && word[length] != '='))
        return NULL;
    value = word[length] ? word + length + 1 : (*arguments)[1];
    if (!value || !*value) {
        tool_say("%s needs a value", name);
        *failed = true;
        return NULL;
    }
    *arguments += !word[length];
    return value;
}

bool tool_parse_time(const char *option, const char *text, uint64_t *ns)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *end;
    double number = isdigit((unsigned char)*text) ? strtod(text, &end) : -1;

    for (size_t i = 0; number >= 0 && i < RS_ARRAY_LENGTH(units); i++)
        if (strcmp(end, units[i].name) == 0 && number * units[i].ns < 1e15) {
            *ns = (uint64_t)(number * units[i].ns);
            return true;
        }
    if (strcmp(text, "0") == 0) {
        *ns = 0;
        return true;
    }
    tool_say("%s=%s: a time has a unit, as in 10us, 1ms or 2s", option, text);
    return false;
}

bool tool_parse_device(const char *text, int *device)
{
    char *end;
    long number = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : -1;

    if (number < 0 || number > 1023 || *end) {
        tool_say("--device=%s: not a device's number", text);
        return false;
    }
    *device = (int)number;
    return true;
}
