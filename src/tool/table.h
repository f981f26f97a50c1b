/* SPDX-License-Identifier: Apache-2.0 */
/* The one table printer: aligned columns for people, Markdown for the manual. */
#pragma once

#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 6, TABLE_ROWS_MAX = 128 };

struct table {
    size_t column_count, row_count;
    char *cells[TABLE_ROWS_MAX][TABLE_COLUMNS_MAX]; /* row 0: titles; owned */
};

/* Begins a table; the titles follow, ended by NULL. */
void table_begin(struct table *table, const char *first_title, ...) __attribute__((sentinel));

/* Adds a row: one text (copied) for each column. */
void table_row(struct table *table, const char *first_cell, ...);

/* Prints to stdout and frees.  Columns without any text are left out. */
void table_print(struct table *table);
void table_print_markdown(struct table *table);
