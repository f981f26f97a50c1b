/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/sequence.h"

#include "base/hash_table.h"
#include "tool/recording.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <stdlib.h>

enum { DEVICES = 256 }; /* that a recording can tell apart */

struct reader {
    struct sequence *sequence;
    struct rs_hash_table live;    /* of each address: the number of its block, plus 1 */
    struct rs_hash_table streams; /* of each handle: its number */
    uint64_t used_bytes;
};

static unsigned busiest_device(struct tool_recording *recording)
{
    uint64_t counts[DEVICES] = {0};
    struct tool_recording_event event;
    unsigned busiest = 0;

    while (tool_recording_next(recording, &event))
        if (event.kind == RS_RECORDING_ALLOCATE && event.memory == RS_RECORDING_DEVICE &&
            ++counts[event.device % DEVICES] > counts[busiest])
            busiest = event.device % DEVICES;
    tool_recording_rewind(recording);
    return busiest;
}

static void remember(struct rs_hash_table *table, uint64_t key, size_t value)
{
    if (!rs_hash_reserve(table, 1))
        tool_end_without_memory();
    (void)rs_hash_put(table, key, (void *)value);
}

/* Handles are addresses, which are others in each run, but for those of CUDA's own streams. */
static uint64_t stream_of(struct reader *reader, uint64_t handle)
{
    enum { FIRST = 3 };

    if (handle < FIRST)
        return handle;
    if (!rs_hash_get(&reader->streams, handle))
        remember(&reader->streams, handle, FIRST + reader->streams.count);
    return (size_t)rs_hash_get(&reader->streams, handle);
}

static void add_event(struct reader *reader, const struct tool_recording_event *from,
                      enum sequence_kind kind, size_t block)
{
    struct sequence *sequence = reader->sequence;
    uint64_t bytes = sequence->block_bytes[block];

    sequence->events[sequence->event_count++] = (struct sequence_event){
        from->time_ns, stream_of(reader, from->stream), from->thread, (uint32_t)block, kind};
    if (kind != SEQUENCE_REFUSED)
        reader->used_bytes += kind == SEQUENCE_ALLOCATE ? bytes : 0 - bytes;
    sequence->recorded.used_peak = rs_max(sequence->recorded.used_peak, reader->used_bytes);
}

static size_t add_block(struct sequence *sequence, uint64_t bytes)
{
    sequence->block_bytes[sequence->block_count] = (size_t)bytes;
    return sequence->block_count++;
}

static void free_block(struct reader *reader, const struct tool_recording_event *event)
{
    size_t number = event->address ? (size_t)rs_hash_take(&reader->live, event->address) : 0;

    if (number)
        add_event(reader, event, SEQUENCE_FREE, number - 1);
    else
        reader->sequence->lost++;
}

/* Where a block of that address is live, its free was lost. */
static void allocate_block(struct reader *reader, const struct tool_recording_event *event)
{
    size_t block = add_block(reader->sequence, event->size_bytes);

    if (rs_hash_get(&reader->live, event->address)) {
        free_block(reader, event);
        reader->sequence->lost++;
    }
    remember(&reader->live, event->address, block + 1);
    add_event(reader, event, SEQUENCE_ALLOCATE, block);
}

/* All blocks have ended with their context. */
static void free_all(struct reader *reader, const struct tool_recording_event *event)
{
    for (size_t i = 0; i < reader->live.slot_count; i++)
        if (rs_hash_at(&reader->live, i))
            add_event(reader, event, SEQUENCE_FREE, (size_t)rs_hash_at(&reader->live, i) - 1);
    rs_hash_clear(&reader->live);
}

static void add(struct reader *reader, const struct tool_recording_event *event)
{
    struct sequence *sequence = reader->sequence;

    if (event->kind == RS_RECORDING_ALLOCATE && event->address && event->size_bytes) {
        allocate_block(reader, event);
    } else if (event->kind == RS_RECORDING_DEALLOCATE) {
        free_block(reader, event);
    } else if (event->kind == RS_RECORDING_REFUSED && event->size_bytes) {
        sequence->recorded.refusals++;
        add_event(reader, event, SEQUENCE_REFUSED, add_block(sequence, event->size_bytes));
    } else if (event->kind == RS_RECORDING_STACK) {
        sequence->device_bytes = event->size_bytes;
    } else if (event->kind == RS_RECORDING_STACK_GONE) {
        free_all(reader, event);
    } else if (event->kind == RS_RECORDING_HELD) {
        sequence->recorded.held_peak = rs_max(sequence->recorded.held_peak, event->size_bytes);
    }
}

static void read_events(struct sequence *sequence, struct tool_recording *recording)
{
    struct reader reader = {.sequence = sequence};
    struct tool_recording_event event;

    while (tool_recording_next(recording, &event))
        if (event.memory == RS_RECORDING_DEVICE && event.device == sequence->device)
            add(&reader, &event);
    rs_hash_clear(&reader.live);
    rs_hash_clear(&reader.streams);
}

static int say_facts(const struct sequence *sequence, const char *path, uint64_t damaged)
{
    if (sequence->event_count == 0)
        tool_say("%s: the file has no request for memory of device %u", path, sequence->device);
    else if (sequence->lost)
        tool_say("%s: %" PRIu64 " event%s missing from the file, so all figures may be too low",
                 path, sequence->lost, sequence->lost == 1 ? " is" : "s are");
    if (damaged)
        tool_say("%s: %" PRIu64 " part%s of the file %s damaged; the rest is used", path, damaged,
                 damaged == 1 ? "" : "s", damaged == 1 ? "is" : "are");
    return sequence->event_count == 0 || damaged ? TOOL_FINDING : TOOL_OK;
}

int sequence_read(struct sequence *sequence, const char *path, int device)
{
    char reason[TOOL_REASON_BYTES];
    struct tool_recording *recording = tool_recording_open(path, reason);
    const struct tool_recording_facts *facts;
    int code;

    *sequence = (struct sequence){.events = NULL};
    if (!recording) {
        tool_say("%s: %s", path, reason);
        return TOOL_FINDING;
    }
    facts = tool_recording_facts(recording);
    sequence->device = device < 0 ? busiest_device(recording) : (unsigned)device;
    sequence->lost = facts->lost_events + facts->missed_events;
    /* A block has two events at most: it may be freed without one, with its context. */
    sequence->events = tool_grow(NULL, 2 * facts->events * sizeof(*sequence->events));
    sequence->block_bytes = tool_grow(NULL, facts->events * sizeof(size_t));
    read_events(sequence, recording);
    code = say_facts(sequence, path, facts->damaged);
    tool_recording_close(recording);
    return code;
}

void sequence_release(struct sequence *sequence)
{
    free(sequence->events);
    free(sequence->block_bytes);
}
