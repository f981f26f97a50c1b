/* SPDX-License-Identifier: Apache-2.0 */
/* A recording again (recording/format.h): of an event log, or of what a damaged recording has that
 * is whole.  A tick is a nanosecond here. */
#include "base/arithmetic.h"
#include "recording/format.h"
#include "tool/export/export.h"

#include <string.h>
#include <time.h>

enum {
    CONTENT_BYTES = RS_RECORDING_CHUNK_BYTES - sizeof(struct rs_recording_header),
    TEXT_BYTES_MAX = 4096,
};

/* Chunks of one kind. */
struct chunks {
    FILE *file;
    struct rs_recording_header header;
    _Alignas(8) char content[CONTENT_BYTES];
};

/* Each chunk fills its slot. */
static void end_chunk(struct chunks *chunks)
{
    struct rs_recording_header *header = &chunks->header;

    memset(chunks->content + header->length_bytes, 0, CONTENT_BYTES - header->length_bytes);
    header->sequence++;
    header->checksum = rs_recording_checksum(header, chunks->content);
    (void)fwrite(header, sizeof(*header), 1, chunks->file);
    (void)fwrite(chunks->content, CONTENT_BYTES, 1, chunks->file);
    header->length_bytes = 0;
}

static char *room_for(struct chunks *chunks, size_t bytes)
{
    char *room;

    if (chunks->header.length_bytes + bytes > CONTENT_BYTES)
        end_chunk(chunks);
    room = chunks->content + chunks->header.length_bytes;
    chunks->header.length_bytes += (uint32_t)bytes;
    return room;
}

static void begin_chunks(struct chunks *chunks, enum rs_recording_chunk_kind kind)
{
    if (chunks->header.length_bytes)
        end_chunk(chunks);
    chunks->header.kind = kind;
}

static void put_definition(struct chunks *chunks, enum rs_recording_definition_kind kind,
                           uint32_t number, uint64_t value, const char *text, size_t length)
{
    struct rs_recording_definition definition = {
        .number = number,
        .text_bytes = (uint16_t)rs_min(length, TEXT_BYTES_MAX),
        .kind = kind,
        .value = value,
    };
    size_t text_room = ((size_t)definition.text_bytes + 7) / 8 * 8;
    char *room = room_for(chunks, sizeof(definition) + text_room);

    memcpy(room, &definition, sizeof(definition));
    memset(room + sizeof(definition), 0, text_room);
    memcpy(room + sizeof(definition), text, definition.text_bytes);
}

static void put_items(struct chunks *chunks, enum rs_recording_definition_kind kind,
                      const struct recording_items *items)
{
    for (uint32_t i = 1; i <= items->count; i++) {
        const struct recording_item *item = recording_item(items, i);
        if (item && kind == RS_RECORDING_SITE)
            put_definition(chunks, kind, i, 0, item->text, item->value * sizeof(uint32_t));
        else if (item)
            put_definition(chunks, kind, i, item->value, item->text, strlen(item->text));
    }
}

static void put_event(struct chunks *chunks, const struct recording_event *from)
{
    struct rs_recording_event event = {
        .kind_and_ticks = from->kind | from->ns << RS_RECORDING_KIND_BITS,
        .address = from->address,
        .thread_and_size = from->thread | from->size_bytes << RS_RECORDING_THREAD_BITS,
        .site_or_name = from->site_or_name,
        .stack = from->stack,
        .stream = from->stream,
    };

    memcpy(room_for(chunks, sizeof(event)), &event, sizeof(event));
}

/* A log has a local time of day; the day is made one that no zone has before 1970. */
static uint64_t begun_real_ns(const struct recording *recording)
{
    struct tm day = {.tm_year = 70, .tm_mday = 2, .tm_isdst = -1};

    return recording->is_log ? (uint64_t)mktime(&day) * 1000000000u + recording->begun_real_ns
                             : recording->begun_real_ns;
}

static void begin(struct chunks *chunks, const struct recording *recording, FILE *file)
{
    uint64_t end_ns = recording->count ? recording->events[recording->count - 1].ns : 0;

    *chunks = (struct chunks){
        .file = file,
        .header = {.version = RS_RECORDING_VERSION,
                   .process = recording->process,
                   .begun_ns = recording->begun_ns,
                   .begun_real_ns = begun_real_ns(recording),
                   .now_ticks = end_ns + 1,
                   .now_ns = recording->begun_ns + end_ns + 1,
                   .lost_events = recording->lost_events,
                   .missed_events = recording->missed_events,
                   .lost_definitions = recording->lost_definitions},
    };
    memcpy(chunks->header.magic, RS_RECORDING_MAGIC, sizeof(chunks->header.magic));
    chunks->header.recording = chunks->header.begun_real_ns;
}

bool export_recording(const struct recording *recording, FILE *file)
{
    static struct chunks chunks;

    begin(&chunks, recording, file);
    begin_chunks(&chunks, RS_RECORDING_DEFINITIONS);
    put_definition(&chunks, RS_RECORDING_PROCESS, 1, recording->process, recording->program,
                   strlen(recording->program));
    put_items(&chunks, RS_RECORDING_THREAD, &recording->threads);
    put_items(&chunks, RS_RECORDING_STACK, &recording->stacks);
    put_items(&chunks, RS_RECORDING_STREAM, &recording->streams);
    put_items(&chunks, RS_RECORDING_FRAME, &recording->frames);
    put_items(&chunks, RS_RECORDING_SITE, &recording->sites);
    put_items(&chunks, RS_RECORDING_NAME, &recording->names);
    begin_chunks(&chunks, RS_RECORDING_EVENTS);
    for (size_t i = 0; i < recording->count; i++)
        put_event(&chunks, &recording->events[i]);
    if (chunks.header.length_bytes)
        end_chunk(&chunks);
    return true;
}
