/* SPDX-License-Identifier: Apache-2.0 */
/* The format of a recording (RMM_RECORD): what the program did with memory, event by event.
 *
 * A recording is the file PATH, and PATH.part while its process lives or where it ended without an
 * exit.  Both are arrays of chunks of RS_RECORDING_CHUNK_BYTES; the last chunk of PATH may be
 * shorter.  Each chunk begins with its own header and is read without any other, so damage costs
 * the chunk that it is in.  The order of chunks in the files means nothing: events are in the order
 * of their ticks, over all chunks.  All numbers have the byte order of the machine that wrote them.
 *
 * A chunk in PATH.part grows in place: an event counts from the moment when its `kind` is not 0,
 * which is stored last.  When the chunk is full it is sealed, with its length and checksum, and
 * written to PATH; then the same memory begins the next chunk.  A process may end between the two:
 * of two chunks with one `sequence` the sealed one with a right checksum counts.
 *
 * Chunks of events are a ring when the recording has its greatest size: the oldest one is replaced,
 * and its events are counted in `lost_events` of all later headers.  Chunks of definitions, to
 * which events refer by numbers, are never replaced.
 *
 * A program that reads this format may skip kinds of chunks, events and definitions that it does
 * not know.  A change that such a program would misread raises RS_RECORDING_VERSION. */
#pragma once

#include <stdint.h>

enum {
    RS_RECORDING_VERSION = 1,
    RS_RECORDING_CHUNK_BYTES = 64 << 10,
    RS_RECORDING_PART_CHUNKS = 5, /* of PATH.part: one of definitions, the others of events */
};

#define RS_RECORDING_MAGIC "RMMREC\r\n" /* 8 bytes, without the zero */

enum rs_recording_chunk_kind {
    RS_RECORDING_EVENTS = 1,      /* struct rs_recording_event, one behind the other */
    RS_RECORDING_DEFINITIONS = 2, /* struct rs_recording_definition, each with its text */
};

/* Begins each chunk.  `checksum` is over the whole header, itself and the fields behind it left
 * out, and then over `length_bytes` of content; 0: the chunk is not sealed, and ends where an event
 * or definition has the kind 0. */
struct rs_recording_header {
    char magic[8];
    uint32_t version;
    uint32_t kind;          /* enum rs_recording_chunk_kind */
    uint64_t recording;     /* the same in all chunks of a recording, another in every other one */
    uint64_t sequence;      /* from 1, a number of its own for each chunk of the recording */
    uint32_t process;       /* its process ID */
    uint32_t length_bytes;  /* of the content, without the header; 0: not sealed */
    uint64_t begun_ticks;   /* of the clock that counts `ticks`, when the recording began, */
    uint64_t begun_ns;      /* by CLOCK_MONOTONIC, */
    uint64_t begun_real_ns; /* and by CLOCK_REALTIME */
    uint64_t checksum;
    /* A later moment on both clocks: with the first one it tells how long a tick takes. */
    uint64_t now_ticks, now_ns;
    uint64_t lost_events;      /* replaced in the ring so far */
    uint64_t missed_events;    /* that were not recorded: a signal's handler met a busy lock */
    uint64_t lost_definitions; /* for which there was no room */
    uint64_t reserved[2];
};

_Static_assert(sizeof(struct rs_recording_header) == 128, "the same on every machine");

enum rs_recording_event_kind {
    RS_RECORDING_ALLOCATE = 1, /* a block was handed out */
    RS_RECORDING_FREE,         /* the program gave it back */
    RS_RECORDING_REFUSED,      /* a request was out of memory; the address is 0 */
    RS_RECORDING_MARK,         /* a mark of the program's; `name` says which */
    RS_RECORDING_PHASE_BEGIN,  /* the thread begins a phase; `name` */
    RS_RECORDING_PHASE_END,
    RS_RECORDING_STACK_GONE, /* the stack's context has ended, and all its blocks with it */
    RS_RECORDING_EVENT_KINDS
};

