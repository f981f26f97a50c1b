/* SPDX-License-Identifier: Apache-2.0 */
/* The columns of `ls` and `top`. */
#pragma once

#include "tool/row.h"

#include <stdbool.h>
#include <stddef.h>

enum { COLUMN_BYTES = RS_EXPRESSION_TEXT_BYTES };

struct column {
    const char *title;
    bool is_left; /* aligned; numbers are aligned on the right */
    void (*put)(const struct row *row, char text[COLUMN_BYTES]);
};

extern const struct column column_process, column_user, column_program, column_rank, column_device,
    column_device_uuid, column_used, column_held, column_peak, column_limit, column_job_limit,
    column_refused, column_spilled, column_process_count, column_device_bytes,
    column_allocation_rate, column_byte_rate, column_expression;

/* What `ls` and `top` have both of a process, in their order; others stand behind these. */
enum { COLUMNS = 12 };
extern const struct column *const column_order[COLUMNS];

/* Columns of a terminal that a cell takes. */
int column_cell_width(const struct column *column, const struct row *row);

/* Columns of a terminal that the widest cell takes, title included; 0 where all cells are empty. */
int column_width(const struct column *column, const struct row *rows, size_t count);

/* Writes the text into exactly `width` columns of a terminal, cut off where it is longer.  Returns
 * the end of it. */
char *column_align(char *to, size_t room, const char *text, int width, bool is_left);
