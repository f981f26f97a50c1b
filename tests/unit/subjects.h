/* SPDX-License-Identifier: Apache-2.0 */
/* Options for the tests that run over the table of resources: with these they make each resource.
 */
#pragma once

#include "resource/resource.h"

#include <string.h>

enum { SUBJECT_OPTIONS_MAX = 4 };

struct subject {
    const char *name;
    const char *options[SUBJECT_OPTIONS_MAX];
    bool needs_driver; /* the resource calls the driver, which the fake leaf is not; other tests
                          cover it */
};

/* Resources that are not in this list are tested with their default options. */
static const struct subject subjects[] = {
    {"reuse", {NULL}, true},
    {"bin", {"size=1TiB"}, false},
    {"limiting", {"limit=1TiB"}, false},
    {"aligned", {"alignment=4096", "alignment_threshold=1000"}, false},
    {"headroom", {NULL}, true},
    {"prefetch", {"preferred_location=device", "accessed_by=1"}, false},
    {"logging", {"path=/dev/null"}, false},
    {"recording", {"path=/dev/null", "size=4MiB"}, false},
    {"pool", {"initial_size=1MiB"}, false},
    {"arena", {"arena_size=64MiB"}, false},
    {"binning", {"minimum_size=1KiB", "maximum_size=32KiB"}, false},
    {"poison", {"guard=512", "keep=1MiB"}, false},
    {"tracking", {"stacks=1"}, false},
    {"fixed_size", {"block_size=64KiB", "blocks_to_preallocate=16"}, false},
};

static inline const struct subject *subject_of(const struct rs_mr_descriptor *descriptor)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(subjects); i++)
        if (strcmp(subjects[i].name, descriptor->name) == 0)
            return &subjects[i];
    return NULL;
}

static inline bool subject_needs_driver(const struct rs_mr_descriptor *descriptor)
{
    const struct subject *subject = subject_of(descriptor);

    return subject && subject->needs_driver;
}

/* True when the resource accesses its blocks, so that they need memory (fake_memory.h). */
static inline bool subject_looks_inside(const struct rs_mr_descriptor *descriptor)
{
    return strcmp(descriptor->name, "poison") == 0;
}
