/* SPDX-License-Identifier: Apache-2.0 */
#include "trace_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES_MAX = 512 };

/* Room for one more; doubled whenever count reaches a power of two. */
static void *with_room(void *array, size_t count, size_t size)
{
    if (count & (count - 1))
        return array;
    array = realloc(array, (count ? 2 * count : 1) * size);
    if (!array)
        abort();
    return array;
}

static bool parse_number(const char **at, unsigned long long *out)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0;
}

static bool read_line(struct trace *trace, const char *line)
{
    unsigned long long number, stream = 0;
    struct trace_event event = {0};
    const char *at = line + 1;

    if (!parse_number(&at, &number) || (*at == ' ' && (at++, !parse_number(&at, &stream))) ||
        (*at && *at != '\n') || stream >= TRACE_STREAMS_MAX)
        return false;
    if (*line == 'a') {
        if (number == 0)
            return false;
        event.bytes = number;
        event.block = (uint32_t)trace->block_count;
        trace->block_bytes =
            with_room(trace->block_bytes, trace->block_count, sizeof(*trace->block_bytes));
        trace->block_bytes[trace->block_count++] = number;
        trace->live_bytes += number;
    } else {
        if (*line != 'f' || number >= trace->block_count)
            return false;
        event.block = (uint32_t)(trace->block_count - 1 - number);
        if (trace->block_bytes[event.block] == 0)
            return false;
        trace->live_bytes -= trace->block_bytes[event.block];
        trace->block_bytes[event.block] = 0;
    }
    if (trace->live_bytes > trace->peak_live_bytes)
        trace->peak_live_bytes = trace->live_bytes;
    if (stream >= trace->stream_count)
        trace->stream_count = (uint32_t)stream + 1;
    event.stream = (uint32_t)stream;
    trace->events = with_room(trace->events, trace->event_count, sizeof(*trace->events));
    trace->events[trace->event_count++] = event;
    return true;
}

bool trace_read(struct trace *trace, const char *path)
{
    FILE *file = fopen(path, "r");
    char line[LINE_BYTES_MAX];
    unsigned number = 0;
    bool good = true;

    if (!file) {
        perror(path);
        return false;
    }
    while (good && fgets(line, sizeof(line), file)) {
        number++;
        good = *line == '#' || *line == '\n' || read_line(trace, line);
    }
    if (!good)
        fprintf(stderr, "%s:%u: not a line of a trace: %s\n", path, number, line);
    fclose(file);
    return good && trace->event_count > 0;
}

void trace_free(struct trace *trace)
{
    free(trace->events);
    free(trace->block_bytes);
}
