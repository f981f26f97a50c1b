/* SPDX-License-Identifier: Apache-2.0 */
/* The format of a recording (RMM_RECORD): what a process did with memory, event by event.
 *
 * The file is a header of `header_bytes`, then chunks of `chunk_bytes` each. The last chunk may be
 * cut short. A chunk that was never used is zero. All numbers have the byte order of the machine
 * that wrote them, which `byte_order` tells.
 *
 * A chunk has a header of its own, and is read without any other chunk. A chunk of events has
 * struct rs_recording_event one behind the other, `event_bytes` apart. A chunk of definitions has
 * struct rs_recording_definition, each with its text. A definition gives a name, a call site or a
 * thread a number, by which events refer to it. The order of chunks in the file means nothing:
 * events are in the order of their times, over all chunks, and a definition may come behind an
 * event that refers to it.
 *
 * The process writes its chunks in a mapping of the file. In each part (a chunk's header, an event,
 * a definition) it stores one word last: `check` of the chunk, `time_and_kind` of the event,
 * `check` of the definition. So the file is complete at each instruction, however the process ends.
 * A part in which that word is 0 is not there. A part with a wrong check is damaged: a reader
 * leaves it out.
 *
 * A full chunk of events is copied to another place of the file, and then begun anew where it was.
 * If the process ends in between, there are two chunks of events with the same sequence, and the
 * copy may be cut short. A reader takes the one with more good events, and nothing of the other.
 *
 * Once the file has its greatest size, the chunk of events that has been full for longest is
 * overwritten, and its events are counted in `lost_events`. Definitions are never overwritten. An
 * event whose definition found no room has the number 0.
 *
 * A reader skips what it does not know: kinds of chunks, events and definitions, and bytes behind
 * the fields of a struct. Such additions raise `minor`. A change that an older reader would misread
 * raises `major`. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RS_RECORDING_MAGIC "RMMREC\r\n" /* 8 bytes, without the zero */

enum {
    RS_RECORDING_MAJOR = 1,
    RS_RECORDING_MINOR = 0,
    RS_RECORDING_BYTE_ORDER = 0x01020304,
    RS_RECORDING_HEADER_BYTES = 32 << 10, /* the size of a chunk, so that each chunk is aligned to
                                             its size and may be one large page of memory */
    RS_RECORDING_CHUNK_BYTES = 32 << 10,
    RS_RECORDING_CHUNK_MAGIC = 0x434d4d52, /* "RMMC" on a little-endian machine */
};

/* The header of the file. All times are in ns. */
struct rs_recording_header {
    char magic[8];
    uint32_t byte_order; /* RS_RECORDING_BYTE_ORDER */
    uint16_t major, minor;
    uint32_t header_bytes, chunk_bytes, event_bytes;
    uint32_t process;       /* its process ID */
    uint64_t recording;     /* a number that identifies this file; its chunks repeat it */
    uint64_t job;           /* the same in all recordings of one `rmmshim run`; 0: none */
    uint64_t begun_ns;      /* by CLOCK_MONOTONIC: the time 0 of events */
    uint64_t begun_real_ns; /* the same moment by CLOCK_REALTIME */
    uint64_t check;         /* rs_recording_sum of the words before it, with the seed 0 */

    /* These change while the process lives. */
    uint64_t ended_ns;      /* counted from begun_ns; 0: the process runs, or did not end by exit */
    uint64_t lost_events;   /* overwritten by newer ones, or without room on the disk */
    uint64_t missed_events; /* those of signal handlers that interrupted the recorder */
    uint64_t lost_definitions; /* for which there was no room */
};

enum rs_recording_chunk_kind {
    RS_RECORDING_EVENTS = 1,
    RS_RECORDING_DEFINITIONS = 2,
};

struct rs_recording_chunk {
    uint32_t magic, kind;
    uint64_t recording;
    uint64_t sequence; /* counts the chunks begun, from 1 */
    uint64_t check;    /* rs_recording_sum of the words before it, with the seed 0; stored last */
};

enum rs_recording_event_kind {
    RS_RECORDING_ALLOCATE = 1, /* a block was handed out; `definition` is its call site */
    RS_RECORDING_DEALLOCATE,   /* the program freed a block */
    RS_RECORDING_REFUSED,      /* a request was out of memory; the address is 0 */
    RS_RECORDING_SLOW,  /* a request of `size` was not served at once, and took `address` ns, waits
                           for the GPU and driver calls included; its result comes next in this
                           thread */
    RS_RECORDING_STACK, /* a stack is made; `definition` is what it is made of, `size` the
                           device's memory */
    RS_RECORDING_STACK_GONE,  /* the stack's context has ended, and all blocks with it */
    RS_RECORDING_HELD,        /* the process now holds `size` bytes of the device from the driver;
                                 `address` is the limit in bytes, 0 without one */
    RS_RECORDING_TRIM,        /* the stack was asked for unused memory, and gave `size` back */
    RS_RECORDING_PHASE_BEGIN, /* this thread begins a phase; `definition` is its name. Of a phase
                                 that began before the recording there is only the end */
    RS_RECORDING_PHASE_END,
    RS_RECORDING_MARK, /* rmmshim_mark; `definition` is its text */
    RS_RECORDING_EVENT_KINDS
};

