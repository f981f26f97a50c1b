/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/replay.h"

#include "tool/report/outputs.h"

#include <inttypes.h>

enum { DEVICES = 256 }; /* the most devices that a recording can tell apart */

static struct rs_hash_table streams; /* the number of each stream, by its handle */
static uint64_t device_bytes[DEVICES];

/* Returns the number of a stream (struct sequence_event). Handles of the program's streams are
 * addresses, which differ from run to run. */
static uint64_t stream_of(uint64_t handle)
{
    enum { FIRST = 3 };

    if (handle >= FIRST && !rs_hash_get(&streams, handle))
        tool_remember(&streams, handle, FIRST + streams.count);
    return handle < FIRST ? handle : (size_t)rs_hash_get(&streams, handle);
}

static void see(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event)
{
    struct sequence *sequence = (struct sequence *)observer;
    const struct block *block = analysis_block(run, event->address);

    if (event->memory != RS_RECORDING_DEVICE)
        return;
    if (event->kind == RS_RECORDING_STACK)
        device_bytes[event->device % DEVICES] = event->size_bytes;
    if (event->size_bytes == 0 ||
        (event->kind != RS_RECORDING_ALLOCATE && event->kind != RS_RECORDING_DEALLOCATE &&
         event->kind != RS_RECORDING_REFUSED))
        return;
    sequence->events =
        tool_grow_list(sequence->events, sequence->event_count, sizeof(*sequence->events));
    sequence->events[sequence->event_count++] = (struct sequence_event){
        .ns = event->time_ns,
        .stream = stream_of(event->stream),
        .size_bytes = event->size_bytes,
        .thread = event->thread,
        .device = event->device,
        .block = block ? (size_t)(block - run->blocks) : 0,
        .kind = event->kind,
    };
}

/* Returns the series of the device's own memory; with -1, of the device with the most allocations.
 * NULL if there is none. */
static const struct series *series_of(const struct run *run, int device)
{
    const struct series *found = NULL;

    for (size_t i = 0; i < run->series_count; i++) {
        const struct series *one = &run->series[i];
        if (one->kind == RS_KIND_DEVICE &&
            (device < 0 ? !found || one->allocations > found->allocations : one->device == device))
            found = one;
    }
    return found;
}

static void take_run(struct sequence *sequence, const struct run *run, int device)
{
    const struct series *series = series_of(run, device);
    size_t kept = 0;

    sequence->device = series ? (unsigned)series->device : (unsigned)(device < 0 ? 0 : device);
    sequence->block_count = run->block_count;
    sequence->lost = run->lost_events + run->missing_events;
    if (series) {
        sequence->recorded.used_peak = series->peak_used;
        sequence->recorded.held_peak = series->peak_held;
    }
    for (size_t i = 0; i < sequence->event_count; i++)
        if (sequence->events[i].device == sequence->device) {
            sequence->events[kept++] = sequence->events[i];
            sequence->recorded.refusals += sequence->events[i].kind == RS_RECORDING_REFUSED;
        }
    sequence->event_count = kept;
}

int sequence_read(struct sequence *sequence, char *path, int device)
{
    static struct analysis analysis;
    int code;

    sequence->observer.see = see;
    analysis.observer = &sequence->observer;
    code = input_read(&analysis, (char *[]){path, NULL});
    if (analysis.run_count > 0) {
        take_run(sequence, analysis.runs[0], device);
        sequence->device_bytes = device_bytes[sequence->device % DEVICES];
        if (sequence->event_count == 0) {
            tool_say("%s: the file has no allocation of device memory on device %u", path,
                     sequence->device);
            code = TOOL_FINDING;
        } else if (sequence->lost) {
            tool_say("%s: %" PRIu64 " event%s missing from the file, so all figures may be too low",
                     path, sequence->lost, sequence->lost == 1 ? " is" : "s are");
        }
    }
    return code;
}
