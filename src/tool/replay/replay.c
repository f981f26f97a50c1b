/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/replay.h"

#include "base/arithmetic.h"
#include "recording/format.h"
#include "resource/report.h"
#include "tool/replay/device.h"
#include "tool/replay/virtual_memory.h"

#include <stdlib.h>

enum { DEVICES = 1024, HOST_MEMORY = 2 };

struct play {
    const struct recording *recording;
    const struct replay_settings *settings;
    struct replay_result *result;
    struct rs_mr *mr;
    struct rs_allocation *blocks; /* by the number of the event; address 0: none */
    uint64_t ns, live_bytes, steps;
};

bool replay_is_played(const struct recording *recording, const struct recording_event *block,
                      int device)
{
    const struct recording_item *stack = recording_item(&recording->stacks, block->stack);

    return block->size_bytes && recording_device(recording, block) == device &&
           (!stack || stack->value >> 32 != HOST_MEMORY);
}

int replay_busiest_device(const struct recording *recording)
{
    static size_t counts[DEVICES];
    int busiest = 0;

    for (size_t i = 0; i < recording->count; i++) {
        const struct recording_event *event = &recording->events[i];
        int device = recording_device(recording, event);
        if (event->kind == RS_RECORDING_ALLOCATE && replay_is_played(recording, event, device) &&
            ++counts[device] > counts[busiest])
            busiest = device;
    }
    return busiest;
}

static void pass_time(struct play *play, uint64_t ns)
{
    if (play->settings->operation_ns)
        replay_device_operate(play->settings->operation_ns);
    else if (ns > play->ns)
        replay_device_reach(ns - play->ns);
    play->ns = rs_max(play->ns, ns);
}

static void take(struct play *play, const struct recording_event *block,
                 struct rs_allocation *allocation)
{
    struct replay_result *result = play->result;

    result->allocations++;
    play->live_bytes += block->size_bytes;
    result->peak_live_bytes = rs_max(result->peak_live_bytes, play->live_bytes);
    if (rs_mr_allocate(play->mr, block->size_bytes, NULL, allocation) == CUDA_SUCCESS)
        return;
    *allocation = (struct rs_allocation){.address = 0};
    result->refusals++;
}

static void give(struct play *play, const struct recording_event *block,
                 struct rs_allocation *allocation)
{
    play->live_bytes -= block->size_bytes;
    if (allocation->address)
        (void)rs_mr_deallocate(play->mr, allocation, NULL);
    allocation->address = 0;
}

static bool step(void *data, enum recording_step step, const struct recording_event *block,
                 uint64_t ns)
{
    struct play *play = data;
    struct rs_allocation *allocation = &play->blocks[block - play->recording->events];

    if (step == RECORDING_OTHER ||
        !replay_is_played(play->recording, block, play->settings->device))
        return true;
    pass_time(play, ns);
    play->steps++;
    if (step == RECORDING_TAKES)
        take(play, block, allocation);
    else
        give(play, block, allocation);
    return true;
}

static uint64_t share_ppm(uint64_t part, uint64_t whole)
{
    return whole ? (uint64_t)((unsigned __int128)part * 1000000 / whole) : 0;
}

/* A GPU that is busy all the time: the run got longer by what it idled.  By a recording's times: by
 * what the library's calls took beyond them. */
static uint64_t longer_ppm(const struct play *play)
{
    const struct replay_device *device = &replay_device;

    if (!play->settings->operation_ns)
        return share_ppm(play->result->waited_ns, device->recorded_ns);
    return device->lag_ns
               ? share_ppm(device->idle_ns, device->busy_ns)
               : share_ppm(play->result->waited_ns, play->settings->operation_ns * play->steps);
}

static void sum_up(struct play *play)
{
    struct rs_report report = {.count = 0};

    rs_mr_report(play->mr, &report);
    play->result->waits = rs_report_value(&report, "reuse", "waits", 0);
    play->result->waited_ns = rs_report_value(&report, "reuse", "waited", 0);
    rs_report_release(&report);
    play->result->peak_held_bytes = replay_device_peak_bytes();
    play->result->upstream_allocations =
        replay_device.allocations + replay_virtual_memory.creations;
    play->result->upstream_frees = replay_device.frees + replay_virtual_memory.releases;
    play->result->fences = replay_device.fences;
    play->result->looks = replay_device.looks;
    play->result->free_waits = replay_device.free_waits;
    play->result->longer_ppm = longer_ppm(play);
}

bool replay_play(const struct recording *recording, const struct replay_settings *settings,
                 const char *expression, struct rs_diagnostics *diagnostics,
                 struct replay_result *result)
{
    struct play play = {.recording = recording, .settings = settings, .result = result};

    *result = (struct replay_result){.allocations = 0};
    play.blocks = calloc(rs_max(recording->count, 1), sizeof(*play.blocks));
    replay_device_install(settings->lag_ns, settings->capacity_bytes);
    play.mr =
        play.blocks ? replay_device_stack(expression, !settings->frees_at_once, diagnostics) : NULL;
    if (play.mr) {
        (void)recording_walk(recording, step, &play);
        sum_up(&play);
        rs_mr_destroy(play.mr, true);
    }
    replay_device_remove();
    free(play.blocks);
    return play.mr;
}
