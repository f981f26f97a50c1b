/* SPDX-License-Identifier: Apache-2.0 */
/* Diagnostics about settings: one line each, naming the variable, showing the place, and, where
 * there is one, the nearest valid word.  The library sends them to its log, the tool to stderr,
 * tests to a buffer. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>

struct rs_diagnostics {
    void (*write)(void *data, const char *line);
    void *data;
    unsigned count; /* lines so far */
};

/* Where a text came from: the variable's (or argument's) name and its whole text. */
struct rs_source {
    const char *name;
    const char *text;
};

/* Reports the place `at` in source->text (NULL: about the whole), shown as a '^' in front
 * of it: "RMM_POOL_SIZE=10^Q: unknown unit 'Q'".  Long texts are shown around the place only. */
void rs_diagnose(struct rs_diagnostics *diagnostics, const struct rs_source *source, const char *at,
                 const char *format, ...) RS_PRINTF(4, 5);

/* The word of `words` (NULL-terminated) nearest to [begin, end), or NULL when none is near: at most
 * two letters off (inserted, lost, changed or swapped), at most one for words under six letters. */
const char *rs_nearest_word(const char *begin, const char *end, const char *const *words);

/* Letters that must be inserted, removed, changed or swapped to make a out of b; lengths over 64
 * count as far apart. */
unsigned rs_word_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* How far a misspelling of a word this long may be from it (see rs_nearest_word). */
unsigned rs_word_tolerance(size_t length);
