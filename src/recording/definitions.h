/* SPDX-License-Identifier: Apache-2.0 */
/* The definitions of a recording: what events refer to by numbers, each written once.  Its memory
 * is not malloc's, since an allocation may be made while malloc is locked.  Not thread safe: its
 * user has a lock. */
#pragma once

#include "recording/ring.h"

struct rs_definition_slot;

struct rs_definitions {
    struct rs_definition_slot *table;
    size_t count;
    uint32_t numbers[RS_RECORDING_DEFINITION_KINDS]; /* given out so far */
    struct rs_recording_chunk chunk;
    _Atomic bool is_full; /* one was refused */
};

/* Returns false when out of host memory. */
bool rs_definitions_make(struct rs_definitions *definitions);

/* True when a definition was refused: a new one is not worth being prepared.  Needs no lock. */
bool rs_definitions_are_full(const struct rs_definitions *definitions);

/* Returns the number of what has this key, or 0 when it has none yet. */
uint32_t rs_definitions_find(const struct rs_definitions *definitions,
                             enum rs_recording_definition_kind kind, uint64_t key);

/* Gives a number to `key` (0: nobody will look for it) and writes the definition, its text cut to
 * RS_DEFINITION_TEXT_MAX bytes.  Returns 0, and counts it as lost, when there is no room. */
uint32_t rs_definitions_enter(struct rs_definitions *definitions, struct rs_recording_ring *ring,
                              enum rs_recording_definition_kind kind, uint64_t key, uint64_t value,
                              const void *text, size_t text_bytes);

enum { RS_DEFINITION_TEXT_MAX = 4096 };
