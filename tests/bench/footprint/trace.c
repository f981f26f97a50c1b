/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include "rmmshim/rmmshim.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 64, LINE_BYTES_MAX = 512 };

struct event {
    size_t bytes; /* 0: a free */
    uint32_t block;
    uint32_t stream;
};

struct trace {
    struct event *events;
    size_t *block_bytes; /* 0 once it is freed */
    size_t event_count, block_count;
    size_t live_bytes, peak_live_bytes;
    uint32_t stream_count;
};

/* ---- reading ---- */

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
    struct event event = {0};
    const char *at = line + 1;

    if (!parse_number(&at, &number) || (*at == ' ' && (at++, !parse_number(&at, &stream))) ||
        (*at && *at != '\n') || stream >= STREAMS_MAX)
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

static bool read_trace(struct trace *trace, const char *path)
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

/* ---- how much was taken from the driver ---- */

/* The device in host memory counts by itself and exactly.  Elsewhere our own library does, and for
 * other allocators what is free is asked after every allocation. */
static struct {
    size_t (*used_bytes)(int device);
    size_t (*peak_bytes)(int device);
    int (*statistics)(int device, struct rmmshim_statistics *statistics);
    size_t before_bytes, most_bytes;
} meter;

static size_t in_use_bytes(void)
{
    size_t free_bytes = 0, total_bytes = 0;

    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return total_bytes - free_bytes;
}

static void meter_begin(void)
{
    *(void **)&meter.used_bytes = dlsym(RTLD_DEFAULT, "hostcuda_used_bytes");
    *(void **)&meter.peak_bytes = dlsym(RTLD_DEFAULT, "hostcuda_peak_bytes");
    *(void **)&meter.statistics = dlsym(RTLD_DEFAULT, "rmmshim_get_statistics");
    if (!meter.used_bytes) { /* the runtime has opened its driver for itself alone */
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (driver) {
            *(void **)&meter.used_bytes = dlsym(driver, "hostcuda_used_bytes");
            *(void **)&meter.peak_bytes = dlsym(driver, "hostcuda_peak_bytes");
        }
    }
    meter.before_bytes = meter.used_bytes ? meter.used_bytes(0) : in_use_bytes();
    meter.most_bytes = meter.before_bytes;
}

static void meter_note(void)
{
    size_t bytes;

    if (meter.peak_bytes || meter.statistics)
        return;
    bytes = in_use_bytes();
    if (bytes > meter.most_bytes)
        meter.most_bytes = bytes;
}

static size_t meter_end(void)
{
    struct rmmshim_statistics statistics = {.size = sizeof(statistics)};

    if (meter.peak_bytes)
        return meter.peak_bytes(0) - meter.before_bytes;
    if (meter.statistics && meter.statistics(0, &statistics) == 0)
        return statistics.peak_total_bytes;
    return meter.most_bytes - meter.before_bytes;
}

/* ---- playing ---- */

static bool open_streams(cudaStream_t *streams, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking) != cudaSuccess)
            return false;
    return true;
}

/* False when out of memory; *at is where. */
static bool play(const struct trace *trace, const struct trace_player *player,
                 const cudaStream_t *streams, void **blocks, size_t *at)
{
    for (*at = 0; *at < trace->event_count; ++*at) {
        const struct event *event = &trace->events[*at];
        cudaStream_t stream = streams[event->stream];

        if (event->bytes == 0) {
            player->deallocate(blocks[event->block], trace->block_bytes[event->block], stream);
            continue;
        }
        trace->block_bytes[event->block] = event->bytes;
        blocks[event->block] = player->allocate(event->bytes, stream);
        if (!blocks[event->block])
            return false;
        meter_note();
    }
    return true;
}

int trace_play(const char *path, const struct trace_player *player)
{
    struct trace trace = {0};
    cudaStream_t streams[STREAMS_MAX] = {NULL};
    size_t reserved_bytes, at = 0;
    int status = TRACE_BAD;
    void **blocks = NULL;

    if (!read_trace(&trace, path))
        goto out;
    blocks = calloc(trace.block_count, sizeof(*blocks));
    if (!blocks || cudaFree(NULL) != cudaSuccess || !open_streams(streams, trace.stream_count)) {
        fprintf(stderr, "no CUDA device\n");
        goto out;
    }
    meter_begin();
    if (play(&trace, player, streams, blocks, &at)) {
        reserved_bytes = meter_end();
        printf("events %zu live %zu reserved %zu ratio %.4f\n", trace.event_count,
               trace.peak_live_bytes, reserved_bytes,
               (double)reserved_bytes / (double)trace.peak_live_bytes);
        status = TRACE_PLAYED;
    } else {
        printf("events %zu live %zu: out of memory at event %zu\n", trace.event_count,
               trace.peak_live_bytes, at);
        status = TRACE_OUT_OF_MEMORY;
    }
out:
    free(blocks);
    free(trace.events);
    free(trace.block_bytes);
    return status;
}