/* The kind of memory that a stack serves. */
enum rs_recording_memory {
    RS_RECORDING_DEVICE,
    RS_RECORDING_PINNED,
    RS_RECORDING_MANAGED,
    RS_RECORDING_MEMORIES
};

enum {
    RS_RECORDING_TIME_BITS = 56,    /* the lowest ones of time_and_kind */
    RS_RECORDING_SIZE_BITS = 48,    /* of size_and_check */
    RS_RECORDING_STREAM_BITS = 48,  /* of place */
    RS_RECORDING_MEMORY_SHIFT = 56, /* in place */
    RS_RECORDING_STACK_SHIFT = 58,
    RS_RECORDING_STACKS = 64,
};

struct rs_recording_event {
    uint64_t time_and_kind; /* 56 bits of ns since the recording began, then the kind */
    uint64_t address;
    uint64_t size_and_check; /* 48 bits of bytes as the program asked for, then the check */
    uint32_t thread;         /* its ID in the kernel */
    uint32_t definition;     /* the number of the call site or name; 0: none */
    uint64_t place; /* from the lowest bit: 48 bits of the stream's handle, 8 for the device,
                       2 for enum rs_recording_memory, and 6 for the stack's number: stacks
                       are numbered as they are made, from 0 on and after 63 from 0 again */
};

_Static_assert(sizeof(struct rs_recording_event) == 40, "the same on every machine");

enum rs_recording_definition_kind {
    RS_RECORDING_PROGRAM = 1, /* the program's name; value: its process ID */
    RS_RECORDING_COMMAND,     /* its command line, with a zero byte between arguments */
    RS_RECORDING_HOST,        /* the host's name */
    RS_RECORDING_THREAD,      /* value: the thread's ID; its name */
    RS_RECORDING_RESOURCE,    /* the name of the memory resource beneath the recording */
    RS_RECORDING_NAME,        /* of a phase, or a mark's text */
    RS_RECORDING_FRAME,       /* "FUNCTION+OFFSET (OBJECT+OFFSET)" or "OBJECT+OFFSET"; with value 1
                                 Python's "FILE:LINE in FUNCTION" */
    RS_RECORDING_SITE,   /* 32-bit numbers of frames, innermost first, Python's before others */
    RS_RECORDING_RANK,   /* the rank that the launcher of a job gave the process; missing where
                            there is none */
    RS_RECORDING_SAMPLE, /* value: a number of bytes; whenever a thread has allocated so many, one
                            block has a call site */
    RS_RECORDING_DEFINITION_KINDS
};

/* A definition. Its text follows: text_bytes bytes without a zero byte at the end, then zero bytes
 * up to a multiple of 8. */
struct rs_recording_definition {
    uint32_t number; /* 1, 2, 3 ... over all kinds */
    uint16_t kind;   /* enum rs_recording_definition_kind */
    uint16_t text_bytes;
    uint64_t value;
    uint64_t check; /* rs_recording_sum of the two words before it, then of the text's words, with
                       the chunk's sequence as the seed; stored last */
};

/* Adds up `count` words.  The result is never 0, which stands for a part that is not there. */
static inline uint64_t rs_recording_sum(const void *content, size_t count, uint64_t seed)
{
    const uint64_t *words = (const uint64_t *)content;
    uint64_t sum = seed;

    for (size_t i = 0; i < count; i++) {
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    return sum ? sum : 1;
}

static inline uint64_t rs_recording_rotated(uint64_t word, unsigned by)
{
    return word << by | word >> (64 - by);
}

/* Returns the sum that an event's check is made of. A time that is still 0 in `event` may be xor'ed
 * to the sum later. */
static inline uint64_t rs_recording_event_sum(const struct rs_recording_event *event,
                                              uint64_t sequence)
{
    return event->time_and_kind ^ rs_recording_rotated(event->address, 13) ^
           rs_recording_rotated(event->size_and_check, 26) ^
           rs_recording_rotated(event->thread | (uint64_t)event->definition << 32, 39) ^
           rs_recording_rotated(event->place, 52) ^ sequence;
}

/* Multiplies only once for all words, since each multiplication would wait for the one before. */
static inline uint64_t rs_recording_check_of_sum(uint64_t sum)
{
    return sum * 0x9e3779b97f4a7c15u >> RS_RECORDING_SIZE_BITS;
}

/* Returns the check of an event, to be stored in the upper 16 bits of size_and_check, which must be
 * 0 in `event` here. */
static inline uint64_t rs_recording_event_check(const struct rs_recording_event *event,
                                                uint64_t sequence)
{
    return rs_recording_check_of_sum(rs_recording_event_sum(event, sequence));
}

/* The check of a definition with its text behind it. */
static inline uint64_t rs_recording_definition_check(const struct rs_recording_definition *one,
                                                     uint64_t sequence)
{
    uint64_t head = rs_recording_sum(one, 2, sequence);

    return rs_recording_sum(one + 1, ((size_t)one->text_bytes + 7) / 8, head);
}

/* The check of a chunk's header, and of a file's. */
static inline uint64_t rs_recording_chunk_check(const struct rs_recording_chunk *chunk)
{
    return rs_recording_sum(chunk, offsetof(struct rs_recording_chunk, check) / 8, 0);
}

static inline uint64_t rs_recording_header_check(const struct rs_recording_header *header)
{
    return rs_recording_sum(header, offsetof(struct rs_recording_header, check) / 8, 0);
}
