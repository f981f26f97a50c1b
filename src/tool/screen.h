/* SPDX-License-Identifier: Apache-2.0 */
/* Text in the columns of a terminal, pictures for it in the making, and the terminal itself: ANSI
 * sequences and termios, which every terminal of today understands, over ssh too. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copies as much as fits into `room` bytes and `columns` columns of a terminal, in the locale's
 * characters: '?' for others.  The last column is '~' where something is cut off.  Returns the
 * columns used. */
int screen_fit(char *to, size_t room, const char *text, int columns);

/* Writes the text into exactly `width` columns of a terminal, cut off where it is longer. */
void screen_align(char *to, size_t room, const char *text, int width, bool is_left);

/* ---- frames ----
 *
 * A picture for the terminal: lines of pieces with a style each, cut off at the terminal's edge.
 * On a screen it is drawn over the one before; else the lines are printed. */

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

void frame_put(struct frame *frame, enum frame_style style, const char *format, ...)
    RS_PRINTF(3, 4);

/* Ends a line.  Nothing more may follow in a frame without lines left. */
void frame_end_line(struct frame *frame);

/* Writes all and frees it.  0 or -errno. */
int frame_write(struct frame *frame);

/* The last `columns` of `count` values (oldest first), a column each: blocks of eight heights in
 * UTF-8, else ASCII; the whole as high as can be, or the largest of them where the whole is 0: not
 * known.  Blanks stand in front where there are fewer. */
void frame_put_chart(struct frame *frame, const uint64_t *values, size_t count, uint64_t whole,
                     int columns, bool has_blocks);

/* A part of a whole: "|||||    ". */
void frame_put_bar(struct frame *frame, uint64_t part, uint64_t whole, int columns);

/* ---- the terminal of a full-screen command ---- */

enum terminal_event {
    TERMINAL_TIMEOUT,
    TERMINAL_CHANGED, /* its size, or it has to be drawn anew */
    TERMINAL_END,     /* by Ctrl-C, or the terminal is gone */
    TERMINAL_KEY_UP,
    TERMINAL_KEY_DOWN,
    TERMINAL_KEY_PAGE_UP,
    TERMINAL_KEY_PAGE_DOWN,
    TERMINAL_KEY_HOME,
    TERMINAL_KEY_END,
    TERMINAL_KEY, /* and more: TERMINAL_KEY + the character */
};

/* True where stdin and stdout are a terminal that can be drawn on. */
bool terminal_is_usable(void);

/* True where it has colours and they are wanted (NO_COLOR). */
bool terminal_has_colors(void);

/* True where the locale is UTF-8. */
bool terminal_has_blocks(void);

/* Of stdout, or what COLUMNS and LINES say; else 80 x 24. */
void terminal_size(int *columns, int *lines);

/* Takes the terminal: an empty screen, keys without Enter, and signals by terminal_wait.  It is
 * given back at exit, too.  False after saying why not. */
bool terminal_begin(void);
void terminal_end(void);

/* Waits for a key or a signal.  A stop by Ctrl-Z happens in here; so does an end by SIGTERM, SIGHUP
 * or SIGQUIT, with the terminal given back. */
int terminal_wait(int timeout_ms);
