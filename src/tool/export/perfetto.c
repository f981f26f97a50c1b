/* SPDX-License-Identifier: Apache-2.0 */
/* A trace for Perfetto (https://ui.perfetto.dev): for each process, counters of its memory, and the
 * phases, marks and refusals of its threads.
 *
 * A trace is a message of protocol buffers: each field is a varint of its number and type, then a
 * varint, or a length and so many bytes.  The numbers of fields are those of protos/perfetto/trace
 * in Perfetto's source, which do not change. */
#include "base/check.h"
#include "report/plain.h"
#include "tool/export/export.h"
#include "tool/recording.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <string.h>

enum { MESSAGE_BYTES = 1024, TEXT_BYTES = 512 /* longer ones are cut */ };

/* Numbers of fields, by message. */
enum { TRACE_PACKET = 1 };
enum { TIMESTAMP = 8, SEQUENCE = 10, TRACK_EVENT = 11, SEQUENCE_FLAGS = 13, TRACK_DESCRIPTOR = 60 };
enum { UUID = 1, TRACK_NAME = 2, PROCESS = 3, THREAD = 4, PARENT_UUID = 5, COUNTER = 8 };
enum { PROCESS_PID = 1, PROCESS_NAME = 6, THREAD_PID = 1, THREAD_TID = 2, THREAD_NAME = 5 };
enum { COUNTER_UNIT = 3, ANNOTATION_UINT = 3, ANNOTATION_NAME = 10 };
enum { ANNOTATION = 4, TYPE = 9, TRACK_UUID = 11, NAME = 23, COUNTER_VALUE = 30 };

/* Values of fields. */
enum { STATE_CLEARED = 1, UNIT_BYTES = 3 };
enum type { SLICE_BEGIN = 1, SLICE_END, INSTANT, COUNT };

/* A track's number consists of the run (from 1), OF_THREAD or OF_COUNTER, and the thread or
 * counter. */
enum { RUN_SHIFT = 40, OF_THREAD = 1, OF_COUNTER, OF_SHIFT = 32 };
enum counter { USED, HELD, LIMIT };

struct message {
    size_t length;
    char bytes[MESSAGE_BYTES];
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
    put_varint(message, (uint64_t)field << 3);
    put_varint(message, number);
}

static void put_message(struct message *message, unsigned field, const struct message *inner)
{
    put_varint(message, (uint64_t)field << 3 | 2);
    put_varint(message, inner->length);
    RS_ASSERT(inner->length <= sizeof(message->bytes) - message->length);
    memcpy(message->bytes + message->length, inner->bytes, inner->length);
    message->length += inner->length;
}

/* The text is made plain (report/plain.h), since strings must be UTF-8. */
static void put_text(struct message *message, unsigned field, const char *text)
{
    struct message plain;

    snprintf(plain.bytes, TEXT_BYTES, "%s", text);
    rs_plain_make(plain.bytes);
    plain.length = strlen(plain.bytes);
    put_message(message, field, &plain);
}

static void put_packet(struct export *export, struct message *packet)
{
    struct message head = {.length = 0};

    put_number(packet, SEQUENCE, export->analysis->run_count);
    put_varint(&head, TRACE_PACKET << 3 | 2);
    put_varint(&head, packet->length);
    (void)fwrite(head.bytes, 1, head.length, export->to);
    (void)fwrite(packet->bytes, 1, packet->length, export->to);
}

/* ---- tracks ---- */

static uint64_t number_of(struct export *export, uint64_t of, uint64_t number)
{
    return (uint64_t) export->analysis->run_count << RUN_SHIFT | of << OF_SHIFT | number;
}

/* Returns a process ID for Perfetto: the number of the run above the 22 bits that an ID of Linux
 * has. Perfetto would show processes of two hosts as one if their IDs were equal. Runs count from
 * 0, but from 1 for a log, whose process has the ID 0: Perfetto takes the ID 0 for the kernel. */
static uint64_t process_of(struct export *export, const struct run *run)
{
    return (export->analysis->run_count - (run->facts.header.process != 0)) % 256 << 22 |
           run->facts.header.process;
}

/* Describes a track. `inner` becomes its field `field` and says what the track is: a process, a
 * thread, or a counter with its unit. `name` is a counter's name, else NULL. */
static void put_track(struct export *export, uint64_t number, const char *name, unsigned field,
                      const struct message *inner)
{
    struct message packet = {.length = 0}, track = {.length = 0};

    put_number(&track, UUID, number);
    if (name) {
        put_text(&track, TRACK_NAME, name);
        put_number(&track, PARENT_UUID, number_of(export, 0, 0));
    }
    put_message(&track, field, inner);
    put_message(&packet, TRACK_DESCRIPTOR, &track);
    put_number(&packet, SEQUENCE_FLAGS, STATE_CLEARED);
    put_packet(export, &packet);
    tool_remember(&export->tracks, number, 1);
}

