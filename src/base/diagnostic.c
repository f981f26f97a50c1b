/* SPDX-License-Identifier: Apache-2.0 */
#include "base/diagnostic.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 512, SHOWN_AROUND = 40, WORD_LENGTH_MAX = 64 };

static void append(char *line, size_t *length, const char *format, ...) RS_PRINTF(3, 4);

static void append(char *line, size_t *length, const char *format, ...)
{
    va_list arguments;
    int added;

    va_start(arguments, format);
    added = vsnprintf(line + *length, LINE_BYTES - *length, format, arguments);
    va_end(arguments);
    if (added > 0)
        *length += (size_t)added < LINE_BYTES - *length ? (size_t)added : LINE_BYTES - *length - 1;
}

/* Replaces control bytes: a setting must not write terminal escapes or line breaks. */
static void append_printable(char *line, size_t *length, const char *begin, const char *end)
{
    for (; begin < end && *length + 1 < LINE_BYTES; begin++)
        line[(*length)++] = (unsigned char)*begin < ' ' || *begin == 127 ? '?' : *begin;
    line[*length] = '\0';
}

bool rs_diagnose(struct rs_diagnostics *diagnostics, const struct rs_source *source, const char *at,
                 const char *format, ...)
{
    const char *end = source->text + strlen(source->text);
    const char *mark = at ? at : source->text;
    const char *from = mark - source->text > SHOWN_AROUND ? mark - SHOWN_AROUND : source->text;
    const char *to = end - mark > SHOWN_AROUND ? mark + SHOWN_AROUND : end;
    char line[LINE_BYTES];
    char body[LINE_BYTES / 2];
    size_t length = 0;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(body, sizeof(body), format, arguments);
    va_end(arguments);

    append_printable(line, &length, source->name, source->name + strlen(source->name));
    append(line, &length, "=%s", from > source->text ? "..." : "");
    append_printable(line, &length, from, mark);
    if (at)
        append(line, &length, "^");
    append_printable(line, &length, mark, to);
    append(line, &length, "%s: %s", to < end ? "..." : "", body);
    diagnostics->count++;
    diagnostics->write(diagnostics->data, line);
    return false;
}

unsigned rs_word_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    /* Optimal string alignment distance.  Three rows suffice to detect swapped neighbours. */
    unsigned rows[3][WORD_LENGTH_MAX + 1];
    unsigned *before_last = rows[0], *last = rows[1], *row = rows[2];

    if (a_length > WORD_LENGTH_MAX || b_length > WORD_LENGTH_MAX)
        return WORD_LENGTH_MAX;
    for (size_t j = 0; j <= b_length; j++) {
        before_last[j] = 0;
        last[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        unsigned *recycled = before_last;
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before_last[j - 2] + 1 < best)
                best = before_last[j - 2] + 1;
            row[j] = best;
        }
        before_last = last;
        last = row;
        row = recycled;
    }
    return last[b_length];
}

unsigned rs_word_tolerance(size_t length)
{
    return length < 6 ? 1 : 2;
}

const char *rs_nearest_word(const char *begin, const char *end, const char *const *words)
{
    const char *nearest = NULL;
    unsigned least = WORD_LENGTH_MAX;
    size_t given = (size_t)(end - begin);

    for (; *words; words++) {
        size_t length = strlen(*words);
        unsigned distance = rs_word_distance(begin, given, *words, length);
        /* A distance of a whole word is no likeness: 'y' is one letter away from '0', and so is
         * any letter. */
        if (distance <= rs_word_tolerance(length) && distance < least && distance < length &&
            distance < given) {
            least = distance;
            nearest = *words;
        }
    }
    return nearest;
}
