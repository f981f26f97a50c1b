/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim resources: lists the memory resources that a stack can be made of. */
#include "base/check.h"
#include "resource/expression.h"
#include "tool/describe.h"
#include "tool/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

enum { TABLE_COLUMNS_MAX = 6, TABLE_ROWS_MAX = 128 };

struct table {
    size_t column_count, row_count;
    char *cells[TABLE_ROWS_MAX][TABLE_COLUMNS_MAX]; /* row 0 holds the titles; it owns all texts */
};

/* Begins a table; the titles follow, ended by NULL. */
static void table_begin(struct table *table, const char *first_title, ...)
    __attribute__((sentinel));

static char *copy(const char *text)
{
    return strcpy(tool_grow(NULL, strlen(text) + 1), text);
}

static void table_begin(struct table *table, const char *first_title, ...)
{
    va_list titles;

    memset(table, 0, sizeof(*table));
    va_start(titles, first_title);
    for (const char *title = first_title; title; title = va_arg(titles, const char *)) {
        RS_ASSERT(table->column_count < TABLE_COLUMNS_MAX);
        table->cells[0][table->column_count++] = copy(title);
    }
    va_end(titles);
    table->row_count = 1;
}

/* Adds a row: one text for each column. */
static void table_row(struct table *table, const char *first_cell, ...)
{
    char **row = table->cells[table->row_count];
    va_list cells;

    RS_ASSERT(table->row_count < TABLE_ROWS_MAX);
    va_start(cells, first_cell);
    row[0] = copy(first_cell);
    for (size_t i = 1; i < table->column_count; i++)
        row[i] = copy(va_arg(cells, const char *));
    va_end(cells);
    table->row_count++;
}

/* Returns the width of the widest cell; 0 for a column whose cells are all empty. */
static size_t column_width(const struct table *table, size_t column)
{
    size_t width = 0;

    for (size_t row = 1; row < table->row_count; row++)
        width = rs_max(width, strlen(table->cells[row][column]));
    return width ? rs_max(width, strlen(table->cells[0][column])) : 0;
}

/* Prints the table and frees it.  Columns without any text are left out. */
static void table_print(struct table *table)
{
    for (size_t row = 0; row < table->row_count; row++) {
        int blanks = 0;
        for (size_t i = 0; i < table->column_count; i++) {
            const char *cell = table->cells[row][i];
            int width = (int)column_width(table, i);
            if (width == 0)
                continue;
            printf("%*s%s", blanks, "", cell);
            blanks = width + 2 - (int)strlen(cell);
        }
        putchar('\n');
    }
    for (size_t row = 0; row < table->row_count; row++)
        for (size_t i = 0; i < table->column_count; i++)
            free(table->cells[row][i]);
}

/* ---- resources ---- */

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

static bool is_valid(const char *text)
{
    struct rs_source source = {"EXAMPLE", text};
    struct rs_diagnostics nobody = {.write = tool_ignore_line};
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
