/* SPDX-License-Identifier: Apache-2.0 */
/* A picture for the terminal in the making: lines of pieces with a style each, cut off at the
 * terminal's edge.  On a screen it is drawn over the one before; else the lines are printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum frame_style { FRAME_PLAIN, FRAME_TITLE, FRAME_CHART, FRAME_FAINT, FRAME_WARN, FRAME_ALARM };

struct frame {
    int columns, lines; /* of the terminal; 0 lines: as many as there are */
    bool is_screen, has_colors;

    char *text; /* owned */
    size_t length, room;
    int used_columns, used_lines;
};

/* The columns that are left in this line, and the lines below it. */
int frame_columns_left(const struct frame *frame);
int frame_lines_left(const struct frame *frame);

void frame_put(struct frame *frame, enum frame_style style, const char *text);

/* Ends a line.  Nothing more may follow in a frame without lines left. */
void frame_end_line(struct frame *frame);

/* Writes all and frees it.  0 or -errno. */
int frame_write(struct frame *frame);
