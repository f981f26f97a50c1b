/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/profile/profile_line.h"

#include "base/diagnostic.h"
#include "config/variable_name.h"
#include "config/variables.h"

#include <stdio.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The reason why programs would read this assignment differently (systemd's load_env_file, docker's
 * --env-file); NULL where they do not. */
static const char *ambiguity(const char *value)
{
    size_t length = strlen(value);

    if (length > 0 && value[length - 1] == '\r')
        return "the line ends in a carriage return";
    if (length > 0 && (is_blank(value[0]) || is_blank(value[length - 1])))
        return "blanks around the value: docker takes them for a part of it";
    if (value[0] == '"' || value[0] == '\'')
        return "quotes around the value: docker takes them for a part of it";
    if (strchr(value, '\\'))
        return "a backslash: systemd takes it away";
    return NULL;
}

static const char *nearest_variable(const char *name)
{
    const char *names[RS_VARIABLE_COUNT + 1] = {NULL};

    for (size_t i = 0; i < RS_VARIABLE_COUNT; i++)
        names[i] = rs_variables[i].option.name;
    return rs_nearest_word(name, name + strlen(name), names);
}

/* Judges a name; `index` and `device` are set where it is one of ours. */
static bool parse_name(const char *name, struct profile_line *line,
                       char reason[PROFILE_REASON_BYTES])
{
    const char *nearest = nearest_variable(name);
    struct rs_name read;

    rs_name_read(name, &read);
    if (read.kind == RS_NAME_OURS) {
        line->index = read.index;
        line->device = read.device;
        return true;
    }
    if (read.kind == RS_NAME_WRONG)
        snprintf(reason, PROFILE_REASON_BYTES, "%s: %s", name, read.reason);
    else
        snprintf(reason, PROFILE_REASON_BYTES,
                 "%s is no variable of rmmshim's, and a profile sets nothing else%s%s%s", name,
                 nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return false;
}

static bool refuse(char reason[PROFILE_REASON_BYTES], const char *text)
{
    snprintf(reason, PROFILE_REASON_BYTES, "%s", text);
    return false;
}

bool profile_line_parse(char *text, struct profile_line *line, char reason[PROFILE_REASON_BYTES])
{
    char name[RS_NAME_BYTES_MAX];
    const char *doubt;
    size_t length;

    *line = (struct profile_line){.entry = NULL};
    while (is_blank(*text))
        text++;
    length = strlen(text);
    if (*text == '#' && text[length - 1] == '\\')
        return refuse(reason,
                      "a comment that ends in a backslash: systemd before version 254 takes "
                      "the next line for a part of it");
    if (!*text || *text == '#')
        return true;
    length = strcspn(text, "= \t\r");
    if (text[length] != '=' || length == 0 || length >= sizeof(name))
        return refuse(reason, "expected VARIABLE=value, or a comment after #");
    memcpy(name, text, length);
    name[length] = '\0';
    doubt = ambiguity(text + length + 1);
    line->entry = text;
    return parse_name(name, line, reason) && (!doubt || refuse(reason, doubt));
}
