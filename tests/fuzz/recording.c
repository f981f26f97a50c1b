/* SPDX-License-Identifier: Apache-2.0 */
/* recording COUNT [SEED]: gives the reader of recordings (tool/recording.h) COUNT files that were
 * damaged at random, and walks what it makes of them.  A crash, a sanitizer's report, or a promise
 * of the reader that does not hold is a failure; it prints the seed that makes the file again.
 *
 * The files are made here, without the writer: chunks of events and definitions with right checks
 * and any numbers; one file in four is a log in RMM's CSV format.  Then bytes are changed, pieces
 * moved, and the end cut off. */
#include "reader.h"

#include "base/check.h"
#include "recording/format.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1024, CHUNKS = 8, HEADER_BYTES = 256, ROW_BYTES = 256 };

static _Alignas(8) char content[HEADER_BYTES + CHUNKS * CHUNK_BYTES];
static size_t length;
static bool is_log;
static uint64_t state, seed;

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
    uint64_t bits = any(4) ? any(6) : any(64);

    return UINT64_MAX >> (63 - bits) & any(UINT64_MAX);
}

/* ---- files ---- */

static void put_header(void)
{
    struct rs_recording_header header = {
        .byte_order = RS_RECORDING_BYTE_ORDER,
        .major = RS_RECORDING_MAJOR,
        .minor = (uint16_t)any(3),
        .header_bytes = HEADER_BYTES,
        .chunk_bytes = CHUNK_BYTES,
        .event_bytes = sizeof(struct rs_recording_event) + 8 * (uint32_t)any(2),
        .recording = 77,
        .ended_ns = any_number(),
    };

    memcpy(header.magic, RS_RECORDING_MAGIC, sizeof(header.magic));
    header.check = rs_recording_header_check(&header);
    memcpy(content, &header, sizeof(header));
}

static uint32_t event_bytes(void)
{
    return ((const struct rs_recording_header *)(const void *)content)->event_bytes;
}

static size_t put_event(char *at, uint64_t sequence)
{
    struct rs_recording_event event = {
        .time_and_kind = (any_number() & 0xffffff) | any(14) << RS_RECORDING_TIME_BITS,
        .address = any_number() << 9,
        .size_and_check = any_number() & 0xffffffffff,
        .thread = (uint32_t)any(4),
        .definition = (uint32_t)any(12),
        .place = any_number() & 0x3ffffffffffffff,
    };

    event.size_and_check |= rs_recording_event_check(&event, sequence) << RS_RECORDING_SIZE_BITS;
    memcpy(at, &event, sizeof(event));
    return event_bytes();
}

static size_t put_definition(char *at, uint64_t sequence)
{
    struct rs_recording_definition *one = (struct rs_recording_definition *)(void *)at;
    size_t text_bytes = any(48);

    one->number = (uint32_t)(any(50) ? any(16) : any_number());
    one->kind = (uint16_t)any(RS_RECORDING_DEFINITION_KINDS + 1);
    one->text_bytes = (uint16_t)text_bytes;
    one->value = any_number();
    for (size_t i = 0; i < text_bytes; i++)
        at[sizeof(*one) + i] =
            (char)(one->kind == RS_RECORDING_SITE ? (i % 4 ? 0 : any(12)) : any(256));
    one->check = rs_recording_definition_check(one, sequence);
    return sizeof(*one) + (text_bytes + 7) / 8 * 8;
}

static void put_chunk(unsigned index)
{
    char *bytes = content + HEADER_BYTES + (size_t)index * CHUNK_BYTES;
    struct rs_recording_chunk *chunk = (struct rs_recording_chunk *)(void *)bytes;
    size_t used = sizeof(*chunk), most = any(CHUNK_BYTES - 128);

    chunk->magic = RS_RECORDING_CHUNK_MAGIC;
    chunk->kind = 1 + (uint32_t)any(3);
    chunk->recording = 77;
    chunk->sequence = index + any(2);
    chunk->check = rs_recording_chunk_check(chunk);
    while (used < most)
        used += chunk->kind == RS_RECORDING_DEFINITIONS
                    ? put_definition(bytes + used, chunk->sequence)
                    : put_event(bytes + used, chunk->sequence);
}

static void make_log(void)
{
    static const char *const actions[] = {"allocate", "free", "allocate failure"};

    length = (size_t)snprintf(content, sizeof(content), "Thread,Time,Action,Pointer,Size,Stream\n");
    while (length < sizeof(content) - ROW_BYTES)
        length += (size_t)snprintf(
            content + length, ROW_BYTES, "%u,%02u:%02u:%02u%c%06u,%s,0x%llx,%llu,%llx\n",
            (unsigned)any_number(), (unsigned)any(25), (unsigned)any(61), (unsigned)any(62),
            any(2) ? '.' : ':', (unsigned)any(1000000), actions[any(3)],
            (unsigned long long)any_number(), (unsigned long long)any_number(),
            (unsigned long long)any_number());
}

static void make(void)
{
    is_log = any(4) == 0;
    memset(content, 0, sizeof(content));
    length = sizeof(content);
    if (is_log) {
        make_log();
        return;
    }
    put_header();
    for (unsigned i = 0; i < CHUNKS; i++)
        if (any(8))
            put_chunk(i);
}

static void damage(void)
{
    for (uint64_t times = any(12); times > 0; times--) {
        size_t at = any(length), bytes = any(64);
        switch (any(4)) {
        case 0:
            content[at] = (char)any(256);
            break;
        case 1:
            memset(content + at, any(2) ? 0 : 0xff, rs_min(bytes, length - at));
            break;
        case 2:
            memmove(content + at, content + any(length - rs_min(bytes, length - at)),
                    rs_min(bytes, length - at));
            break;
        default:
            content[HEADER_BYTES + any(length - HEADER_BYTES)] ^= (char)(1 << any(8));
        }
    }
    if (any(4) == 0)
        length = any(length + 1);
}

static void say_seed(int number)
{
    (void)number;
    fprintf(stderr, "recording: seed %llu\n", (unsigned long long)seed);
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/rmmshim-fuzz-XXXXXX";
    unsigned long long count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    unsigned long long first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int fd = mkstemp(path);

    must(fd >= 0, "no temporary file");
    close(fd);
    (void)signal(SIGABRT, say_seed);
    for (seed = first; seed < first + count; seed++) {
        state = seed * 0x9e3779b97f4a7c15u + 1;
        make();
        damage();
        read_recording(path, content, length);
    }
    unlink(path);
    return 0;
}
