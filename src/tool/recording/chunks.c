/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a recording (recording/format.h). */
#include "tool/recording/recording.h"

#include "base/arithmetic.h"
#include "recording/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which chunks were read, by their sequence: a hash set. */
struct seen {
    uint64_t *slots;
    size_t count;
};

struct reader {
    struct recording *recording;
    uint64_t id;
    struct seen seen;
    bool has_any, is_newer;
};

static bool is_seen(struct reader *reader, uint64_t sequence, bool enter)
{
    size_t at = (size_t)(sequence * 0x9e3779b97f4a7c15u >> 20) % reader->seen.count;

    while (reader->seen.slots[at] && reader->seen.slots[at] != sequence)
        at = (at + 1) % reader->seen.count;
    if (reader->seen.slots[at])
        return true;
    if (enter)
        reader->seen.slots[at] = sequence;
    return false;
}

/* ---- contents ---- */

static uint64_t scaled(uint64_t number, uint64_t by, uint64_t over)
{
    return over ? (uint64_t)((unsigned __int128)number * by / over) : number;
}

/* Ticks for now; recording_parse makes nanoseconds of them. */
static bool read_event(struct recording *recording, const struct rs_recording_event *from)
{
    unsigned kind = from->kind_and_ticks & ((1u << RS_RECORDING_KIND_BITS) - 1);
    struct recording_event *event;

    if (kind == 0)
        return false;
    if (kind >= RS_RECORDING_EVENT_KINDS)
        return true; /* of a newer version, which says that it may be left out */
    event = recording_add(recording);
    if (!event)
        return false;
    event->kind = (uint8_t)kind;
    event->ns = from->kind_and_ticks >> RS_RECORDING_KIND_BITS;
    event->address = from->address;
    event->thread = from->thread_and_size & ((1u << RS_RECORDING_THREAD_BITS) - 1);
    event->size_bytes = from->thread_and_size >> RS_RECORDING_THREAD_BITS;
    event->site_or_name = from->site_or_name;
    event->stack = from->stack;
    event->stream = from->stream;
    return true;
}

static void read_events(struct reader *reader, const char *content, size_t length)
{
    struct rs_recording_event event;

    for (size_t at = 0; at + sizeof(event) <= length; at += sizeof(event)) {
        memcpy(&event, content + at, sizeof(event));
        if (!read_event(reader->recording, &event))
            return;
    }
}

static struct recording_items *items_of(struct recording *recording, unsigned kind)
{
    switch (kind) {
    case RS_RECORDING_THREAD:
        return &recording->threads;
    case RS_RECORDING_STACK:
        return &recording->stacks;
    case RS_RECORDING_STREAM:
        return &recording->streams;
    case RS_RECORDING_FRAME:
        return &recording->frames;
    case RS_RECORDING_SITE:
        return &recording->sites;
    case RS_RECORDING_NAME:
        return &recording->names;
    default:
        return NULL;
    }
}

static void read_definition(struct recording *recording,
                            const struct rs_recording_definition *definition, const char *text)
{
    struct recording_items *items = items_of(recording, definition->kind), name = {NULL, 0};

    if (items) {
        recording_define(recording, items, definition->number, definition->value, text,
                         definition->text_bytes);
    } else if (definition->kind == RS_RECORDING_PROCESS) {
        recording_define(recording, &name, 1, 0, text, definition->text_bytes);
        if (name.count && name.items[0].text)
            snprintf(recording->program, sizeof(recording->program), "%s", name.items[0].text);
        if (name.count)
            free(name.items[0].text);
        free(name.items);
    }
}

static void read_definitions(struct reader *reader, const char *content, size_t length)
{
    struct rs_recording_definition definition;
    size_t at = 0, bytes;

    for (; at + sizeof(definition) <= length; at += bytes) {
        memcpy(&definition, content + at, sizeof(definition));
        bytes = sizeof(definition) + ((size_t)definition.text_bytes + 7) / 8 * 8;
        if (definition.kind == 0 || bytes > length - at)
            return;
        read_definition(reader->recording, &definition, content + at + sizeof(definition));
    }
}

/* ---- headers ---- */

static void note_header(struct reader *reader, const struct rs_recording_header *header)
{
    struct recording *recording = reader->recording;

    recording->process = header->process;
    recording->begun_ns = header->begun_ns;
    recording->begun_real_ns = header->begun_real_ns;
    recording->begun_ticks = header->begun_ticks;
    recording->lost_events = rs_max(recording->lost_events, header->lost_events);
    recording->missed_events = rs_max(recording->missed_events, header->missed_events);
    recording->lost_definitions = rs_max(recording->lost_definitions, header->lost_definitions);
    if (header->now_ns - header->begun_ns > recording->latest_ns &&
        header->now_ns >= header->begun_ns) {
        recording->latest_ns = header->now_ns - header->begun_ns;
        recording->latest_ticks = header->now_ticks;
    }
    reader->has_any = true;
}

/* A sealed chunk is as it was written, or it is damage; one that is cut, or not sealed, has what is
 * there. */
