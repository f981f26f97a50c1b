/* SPDX-License-Identifier: Apache-2.0 */
/* Text that others have chosen, as it may be written to a terminal: the name of a program may hold
 * anything but a zero. */
#pragma once

#include <stddef.h>

/* Replaces by '?', in place: control characters, those that change the direction of text or are not
 * seen, and bytes that are not UTF-8. */
void plain_make(char *text);

/* The same of a text of several lines: the ends of lines stay. */
void plain_make_lines(char *text);

/* Copies as much as fits into `room` bytes and `columns` columns of a terminal, in the locale's
 * characters: '?' for others.  The last column is '~' where something is cut off.  Returns the
 * columns used. */
int plain_fit(char *to, size_t room, const char *text, int columns);
