/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a document's lines. */
#include "base/size.h"
#include "report/document.h"
#include "report/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node and those around it. */
struct scope {
    const struct rs_node *node;
    const struct scope *around;
};

static const struct rs_node *find(const struct scope *scope, const char *name, size_t length)
{
    const struct rs_node *found = length == 0 ? scope->node : NULL;

    for (; scope && !found; scope = scope->around)
        found = rs_node_field(scope->node, name, length);
    return found;
}

static bool is_nothing(const struct rs_node *node)
{
    if (!node)
        return true;
    if (node->value == RS_VALUE_OBJECT || node->value == RS_VALUE_LIST)
        return !node->first;
    if (node->value == RS_VALUE_TEXT)
        return !*node->text;
    return node->value == RS_VALUE_RATIO ? !(node->ratio > 0) : !node->number;
}

/* The {...} that begins there: "{name", what follows the name up to '}', and what follows that. */
struct field {
    const char *name, *option, *after;
    size_t name_length;
};

static struct field read_field(const char *at)
{
    struct field field = {.name = at + 1, .name_length = strcspn(at + 1, "?!:|}")};

    field.option = field.name + field.name_length;
    field.after = strchr(field.option, '}') + 1;
    RS_ASSERT(*at == '{' && field.after > field.option);
    return field;
}

static void put_plain(struct rs_page *page, const char *text, int columns)
{
    int width = 0;

    for (size_t length = strlen(text), i = 0, bytes; i < length; i += bytes, width++) {
        bytes = rs_utf8_bytes(text + i, length - i);
        if (rs_utf8_is_plain(text + i, bytes))
            rs_page_put(page, "%.*s", (int)bytes, text + i);
        else
            rs_page_put(page, "?");
        bytes += bytes == 0;
    }
    if (width < columns)
        rs_page_put(page, "%*s", columns - width, "");
}

static const char *number_text(const struct rs_node *node, bool in_hexadecimal,
                               char text[RS_SIZE_TEXT_BYTES])
{
    unsigned long long number = node->number;

    if (in_hexadecimal)
        snprintf(text, RS_SIZE_TEXT_BYTES, "%#llx", number);
    else if (node->value == RS_VALUE_BYTES)
        rs_size_format_short(number, text);
    else if (node->value == RS_VALUE_NANOSECONDS)
        snprintf(text, RS_SIZE_TEXT_BYTES, "%.3f ms", (double)number / 1e6);
    else if (node->value == RS_VALUE_RATIO)
        snprintf(text, RS_SIZE_TEXT_BYTES, "%.0f %%", 100 * node->ratio);
    else
        snprintf(text, RS_SIZE_TEXT_BYTES, "%llu", number);
    return text;
}

/* "|block|blocks}" */
static void put_one_or_many(struct rs_page *page, const struct rs_node *node, const char *words)
{
    const char *one = words + 1, *many = strchr(one, '|') + 1;

    if (node && node->number == 1)
        rs_page_put(page, "%.*s", (int)(many - 1 - one), one);
    else
        rs_page_put(page, "%.*s", (int)strcspn(many, "}"), many);
}

static void put_field(struct rs_page *page, const struct scope *scope, const struct field *field)
{
    const struct rs_node *node = find(scope, field->name, field->name_length);
    bool in_hexadecimal = field->option[0] == ':' && field->option[1] == 'x';
    int columns = field->option[0] == ':' && !in_hexadecimal ? abs(atoi(field->option + 1)) : 0;
    bool pads_left = columns && field->option[1] != '-';
    char text[RS_SIZE_TEXT_BYTES];

    if (*field->option == '?' || *field->option == '!')
        return;
    if (*field->option == '|')
        put_one_or_many(page, node, field->option);
    else if (node && node->value == RS_VALUE_TEXT)
        put_plain(page, node->text, columns);
    else if (node)
        rs_page_put(page, "%*s", pads_left ? columns : -columns,
                    number_text(node, in_hexadecimal, text));
}

/* Whether all conditions of the group that begins there hold. */
static bool holds(const char *at, const struct scope *scope)
{
    while (*at && *at != ']') {
        if (*at != '{') {
            at++;
            continue;
        }
        struct field field = read_field(at);
        bool is_none = is_nothing(find(scope, field.name, field.name_length));
        if (strchr("?!}", *field.option) && is_none != (*field.option == '!'))
            return false;
        at = field.after;
    }
    return true;
}

static void put_line(struct rs_page *page, const char *at, const struct scope *scope)
{
    while (at && *at) {
        size_t length = strcspn(at, "{[]");
        struct field field;
        rs_page_put(page, "%.*s", (int)length, at);
        at += length;
        if (at[0] && at[0] != '{' && at[0] == at[1]) {
            rs_page_put(page, "%c", *at);
            at += 2;
        } else if (*at == '{') {
            field = read_field(at);
            put_field(page, scope, &field);
            at = field.after;
        } else if (*at == '[' && !holds(at + 1, scope)) {
            at += strcspn(at, "]") + (strchr(at, ']') != NULL);
        } else if (*at) {
            at++;
        }
    }
}

static void put_node(struct rs_page *page, const struct scope *scope)
{
    const struct rs_node *node = scope->node;

    put_line(page, node->line, scope);
    if (node->value == RS_VALUE_OBJECT || node->value == RS_VALUE_LIST)
        for (const struct rs_node *child = node->first; child; child = child->next)
            put_node(page, &(struct scope){child, scope});
    put_line(page, node->end, scope);
}

void rs_document_put_text(struct rs_page *page, const struct rs_node *root)
{
    put_node(page, &(struct scope){root, NULL});
    if (root->document->is_short)
        rs_page_put(page, "There was no memory for all of this report.\n");
}
