/* SPDX-License-Identifier: Apache-2.0 */
/* Text that others have chosen, as it may be written to a terminal: the name of a program may hold
 * anything but a zero. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the bytes of the character that begins at `text`, which does not end there; of what is no
 * UTF-8 one byte.  It is plain when a terminal only shows it: no control character, none that
 * changes the direction of text or is not seen. */
size_t rs_plain_next(const char *text, bool *is_plain);

/* Replaces by '?', in place, what is not plain. */
void rs_plain_make(char *text);

/* The same of a text of several lines: the ends of lines stay. */
void rs_plain_make_lines(char *text);
