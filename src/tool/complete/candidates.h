/* SPDX-License-Identifier: Apache-2.0 */
/* The words that may stand in place of the one that is being written, as they are found. */
#pragma once

#include <stddef.h>

enum { CANDIDATE_BYTES = 1024, CANDIDATE_MEANING_BYTES = 128 };

struct candidate {
    char word[CANDIDATE_BYTES];
    char meaning[CANDIDATE_MEANING_BYTES]; /* cut off where it is longer; "": none */
};

struct candidates {
    const char *text; /* what is written so far: a candidate begins with it */
    size_t prefix;    /* its letters that stay before all candidates, as "--free=" */
    struct candidate *all;
    size_t count, room;
};

/* Adds prefix + head + tail, if it begins with the text.  `meaning` may be NULL. */
void candidates_add(struct candidates *candidates, const char *head, const char *tail,
                    const char *meaning);
void candidates_clear(struct candidates *candidates);

/* What is written behind the prefix. */
const char *candidates_rest(const struct candidates *candidates);

/* Adds what an expression may go on with, whose beginning is the text behind the prefix. */
void candidates_of_expression(struct candidates *candidates);
