/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/csv_log.h"

#include "base/check.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char header[] = "Thread,Time,Action,Pointer,Size,Stream";

const char *const csv_log_actions[] = {[RS_RECORDING_ALLOCATE] = "allocate",
                                       [RS_RECORDING_DEALLOCATE] = "free",
                                       [RS_RECORDING_REFUSED] = "allocate failure",
                                       [RS_RECORDING_EVENT_KINDS] = NULL};

static const uint64_t second_ns = 1000000000, day_ns = 86400 * second_ns;

/* Reads a row.  The event's time is then the time of day, written HH:MM:SS.ffffff, with a point or
 * a colon before the microseconds.  A null pointer is "(nil)" from some versions of RMM, and 0x0
 * from others; %p reads both.  Returns false if the row is damaged, or its action unknown. */
static bool read_row(const char *line, struct tool_recording_event *event)
{
    unsigned hours, minutes, seconds, microseconds;
    int begin = 0, behind = 0, end = 0; /* of the time, and of the row */
    char action[sizeof("allocate failure")];
    void *address, *stream;

    *event = (struct tool_recording_event){.name = ""};
    errno = 0;
    if (!isdigit((unsigned char)*line) || strpbrk(line, "+-") ||
        sscanf(line, "%" SCNu32 ",%n%2u:%2u:%2u%*1[.:]%6u%n,%16[a-z ],%p,%" SCNu64 ",%p%n",
               &event->thread, &begin, &hours, &minutes, &seconds, &microseconds, &behind, action,
               &address, &event->size_bytes, &stream, &end) != 9 ||
        errno || behind - begin != sizeof("HH:MM:SS.ffffff") - 1 || line[end] != '\n' ||
        hours >= 24 || minutes >= 60 || seconds >= 61) /* with a leap second */
        return false;
    event->time_ns =
        ((hours * 60 + minutes) * 60 + seconds) * second_ns + microseconds * UINT64_C(1000);
    event->address = (uintptr_t)address;
    event->stream = (uintptr_t)stream;
    /* A recording has no larger size. */
    event->size_bytes = rs_min(event->size_bytes, ((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1);
    for (enum rs_recording_event_kind kind = 1; kind < RS_RECORDING_EVENT_KINDS; kind++)
        if (csv_log_actions[kind] && strcmp(action, csv_log_actions[kind]) == 0)
            event->kind = kind;
    return event->kind != 0;
}

/* ---- the whole ---- */

bool csv_log_is(const char *bytes, size_t length)
{
    return length >= sizeof(header) && memcmp(bytes, header, sizeof(header) - 1) == 0 &&
           strchr("\r\n", bytes[sizeof(header) - 1]);
}

/* Returns the time of a row, given the time of the row above and its own time of day.  A time of
 * day that is more than half a day earlier belongs to the next day.  One that is earlier by less
 * (two threads wrote at once, or the clock was set back) becomes the time of the row above. */
static uint64_t follow(uint64_t before_ns, uint64_t time_of_day_ns)
{
    uint64_t days_ns = before_ns / day_ns * day_ns;

    if (days_ns + time_of_day_ns + day_ns / 2 < before_ns)
        days_ns += day_ns;
    return rs_max(before_ns, days_ns + time_of_day_ns);
}

/* Copies the row at `from`, with a line feed at its end, and returns where the next row begins.  A
 * carriage return before the line feed, which an editor may have written, is left out.  The copy is
 * empty if the row has no line feed or does not fit. */
static const char *copy_line(const char *from, const char *end, char *line, size_t room)
{
    const char *behind = memchr(from, '\n', (size_t)(end - from));
    size_t length = behind ? (size_t)(behind - from) : 0;

    if (length > 0 && from[length - 1] == '\r')
        length--;
    *line = '\0';
    if (behind && length + 2 <= room) {
        memcpy(line, from, length);
        memcpy(line + length, "\n", 2);
    }
    return behind ? behind + 1 : end;
}

struct tool_recording_event *csv_log_read(const char *bytes, size_t length,
                                          struct tool_recording_facts *facts)
{
    enum { ROW_BYTES = 256, ROW_BYTES_LEAST = sizeof("1,00:00:00.000000,free,0,0,0\n") - 1 };
    const char *end = bytes + length, *at;
    struct tool_recording_event *events = calloc(length / ROW_BYTES_LEAST + 1, sizeof(*events));
    struct tm day = {.tm_year = 70, .tm_mday = 2, .tm_isdst = -1}; /* after 0 in every time zone */
    char line[ROW_BYTES];
    uint64_t first_ns = 0;

    for (at = copy_line(bytes, end, line, sizeof(line)); events && at < end;) {
        struct tool_recording_event *event = &events[facts->events];
        at = copy_line(at, end, line, sizeof(line));
        if (!read_row(line, event)) {
            facts->damaged += strcmp(line, "\n") != 0;
            continue;
        }
        first_ns = facts->events++ ? first_ns : event->time_ns;
        event->time_ns = follow(first_ns + facts->duration_ns, event->time_ns) - first_ns;
        facts->duration_ns = event->time_ns;
    }
    facts->header.begun_real_ns = (uint64_t)mktime(&day) * second_ns + first_ns;
    return events;
}
