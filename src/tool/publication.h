/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the page of a process (report/publish.h) as it is mapped: of one that runs, or that is
 * gone.  The process may have been anything: each offset is checked before it is used,
 * and texts are plain (tool/view/plain.h). */
#pragma once

#include "report/format.h"
#include "report/publish.h"
#include "report/published_checks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the page said at one moment.  Its texts live until publication_release. */
struct publication {
    const char *file;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none */
    int process;                        /* its number in its own PID namespace */
    int64_t began_seconds;              /* since 1970 */
    struct rs_reported_stack stacks[RS_PUBLISHED_STACKS_MAX];
    size_t count; /* of stacks that have counters */
    uint32_t fields_read;

    struct rs_published_directory *directory; /* a copy, and what lies in it */
    const struct rs_published_stack *from;
    const struct rs_published_counter *counters;
};

/* True when the mapped file is the page of a library whose layout this command can read. */
bool publication_can_read(const void *file);

/* True when the process has stacks, or had any: it has taken its first memory. */
bool publication_has_directory(const void *file);

/* Reads the mapped file of RS_PUBLISHED_BYTES.  False where it has no counters yet, or they make no
 * sense; publication_release is due in any case. */
bool publication_read(struct publication *page, const void *file);
void publication_release(struct publication *page);

/* What the page says about the stacks of that kind and device: expression and device. */
const struct rs_published_stack *publication_stack(const struct publication *page,
                                                   const struct rs_reported_stack *stack);
