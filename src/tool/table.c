/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/table.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *copy(const char *text)
{
    char *copied = strdup(text ? text : "");

    if (!copied) {
        fputs("rmmshim: out of memory\n", stderr);
        exit(1);
    }
    return copied;
}

void table_begin(struct table *table, const char *first_title, ...)
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

void table_row(struct table *table, const char *first_cell, ...)
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

static void table_free(struct table *table)
{
    for (size_t row = 0; row < table->row_count; row++)
        for (size_t i = 0; i < table->column_count; i++)
            free(table->cells[row][i]);
    table->row_count = 0;
}

/* Returns the width of the widest cell; 0 for a column whose cells are all empty. */
static size_t column_width(const struct table *table, size_t column)
{
    size_t width = 0;

    for (size_t row = 1; row < table->row_count; row++)
        width = rs_max(width, strlen(table->cells[row][column]));
    return width ? rs_max(width, strlen(table->cells[0][column])) : 0;
}

static size_t last_column(const struct table *table, const size_t *widths)
{
    size_t last = 0;

    for (size_t i = 0; i < table->column_count; i++)
        if (widths[i])
            last = i;
    return last;
}

void table_print(struct table *table)
{
    size_t widths[TABLE_COLUMNS_MAX];
    size_t last;

    for (size_t i = 0; i < table->column_count; i++)
        widths[i] = column_width(table, i);
    last = last_column(table, widths);
    for (size_t row = 0; row < table->row_count; row++) {
        for (size_t i = 0; i <= last; i++) {
            if (i == last)
                printf("%s\n", table->cells[row][i]);
            else if (widths[i])
                printf("%-*s  ", (int)widths[i], table->cells[row][i]);
        }
    }
    table_free(table);
}

/* A '|' would end the cell, so it is escaped. */
static void print_markdown_cell(const char *text)
{
    putchar(' ');
    for (; *text; text++)
        printf(*text == '|' ? "\\%c" : "%c", *text);
    fputs(" |", stdout);
}

void table_print_markdown(struct table *table)
{
    for (size_t row = 0; row < table->row_count; row++) {
        putchar('|');
        for (size_t i = 0; i < table->column_count; i++)
            if (column_width(table, i))
                print_markdown_cell(table->cells[row][i]);
        putchar('\n');
        if (row > 0)
            continue;
        putchar('|');
        for (size_t i = 0; i < table->column_count; i++)
            if (column_width(table, i))
                fputs("---|", stdout);
        putchar('\n');
    }
    table_free(table);
}