static void put_process(struct export *export, const struct run *run)
{
    struct message process = {.length = 0};

    if (rs_hash_get(&export->tracks, number_of(export, 0, 0)))
        return;
    put_number(&process, PROCESS_PID, process_of(export, run));
    put_text(&process, PROCESS_NAME, run->title);
    put_track(export, number_of(export, 0, 0), NULL, PROCESS, &process);
}

static uint64_t put_thread(struct export *export, const struct run *run,
                           const struct tool_recording_event *event)
{
    uint64_t number = number_of(export, OF_THREAD, event->thread);
    struct message thread = {.length = 0};

    if (rs_hash_get(&export->tracks, number))
        return number;
    put_number(&thread, THREAD_PID, process_of(export, run));
    put_number(&thread, THREAD_TID, event->thread);
    put_text(&thread, THREAD_NAME, tool_recording_thread(run->recording, event->thread));
    put_track(export, number, NULL, THREAD, &thread);
    return number;
}

/* ---- events; their times are those of the real clock, which processes have in common ---- */

static void put_event(struct export *export, uint64_t real_ns, enum type type, uint64_t track,
                      struct message *event)
{
    struct message packet = {.length = 0};

    put_number(event, TYPE, type);
    put_number(event, TRACK_UUID, track);
    put_number(&packet, TIMESTAMP, real_ns);
    put_message(&packet, TRACK_EVENT, event);
    put_packet(export, &packet);
}

/* A limit gets no track before one is set. */
static void put_count(struct export *export, const struct series *series, uint64_t real_ns,
                      enum counter counter, uint64_t bytes)
{
    static const char *const names[] = {"used", "held", "limit"};
    uint64_t place = (uint64_t)series->device << 8 | (unsigned)series->kind << 4 | counter;
    uint64_t number = number_of(export, OF_COUNTER, place);
    struct message unit = {.length = 0}, event = {.length = 0};
    char of[SERIES_TEXT_BYTES], name[SERIES_TEXT_BYTES + 8];

    if (counter == LIMIT && !bytes && !rs_hash_get(&export->tracks, number))
        return;
    if (!rs_hash_get(&export->tracks, number)) {
        snprintf(name, sizeof(name), "%s: %s", series_text(series, of), names[counter]);
        put_number(&unit, COUNTER_UNIT, UNIT_BYTES);
        put_track(export, number, name, COUNTER, &unit);
    }
    put_number(&event, COUNTER_VALUE, bytes);
    put_event(export, real_ns, COUNT, number, &event);
}

static void put_instant(struct export *export, uint64_t real_ns, uint64_t track,
                        const struct tool_recording_event *from)
{
    struct message event = {.length = 0}, bytes = {.length = 0};

    if (from->kind == RS_RECORDING_REFUSED) {
        put_text(&bytes, ANNOTATION_NAME, "bytes");
        put_number(&bytes, ANNOTATION_UINT, from->size_bytes);
        put_message(&event, ANNOTATION, &bytes);
    }
    put_text(&event, NAME, from->kind == RS_RECORDING_REFUSED ? "refused" : from->name);
    put_event(export, real_ns, INSTANT, track, &event);
}

/* The end of a phase that began before the recording is left out. */
static void put_phase(struct export *export, uint64_t real_ns, uint64_t track,
                      const struct tool_recording_event *from)
{
    bool begins = from->kind == RS_RECORDING_PHASE_BEGIN;
    size_t state = (size_t)rs_hash_get(&export->tracks, track);
    struct message event = {.length = 0};

    if (!begins && state == 1)
        return;
    tool_remember(&export->tracks, track, begins ? state + 1 : state - 1);
    if (begins)
        put_text(&event, NAME, from->name);
    put_event(export, real_ns, begins ? SLICE_BEGIN : SLICE_END, track, &event);
}

static void see(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event)
{
    struct export *export = (struct export *)observer;
    const struct series *series = analysis_series(run, event);
    uint64_t real_ns = run->facts.header.begun_real_ns + event->time_ns;

    put_process(export, run);
    if (event->kind == RS_RECORDING_ALLOCATE || event->kind == RS_RECORDING_DEALLOCATE)
        put_count(export, series, real_ns, USED, series->used);
    if (event->kind == RS_RECORDING_HELD) {
        put_count(export, series, real_ns, HELD, series->held);
        put_count(export, series, real_ns, LIMIT, series->limit);
    }
    if (event->kind == RS_RECORDING_REFUSED || event->kind == RS_RECORDING_MARK)
        put_instant(export, real_ns, put_thread(export, run, event), event);
    if (event->kind == RS_RECORDING_PHASE_BEGIN || event->kind == RS_RECORDING_PHASE_END)
        put_phase(export, real_ns, put_thread(export, run, event), event);
}

const struct export_format export_perfetto = {false, "", see, NULL};
