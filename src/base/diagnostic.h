/* SPDX-License-Identifier: Apache-2.0 */
/* Diagnostics about settings.  Each is one line that names the variable, shows the place in its
 * text and, if there is one, suggests the nearest valid word.  The library sends them to its
 * log, the tool to stderr, tests to a buffer. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>

struct rs_diagnostics {
    void (*write)(void *data, const char *line);
    void *data;
    unsigned count;         /* errors written so far */
    bool doubts_are_errors; /* names that may be others' (config/variable_name.h): who asks wants to
                               know */
};

/* Where a text came from: the name of the variable or argument, and its whole text. */
struct rs_source {
    const char *name;
    const char *text;
};

/* Writes one line about source->text and adds 1 to diagnostics->count.  `at` points to the place
 * inside source->text, shown as '^' in front of it: "RMM_POOL_SIZE=10^Q: unknown unit 'Q'";
 * NULL: the diagnostic is about the whole text.  At most 40 characters are shown on either side
 * of the place.  Returns false, for a caller that refuses the text. */
bool rs_diagnose(struct rs_diagnostics *diagnostics, const struct rs_source *source, const char *at,
                 const char *format, ...) RS_PRINTF(4, 5);

/* Returns the word of `words` (NULL-terminated) that is nearest to [begin, end), or NULL when
 * none is within rs_word_tolerance of the word's length. */
const char *rs_nearest_word(const char *begin, const char *end, const char *const *words);

/* Returns how many letters must be inserted, removed, changed or swapped with their neighbour to
 * turn b into a.  Returns 64 when either is longer than 64 letters. */
unsigned rs_word_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* Returns the largest distance at which a text still counts as a misspelling of a word of this
 * length: 1 below six letters, else 2. */
unsigned rs_word_tolerance(size_t length);
