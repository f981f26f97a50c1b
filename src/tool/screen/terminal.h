/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal of a full-screen command: ANSI sequences and termios, which every terminal of today
 * understands, over ssh too. */
#pragma once

#include <stdbool.h>

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