enum {
    RS_RECORDING_KIND_BITS = 8,        /* of kind_and_ticks, the lowest ones */
    RS_RECORDING_THREAD_BITS = 16,     /* of thread_and_size, the lowest ones */
    RS_RECORDING_NUMBERS_MAX = 0xffff, /* the number of threads, stacks, or streams that came when
                                          all others were taken */
    RS_RECORDING_STREAMS_FIXED = 3,    /* streams 0, 1 and 2 are the driver's own handles: NULL, the
                                          legacy and the per-thread default stream */
};

/* 32 bytes, so that a chunk has 2044 of them. */
struct rs_recording_event {
    uint64_t kind_and_ticks; /* ticks since the recording began */
    uint64_t address;
    uint64_t thread_and_size; /* the size is in bytes, as the program asked for it; one
                                 beyond 48 bits is the largest of them */
    uint32_t site_or_name;    /* the definition's number; 0: none */
    uint16_t stack;           /* the definition's number */
    uint16_t stream;          /* the same, or one of RS_RECORDING_STREAMS_FIXED */
};

_Static_assert(sizeof(struct rs_recording_event) == 32, "the same on every machine");

enum rs_recording_definition_kind {
    RS_RECORDING_PROCESS = 1, /* number 1: the program's name */
    RS_RECORDING_THREAD,      /* value: the thread's ID; its name */
    RS_RECORDING_STACK,  /* value: the device, and from bit 32 on the kind of memory (0 device, 1
                            managed, 2 host); the resource beneath */
    RS_RECORDING_STREAM, /* value: the driver's handle */
    RS_RECORDING_FRAME,  /* a line "FUNCTION+OFFSET (OBJECT+OFFSET)" or, with value 1, Python's
                            "FILE:LINE in FUNCTION" */
    RS_RECORDING_SITE,   /* 32-bit numbers of frames, innermost first, Python's before the others */
    RS_RECORDING_NAME,   /* of a phase or mark */
    RS_RECORDING_DEFINITION_KINDS
};

/* Followed by text_bytes bytes, without a zero byte at the end, and padded to 8. */
struct rs_recording_definition {
    uint32_t number; /* counts up from 1 in each kind */
    uint16_t text_bytes;
    uint16_t kind; /* enum rs_recording_definition_kind */
    uint64_t value;
};

_Static_assert(sizeof(struct rs_recording_definition) == 16, "the same on every machine");

/* The checksum of a sealed chunk.  Four lanes, as one multiplication waits for the one before: 64
 * KiB take some 3 us. */
static inline uint64_t rs_recording_mix(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    return sum ^ sum >> 29;
}

/* `bytes` is a multiple of 8, and aligned to 8. */
static inline uint64_t rs_recording_sum(const void *content, uint32_t bytes, uint64_t seed)
{
    const uint64_t *words = content;
    uint64_t lanes[4] = {seed, seed + 1, seed + 2, seed + 3};
    uint32_t count = bytes / 8, i = 0;

    for (; i + 4 <= count; i += 4)
        for (uint32_t lane = 0; lane < 4; lane++)
            lanes[lane] = rs_recording_mix(lanes[lane], words[i + lane]);
    for (; i < count; i++)
        lanes[0] = rs_recording_mix(lanes[0], words[i]);
    return rs_recording_mix(rs_recording_mix(rs_recording_mix(lanes[0], lanes[1]), lanes[2]),
                            lanes[3]);
}

static inline uint64_t rs_recording_checksum(const struct rs_recording_header *header,
                                             const void *content)
{
    uint64_t sum = rs_recording_sum(
        header, (uint32_t) __builtin_offsetof(struct rs_recording_header, checksum), 1);

    sum = rs_recording_sum(content, header->length_bytes, sum);
    return sum ? sum : 1; /* 0 says that the chunk is not sealed */
}
