/* SPDX-License-Identifier: Apache-2.0 */
/* The served processes of this user, watched: pages stay mapped, what they say is read again and
 * again. */
#pragma once

#include "tool/view/row.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WATCH_SAMPLES = 128 };

/* A row, and what it was: of a process, or of a device, where `process` is the number of processes
 * and `program` is empty. */
struct watched {
    struct row row;
    uint64_t held[WATCH_SAMPLES]; /* the newest is that of `samples` - 1, modulo */
    size_t samples;
    uint64_t counted_at_ns;
};

/* All zero at first. */
struct watch {
    struct watched_process *processes; /* by number */
    size_t count;
    struct watched *devices;
    size_t device_count, device_room;
    size_t of_other_versions, nonsense; /* processes whose page cannot be read */
    uint64_t next_scan_ns;
    uint64_t reading_ns; /* that reading all pages took */
};

/* Looks for processes that have come or gone, where it is time for that, and reads all pages. */
void watch_sample(struct watch *watch);

/* Processes that have rows, and those whose page cannot be read. */
size_t watch_process_count(const struct watch *watch);
size_t watch_unreadable(const struct watch *watch);

/* The rows of all processes, or of all devices; free() is due.  Valid until the next sample. */
const struct watched **watch_rows(const struct watch *watch, bool is_by_device, size_t *count);

void watch_release(struct watch *watch);
