/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen/chart.h"

#include "base/check.h"

#include <string.h>

enum { LEVELS = 9 };

static const char *const blocks[LEVELS] = {
    " ",
    "\xe2\x96\x81",
    "\xe2\x96\x82",
    "\xe2\x96\x83",
    "\xe2\x96\x84",
    "\xe2\x96\x85",
    "\xe2\x96\x86",
    "\xe2\x96\x87",
    "\xe2\x96\x88",
};
static const char *const letters[LEVELS] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};

/* What is not zero can be seen. */
static int level_of(uint64_t value, uint64_t whole)
{
    double part = (double)rs_min(value, whole) / (double)whole;

    return value == 0 ? 0 : 1 + (int)(part * (LEVELS - 2) + 0.5);
}

static void append(char *text, size_t room, const char *more)
{
    size_t length = strlen(text), bytes = strlen(more);

    if (length + bytes < room)
        memcpy(text + length, more, bytes + 1);
}

void chart_put(char *text, size_t room, const uint64_t *values, size_t count, uint64_t whole,
               int columns, bool has_blocks)
{
    size_t shown = rs_min(count, columns > 0 ? (size_t)columns : 0);
    uint64_t largest = 1;

    *text = '\0';
    for (size_t i = count - shown; i < count; i++)
        largest = rs_max(largest, values[i]);
    whole = whole ? whole : largest;
    for (int i = (int)shown; i < columns; i++)
        append(text, room, " ");
    for (size_t i = count - shown; i < count; i++)
        append(text, room, (has_blocks ? blocks : letters)[level_of(values[i], whole)]);
}

void chart_put_part(char *text, size_t room, uint64_t part, uint64_t whole, int columns)
{
    int full = whole ? (int)((double)rs_min(part, whole) / (double)whole * columns + 0.5) : 0;

    *text = '\0';
    for (int i = 0; i < columns; i++)
        append(text, room, i < full ? "|" : " ");
}
