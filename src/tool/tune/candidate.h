/* SPDX-License-Identifier: Apache-2.0 */
/* The stacks that a search tries.  A template gives the variables, with places for values; the
 * stack that is replayed is what the library's parser makes of the very variables that are shown.
 */
#pragma once

#include "tool/replay/replay.h"
#include "tool/tune/facts.h"

enum { TUNE_VALUES_MAX = 3, TUNE_VARIABLES_MAX = 2, TUNE_TEXT_BYTES = 320 };

struct tune_range;

struct tune_template {
    const char *name;
    const char *variables[TUNE_VARIABLES_MAX]; /* "$1" is the first value; none: no stack at all */
    const struct tune_range *ranges[TUNE_VALUES_MAX];
    const char *why; /* the sentence that begins with the name goes on with this */
    bool is_bounded; /* it refuses what this recording did not need */
    bool is_none;    /* no stack: as `cuda`, whose free waits for the GPU as cudaFree does */
};

/* THE table, ended by a row without a name; the first row is "no stack". */
extern const struct tune_template tune_templates[];

struct tune_candidate {
    const struct tune_template *of;
    uint64_t values[TUNE_VALUES_MAX];
    char variables[TUNE_VARIABLES_MAX][TUNE_TEXT_BYTES]; /* "RMM_POOL_SIZE=1GiB" */
    char expression[TUNE_TEXT_BYTES];
    bool is_played; /* and `result` is there */
    struct replay_result result;
};

/* Fills in all candidates of the table, at most `room`; returns how many. */
size_t tune_candidates_make(const struct tune_facts *facts, struct tune_candidate *candidates,
                            size_t room);

/* Adds those between candidate `number` and its nearest neighbours, which differ from it in one
 * value.  Returns the new count. */
size_t tune_candidates_refine(const struct tune_facts *facts, struct tune_candidate *candidates,
                              size_t count, size_t room, size_t number);
