/* SPDX-License-Identifier: Apache-2.0 */
/* A command's usage line taken apart: "[PID|PROGRAM] [--json] [--wait SECONDS]".  The line is the
 * table of the command's options and arguments; completion needs no other one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A part of the line, not ended by a zero. */
struct usage_words {
    const char *begin; /* NULL: none */
    size_t length;
};

/* Calls `visit` for each option: its name, and the alternatives for its value, which are none for
 * an option without one. */
void usage_line_options(const char *line,
                        void (*visit)(void *data, struct usage_words name,
                                      struct usage_words value),
                        void *data);

/* Finds an option by its name, which is `length` bytes long.  False where there is none. */
bool usage_line_find(const char *line, const char *name, size_t length, struct usage_words *value);

/* The alternatives for argument `number`, counted from 0; one with "..." stands for all further
 * ones.  `begin` is NULL where there is none. */
struct usage_words usage_line_argument(const char *line, size_t number);

/* Takes the first of the alternatives, separated by '|', off.  False where none is left. */
bool usage_words_next(struct usage_words *alternatives, struct usage_words *first);
