/* SPDX-License-Identifier: Apache-2.0 */
#include "recording/definitions.h"

#include "base/arithmetic.h"
#include "base/map_zeroed.h"

#include <string.h>

/* Keys are addresses and handles of the process, so the highest bits are the kind's.  The table is
 * never full: its size bounds the definitions. */
enum { SLOTS = 1 << 18, DEFINITIONS_MAX = SLOTS / 4 * 3, KIND_SHIFT = 60 };

struct rs_definition_slot {
    uint64_t key; /* 0: empty */
    uint32_t number;
};

bool rs_definitions_make(struct rs_definitions *definitions)
{
    definitions->table = rs_map_zeroed(SLOTS * sizeof(*definitions->table));
    return definitions->table;
}

bool rs_definitions_are_full(const struct rs_definitions *definitions)
{
    return atomic_load_explicit(&definitions->is_full, memory_order_relaxed);
}

static uint64_t key_of(enum rs_recording_definition_kind kind, uint64_t key)
{
    return (uint64_t)kind << KIND_SHIFT | (key & (((uint64_t)1 << KIND_SHIFT) - 1));
}

/* Returns the slot of the key, or the empty one where it would be. */
static struct rs_definition_slot *slot_of(const struct rs_definitions *definitions, uint64_t key)
{
    size_t at = (key * 0x9e3779b97f4a7c15u) >> 46;

    _Static_assert(SLOTS == 1 << (64 - 46), "the hash's highest bits are an index");
    while (definitions->table[at].key && definitions->table[at].key != key)
        at = (at + 1) % SLOTS;
    return &definitions->table[at];
}

uint32_t rs_definitions_find(const struct rs_definitions *definitions,
                             enum rs_recording_definition_kind kind, uint64_t key)
{
    return slot_of(definitions, key_of(kind, key))->number;
}

static bool make_room(struct rs_definitions *definitions, struct rs_recording_ring *ring,
                      size_t bytes)
{
    struct rs_recording_chunk *chunk = &definitions->chunk;

    if (chunk->bytes && chunk->used_bytes + bytes <= RS_RECORDING_CONTENT_BYTES)
        return true;
    if (chunk->bytes)
        rs_recording_ring_finish(ring, chunk);
    return rs_recording_ring_begin(ring, chunk, ring->memory, RS_RECORDING_DEFINITIONS);
}

/* The kind is stored last. */
static void append(struct rs_definitions *definitions, struct rs_recording_ring *ring,
                   const struct rs_recording_definition *definition, const void *text, size_t bytes)
{
    struct rs_recording_chunk *chunk = &definitions->chunk;
    uint32_t at = chunk->used_bytes;
    char *place = chunk->bytes + sizeof(struct rs_recording_header) + at;
    struct rs_recording_definition *entered = (struct rs_recording_definition *)(void *)place;

    *entered = *definition;
    entered->kind = 0;
    if (definition->text_bytes)
        memcpy(entered + 1, text, definition->text_bytes);
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint16_t *)&entered->kind = definition->kind;
    chunk->used_bytes += (uint32_t)bytes;
    rs_recording_ring_grew(ring, chunk, at, (uint32_t)bytes);
}

uint32_t rs_definitions_enter(struct rs_definitions *definitions, struct rs_recording_ring *ring,
                              enum rs_recording_definition_kind kind, uint64_t key, uint64_t value,
                              const void *text, size_t text_bytes)
{
    struct rs_definition_slot *slot = slot_of(definitions, key_of(kind, key));
    size_t kept_bytes = rs_min(text_bytes, RS_DEFINITION_TEXT_MAX);
    size_t bytes = sizeof(struct rs_recording_definition) + (kept_bytes + 7) / 8 * 8;
    struct rs_recording_definition definition = {
        .number = definitions->numbers[kind] + 1,
        .text_bytes = (uint16_t)kept_bytes,
        .kind = kind,
        .value = value,
    };

    if (definitions->count >= DEFINITIONS_MAX || !make_room(definitions, ring, bytes)) {
        ring->lost_definitions++;
        atomic_store_explicit(&definitions->is_full, true, memory_order_relaxed);
        return 0;
    }
    append(definitions, ring, &definition, text, bytes);
    definitions->numbers[kind]++;
    if (key) {
        *slot = (struct rs_definition_slot){key_of(kind, key), definition.number};
        definitions->count++;
    }
    return definition.number;
}
