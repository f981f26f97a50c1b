/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as characters, a column each: blocks of eight heights in UTF-8, else ASCII. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The last `columns` of `count` values (oldest first), the whole as high as can be, or the largest
 * of them where the whole is 0: not known; blanks in front where there are fewer. */
void chart_put(char *text, size_t room, const uint64_t *values, size_t count, uint64_t whole,
               int columns, bool has_blocks);

/* A part of a whole: "|||||    ". */
void chart_put_part(char *text, size_t room, uint64_t part, uint64_t whole, int columns);
