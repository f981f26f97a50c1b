/* SPDX-License-Identifier: Apache-2.0 */
/* Text in the columns of a terminal. */
#pragma once

#include <stddef.h>

/* Copies as much as fits into `room` bytes and `columns` columns of a terminal, in the locale's
 * characters: '?' for others.  The last column is '~' where something is cut off.  Returns the
 * columns used. */
int plain_fit(char *to, size_t room, const char *text, int columns);
