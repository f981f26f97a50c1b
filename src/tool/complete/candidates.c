/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/complete/candidates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *candidates_rest(const struct candidates *candidates)
{
    return candidates->text + candidates->prefix;
}

/* The place behind the last one; NULL when out of memory. */
static struct candidate *make_room(struct candidates *candidates)
{
    size_t room = candidates->room ? 2 * candidates->room : 64;
    struct candidate *all;

    if (candidates->count < candidates->room)
        return &candidates->all[candidates->count];
    all = realloc(candidates->all, room * sizeof(*all));
    if (!all)
        return NULL;
    candidates->all = all;
    candidates->room = room;
    return &all[candidates->count];
}

void candidates_add(struct candidates *candidates, const char *head, const char *tail,
                    const char *meaning)
{
    struct candidate *candidate = make_room(candidates);
    int length;

    if (!candidate)
        return;
    length = snprintf(candidate->word, sizeof(candidate->word), "%.*s%s%s", (int)candidates->prefix,
                      candidates->text, head, tail);
    if (length >= CANDIDATE_BYTES ||
        strncmp(candidate->word, candidates->text, strlen(candidates->text)) != 0)
        return;
    snprintf(candidate->meaning, sizeof(candidate->meaning), "%s", meaning ? meaning : "");
    candidates->count++;
}

void candidates_clear(struct candidates *candidates)
{
    free(candidates->all);
    candidates->all = NULL;
    candidates->count = candidates->room = 0;
}
