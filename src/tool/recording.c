/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/recording.h"

#include "base/check.h"
#include "base/file.h"
#include "tool/csv_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct chunk {
    const struct rs_recording_chunk *header;
    const char *content;
    size_t bytes; /* of the content */
};

/* A definition; its number is its index in `definitions`. */
struct definition {
    uint16_t kind, text_bytes;
    uint64_t value;
    char *text; /* owned; NULL: there is no such definition */
};

struct tool_recording {
    char *bytes; /* the whole file; valid, as `chunks` is, only in tool_recording_open */
    size_t length;
    struct tool_recording_facts facts;
    struct chunk *chunks; /* of events */
    size_t chunk_count;
    struct definition *definitions;
    uint32_t definition_count;           /* the greatest number, plus 1 */
    bool is_short;                       /* there was no memory for all definitions */
    char *name;                          /* of a log's file, owned */
    struct tool_recording_event *events; /* in the order of their times */
    size_t next;
};

/* ---- events of a chunk ---- */

/* Copies the event at an offset of the chunk.  Returns false if it is missing or damaged. */
static bool read_event(const struct chunk *chunk, size_t offset, struct rs_recording_event *event)
{
    uint64_t check;

    memcpy(event, chunk->content + offset, sizeof(*event));
    check = event->size_and_check >> RS_RECORDING_SIZE_BITS;
    event->size_and_check &= ((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1;
    return event->time_and_kind &&
           rs_recording_event_check(event, chunk->header->sequence) == check;
}

static size_t good_events(const struct tool_recording *recording, const struct chunk *chunk)
{
    size_t each = recording->facts.header.event_bytes, count = 0;
    struct rs_recording_event event;

    for (size_t offset = 0; chunk->bytes - offset >= each; offset += each)
        count += read_event(chunk, offset, &event);
    return count;
}

static int by_sequence(const void *first, const void *second)
{
    uint64_t a = ((const struct chunk *)first)->header->sequence;
    uint64_t b = ((const struct chunk *)second)->header->sequence;

    return (a > b) - (a < b);
}

/* Chunks with the same sequence are copies of one chunk, of which one may be incomplete: keeps the
 * one with the most good events. */
static void drop_copies(struct tool_recording *recording)
{
    struct chunk *chunks = recording->chunks;
    size_t count = 0;

    qsort(chunks, recording->chunk_count, sizeof(*chunks), by_sequence);
    for (size_t i = 0; i < recording->chunk_count; i++)
        if (count == 0 || by_sequence(&chunks[count - 1], &chunks[i]) != 0)
            chunks[count++] = chunks[i];
        else if (good_events(recording, &chunks[i]) > good_events(recording, &chunks[count - 1]))
            chunks[count - 1] = chunks[i];
    recording->chunk_count = count;
}

/* ---- definitions ---- */

static bool enter(struct tool_recording *recording, const struct rs_recording_definition *one,
                  const char *text)
{
    size_t most = recording->length / sizeof(*one);
    struct definition *place = &recording->definitions[one->number % (most + 1)];

    if (one->number == 0 || one->number > most || place->text) /* two with one number */
        return false;
    place->text = calloc(1, (size_t)one->text_bytes + 1);
    recording->is_short |= !place->text;
    if (!place->text)
        return false;
    memcpy(place->text, text, one->text_bytes);
    place->kind = one->kind;
    place->text_bytes = one->text_bytes;
    place->value = one->value;
    recording->definition_count = rs_max(recording->definition_count, one->number + 1);
    return true;
}

/* Reads the definitions of a chunk.  Stops at the first one that is damaged or cannot be entered,
 * since nothing tells where the next one begins. */
static void read_definitions(struct tool_recording *recording, const struct chunk *chunk)
{
    struct rs_recording_definition one;
    size_t offset = 0, bytes;

    for (; chunk->bytes - offset >= sizeof(one); offset += bytes) {
        const char *at = chunk->content + offset;
        memcpy(&one, at, sizeof(one));
        if (!one.check)
            return;
        bytes = sizeof(one) + (((size_t)one.text_bytes + 7) & ~(size_t)7);
        if (bytes > chunk->bytes - offset ||
            rs_recording_definition_check((const void *)at, chunk->header->sequence) != one.check ||
            !enter(recording, &one, at + sizeof(one))) {
            recording->facts.damaged++;
            return;
        }
    }
}

static const struct definition *definition_of(const struct tool_recording *recording,
                                              uint32_t number)
{
    bool is_there = number < recording->definition_count && recording->definitions[number].text;

    return is_there ? &recording->definitions[number] : NULL;
}

/* Returns the latest definition of this kind that has this value, or any value if `any` is true. */
static const struct definition *latest(const struct tool_recording *recording, unsigned kind,
                                       bool any, uint64_t value)
{
    for (uint32_t i = recording->definition_count; i-- > 0;) {
        const struct definition *one = &recording->definitions[i];
        if (one->text && one->kind == kind && (any || one->value == value))
            return one;
    }
    return NULL;
}

static const char *text_of(const struct tool_recording *recording, unsigned kind, bool any,
                           uint64_t value)
{
    const struct definition *one = latest(recording, kind, any, value);

    return one ? one->text : "";
}

/* ---- events in the order of their times ---- */

static void add_event(struct tool_recording *recording, const struct rs_recording_event *stored)
{
    const struct definition *of = definition_of(recording, stored->definition);
    unsigned of_kind = of ? of->kind : 0;
    unsigned kind = (unsigned)(stored->time_and_kind >> RS_RECORDING_TIME_BITS);
    unsigned memory = stored->place >> RS_RECORDING_MEMORY_SHIFT & 3;
    struct tool_recording_facts *facts = &recording->facts;
    bool is_known = kind > 0 && kind < RS_RECORDING_EVENT_KINDS && memory < RS_RECORDING_MEMORIES;
    struct tool_recording_event *event = &recording->events[facts->events];

    *event = (struct tool_recording_event){
        .kind = (enum rs_recording_event_kind)kind,
        .time_ns = stored->time_and_kind & (((uint64_t)1 << RS_RECORDING_TIME_BITS) - 1),
        .address = stored->address,
        .size_bytes = stored->size_and_check,
        .stream = stored->place & (((uint64_t)1 << RS_RECORDING_STREAM_BITS) - 1),
        .thread = stored->thread,
        .device = stored->place >> RS_RECORDING_STREAM_BITS & 0xff,
        .memory = (enum rs_recording_memory)memory,
        .stack = (unsigned)(stored->place >> RS_RECORDING_STACK_SHIFT),
        .site = of_kind == RS_RECORDING_SITE ? stored->definition : 0,
        .name = of_kind == RS_RECORDING_NAME || of_kind == RS_RECORDING_RESOURCE ? of->text : "",
        .number = (uint32_t)facts->events,
    };
    facts->duration_ns = rs_max(facts->duration_ns, event->time_ns);
    facts->events += is_known;
    facts->unknown += !is_known;
}

/* Adds the events of a chunk.  An empty place counts as damaged if an event comes behind it. */
static void add_events(struct tool_recording *recording, const struct chunk *chunk)
{
    size_t each = recording->facts.header.event_bytes, empty = 0;
    struct tool_recording_facts *facts = &recording->facts;
    struct rs_recording_event event;

    for (size_t offset = 0; chunk->bytes - offset >= each; offset += each) {
        bool is_whole = read_event(chunk, offset, &event);
        if (!event.time_and_kind) {
            empty++;
            continue;
        }
        if (!is_whole) {
            facts->damaged++;
            continue;
        }
        facts->damaged += empty;
        empty = 0;
        add_event(recording, &event);
    }
}

/* Events with the same time keep the order in which they were added: by the sequence of their
 * chunks, then by their places. */
static int by_time(const void *first, const void *second)
{
    const struct tool_recording_event *a = first, *b = second;

    return a->time_ns != b->time_ns ? (a->time_ns > b->time_ns) - (a->time_ns < b->time_ns)
                                    : (a->number > b->number) - (a->number < b->number);
}

/* ---- reading a file ---- */

static const char too_large[] = "the file is too large for the memory of this machine";

static bool fail(char reason[TOOL_REASON_BYTES], const char *text)
{
    snprintf(reason, TOOL_REASON_BYTES, "%s", text);
    return false;
}

/* Reads the whole file.  A mapping would raise SIGBUS if the file is cut meanwhile. */
static bool read_bytes(struct tool_recording *recording, int fd, char reason[TOOL_REASON_BYTES])
{
    struct stat status;
    size_t length;

    if (fstat(fd, &status) != 0)
        return fail(reason, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(reason, "this is not a regular file");
    length = (size_t)status.st_size;
    recording->bytes = calloc(1, (length + 8) & ~(size_t)7);
    if (!recording->bytes)
        return fail(reason, too_large);
    for (ssize_t got = 1; recording->length < length && got > 0; recording->length += (size_t)got) {
        got = rs_file_read(fd, recording->bytes + recording->length, length - recording->length,
                           (off_t)recording->length);
        if (got < 0)
            return fail(reason, strerror(errno));
    }
    return true;
}

static bool read_header(struct tool_recording *recording, char reason[TOOL_REASON_BYTES])
{
    struct rs_recording_header *header = &recording->facts.header;

    if (recording->length < sizeof(*header) ||
        memcmp(recording->bytes, RS_RECORDING_MAGIC, sizeof(header->magic)) != 0)
        return fail(reason, "this is neither a recording of rmmshim nor a log in RMM's CSV format");
    memcpy(header, recording->bytes, sizeof(*header));
    if (header->byte_order != RS_RECORDING_BYTE_ORDER)
        return fail(reason, "the file was written by a machine with another byte order");
    if (header->major != RS_RECORDING_MAJOR)
        return fail(reason, "the file was written by another version of rmmshim, and this version "
                            "cannot read it: use the rmmshim command of that version");
    if (header->check != rs_recording_header_check(header) ||
        header->header_bytes < sizeof(*header) || header->header_bytes % 8 != 0 ||
        header->chunk_bytes < 1024 || header->chunk_bytes % 8 != 0 ||
        header->event_bytes < sizeof(struct rs_recording_event) || header->event_bytes % 8 != 0)
        return fail(reason, "the beginning of the file is damaged, so no part of it can be read");
    return true;
}

/* Checks the chunk at an offset.  Returns false if it was never begun, or is damaged (counted). */
static bool read_chunk(struct tool_recording *recording, size_t offset, struct chunk *chunk)
{
    size_t length = rs_min(recording->facts.header.chunk_bytes, recording->length - offset);
    const char *bytes = recording->bytes + offset;

    *chunk = (struct chunk){(const void *)bytes, bytes + sizeof(*chunk->header), 0};
    if (length >= sizeof(*chunk->header) && chunk->header->magic == RS_RECORDING_CHUNK_MAGIC &&
        chunk->header->recording == recording->facts.header.recording &&
        chunk->header->check == rs_recording_chunk_check(chunk->header)) {
        chunk->bytes = length - sizeof(*chunk->header);
        return true;
    }
    if (length < sizeof(*chunk->header) || chunk->header->check)
        recording->facts.damaged += bytes[0] || memcmp(bytes, bytes + 1, length - 1) != 0;
    return false;
}

static void read_chunks(struct tool_recording *recording)
{
    struct chunk chunk;

    for (size_t offset = recording->facts.header.header_bytes; offset < recording->length;
         offset += recording->facts.header.chunk_bytes) {
        if (!read_chunk(recording, offset, &chunk))
            continue;
        if (chunk.header->kind == RS_RECORDING_DEFINITIONS)
            read_definitions(recording, &chunk);
        else if (chunk.header->kind == RS_RECORDING_EVENTS)
            recording->chunks[recording->chunk_count++] = chunk;
    }
    drop_copies(recording);
    for (size_t i = 0; i < recording->chunk_count; i++)
        add_events(recording, &recording->chunks[i]);
    qsort(recording->events, recording->facts.events, sizeof(*recording->events), by_time);
}

/* Reads the chunks.  Returns false if there is no memory. */
static bool read_parts(struct tool_recording *recording)
{
    const struct rs_recording_header *header = &recording->facts.header;

    recording->chunks =
        calloc(recording->length / header->chunk_bytes + 1, sizeof(*recording->chunks));
    recording->events =
        calloc(recording->length / header->event_bytes + 1, sizeof(*recording->events));
    recording->definitions = calloc(recording->length / sizeof(struct rs_recording_definition) + 1,
                                    sizeof(struct definition));
    if (!recording->chunks || !recording->events || !recording->definitions)
        return false;
    read_chunks(recording);
    return !recording->is_short;
}

/* Reads a log.  It does not name its program, so the name of its file is taken.  Returns false if
 * there is no memory. */
static bool read_log(struct tool_recording *recording, const char *path)
{
    recording->name = strdup(rs_file_base_name(path));
    recording->facts.program = recording->name;
    recording->facts.rank = "";
    recording->events = csv_log_read(recording->bytes, recording->length, &recording->facts);
    return recording->events && recording->name;
}

static void state_facts(struct tool_recording *recording)
{
    struct tool_recording_facts *facts = &recording->facts;
    const struct definition *sample = latest(recording, RS_RECORDING_SAMPLE, true, 0);
    const struct definition *command = latest(recording, RS_RECORDING_COMMAND, true, 0);

    facts->duration_ns = rs_max(facts->duration_ns, facts->header.ended_ns);
    facts->program = text_of(recording, RS_RECORDING_PROGRAM, true, 0);
    facts->command = command ? command->text : "";
    facts->command_bytes = command ? command->text_bytes : 0;
    facts->sample_bytes = sample ? sample->value : 0;
    facts->rank = text_of(recording, RS_RECORDING_RANK, true, 0);
}

static bool read_all(struct tool_recording *recording, const char *path, int fd,
                     char reason[TOOL_REASON_BYTES])
{
    bool is_read;

    if (!read_bytes(recording, fd, reason))
        return false;
    if (csv_log_is(recording->bytes, recording->length)) {
        is_read = read_log(recording, path);
    } else {
        if (!read_header(recording, reason))
            return false;
        is_read = read_parts(recording);
        state_facts(recording);
    }
    return is_read || fail(reason, too_large);
}

struct tool_recording *tool_recording_open(const char *path, char reason[TOOL_REASON_BYTES])
{
    struct tool_recording *recording = calloc(1, sizeof(*recording));
    int fd = rs_file_open(path);
    bool is_read = fd >= 0 && recording ? read_all(recording, path, fd, reason)
                                        : fail(reason, strerror(errno));

    if (fd >= 0)
        rs_file_close(fd);
    if (recording) {
        free(recording->chunks);
        free(recording->bytes);
    }
    if (is_read)
        return recording;
    tool_recording_close(recording);
    return NULL;
}

void tool_recording_close(struct tool_recording *recording)
{
    if (!recording)
        return;
    for (uint32_t i = 0; i < recording->definition_count; i++)
        free(recording->definitions[i].text);
    free(recording->definitions);
    free(recording->events);
    free(recording->name);
    free(recording);
}

const struct tool_recording_facts *tool_recording_facts(const struct tool_recording *recording)
{
    return &recording->facts;
}

bool tool_recording_next(struct tool_recording *recording, struct tool_recording_event *event)
{
    bool is_there = recording->next < recording->facts.events;

    if (is_there)
        *event = recording->events[recording->next];
    recording->next = is_there ? recording->next + 1 : 0;
    return is_there;
}

/* ---- what events refer to ---- */

size_t tool_recording_frames(const struct tool_recording *recording, uint32_t site,
                             struct tool_recording_frame *frames, size_t room)
{
    const struct definition *one = definition_of(recording, site);
    size_t count = one && one->kind == RS_RECORDING_SITE ? one->text_bytes / sizeof(uint32_t) : 0;

    for (size_t i = 0; i < rs_min(count, room); i++) {
        const struct definition *frame;
        uint32_t number;
        memcpy(&number, one->text + i * sizeof(number), sizeof(number));
        frame = definition_of(recording, number);
        frame = frame && frame->kind == RS_RECORDING_FRAME ? frame : NULL;
        frames[i] =
            (struct tool_recording_frame){frame ? frame->text : "?", frame && frame->value == 1};
    }
    return count;
}

const char *tool_recording_thread(const struct tool_recording *recording, uint32_t thread)
{
    return text_of(recording, RS_RECORDING_THREAD, false, thread);
}
