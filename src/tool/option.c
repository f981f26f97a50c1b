/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

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
