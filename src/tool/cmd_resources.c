/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim resources: lists the memory resources that a stack can be made of. */
#include "resource/expression.h"
#include "tool/describe.h"
#include "tool/table.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>

static void list_all(void)
{
    struct table table;
    char aliases[DESCRIBE_BYTES];

    table_begin(&table, "RESOURCE", "KIND", "WHAT IT DOES", "NAME IN RMM", NULL);
    for (size_t i = 0; rs_mr_descriptors[i]; i++) {
        const struct rs_mr_descriptor *descriptor = rs_mr_descriptors[i];
        table_row(
            &table, descriptor->name, describe_kind(descriptor), descriptor->summary,
            describe_aliases(descriptor->aliases, RS_ARRAY_LENGTH(descriptor->aliases), aliases));
    }
    table_print(&table);
}

static void ignore_line(void *data, const char *line)
{
    (void)data;
    (void)line;
}

static bool is_valid(const char *text)
{
    struct rs_source source = {"EXAMPLE", text};
    struct rs_diagnostics nobody = {.write = ignore_line};
    struct rs_expression *expression = rs_expression_parse(&source, &nobody);
    bool valid = expression && rs_expression_validate(expression, NULL, &nobody);

    rs_expression_free(expression);
    return valid;
}

/* Prints an expression with the first option at its default, or with "..." where the default is not
 * valid. */
static void print_example(const struct rs_mr_descriptor *descriptor)
{
    static const char *const upstreams[] = {"", "cuda", "cuda, managed"};
    const char *upstream = upstreams[descriptor->upstream_count];
    const struct rs_option *row = descriptor->options;
    const char *between = *upstream && row->name ? ", " : "";
    char text[2 * DESCRIBE_BYTES];

    if (!*upstream && !row->name) {
        snprintf(text, sizeof(text), "%s", descriptor->name);
    } else {
        snprintf(text, sizeof(text), "%s(%s%s%s%s%s)", descriptor->name, upstream, between,
                 row->name ? row->name : "", row->name ? "=" : "",
                 row->name ? describe_default(row) : "");
        if (!is_valid(text))
            snprintf(text, sizeof(text), "%s(%s%s%s=...)", descriptor->name, upstream, between,
                     row->name);
    }
    printf("written:  %s\n", text);
}

static void describe_one(const struct rs_mr_descriptor *descriptor)
{
    struct table table;
    char text[DESCRIBE_BYTES], aliases[DESCRIBE_BYTES];

    printf("%s: %s\n", descriptor->name, descriptor->summary);
    printf("kind:     %s\n", describe_kind(descriptor));
    printf("a free:   %s\n", describe_free(descriptor));
    if (descriptor->aliases[0])
        printf("RMM:      %s\n",
               describe_aliases(descriptor->aliases, RS_ARRAY_LENGTH(descriptor->aliases), text));
    print_example(descriptor);
    if (!descriptor->options[0].name)
        return;
    putchar('\n');
    table_begin(&table, "OPTION", "TYPE", "DEFAULT", "MEANING", "NAME IN RMM", NULL);
    for (const struct rs_option *row = descriptor->options; row->name; row++)
        table_row(&table, row->name, rs_option_type_text(row, text, sizeof(text)),
                  describe_default(row), row->help, describe_option_aliases(row, aliases));
    table_print(&table);
}

static int say_unknown(const char *name)
{
    const char *names[TABLE_ROWS_MAX] = {NULL};

    for (size_t i = 0; rs_mr_descriptors[i] && i + 1 < RS_ARRAY_LENGTH(names); i++)
        names[i] = rs_mr_descriptors[i]->name;
    tool_say_unknown("memory resource", name, names);
    return TOOL_USAGE;
}

static int resources(char **arguments)
{
    const struct rs_mr_descriptor *descriptor;
    const char *name = arguments[0];

    if (!name) {
        list_all();
        return TOOL_OK;
    }
    if (arguments[1]) {
        tool_say("one name at most; `rmmshim resources --help` says how");
        return TOOL_USAGE;
    }
    descriptor = rs_mr_find(name, name + strlen(name));
    if (!descriptor)
        return say_unknown(name);
    describe_one(descriptor);
    return TOOL_OK;
}

const struct tool_command tool_resources = {
    .name = "resources",
    .arguments = "[RESOURCE]",
    .summary = "Lists the memory resources, or one with its options",
    .run = resources,
};
