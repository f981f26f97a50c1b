/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/csv_log.h"

#include "base/check.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char header[] = "Thread,Time,Action,Pointer,Size,Stream";

static const uint64_t second_ns = 1000000000, day_ns = 86400 * second_ns;

/* ---- fields; each function moves `at` behind the field and the comma or line end after it ---- */

static bool end_field(const char **at, char end)
{
    return *(*at)++ == end;
}

/* Takes no blanks and signs, as strtoull alone would. */
static bool read_number(const char **at, char end, int base, uint64_t *number)
{
    const char *digits = *at;
    char *behind;

    if (!isxdigit((unsigned char)*digits))
        return false;
    errno = 0;
    *number = strtoull(digits, &behind, base);
    *at = behind;
    return behind > digits && errno == 0 && end_field(at, end);
}

/* RMM's versions print no address as "(nil)" or as 0x0. */
static bool read_address(const char **at, uint64_t *address)
{
    static const char none[] = "(nil),";

    if (strncmp(*at, none, sizeof(none) - 1) != 0)
        return read_number(at, ',', 16, address);
    *at += sizeof(none) - 1;
    *address = 0;
    return true;
}

/* HH:MM:SS.ffffff, with a point or a colon before the microseconds. */
static bool read_time(const char **at, uint64_t *ns)
{
    enum { LENGTH = sizeof("HH:MM:SS.ffffff") - 1 };
    unsigned hours, minutes, seconds, microseconds;
    int end = 0;

    if (strspn(*at, "0123456789:.") != LENGTH ||
        sscanf(*at, "%2u:%2u:%2u%*1[.:]%6u%n", &hours, &minutes, &seconds, &microseconds, &end) !=
            4 ||
        end != LENGTH || hours >= 24 || minutes >= 60 || seconds >= 61) /* with a leap second */
        return false;
    *ns = ((hours * 60 + minutes) * 60 + seconds) * second_ns + microseconds * UINT64_C(1000);
    *at += LENGTH;
    return end_field(at, ',');
}

static bool read_action(const char **at, enum rs_recording_event_kind *kind)
{
    static const struct {
        const char *text;
        enum rs_recording_event_kind kind;
    } actions[] = {{"allocate,", RS_RECORDING_ALLOCATE},
                   {"free,", RS_RECORDING_DEALLOCATE},
                   {"allocate failure,", RS_RECORDING_REFUSED}};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(actions); i++)
        if (strncmp(*at, actions[i].text, strlen(actions[i].text)) == 0) {
            *at += strlen(actions[i].text);
            *kind = actions[i].kind;
            return true;
        }
    return false;
}

/* Fills in the event, whose time is the time of day. */
static bool read_row(const char *at, struct tool_recording_event *event)
{
    uint64_t thread;

    *event = (struct tool_recording_event){.name = ""};
    if (!read_number(&at, ',', 10, &thread) || !read_time(&at, &event->time_ns) ||
        !read_action(&at, &event->kind) || !read_address(&at, &event->address) ||
        !read_number(&at, ',', 10, &event->size_bytes) ||
        !read_number(&at, '\n', 16, &event->stream))
        return false;
    event->thread = (uint32_t)thread;
    event->size_bytes =
        rs_min(event->size_bytes, ((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1); /* as recorded */
    return true;
}

/* ---- the whole ---- */

bool csv_log_is(const char *bytes, size_t length)
{
    return length >= sizeof(header) && memcmp(bytes, header, sizeof(header) - 1) == 0 &&
           strchr("\r\n", bytes[sizeof(header) - 1]);
}

/* The real time of a time of day on the 2nd of January 1970: no zone has that day before 1970. */
static uint64_t real_time(uint64_t time_of_day_ns)
{
    struct tm day = {.tm_year = 70, .tm_mday = 2, .tm_isdst = -1};

    return (uint64_t)mktime(&day) * second_ns + time_of_day_ns;
}

/* Returns the time of a row by that of the row above: times go on from one day to the next.  One
 * that is before that of the row above, as two threads write at once or the clock is set back, is
 * that of the row above. */
static uint64_t follow(uint64_t before_ns, uint64_t time_of_day_ns)
{
    uint64_t days_ns = before_ns / day_ns * day_ns;

    if (days_ns + time_of_day_ns + day_ns / 2 < before_ns)
        days_ns += day_ns;
    return rs_max(before_ns, days_ns + time_of_day_ns);
}

/* Ends each row at its line end, before which RMM writes no carriage return, but an editor may. */
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

static size_t count_lines(const char *at, const char *end)
{
    size_t count = 1;

    for (; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        count++;
    return count;
}

struct tool_recording_event *csv_log_read(const char *bytes, size_t length,
                                          struct tool_recording_facts *facts)
{
    enum { ROW_BYTES = 256 };
    const char *end = bytes + length, *at;
    struct tool_recording_event *events = calloc(count_lines(bytes, end), sizeof(*events));
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
    facts->header.begun_real_ns = real_time(first_ns);
    return events;
}
