/* SPDX-License-Identifier: Apache-2.0 */
/* A trace of Perfetto (https://ui.perfetto.dev): live bytes of each device and kind of memory as
 * counters, phases as slices of their threads, marks and refusals as instants.
 *
 * A trace is a message of protocol buffers; the numbers of its fields are those of
 * protos/perfetto/trace in Perfetto's source, which do not change. */
#include "base/arithmetic.h"
#include "recording/format.h"
#include "tool/export/export.h"

#include <string.h>

enum {
    MESSAGE_BYTES = 2048,
    TEXT_BYTES = 512, /* of a text in a message; longer ones are cut */
    DEVICES = 1024,
    MEMORIES = 3, /* device, managed, host */
};

/* Numbers of fields. */
enum {
    TRACE_PACKET = 1,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACK_DESCRIPTOR = 60,
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_THREAD = 4,
    TRACK_PARENT_UUID = 5,
    TRACK_COUNTER = 8,
    PROCESS_PID = 1,
    PROCESS_NAME = 6,
    THREAD_PID = 1,
    THREAD_TID = 2,
    THREAD_NAME = 5,
    COUNTER_UNIT = 3,
    EVENT_ANNOTATION = 4,
    EVENT_TYPE = 9,
    EVENT_TRACK_UUID = 11,
    EVENT_NAME = 23,
    EVENT_COUNTER_VALUE = 30,
    ANNOTATION_NUMBER = 3,
    ANNOTATION_NAME = 10,
};

enum { STATE_CLEARED = 1, UNIT_BYTES = 3 };

/* Of an event. */
enum type { SLICE_BEGIN = 1, SLICE_END, INSTANT, COUNTER };

/* Identities of tracks. */
enum { OF_PROCESS = 1, OF_COUNTERS = 1 << 16, OF_THREADS = 1 << 24 };

struct message {
    size_t length;
    char bytes[MESSAGE_BYTES];
};

struct perfetto {
    FILE *file;
    const struct recording *recording;
    uint64_t live_bytes[DEVICES][MEMORIES];
    bool is_put[DEVICES][MEMORIES]; /* the counter's track */
    uint32_t open_phases[RS_RECORDING_NUMBERS_MAX + 1];
};

/* ---- protocol buffers ---- */

static void put_varint(struct message *message, uint64_t number)
{
    for (; number >= 0x80; number >>= 7)
        message->bytes[message->length++] = (char)(number | 0x80);
    message->bytes[message->length++] = (char)number;
}

static void put_number(struct message *message, unsigned field, uint64_t number)
{
    put_varint(message, field << 3);
    put_varint(message, number);
}

static void put_bytes(struct message *message, unsigned field, const char *bytes, size_t length)
{
    put_varint(message, field << 3 | 2);
    put_varint(message, length);
    memcpy(message->bytes + message->length, bytes, length);
    message->length += length;
}

/* Cut between characters. */
static void put_text(struct message *message, unsigned field, const char *text)
{
    size_t length = strnlen(text, TEXT_BYTES);

    while (text[length] && ((unsigned char)text[length] & 0xc0) == 0x80)
        length--;
    put_bytes(message, field, text, length);
}

static void put_message(struct message *message, unsigned field, const struct message *inner)
{
    put_bytes(message, field, inner->bytes, inner->length);
}

static void put_packet(struct perfetto *perfetto, struct message *packet)
{
    struct message head = {.length = 0};

    put_number(packet, PACKET_SEQUENCE, 1);
    put_varint(&head, TRACE_PACKET << 3 | 2);
    put_varint(&head, packet->length);
    (void)fwrite(head.bytes, 1, head.length, perfetto->file);
    (void)fwrite(packet->bytes, 1, packet->length, perfetto->file);
}

/* ---- tracks ---- */

static void put_track(struct perfetto *perfetto, const struct message *track)
{
    struct message packet = {.length = 0};

    put_message(&packet, PACKET_TRACK_DESCRIPTOR, track);
    put_packet(perfetto, &packet);
}

static void put_process(struct perfetto *perfetto)
{
    struct message packet = {.length = 0}, track = {.length = 0}, process = {.length = 0};

    put_number(&process, PROCESS_PID, perfetto->recording->process);
    put_text(&process, PROCESS_NAME, perfetto->recording->program);
    put_number(&track, TRACK_UUID, OF_PROCESS);
    put_message(&track, TRACK_PROCESS, &process);
    put_message(&packet, PACKET_TRACK_DESCRIPTOR, &track);
    put_number(&packet, PACKET_SEQUENCE_FLAGS, STATE_CLEARED);
    put_packet(perfetto, &packet);
}

