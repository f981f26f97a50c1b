/* SPDX-License-Identifier: Apache-2.0 */
/* What a recording says (recording/format.h), or an event log in RMM's CSV, in the memory of a
 * command: events in their order, each free with the allocation that it ends.
 *
 * The file may be anything: what is read is checked, texts have no control characters, and a
 * recording with damage has the events of all that is whole. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDING_NO_EVENT UINT32_MAX

struct recording_event {
    uint64_t ns; /* since the recording began */
    uint64_t address;
    uint64_t size_bytes;
    uint32_t site_or_name; /* number of the site, or of the name; 0: none */
    uint32_t partner;      /* an allocation's free, a free's allocation; else RECORDING_NO_EVENT */
    uint16_t thread, stack, stream; /* numbers */
    uint8_t kind;                   /* enum rs_recording_event_kind */
};

/* A block whose free the recording does not have: it ended by event `end` at the latest, which
 * hands out its address again or ends its stack's context. */
struct recording_implied {
    uint32_t allocation, end;
};

/* A definition; text is never NULL. */
struct recording_item {
    uint64_t value;
    char *text;
};

struct recording_items {
    struct recording_item *items; /* the one with number n at n - 1 */
    uint32_t count;
};

struct recording_site {
    const uint32_t *frames; /* numbers, innermost first */
    uint32_t count;
};

struct recording {
    char program[256];
    uint32_t process;
    uint64_t begun_ns, begun_real_ns; /* of CLOCK_MONOTONIC and CLOCK_REALTIME */
    uint64_t lost_events, missed_events, lost_definitions;

    struct recording_event *events;
    size_t count, room;
    struct recording_implied *implied; /* in the order of their ends */
    size_t implied_count;
    bool is_log; /* begun_real_ns is the local time of day, as the log has no date */
    struct recording_items threads, stacks, streams, frames, sites, names;
    bool is_short; /* out of host memory */

    char damage[320]; /* the first damage in a line, or empty */

    /* ticks to nanoseconds, from the headers */
    uint64_t begun_ticks, latest_ticks, latest_ns;
};

/* Reads a file, and PATH.part beside it.  Says in one line what is damaged.  Returns false, after
 * one line, when nothing of it is a recording or a log; nothing is then to be freed. */
bool recording_open(struct recording *recording, const char *path);
void recording_close(struct recording *recording);

/* The same from memory: a file and what its part has.  Fills in `damage` rather than say it. */
bool recording_parse(struct recording *recording, const void *bytes, size_t length,
                     const void *part, size_t part_length);

/* What a number means.  A number that the recording does not define has NULL, no frames, an empty
 * text, or device 0. */
const struct recording_item *recording_item(const struct recording_items *items, uint32_t number);
struct recording_site recording_site(const struct recording *recording, uint32_t number);
const char *recording_name(const struct recording *recording, uint32_t number);
int recording_device(const struct recording *recording, const struct recording_event *event);
uint32_t recording_thread(const struct recording *recording, const struct recording_event *event);
uint64_t recording_stream(const struct recording *recording, const struct recording_event *event);

/* What happens to a block, or (RECORDING_OTHER) an event that is about no live block. */
enum recording_step { RECORDING_TAKES, RECORDING_GIVES, RECORDING_OTHER };

/* Calls `visit` for each step in order.  `block` is the block's allocation; for a block from before
 * the first event it is its free.  Such blocks are taken at the beginning.  Ends, and returns
 * false, when `visit` does. */
bool recording_walk(const struct recording *recording,
                    bool (*visit)(void *data, enum recording_step step,
                                  const struct recording_event *block, uint64_t ns),
                    void *data);

/* ---- for the readers of the two formats ---- */

void recording_note_damage(struct recording *recording, const char *format, ...) RS_PRINTF(2, 3);

/* NULL when out of host memory. */
struct recording_event *recording_add(struct recording *recording);

/* Makes the number mean this; its text is checked.  A site's text are its frames' numbers. */
void recording_define(struct recording *recording, struct recording_items *items, uint32_t number,
                      uint64_t value, const void *text, size_t text_bytes);

/* Puts events into their order and finds each free's allocation. */
void recording_finish(struct recording *recording);

/* True when the text begins as RMM's log does. */
bool recording_is_log(const char *bytes, size_t length);
void recording_parse_log(struct recording *recording, const char *bytes, size_t length);
