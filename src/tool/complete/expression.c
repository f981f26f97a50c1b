/* SPDX-License-Identifier: Apache-2.0 */
/* What an expression may go on with. */
#include "resource/resource.h"
#include "tool/complete/candidates.h"
#include "tool/describe.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_MAX = 32 };

/* Where a beginning of an expression ends. */
struct place {
    struct level {
        const struct rs_mr_descriptor *descriptor; /* NULL: not known */
        unsigned upstreams;                        /* given so far */
    } levels[DEPTH_MAX];
    size_t depth;                   /* of open parentheses */
    const char *word;               /* the last word's beginning */
    const struct rs_option *option; /* whose value the word is */
    bool is_value;                  /* of an option, which may not be known */
    bool is_closed;                 /* a ')' stands before, no word */
};

static struct level *innermost(struct place *place)
{
    return place->depth ? &place->levels[place->depth - 1] : NULL;
}

static bool open_level(struct place *place, const char *at)
{
    if (place->depth == DEPTH_MAX)
        return false;
    place->levels[place->depth++] =
        (struct level){.descriptor = rs_mr_find(place->word, at), .upstreams = 0};
    return true;
}

static void end_argument(struct place *place)
{
    if (place->depth && !place->is_value)
        innermost(place)->upstreams++;
}

static void read_option(struct place *place, const char *at)
{
    const struct level *level = innermost(place);
    enum rs_option_type type;

    place->is_value = true;
    place->option = level && level->descriptor
                        ? rs_option_find(level->descriptor->options, place->word, at, &type)
                        : NULL;
}

/* Takes a sign that ends a word.  False where nothing can follow. */
static bool take(struct place *place, const char *at)
{
    switch (*at) {
    case '(':
        if (!open_level(place, at))
            return false;
        break;
    case ',':
        end_argument(place);
        break;
    case '=':
        read_option(place, at);
        place->word = at + 1;
        return true;
    case ')':
        if (place->depth == 0)
            return false;
        place->depth--;
        break;
    default: /* a blank: the word has ended, or not begun */
        place->word += place->word == at;
        return place->word > at;
    }
    place->is_closed = *at == ')';
    place->is_value = false;
    place->option = NULL;
    place->word = at + 1;
    return true;
}

static bool find_place(const char *text, struct place *place)
{
    *place = (struct place){.word = text};
    for (const char *at = text; (at += strcspn(at, "(),= \t")), *at; at++)
        if (!take(place, at))
            return false;
    return true;
}

/* Adds a word that stands where the last one does. */
static void add(struct candidates *candidates, const struct place *place, const char *word,
                const char *end, const char *meaning)
{
    char text[CANDIDATE_BYTES];
    const char *rest = candidates_rest(candidates);
    int length = snprintf(text, sizeof(text), "%.*s%s", (int)(place->word - rest), rest, word);

    if (length < CANDIDATE_BYTES)
        candidates_add(candidates, text, end, meaning);
}

static void add_values(struct candidates *candidates, const struct place *place)
{
    const struct rs_option *option = place->option;

    if (!option)
        return;
    if (option->type == RS_OPTION_BOOLEAN) {
        add(candidates, place, "0", "", NULL);
        if (!option->only_no)
            add(candidates, place, "1", "", NULL);
    } else if (option->type == RS_OPTION_WORD) {
        for (size_t i = 0; option->words[i]; i++)
            add(candidates, place, option->words[i], "", NULL);
    } else if (*describe_default(option)) {
        add(candidates, place, describe_default(option), "", "the default");
    }
}

static void add_resources(struct candidates *candidates, const struct place *place)
{
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        add(candidates, place, rs_mr_descriptors[i]->name,
            rs_mr_descriptors[i]->upstream_count > 0 ? "(" : "", rs_mr_descriptors[i]->summary);
}

static void add_options(struct candidates *candidates, const struct place *place,
                        const struct rs_mr_descriptor *descriptor)
{
    for (const struct rs_option *row = descriptor->options; row->name; row++)
        add(candidates, place, row->name, "=", row->help);
}

/* What may stand behind a whole argument. */
static void add_signs(struct candidates *candidates)
{
    const char *rest = candidates_rest(candidates);

    candidates_add(candidates, rest, ")", NULL);
    candidates_add(candidates, rest, ",", NULL);
}

static void add_words(struct candidates *candidates, struct place *place)
{
    const struct level *level = innermost(place);
    const struct rs_mr_descriptor *descriptor = level ? level->descriptor : NULL;

    if (place->is_closed) {
        if (level)
            add_signs(candidates);
    } else if (place->is_value) {
        add_values(candidates, place);
    } else if (!level) {
        add_resources(candidates, place);
    } else if (descriptor) {
        if (level->upstreams < descriptor->upstream_count || descriptor->branch)
            add_resources(candidates, place);
        if (level->upstreams >= descriptor->upstream_count)
            add_options(candidates, place, descriptor);
    }
}

/* Where one word is left, what follows it is added: a shell would else close the quotes around an
 * expression that is not at its end. */
static void add_following(struct candidates *candidates)
{
    char text[CANDIDATE_BYTES];
    struct candidates longer = {.text = text, .prefix = candidates->prefix};
    struct place place;
    char end;

    snprintf(text, sizeof(text), "%s", candidates->all[0].word);
    end = text[strlen(text) - 1];

    if (!find_place(candidates_rest(&longer), &place) || (place.is_closed && place.depth == 0))
        return;
    if (end == '(' || end == '=')
        add_words(&longer, &place);
    else if (place.depth > 0 && !place.is_closed)
        add_signs(&longer);
    for (size_t i = 0; i < longer.count; i++)
        candidates_add(candidates, longer.all[i].word + candidates->prefix, "",
                       longer.all[i].meaning);
    candidates_clear(&longer);
}

void candidates_of_expression(struct candidates *candidates)
{
    struct place place;

    if (!find_place(candidates_rest(candidates), &place))
        return;
    add_words(candidates, &place);
    if (candidates->count == 1)
        add_following(candidates);
}