static void put_threads(struct perfetto *perfetto)
{
    for (uint32_t i = 1; i <= rs_min(perfetto->recording->threads.count, RS_RECORDING_NUMBERS_MAX);
         i++) {
        const struct recording_item *item = recording_item(&perfetto->recording->threads, i);
        struct message track = {.length = 0}, thread = {.length = 0};
        if (!item)
            continue;
        put_number(&thread, THREAD_PID, perfetto->recording->process);
        put_number(&thread, THREAD_TID, (uint32_t)item->value & INT32_MAX);
        put_text(&thread, THREAD_NAME, item->text);
        put_number(&track, TRACK_UUID, OF_THREADS + i);
        put_message(&track, TRACK_THREAD, &thread);
        put_track(perfetto, &track);
    }
}

static uint64_t counter_of(int device, unsigned memory)
{
    return OF_COUNTERS + (uint64_t)device * MEMORIES + memory;
}

static void put_counter_track(struct perfetto *perfetto, int device, unsigned memory)
{
    static const char *const names[] = {"live", "live, managed memory", "live, pinned memory"};
    struct message track = {.length = 0}, counter = {.length = 0};
    char name[64];

    snprintf(name, sizeof(name), "device %d: %s", device, names[memory]);
    put_number(&counter, COUNTER_UNIT, UNIT_BYTES);
    put_number(&track, TRACK_UUID, counter_of(device, memory));
    put_text(&track, TRACK_NAME, name);
    put_number(&track, TRACK_PARENT_UUID, OF_PROCESS);
    put_message(&track, TRACK_COUNTER, &counter);
    put_track(perfetto, &track);
    perfetto->is_put[device][memory] = true;
}

/* ---- events ---- */

static void put_event(struct perfetto *perfetto, uint64_t ns, enum type type, uint64_t track,
                      struct message *event)
{
    struct message packet = {.length = 0};

    put_number(event, EVENT_TYPE, type);
    put_number(event, EVENT_TRACK_UUID, track);
    put_number(&packet, PACKET_TIMESTAMP, perfetto->recording->begun_ns + ns);
    put_message(&packet, PACKET_TRACK_EVENT, event);
    put_packet(perfetto, &packet);
}

static void count(struct perfetto *perfetto, bool takes, const struct recording_event *block,
                  uint64_t ns)
{
    const struct recording_item *stack = recording_item(&perfetto->recording->stacks, block->stack);
    unsigned memory = stack && stack->value >> 32 < MEMORIES ? (unsigned)(stack->value >> 32) : 0;
    int device = recording_device(perfetto->recording, block);
    uint64_t *live_bytes = &perfetto->live_bytes[device][memory];
    struct message event = {.length = 0};

    *live_bytes += takes ? block->size_bytes : -block->size_bytes;
    if (!perfetto->is_put[device][memory])
        put_counter_track(perfetto, device, memory);
    put_number(&event, EVENT_COUNTER_VALUE, *live_bytes);
    put_event(perfetto, ns, COUNTER, counter_of(device, memory), &event);
}

static void note(struct perfetto *perfetto, const struct recording_event *from)
{
    uint32_t *open = &perfetto->open_phases[from->thread];
    struct message event = {.length = 0}, annotation = {.length = 0};
    uint64_t track = OF_THREADS + from->thread;

    switch (from->kind) {
    case RS_RECORDING_PHASE_BEGIN:
        ++*open;
        put_text(&event, EVENT_NAME, recording_name(perfetto->recording, from->site_or_name));
        put_event(perfetto, from->ns, SLICE_BEGIN, track, &event);
        break;
    case RS_RECORDING_PHASE_END:
        if (*open > 0 && (*open)--) /* of one whose begin is lost there is nothing to end */
            put_event(perfetto, from->ns, SLICE_END, track, &event);
        break;
    case RS_RECORDING_MARK:
        put_text(&event, EVENT_NAME, recording_name(perfetto->recording, from->site_or_name));
        put_event(perfetto, from->ns, INSTANT, track, &event);
        break;
    case RS_RECORDING_REFUSED:
        put_text(&annotation, ANNOTATION_NAME, "bytes");
        put_number(&annotation, ANNOTATION_NUMBER, from->size_bytes);
        put_message(&event, EVENT_ANNOTATION, &annotation);
        put_text(&event, EVENT_NAME, "out of memory");
        put_event(perfetto, from->ns, INSTANT, track, &event);
        break;
    default:
        break;
    }
}

static bool put_step(void *data, enum recording_step step, const struct recording_event *block,
                     uint64_t ns)
{
    struct perfetto *perfetto = data;

    if (step == RECORDING_OTHER)
        note(perfetto, block);
    else
        count(perfetto, step == RECORDING_TAKES, block, ns);
    return true;
}

bool export_perfetto(const struct recording *recording, FILE *file)
{
    static struct perfetto perfetto;

    perfetto = (struct perfetto){.file = file, .recording = recording};
    put_process(&perfetto);
    put_threads(&perfetto);
    return recording_walk(recording, put_step, &perfetto);
}
