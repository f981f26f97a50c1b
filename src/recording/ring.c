/* SPDX-License-Identifier: Apache-2.0 */
#include "recording/ring.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/map_zeroed.h"
#include "recording/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SLOT_KEPT = 0xffff,
    SLOTS_MIN = RS_RECORDING_SIZE_MIN / RS_RECORDING_CHUNK_BYTES,
    SLOTS_MAX = 1 << 20, /* 64 GiB */
    PART_BYTES = RS_RECORDING_PART_CHUNKS * RS_RECORDING_CHUNK_BYTES,
};

void rs_recording_ring_turn_off(struct rs_recording_ring *ring, const char *what, int error)
{
    if (atomic_exchange(&ring->on, false))
        rs_log("recording: %s: %s: %s; nothing is recorded from here on", ring->output.path, what,
               strerror(error));
}

/* ---- time ---- */

static uint64_t real_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void rs_recording_ring_note_time(const struct rs_recording_ring *ring,
                                 const struct rs_recording_chunk *chunk)
{
    struct rs_recording_header *header = rs_recording_header(chunk);
    uint64_t ns = rs_clock_ns();

    header->now_ticks = rs_recording_clock_ticks(ring->first.begun_ticks);
    header->now_ns = ns;
}

static void note_beginning(struct rs_recording_ring *ring)
{
    struct rs_recording_header *first = &ring->first;

    rs_recording_clock_begin();
    memcpy(first->magic, RS_RECORDING_MAGIC, sizeof(first->magic));
    first->version = RS_RECORDING_VERSION;
    first->process = (uint32_t)getpid();
    first->begun_ns = rs_clock_ns();
    first->begun_ticks = rs_recording_clock_ticks(0);
    first->begun_real_ns = real_ns();
    first->recording = first->begun_real_ns ^ (uint64_t)first->process << 48;
}

/* ---- opening and closing ---- */

static int open_file(struct rs_recording_ring *ring)
{
    int result =
        rs_file_part_claim(&ring->part, &ring->output, ring->path, PART_BYTES, "recording");

    if (result != 0)
        return result;
    if (!ring->output.is_regular && strcmp(ring->path, "/dev/null") != 0) {
        rs_output_release(&ring->output);
        return -ESPIPE; /* a chunk is written to its place in the file */
    }
    ring->memory = ring->part.bytes ? ring->part.bytes : rs_map_zeroed(PART_BYTES);
    return ring->memory ? 0 : -ENOMEM;
}

int rs_recording_ring_open(struct rs_recording_ring *ring, const char *path, size_t size_bytes)
{
    int result;

    ring->path = path;
    ring->slot_count =
        (uint32_t)rs_min(rs_max(size_bytes / RS_RECORDING_CHUNK_BYTES, SLOTS_MIN), SLOTS_MAX);
    ring->slots = rs_map_zeroed(ring->slot_count * sizeof(*ring->slots));
    if (!ring->slots)
        return -ENOMEM;
    result = open_file(ring);
    if (result != 0)
        return result;
    note_beginning(ring);
    atomic_store(&ring->on, true);
    return 0;
}

void rs_recording_ring_close(struct rs_recording_ring *ring)
{
    if (!atomic_exchange(&ring->on, false))
        return;
    rs_file_part_remove(&ring->part, ring->output.path);
    rs_output_release(&ring->output);
}

/* ---- slots ---- */

static bool replace_slot(struct rs_recording_ring *ring, uint32_t *slot)
{
    for (uint32_t i = 0; i < ring->slots_used; i++) {
        uint32_t at = ring->next;
        ring->next = (at + 1) % ring->slots_used;
        if (ring->slots[at] == SLOT_KEPT)
            continue;
        ring->lost_events += ring->slots[at];
        *slot = at;
        return true;
    }
    return false;
}

/* Definitions, which stay, have half of the slots at most. */
static bool take_slot(struct rs_recording_ring *ring, enum rs_recording_chunk_kind kind,
                      uint32_t *slot)
{
    if (kind == RS_RECORDING_DEFINITIONS && ring->definition_slots >= ring->slot_count / 2)
        return false;
    if (ring->slots_used < ring->slot_count)
        *slot = ring->slots_used++;
    else if (!replace_slot(ring, slot))
        return false;
    ring->slots[*slot] = SLOT_KEPT;
    ring->definition_slots += kind == RS_RECORDING_DEFINITIONS;
    return true;
}

/* ---- chunks ---- */

