/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of processes as `rmmshim stats` and `rmmshim serve` write them: all processes are
 * read first, as Prometheus's format has all samples of a metric together. */
#pragma once

#include "config/config.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>

/* A process whose counters have been read. */
struct subject {
    struct publication page;
    struct identity identity;
};

/* All zero is empty. */
struct subjects {
    struct subject **all; /* each allocated by itself: reports refer to it */
    size_t count;
    size_t unreadable; /* processes whose pages cannot be read; subjects_add_all counts them */
};

/* Adds the counters of a process, whose page may hold anything.  False where there are none. */
bool subjects_add(struct subjects *subjects, const struct process *process);

/* Adds all served processes of this user. */
void subjects_add_all(struct subjects *subjects);

void subjects_release(struct subjects *subjects);

/* Writes the subjects to the descriptor: as text or as JSON, where they are of all an array; or for
 * Prometheus, with `has_counters` also each counter of each resource, which tell developers what a
 * stack does.  False when that failed, after a line that begins with `name`.  Not thread safe. */
bool subjects_write(const struct subjects *subjects, enum rs_statistics_format format,
                    bool is_of_all, bool has_counters, int fd, const char *name);
