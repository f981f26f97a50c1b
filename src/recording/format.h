/* SPDX-License-Identifier: Apache-2.0 */
/* The format of a recording (RMM_RECORD): what a process did with memory, event by event.
 *
 * The file is a header of `header_bytes`, then chunks of `chunk_bytes` each.  The last chunk may be
 * cut short; chunks that were never used are zero.  All numbers have the byte order of the machine
 * that wrote them, which `byte_order` tells.
 *
 * A chunk has a header of its own, and is read without any other chunk.  Chunks of events have
 * struct rs_recording_event one behind the other, `event_bytes` apart; chunks of definitions have
 * struct rs_recording_definition, each with its text.  A definition gives a name, a call site or a
 * thread a number, by which events refer to it.  The order of chunks in the file means nothing:
 * events are in the order of their times, over all chunks, and a definition may come behind an
 * event that refers to it.
 *
 * What is being written is mapped by its process, which stores the last word of each part (the
 * chunk's `check`, the event's `time_and_kind`, the definition's `check`) after the others.  So the
 * file is complete at each instruction, however the process ends; a part whose last word is 0 is
 * not there.  A part whose check is wrong is damaged: it is left out, and all others are good.
 *
 * A full chunk of events is copied to another place of the file, and then begun anew where it was.
 * A process that ends in between leaves two chunks of events with one sequence, of which the copy
 * may be cut short: a reader takes the one with more good events, and nothing of the other.
 *
 * Once the file has its greatest size, the place of the chunk of events that was full longest ago
 * is taken, and its events are counted in `lost_events`.  Definitions are never replaced; where
 * there is no room for one, events have the number 0.
 *
 * A reader skips kinds of chunks, events and definitions that it does not know, and what is behind
 * the fields that it knows: these come with a higher `minor`.  A change that such a reader would
 * misread raises `major`. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RS_RECORDING_MAGIC "RMMREC\r\n" /* 8 bytes, without the zero */

enum {
    RS_RECORDING_MAJOR = 1,
    RS_RECORDING_MINOR = 0,
    RS_RECORDING_BYTE_ORDER = 0x01020304,
    RS_RECORDING_HEADER_BYTES = 32 << 10, /* as many as a chunk has, so that each chunk may be one
                                             large page of memory */
    RS_RECORDING_CHUNK_BYTES = 32 << 10,
    RS_RECORDING_CHUNK_MAGIC = 0x434d4d52, /* "RMMC" on a little-endian machine */
};

/* Begins the file.  All times are in ns. */
struct rs_recording_header {
    char magic[8];
    uint32_t byte_order; /* RS_RECORDING_BYTE_ORDER */
    uint16_t major, minor;
    uint32_t header_bytes, chunk_bytes, event_bytes;
    uint32_t process;       /* its process ID */
    uint64_t recording;     /* a number of this file, which its chunks repeat */
    uint64_t job;           /* the same in all recordings of one `rmmshim run`; 0: none */
    uint64_t begun_ns;      /* by CLOCK_MONOTONIC: the time 0 of events */
    uint64_t begun_real_ns; /* the same moment by CLOCK_REALTIME */
    uint64_t check;         /* rs_recording_sum of the words before it, with the seed 0 */

    /* These change while the process lives. */
    uint64_t ended_ns;      /* as events' times; 0: the process runs, or did not end by exit */
    uint64_t lost_events;   /* replaced by newer ones, or without room on the disk */
    uint64_t missed_events; /* of signal handlers that interrupted the recorder in their thread */
    uint64_t lost_definitions; /* for which there was no room */
};

enum rs_recording_chunk_kind {
    RS_RECORDING_EVENTS = 1,
    RS_RECORDING_DEFINITIONS = 2,
};

struct rs_recording_chunk {
    uint32_t magic, kind;
    uint64_t recording;
    uint64_t sequence; /* from 1, a number of its own for each chunk begun */
    uint64_t check;    /* rs_recording_sum of the words before it, with the seed 0; stored last */
};

enum rs_recording_event_kind {
    RS_RECORDING_ALLOCATE = 1, /* a block was handed out; `definition` is its call site */
    RS_RECORDING_DEALLOCATE,   /* the program gave it back */
    RS_RECORDING_REFUSED,      /* a request was out of memory; the address is 0 */
    RS_RECORDING_SLOW,         /* the request of `size` whose result comes next in this thread was
                                  not served at once: `address` is how many ns it took, waits for
                                  the GPU and calls of the driver included */
    RS_RECORDING_STACK,        /* a stack is made; `definition` is what it is made of, `size` the
                                  device's memory */
    RS_RECORDING_STACK_GONE,   /* its context has ended, and all its blocks with it */
    RS_RECORDING_HELD,         /* from here on the process has `size` bytes of the device from the
                                  driver; `address` is the limit in bytes, 0 without one */
    RS_RECORDING_TRIM,         /* the stack was asked for unused memory, and gave `size` back */
    RS_RECORDING_PHASE_BEGIN,  /* of this thread; `definition` is its name.  A phase that is open
                                  when the recording begins has only its end */
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
    uint64_t time_and_kind; /* ns since the recording began, then enum rs_recording_event_kind */
    uint64_t address;
    uint64_t size_and_check; /* bytes as the program asked for them; rs_recording_event_check */
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
    RS_RECORDING_SAMPLE, /* value: for every so many bytes that a thread allocates, one block has a
                            call site */
    RS_RECORDING_DEFINITION_KINDS
};

/* Followed by text_bytes bytes, without a zero byte at the end, and then zero bytes up to a
 * multiple of 8. */
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

/* The check of an event: the upper 16 bits of size_and_check, which must be 0 in `event` here. It
 * multiplies only once for all words, since each multiplication would wait for the one before. */
static inline uint64_t rs_recording_event_check(const struct rs_recording_event *event,
                                                uint64_t sequence)
{
    uint64_t sum = event->time_and_kind ^ rs_recording_rotated(event->address, 13) ^
                   rs_recording_rotated(event->size_and_check, 26) ^
                   rs_recording_rotated(event->thread | (uint64_t)event->definition << 32, 39) ^
                   rs_recording_rotated(event->place, 52) ^ sequence;

    return sum * 0x9e3779b97f4a7c15u >> RS_RECORDING_SIZE_BITS;
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
