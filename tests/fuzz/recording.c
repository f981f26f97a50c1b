/* SPDX-License-Identifier: Apache-2.0 */
/* recording SECONDS [SEED]: gives the reader of recordings files that were damaged at random, for
 * that many seconds, and walks what it makes of them.  A crash, a sanitizer's report, or a promise
 * of tool/recording/recording.h that does not hold is a failure; it prints the seed that makes the
 * file again.
 *
 * The files are made here, without the writer: chunks of events and definitions with right
 * checksums and any numbers, and logs of RMM's.  Then bytes are changed, pieces moved, and ends cut
 * off. */
#include "tool/recording/recording.h"
#include "recording/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNKS_MAX = 6, FILE_BYTES = CHUNKS_MAX * RS_RECORDING_CHUNK_BYTES, LOG_ROWS = 200 };

/* The reader says its lines by the tool's. */
void tool_say(const char *format, ...);
void tool_say(const char *format, ...)
{
    (void)format;
}

static uint64_t state;

static uint64_t any(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Mostly small, sometimes the largest. */
static uint64_t any_number(void)
{
    switch (any(8)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX >> any(64);
    default:
        return any(20);
    }
}

/* ---- files ---- */

static uint32_t put_event(char *at)
{
    struct rs_recording_event event = {
        .kind_and_ticks = any_number() << RS_RECORDING_KIND_BITS | any(9),
        .address = any_number() << 9,
        .thread_and_size = any_number(),
        .site_or_name = (uint32_t)any_number(),
        .stack = (uint16_t)any_number(),
        .stream = (uint16_t)any_number(),
    };

    memcpy(at, &event, sizeof(event));
    return sizeof(event);
}

static uint32_t put_definition(char *at)
{
    struct rs_recording_definition definition = {
        .number = (uint32_t)any_number(),
        .text_bytes = (uint16_t)any(80),
        .kind = (uint16_t)any(9),
        .value = any_number(),
    };

    memcpy(at, &definition, sizeof(definition));
    for (unsigned i = 0; i < definition.text_bytes; i++)
        at[sizeof(definition) + i] = (char)any(256);
    return (uint32_t)sizeof(definition) + (definition.text_bytes + 7u) / 8 * 8;
}

static void put_chunk(char *at, uint64_t sequence)
{
    struct rs_recording_header header = {
        .version = RS_RECORDING_VERSION + (any(20) == 0),
        .kind = 1 + (uint32_t)any(3),
        .recording = 77 + (any(20) == 0),
        .sequence = sequence,
        .begun_ns = any_number(),
        .now_ticks = any_number(),
        .now_ns = any_number(),
    };
    uint64_t count = any(60);
    char *content = at + sizeof(header);

    memcpy(header.magic, RS_RECORDING_MAGIC, sizeof(header.magic));
    for (uint64_t i = 0; i < count; i++)
        header.length_bytes += header.kind == RS_RECORDING_EVENTS
                                   ? put_event(content + header.length_bytes)
                                   : put_definition(content + header.length_bytes);
    if (any(4))
        header.checksum = rs_recording_checksum(&header, content);
    memcpy(at, &header, sizeof(header));
}

static size_t put_recording(char *file)
{
    size_t chunks = 1 + any(CHUNKS_MAX);

    for (size_t i = 0; i < chunks; i++)
        if (any(8))
            put_chunk(file + i * RS_RECORDING_CHUNK_BYTES, 1 + any(2 * CHUNKS_MAX));
    return chunks * RS_RECORDING_CHUNK_BYTES - any(2) * any(RS_RECORDING_CHUNK_BYTES);
}

static size_t put_log(char *file)
{
    static const char *const actions[] = {"allocate", "free", "allocate failure", "fre", ""};
    size_t at = (size_t)sprintf(file, "Thread,Time,Action,Pointer,Size,Stream\n");
    uint64_t rows = any(LOG_ROWS);

    for (uint64_t i = 0; i < rows; i++)
        at += (size_t)sprintf(file + at, "%llu,%02llu:%02llu:%02llu.%06llu,%s,0x%llx,%llu,%llx\n",
                              (unsigned long long)any_number(), (unsigned long long)any(25),
                              (unsigned long long)any(61), (unsigned long long)any(61),
                              (unsigned long long)any(1000000), actions[any(20) ? any(3) : any(5)],
                              (unsigned long long)any_number(), (unsigned long long)any_number(),
                              (unsigned long long)any_number());
    return at;
}

/* A byte changed, a piece moved, an end cut off. */
static size_t damage(char *file, size_t length)
{
    for (uint64_t times = any(5); times > 0 && length > 1; times--) {
        size_t at = any(length), to = any(length), bytes = any(200);
        switch (any(3)) {
        case 0:
            file[any(2) ? at : at % 300] ^= (char)(1 << any(8));
            break;
        case 1:
            if (at + bytes < length && to + bytes < length)
                memmove(file + to, file + at, bytes);
            break;
        default:
            length = any(4) ? length : at;
        }
    }
    return length;
}

/* ---- what is promised ---- */

struct sums {
    const struct recording *recording;
    uint64_t live_blocks;
};

static bool walk(void *data, enum recording_step step, const struct recording_event *block,
                 uint64_t ns)
{
    struct sums *sums = data;

    (void)ns;
    if (step == RECORDING_GIVES && sums->live_blocks == 0)
        abort();
    sums->live_blocks += step == RECORDING_TAKES;
    sums->live_blocks -= step == RECORDING_GIVES;
    return block >= sums->recording->events &&
           block < sums->recording->events + sums->recording->count;
}

static bool is_plain(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ')
            return false;
    return true;
}

static bool holds(const struct recording *recording)
{
    struct sums sums = {.recording = recording};

    for (size_t i = 0; i < recording->count; i++) {
        const struct recording_event *event = &recording->events[i];
        struct recording_site site = recording_site(recording, event->site_or_name);
        if ((i && event->ns < event[-1].ns) ||
            (event->partner != RECORDING_NO_EVENT &&
             (event->partner >= recording->count ||
              recording->events[event->partner].partner != i)) ||
            !is_plain(recording_name(recording, event->site_or_name)))
            return false;
        for (uint32_t j = 0; j < site.count; j++)
            (void)recording_item(&recording->frames, site.frames[j]);
        (void)recording_device(recording, event);
        (void)recording_thread(recording, event);
        (void)recording_stream(recording, event);
    }
    return recording_walk(recording, walk, &sums);
}

static bool try_one(uint64_t seed)
{
    static char file[FILE_BYTES + 1], part[FILE_BYTES + 1];
    struct recording recording;
    size_t length, part_length;
    char *exact;
    bool good;

    state = seed * 0x9e3779b97f4a7c15u | 1;
    memset(file, 0, sizeof(file));
    memset(part, 0, sizeof(part));
    length = damage(file, any(4) ? put_recording(file) : put_log(file));
    part_length = any(2) ? damage(part, put_recording(part)) : 0;
    exact = malloc(length ? length : 1); /* a sanitizer sees what is read beyond it */
    if (!exact)
        return false;
    memcpy(exact, file, length);
    good = !recording_parse(&recording, exact, length, part, part_length) ? *recording.damage
                                                                          : holds(&recording);
    recording_close(&recording);
    free(exact);
    return good;
}

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? strtol(argv[1], NULL, 10) : 10);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, first = seed;

    do {
        if (!try_one(seed)) {
            fprintf(stderr, "recording 0 %llu: a promise of the reader's does not hold\n",
                    (unsigned long long)seed);
            return 1;
        }
        seed++;
    } while (time(NULL) < end);
    printf("%llu files\n", (unsigned long long)(seed - first));
    return 0;
}
