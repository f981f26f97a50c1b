/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's event log: Thread,Time,Action,Pointer,Size,Stream. */
#include "tool/recording/recording.h"

#include "base/arithmetic.h"
#include "recording/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char header[] = "Thread,Time,Action,Pointer,Size,Stream";

enum { FIELDS = 6, FIELD_BYTES = 64 };

struct row {
    char field[FIELDS][FIELD_BYTES];
};

/* Numbers are given out in the order of the log. */
struct numbers {
    uint64_t values[RS_RECORDING_NUMBERS_MAX];
    uint32_t count, latest;
};

struct log_reader {
    struct recording *recording;
    struct numbers threads, streams;
    uint64_t day_ns, latest_ns, first_ns;
};

bool recording_is_log(const char *bytes, size_t length)
{
    return length >= sizeof(header) - 1 && memcmp(bytes, header, sizeof(header) - 1) == 0;
}

static bool split(const char *line, size_t length, struct row *row)
{
    size_t begin = 0;

    for (unsigned i = 0; i < FIELDS; i++) {
        size_t end = begin;
        while (end < length && line[end] != ',')
            end++;
        if (end - begin >= FIELD_BYTES || (i + 1 < FIELDS) != (end < length))
            return false;
        memcpy(row->field[i], line + begin, end - begin);
        row->field[i][end - begin] = '\0';
        begin = end + 1;
    }
    return true;
}

static bool parse_number(const char *text, int base, uint64_t *number)
{
    char *end;

    if (!*text || *text == '-' || *text == '+' || *text == ' ')
        return false;
    *number = strtoull(text, &end, base);
    return !*end;
}

static bool parse_address(const char *text, uint64_t *number)
{
    *number = 0;
    return strcmp(text, "(nil)") == 0 || parse_number(text, 16, number);
}

/* HH:MM:SS.microseconds, without a date: an earlier hour than the row's before is the next day's.
 */
static bool parse_time(struct log_reader *log, const char *text, uint64_t *ns)
{
    const uint64_t day_ns = 86400 * 1000000000ull;
    unsigned hours, minutes, seconds, micros;
    int length = 0;
    uint64_t time_ns;

    if (sscanf(text, "%2u:%2u:%2u%*1[.:]%6u%n", &hours, &minutes, &seconds, &micros, &length) !=
            4 ||
        text[length])
        return false;
    time_ns = ((hours * 60ull + minutes) * 60 + seconds) * 1000000000u + micros * 1000ull;
    if (log->recording->count == 0)
        log->first_ns = log->recording->begun_real_ns = time_ns;
    /* rows of several threads may be out of order by a little */
    if (time_ns + log->day_ns + day_ns / 2 < log->latest_ns)
        log->day_ns += day_ns;
    time_ns += log->day_ns;
    log->latest_ns = rs_max(log->latest_ns, time_ns);
    *ns = time_ns > log->first_ns ? time_ns - log->first_ns : 0;
    return true;
}

/* Returns the value's number, from 1; those that have no room share the last one. */
static uint32_t number_of(struct numbers *numbers, uint64_t value)
{
    if (numbers->latest && numbers->values[numbers->latest - 1] == value)
        return numbers->latest;
    for (numbers->latest = 1; numbers->latest <= numbers->count; numbers->latest++)
        if (numbers->values[numbers->latest - 1] == value)
            return numbers->latest;
    if (numbers->count + 1 < RS_ARRAY_LENGTH(numbers->values) - RS_RECORDING_STREAMS_FIXED)
        numbers->values[numbers->count++] = value;
    numbers->latest = numbers->count;
    return numbers->latest;
}

static bool read_row(struct log_reader *log, const struct row *row)
{
    static const struct {
        const char *text;
        enum rs_recording_event_kind kind;
    } actions[] = {{"allocate", RS_RECORDING_ALLOCATE},
                   {"free", RS_RECORDING_FREE},
                   {"allocate failure", RS_RECORDING_REFUSED}};
    struct recording_event *event, read = {.partner = RECORDING_NO_EVENT, .stack = 1};
    uint64_t thread, stream, number;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(actions); i++)
        if (strcmp(row->field[2], actions[i].text) == 0)
            read.kind = (uint8_t)actions[i].kind;
    if (!read.kind || !parse_number(row->field[0], 10, &thread) ||
        !parse_time(log, row->field[1], &read.ns) || !parse_address(row->field[3], &read.address) ||
        !parse_number(row->field[4], 10, &read.size_bytes) ||
        !parse_address(row->field[5], &stream))
        return false;
    number = number_of(&log->threads, thread);
    recording_define(log->recording, &log->recording->threads, (uint32_t)number, thread, "", 0);
    read.thread = (uint16_t)number;
    read.stream = (uint16_t)stream;
    if (stream >= RS_RECORDING_STREAMS_FIXED) {
        number = number_of(&log->streams, stream);
        recording_define(log->recording, &log->recording->streams, (uint32_t)number, stream, "", 0);
        read.stream = (uint16_t)(number + RS_RECORDING_STREAMS_FIXED - 1);
    }
    event = recording_add(log->recording);
    if (event)
        *event = read;
    return true;
}

/* The last row may be half written; it is then no row, and what is before it counts. */
void recording_parse_log(struct recording *recording, const char *bytes, size_t length)
{
    struct log_reader *log = calloc(1, sizeof(*log));
    size_t at = sizeof(header) - 1, line = 1;
    struct row row;

    recording->is_short = !log;
    if (!log)
        return;
    log->recording = recording;
    recording->is_log = true;
    recording_define(recording, &recording->stacks, 1, 0, "log", 3);
    while (at < length && !recording->is_short) {
        const char *begin = bytes + at, *end = memchr(begin, '\n', length - at);
        size_t bytes_of_line = end ? (size_t)(end - begin) : length - at;
        at += bytes_of_line + 1;
        if (bytes_of_line && begin[bytes_of_line - 1] == '\r')
            bytes_of_line--;
        if (bytes_of_line && !(split(begin, bytes_of_line, &row) && read_row(log, &row))) {
            recording_note_damage(recording, "line %zu is no row of RMM's log", line);
            break;
        }
        line++;
    }
    free(log);
}
