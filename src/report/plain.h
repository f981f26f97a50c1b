/* SPDX-License-Identifier: Apache-2.0 */
/* Makes text from elsewhere safe for a terminal: the name of a program, for example, may hold any
 * byte but zero. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the length in bytes of the character at `text`, which must not be the end of the text; 1
 * if it is not UTF-8. *is_plain tells whether the character is plain. A character is plain if a
 * terminal just shows it: it is no control character, is visible, and does not change the direction
 * of text. */
size_t rs_plain_next(const char *text, bool *is_plain);

/* Replaces each character that is not plain by '?', in place. */
void rs_plain_make(char *text);

/* Does as rs_plain_make, but keeps the ends of lines. */
void rs_plain_make_lines(char *text);