static bool is_right(struct reader *reader, const struct rs_recording_header *header,
                     const char *content, size_t length, size_t offset)
{
    _Alignas(8) static char copy[RS_RECORDING_CHUNK_BYTES];

    if (header->checksum == 0)
        return true;
    if (header->length_bytes > RS_RECORDING_CHUNK_BYTES - sizeof(*header) ||
        header->length_bytes % 8) {
        recording_note_damage(reader->recording, "the chunk at byte %zu is damaged", offset);
        return false;
    }
    if (header->length_bytes > length) {
        recording_note_damage(reader->recording, "the file is cut off at byte %zu",
                              offset + sizeof(*header) + length);
        return true;
    }
    memcpy(copy, content, header->length_bytes);
    if (rs_recording_checksum(header, copy) == header->checksum)
        return true;
    recording_note_damage(reader->recording, "the chunk at byte %zu is damaged", offset);
    return false;
}

static void read_chunk(struct reader *reader, const char *bytes, size_t length, size_t offset,
                       bool is_part)
{
    struct rs_recording_header header;
    const char *content = bytes + sizeof(header);

    memcpy(&header, bytes, sizeof(header));
    if (header.version > RS_RECORDING_VERSION) {
        reader->is_newer = true;
        return;
    }
    if (header.recording != reader->id) {
        if (!is_part)
            recording_note_damage(reader->recording, "the chunk at byte %zu is another recording's",
                                  offset);
        return;
    }
    length -= sizeof(header);
    if (header.sequence == 0 || is_seen(reader, header.sequence, false) ||
        !is_right(reader, &header, content, length, offset))
        return;
    (void)is_seen(reader, header.sequence, true);
    if (header.checksum)
        length = rs_min(length, header.length_bytes);
    note_header(reader, &header);
    if (header.kind == RS_RECORDING_EVENTS)
        read_events(reader, content, length);
    else if (header.kind == RS_RECORDING_DEFINITIONS)
        read_definitions(reader, content, length);
}

static bool has_magic(const char *bytes, size_t length)
{
    return length >= sizeof(struct rs_recording_header) &&
           memcmp(bytes, RS_RECORDING_MAGIC, sizeof(RS_RECORDING_MAGIC) - 1) == 0;
}

static bool is_zero(const char *bytes, size_t length)
{
    return length == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0);
}

/* A place of zeros is a chunk that is still in PATH.part, or that its process had no time for. */
static void read_chunks(struct reader *reader, const char *bytes, size_t length, bool is_part)
{
    for (size_t at = 0; at < length; at += RS_RECORDING_CHUNK_BYTES) {
        size_t room = rs_min(length - at, (size_t)RS_RECORDING_CHUNK_BYTES);
        if (has_magic(bytes + at, room))
            read_chunk(reader, bytes + at, room, at, is_part);
        else if (!is_part && !is_zero(bytes + at, room))
            recording_note_damage(reader->recording, "byte %zu begins no chunk of a recording", at);
    }
}

static bool find_id(const char *bytes, size_t length, uint64_t *id)
{
    for (size_t at = 0; at < length; at += RS_RECORDING_CHUNK_BYTES)
        if (has_magic(bytes + at, length - at)) {
            memcpy(id, bytes + at + offsetof(struct rs_recording_header, recording), sizeof(*id));
            return true;
        }
    return false;
}

static void make_times(struct recording *recording)
{
    uint64_t ticks = recording->latest_ticks, ns = recording->latest_ns;

    /* where no header tells how long a tick takes, or none can be believed, it is a nanosecond */
    if (ticks == 0 || ns / ticks > 1000 || ticks / (ns ? ns : 1) > 1000)
        ticks = ns = 1;
    for (size_t i = 0; i < recording->count; i++)
        recording->events[i].ns = scaled(recording->events[i].ns, ns, ticks);
}

static bool read_binary(struct recording *recording, const char *bytes, size_t length,
                        const char *part, size_t part_length)
{
    struct reader reader = {.recording = recording};

    if (!find_id(bytes, length, &reader.id) && !find_id(part, part_length, &reader.id)) {
        recording_note_damage(recording,
                              length ? "is neither a recording nor a log of RMM's" : "is empty");
        return false;
    }
    reader.seen.count = 2 * ((length + part_length) / RS_RECORDING_CHUNK_BYTES + 16);
    reader.seen.slots = calloc(reader.seen.count, sizeof(*reader.seen.slots));
    recording->is_short = !reader.seen.slots;
    if (reader.seen.slots) {
        read_chunks(&reader, part, part_length, true);
        read_chunks(&reader, bytes, length, false);
    }
    free(reader.seen.slots);
    make_times(recording);
    if (reader.is_newer && !reader.has_any) {
        recording_note_damage(recording,
                              "was written by a newer rmmshim; this one is " RMMSHIM_VERSION);
        return false;
    }
    if (!reader.has_any)
        recording_note_damage(recording, "has no whole chunk");
    return reader.has_any || recording->is_short;
}

bool recording_parse(struct recording *recording, const void *bytes, size_t length,
                     const void *part, size_t part_length)
{
    bool is_good = true;

    *recording = (struct recording){.count = 0};
    if (recording_is_log(bytes, length))
        recording_parse_log(recording, bytes, length);
    else
        is_good = read_binary(recording, bytes, length, part, part_length);
    if (is_good && !recording->is_short)
        recording_finish(recording);
    if (recording->is_short)
        snprintf(recording->damage, sizeof(recording->damage),
                 "is too large for this machine's memory");
    if (is_good && !recording->is_short)
        return true;
    {
        char damage[sizeof(recording->damage)];
        memcpy(damage, recording->damage, sizeof(damage));
        recording_close(recording);
        memcpy(recording->damage, damage, sizeof(damage));
    }
    return false;
}
