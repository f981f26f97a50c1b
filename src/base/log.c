/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_uint lines_written;

int rs_write_all(int fd, const void *bytes, size_t length_bytes)
{
    return rs_file_write(fd, bytes, length_bytes, -1);
}

RS_PRINTF(1, 0) static void write_line(const char *format, va_list arguments)
{
    char line[RS_LOG_LINE_BYTES];
    int saved_errno = errno;
    int prefix = snprintf(line, sizeof(line), "rmmshim[%d]: ", (int)getpid());
    size_t room = sizeof(line) - (size_t)prefix - 1;
    int body = vsnprintf(line + prefix, room, format, arguments);
    size_t length = (size_t)prefix + (body < 0 ? 0 : (size_t)body < room ? (size_t)body : room - 1);

    line[length++] = '\n';
    (void)rs_write_all(STDERR_FILENO, line, length); /* a failure has nowhere to be reported */
    errno = saved_errno;
}

void rs_log(const char *format, ...)
{
    unsigned before = atomic_fetch_add_explicit(&lines_written, 1, memory_order_relaxed);
    va_list arguments;

    if (before >= RS_LOG_LINES_MAX) {
        atomic_fetch_sub_explicit(&lines_written, 1, memory_order_relaxed);
        return;
    }
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
    if (before == RS_LOG_LINES_MAX - 1)
        rs_log_asked("no further messages are printed: each process prints at most %d",
                     RS_LOG_LINES_MAX);
}

void rs_log_asked(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

static _Atomic bool serving;
static _Atomic(struct rs_late_line *) late; /* lines that are not logged yet */

static void write_late(void)
{
    for (struct rs_late_line *line = atomic_exchange(&late, NULL); line; line = line->next)
        rs_log("%s%s", line->name, line->text);
}

void rs_log_once_serving(struct rs_late_line *line, const char *name)
{
    if (!rs_log_once(&line->said))
        return;
    snprintf(line->name, sizeof(line->name), "%s", name);
    line->next = atomic_load(&late);
    while (!atomic_compare_exchange_weak(&late, &line->next, line))
        continue;
    if (atomic_load(&serving))
        write_late();
}

void rs_log_serving(void)
{
    atomic_store(&serving, true);
    write_late();
}

bool rs_log_once(bool *said)
{
    return !__atomic_exchange_n(said, true, __ATOMIC_RELAXED);
}

void rs_assert_failed(const char *condition, const char *file, int line)
{
    rs_log_asked("%s:%d: assertion failed: %s", file, line, condition);
    abort();
}

/* ---- diagnostics ---- */

enum { LINE_BYTES = 512, SHOWN_AROUND = 40, WORD_LENGTH_MAX = 64 };

bool rs_diagnose(struct rs_diagnostics *diagnostics, const struct rs_source *source, const char *at,
                 const char *format, ...)
{
    const char *end = source->text + strlen(source->text);
    const char *mark = at ? at : source->text;
    const char *from = mark - source->text > SHOWN_AROUND ? mark - SHOWN_AROUND : source->text;
    const char *to = end - mark > SHOWN_AROUND ? mark + SHOWN_AROUND : end;
    char line[LINE_BYTES];
    char body[LINE_BYTES / 2];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(body, sizeof(body), format, arguments);
    va_end(arguments);
    snprintf(line, sizeof(line), "%s=%s%.*s%s%.*s%s: %s", source->name,
             from > source->text ? "..." : "", (int)(mark - from), from, at ? "^" : "",
             (int)(to - mark), mark, to < end ? "..." : "", body);
    /* A setting must not write terminal escapes or line breaks. */
    for (char *control = line; *control; control++)
        if ((unsigned char)*control < ' ' || *control == 127)
            *control = '?';
    diagnostics->count++;
    if (diagnostics->write)
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

void rs_text_add(char *text, size_t room, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;

    RS_ASSERT(length < room);
    va_start(arguments, format);
    vsnprintf(text + length, room - length, format, arguments);
    va_end(arguments);
}

const char *rs_nearest_word(const char *begin, const char *end, const char *const *words)
{
    const char *nearest = NULL;
    unsigned least = WORD_LENGTH_MAX;
    size_t given = (size_t)(end - begin);

    for (; *words; words++) {
        size_t length = strlen(*words);
        unsigned distance = rs_word_distance(begin, given, *words, length);
        /* A distance as large as one of the two words shows no likeness: every single letter is one
         * change away from '0'. */
        if (distance <= rs_word_tolerance(length) && distance < least && distance < length &&
            distance < given) {
            least = distance;
            nearest = *words;
        }
    }
    return nearest;
}
