/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a recording: chunks at slots of equal size, of which those with events are replaced,
 * oldest first, once the file has its greatest size.  Not thread safe:
 * its user has a lock. */
#pragma once

#include "base/file_tail.h"
#include "base/output.h"
#include "recording/format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    RS_RECORDING_CONTENT_BYTES = RS_RECORDING_CHUNK_BYTES - sizeof(struct rs_recording_header),
    RS_RECORDING_SIZE_MIN = 16 * RS_RECORDING_CHUNK_BYTES,
};

/* A chunk that grows.  It has a slot from its beginning on. */
struct rs_recording_chunk {
    char *bytes;         /* header and content; NULL: not begun */
    uint32_t used_bytes; /* of the content */
    uint32_t slot;
};

static inline struct rs_recording_header *
rs_recording_header(const struct rs_recording_chunk *chunk)
{
    return (struct rs_recording_header *)(void *)chunk->bytes;
}

struct rs_recording_ring {
    const char *path; /* as it was asked for */
    struct rs_output output;
    struct rs_file_part part; /* where none can be made the chunks are in memory of the process's,
                                 and each event is written at once */
    char *memory;             /* RS_RECORDING_PART_CHUNKS chunks, of the part or of the process's */
    _Atomic bool on;
    pid_t owner;       /* the process that records, set by the ring's user; 0 in its children */
    bool is_shortened; /* the disk was full */
    uint16_t *slots;   /* how many events each has; SLOT_KEPT: not to be replaced */
    uint32_t slot_count, slots_used, next;
    uint32_t definition_slots;
    struct rs_recording_header first; /* what all headers have in common */
    uint64_t sequence, lost_events, lost_definitions;
    _Atomic uint64_t missed_events;
};

/* Opens the file.  Returns 0 or -errno; the ring is then off. */
int rs_recording_ring_open(struct rs_recording_ring *ring, const char *path, size_t size_bytes);

/* Says in one line why nothing is recorded from now on. */
void rs_recording_ring_turn_off(struct rs_recording_ring *ring, const char *what, int error);

/* Begins a chunk of this kind in `memory`.  Returns false when it may have no slot. */
bool rs_recording_ring_begin(struct rs_recording_ring *ring, struct rs_recording_chunk *chunk,
                             char *memory, enum rs_recording_chunk_kind kind);

/* Seals the chunk and writes it to its slot, and turns the ring off where that fails; a chunk
 * without content only gives its slot back. */
void rs_recording_ring_finish(struct rs_recording_ring *ring, struct rs_recording_chunk *chunk);

/* What a chunk got at this place of its content is complete: without a part, writes it. */
void rs_recording_ring_grew(struct rs_recording_ring *ring, const struct rs_recording_chunk *chunk,
                            uint32_t at_bytes, uint32_t length_bytes);

/* Notes the present time in a chunk's header. */
void rs_recording_ring_note_time(const struct rs_recording_ring *ring,
                                 const struct rs_recording_chunk *chunk);

/* Closes the file; the part goes with it, as nothing is in there alone. */
void rs_recording_ring_close(struct rs_recording_ring *ring);
