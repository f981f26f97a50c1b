/* SPDX-License-Identifier: Apache-2.0 */
/* Fits text into the columns of a terminal, composes frames, and handles the terminal itself.  It
 * uses ANSI sequences and termios, which all present terminals understand, also over ssh. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copies as much of the text as fits into `room` bytes and `columns` columns of a terminal.  Bytes
 * that are no character of the locale become '?'.  The last column is '~' where something is cut
 * off.  Returns the columns used. */
int screen_fit(char *to, size_t room, const char *text, int columns);

/* Writes the text into exactly `width` columns of a terminal; a longer text is cut off. */
void screen_align(char *to, size_t room, const char *text, int width, bool is_left);

/* ---- frames ----
 *
 * A frame is a picture of lines; each line has pieces with a style, and is cut off at the
 * terminal's edge.  On a screen it is drawn over the previous frame; otherwise the lines are
 * printed. */

enum frame_style { FRAME_PLAIN, FRAME_TITLE, FRAME_CHART, FRAME_FAINT, FRAME_WARN, FRAME_ALARM };

struct frame {
    int columns, lines; /* the size of the terminal; 0 lines: no bound */
    bool is_screen, has_colors;

    char *text; /* the text so far, which frame_write frees */
    size_t length, room;
    int used_columns, used_lines;
};

/* Return the columns that are left in this line, and the lines that are left, this one
 * included (INT_MAX: no bound). */
int frame_columns_left(const struct frame *frame);
int frame_lines_left(const struct frame *frame);

void frame_put(struct frame *frame, enum frame_style style, const char *format, ...)
    RS_PRINTF(3, 4);

/* Ends a line.  If no lines are left, nothing may be added afterwards. */
void frame_end_line(struct frame *frame);

/* Writes the frame and frees it.  Returns 0 or -errno. */
int frame_write(struct frame *frame);

/* Adds a chart of the last `columns` of `count` values (oldest first), one column each: with
 * has_blocks as UTF-8 characters, which are blocks of eight heights, else as ASCII characters.  The
 * full height is `whole`, or the largest value if `whole` is 0 (not known).  If there are fewer
 * values, blanks come first. */
void frame_put_chart(struct frame *frame, const uint64_t *values, size_t count, uint64_t whole,
                     int columns, bool has_blocks);

/* Adds a bar that shows a part of a whole: "||||| ". */
void frame_put_bar(struct frame *frame, uint64_t part, uint64_t whole, int columns);

/* ---- the terminal of a full-screen command ---- */

enum terminal_event {
    TERMINAL_TIMEOUT,
    TERMINAL_CHANGED, /* the size has changed, or the screen must be drawn again */
    TERMINAL_END,     /* Ctrl-C was pressed, or the terminal is gone */
    TERMINAL_KEY_UP,
    TERMINAL_KEY_DOWN,
    TERMINAL_KEY_PAGE_UP,
    TERMINAL_KEY_PAGE_DOWN,
    TERMINAL_KEY_HOME,
    TERMINAL_KEY_END,
    TERMINAL_KEY, /* the first key; a key is TERMINAL_KEY + its character */
};

/* True when stdin and stdout are a terminal that can be drawn on. */
bool terminal_is_usable(void);

/* True when the terminal has colours, and NO_COLOR is not set or empty. */
bool terminal_has_colors(void);

/* True when the locale's characters are UTF-8. */
bool terminal_has_blocks(void);

/* Stores the size of the terminal at stdout, or what COLUMNS and LINES say; else 80 x 24. */
void terminal_size(int *columns, int *lines);

/* Takes over the terminal: an empty screen, keys without Enter, and signals through terminal_wait.
 * At exit the terminal is restored.  Returns false after saying why it failed. */
bool terminal_begin(void);
void terminal_end(void);

/* Waits for a key or a signal, for at most timeout_ms (-1: without a bound).  Returns an enum
 * terminal_event, or TERMINAL_KEY plus a character.  A stop by Ctrl-Z happens inside this call, and
 * so does the end of the process by SIGTERM, SIGHUP or SIGQUIT, after the terminal is restored. */
int terminal_wait(int timeout_ms);