/* Returns 0 or an errno.  A child writes nothing. */
static int write_at(const struct rs_recording_ring *ring, const void *bytes, size_t length_bytes,
                    uint32_t slot, uint32_t at_bytes)
{
    if (ring->owner != getpid())
        return 0;
    if (!rs_descriptor_is_kept(&ring->output.file))
        return EBADF; /* the program has closed it */
    return -rs_file_write(ring->output.file.fd, bytes, length_bytes,
                          (off_t)slot * RS_RECORDING_CHUNK_BYTES + (off_t)at_bytes);
}

static void write_through(struct rs_recording_ring *ring, const struct rs_recording_chunk *chunk,
                          uint32_t begin, uint32_t length_bytes)
{
    int error = write_at(ring, chunk->bytes + begin, length_bytes, chunk->slot, begin);

    if (error)
        rs_recording_ring_turn_off(ring, "cannot be written", error);
}

void rs_recording_ring_grew(struct rs_recording_ring *ring, const struct rs_recording_chunk *chunk,
                            uint32_t at_bytes, uint32_t length_bytes)
{
    if (RS_UNLIKELY(!ring->part.bytes))
        write_through(ring, chunk, (uint32_t)sizeof(struct rs_recording_header) + at_bytes,
                      length_bytes);
}

/* The magic is stored last: without it there is no chunk. */
bool rs_recording_ring_begin(struct rs_recording_ring *ring, struct rs_recording_chunk *chunk,
                             char *memory, enum rs_recording_chunk_kind kind)
{
    struct rs_recording_header *header = (struct rs_recording_header *)(void *)memory;

    if (!take_slot(ring, kind, &chunk->slot))
        return false;
    memset(memory, 0, RS_RECORDING_CHUNK_BYTES);
    atomic_signal_fence(memory_order_seq_cst);
    *chunk = (struct rs_recording_chunk){memory, 0, chunk->slot};
    *header = ring->first;
    header->magic[0] = '\0';
    header->kind = kind;
    header->sequence = ++ring->sequence;
    header->lost_events = ring->lost_events;
    header->missed_events = atomic_load(&ring->missed_events);
    header->lost_definitions = ring->lost_definitions;
    rs_recording_ring_note_time(ring, chunk);
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile char *)header->magic = ring->first.magic[0];
    if (!ring->part.bytes) /* whole: the slot may hold an older chunk */
        write_through(ring, chunk, 0, RS_RECORDING_CHUNK_BYTES);
    return true;
}

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* Where the disk is full the ring has its greatest size; what it has by then is replaced.  A chunk
 * near the file's beginning may meet it too: a slot takes no room before it is written. */
static bool is_replaced(struct rs_recording_ring *ring, struct rs_recording_chunk *chunk)
{
    if (!ring->is_shortened)
        rs_log("recording: %s: the disk is full; from here on the oldest events are replaced",
               ring->output.path);
    ring->is_shortened = true;
    if (chunk->slot >= SLOTS_MIN) {
        ring->slot_count = rs_min(ring->slot_count, chunk->slot);
        ring->slots_used = rs_min(ring->slots_used, ring->slot_count);
        ring->next %= ring->slots_used;
    }
    return replace_slot(ring, &chunk->slot);
}

void rs_recording_ring_finish(struct rs_recording_ring *ring, struct rs_recording_chunk *chunk)
{
    struct rs_recording_header *header = rs_recording_header(chunk);
    uint32_t length_bytes = (uint32_t)sizeof(*header) + chunk->used_bytes;
    bool has_events = header->kind == RS_RECORDING_EVENTS;
    int error;

    RS_ASSERT(chunk->used_bytes <= RS_RECORDING_CONTENT_BYTES);
    header->lost_events = ring->lost_events;
    header->missed_events = atomic_load(&ring->missed_events);
    header->lost_definitions = ring->lost_definitions;
    rs_recording_ring_note_time(ring, chunk);
    header->length_bytes = chunk->used_bytes;
    header->checksum = rs_recording_checksum(header, chunk->bytes + sizeof(*header));
    error = write_at(ring, chunk->bytes, length_bytes, chunk->slot, 0);
    if (is_full(error) && is_replaced(ring, chunk))
        error = write_at(ring, chunk->bytes, length_bytes, chunk->slot, 0);
    if (error)
        rs_recording_ring_turn_off(ring, "cannot be written", error);
    else if (has_events)
        ring->slots[chunk->slot] =
            (uint16_t)(chunk->used_bytes / sizeof(struct rs_recording_event));
    else
        ring->slots[chunk->slot] = SLOT_KEPT;
    chunk->bytes = NULL;
}
