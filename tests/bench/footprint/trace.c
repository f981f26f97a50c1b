/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include "../../oracle/note.h"
#include "rmmshim/rmmshim.h"
#include "trace_file.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        const struct trace_event *event = &trace->events[*at];
        cudaStream_t stream = streams[event->stream];

        if (event->bytes == 0) {
            player->deallocate(blocks[event->block], trace->block_bytes[event->block], stream);
            ORACLE_NOTE("free");
            continue;
        }
        trace->block_bytes[event->block] = event->bytes;
        blocks[event->block] = player->allocate(event->bytes, stream);
        ORACLE_NOTE("allocate %zu: %d", event->bytes, blocks[event->block] == NULL);
        if (!blocks[event->block])
            return false;
        meter_note();
    }
    return true;
}

int trace_play(const char *path, const struct trace_player *player)
{
    struct trace trace = {0};
    cudaStream_t streams[TRACE_STREAMS_MAX] = {NULL};
    size_t reserved_bytes, at = 0;
    int status = TRACE_BAD;
    void **blocks = NULL;

    if (!trace_read(&trace, path))
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
    trace_free(&trace);
    return status;
}
