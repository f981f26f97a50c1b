/* SPDX-License-Identifier: Apache-2.0 */
/* Prints tables: aligned columns for people, Markdown for the manual. */
#pragma once

#include <stddef.h>

enum { TABLE_COLUMNS_MAX = 6, TABLE_ROWS_MAX = 128 };

struct table {
    size_t column_count, row_count;
    /* Row 0 holds the titles; the table owns all texts. */
    char *cells[TABLE_ROWS_MAX][TABLE_COLUMNS_MAX];
};

/* Begins a table; the titles follow, ended by NULL. */
void table_begin(struct table *table, const char *first_title, ...) __attribute__((sentinel));

/* Adds a row: one text for each column, which is copied. */
void table_row(struct table *table, const char *first_cell, ...);

/* Print the table to stdout and free it.  Columns without any text are left out. */
void table_print(struct table *table);
void table_print_markdown(struct table *table);
