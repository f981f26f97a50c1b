/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/choice.h"

#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const tune_wish_names[] = {"footprint", "speed", "limit", NULL};

/* A limit alone has a stack made, so that "no stack" is not among what has one. */
size_t tune_best_replayed(const struct tune_search *search, const struct tune_wish *wish)
{
    size_t skipped = wish->kind == TUNE_LIMIT ? 1 : 0;
    size_t best = tune_best(search->points + skipped, search->count - skipped, wish);

    return best == TUNE_NONE ? best : best + skipped;
}

/* ---- the sentence ---- */

static void say(struct tune_choice *choice, const char *format, ...) RS_PRINTF(2, 3);

static void say(struct tune_choice *choice, const char *format, ...)
{
    size_t length = strlen(choice->reason);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(choice->reason + length, sizeof(choice->reason) - length, format, arguments);
    va_end(arguments);
}

/* "850 MiB, 1.04 times what was live". */
static void say_held(struct tune_choice *choice, const struct tune_search *search, size_t number)
{
    char held[RS_SIZE_TEXT_BYTES];
    uint64_t bytes = search->points[number].held_bytes;

    say(choice, "%s, %.3f times what was live", rs_size_format_short(bytes, held),
        (double)bytes / (double)search->facts.peak_live_bytes);
}

/* "3 driver calls and 12 waits". */
static void say_stops(struct tune_choice *choice, const struct tune_search *search, size_t number)
{
    const struct replay_result *result = &search->candidates[number].result;
    uint64_t calls = result->upstream_allocations + result->upstream_frees;
    uint64_t waits = result->waits + result->free_waits;

    say(choice, "%llu driver call%s and %llu wait%s", (unsigned long long)calls,
        calls == 1 ? "" : "s", (unsigned long long)waits, waits == 1 ? "" : "s");
}

static void say_name(struct tune_choice *choice, const struct tune_search *search)
{
    const struct tune_template *of = search->candidates[choice->number].of;

    say(choice, "%s %s%s; ", of->name, of->why,
        of->is_bounded ? " and refuses what this recording did not need" : "");
}

/* "0.12 s +- 0.01 s less than without the library". */
static void say_more(struct tune_choice *choice, const struct tune_finalist *finalist)
{
    double more = finalist->more.mean;

    say(choice, "%.4g s +- %.2g s %s than without the library", more < 0 ? -more : more,
        finalist->more.half, more < 0 ? "less" : "more");
}

/* ---- by replay ---- */

static void explain_footprint(const struct tune_search *search, struct tune_choice *choice)
{
    char held[RS_SIZE_TEXT_BYTES];

    if (choice->number == 0) {
        say(choice, "nothing that was replayed held less than no stack: ");
        say_held(choice, search, 0);
        return;
    }
    say_name(choice, search);
    say(choice, "it held at most ");
    say_held(choice, search, choice->number);
    say(choice, ", and no stack held %s", rs_size_format_short(search->points[0].held_bytes, held));
}

static void explain_speed(const struct tune_search *search, struct tune_choice *choice)
{
    if (choice->number == 0) {
        say(choice, "nothing that was replayed had fewer driver calls and waits than no stack: ");
        say_stops(choice, search, 0);
        return;
    }
    say_name(choice, search);
    say(choice, "it had ");
    say_stops(choice, search, choice->number);
    say(choice, ", and no stack had ");
    say_stops(choice, search, 0);
    say(choice, " (the time of a run was not measured)");
}

static void explain_limit(const struct tune_search *search, struct tune_choice *choice)
{
    char limit[RS_SIZE_TEXT_BYTES];
    size_t least;

    rs_size_format_short(choice->wish.limit_bytes, limit);
    if (choice->number == TUNE_NONE) {
        least = tune_best_replayed(search, &(struct tune_wish){.kind = TUNE_FOOTPRINT});
        say(choice, "nothing that was replayed held at most %s", limit);
        if (least != TUNE_NONE) {
            say(choice, "; the least was ");
            say_held(choice, search, least);
        }
        return;
    }
    say_name(choice, search);
    say(choice, "it held at most ");
    say_held(choice, search, choice->number);
    say(choice, ", and had the fewest driver calls and waits of what is within %s, ", limit);
    say_stops(choice, search, choice->number);
}

/* ---- as measured ---- */

static const struct tune_finalist *finalist_of(const struct tune_measure *measure, size_t number)
{
    for (size_t i = 0; i < measure->count; i++)
        if (measure->finalists[i].number == number)
            return &measure->finalists[i];
    return NULL;
}

static bool is_faster(const struct tune_finalist *finalist)
{
    return finalist->more.mean + finalist->more.half < 0;
}

/* Of those with a stack that ran to their ends, and within the limit; NULL: none.  One that is
 * faster than no stack by more than its interval comes before one that may be so by chance. */
static const struct tune_finalist *fastest(const struct tune_search *search,
                                           const struct tune_measure *measure,
                                           const struct tune_wish *wish)
{
    const struct tune_finalist *best = NULL;

    for (size_t i = 1; i < measure->count; i++) {
        const struct tune_finalist *finalist = &measure->finalists[i];
        bool is_within = wish->kind != TUNE_LIMIT ||
                         search->points[finalist->number].held_bytes <= wish->limit_bytes;
        if (finalist->code || !is_within)
            continue;
        if (!best || is_faster(finalist) > is_faster(best) ||
            (is_faster(finalist) == is_faster(best) && finalist->wall.mean < best->wall.mean))
            best = finalist;
    }
    return best;
}

static void choose_speed(const struct tune_search *search, const struct tune_measure *measure,
                         struct tune_choice *choice)
{
    const struct tune_finalist *best = fastest(search, measure, &choice->wish);

    choice->number = 0;
    if (!best) {
        say(choice, "the program failed with each stack that was measured");
        return;
    }
    if (is_faster(best)) {
        choice->number = best->number;
        say_name(choice, search);
        say(choice, "a run took ");
        say_more(choice, best);
        return;
    }
    say(choice,
        "nothing that was measured is faster than no stack by more than its interval: with the "
        "fastest, %s, a run took ",
        search->candidates[best->number].of->name);
    say_more(choice, best);
}

static void choose_limit(const struct tune_search *search, const struct tune_measure *measure,
                         struct tune_choice *choice)
{
    const struct tune_finalist *best = fastest(search, measure, &choice->wish);

    choice->number = best ? best->number : TUNE_NONE;
    if (!best) {
        say(choice, "no stack that was measured served the program within the limit");
        return;
    }
    say_name(choice, search);
    say(choice, "in the replay it held at most ");
    say_held(choice, search, best->number);
    say(choice, ", and as the fastest that was measured a run took ");
    say_more(choice, best);
}

/* The replay judges, and what was measured says what it costs. */
static void add_cost(const struct tune_measure *measure, struct tune_choice *choice)
{
    const struct tune_finalist *finalist = finalist_of(measure, choice->number);

    if (!finalist || choice->number == 0)
        return;
    if (finalist->code) {
        say(choice, "; but the program failed with it, with status %d", finalist->code);
        choice->number = TUNE_NONE;
        return;
    }
    say(choice, "; a run took ");
    say_more(choice, finalist);
}

void tune_choose(const struct tune_search *search, const struct tune_measure *measure,
                 struct tune_choice *choice)
{
    choice->reason[0] = '\0';
    choice->number = tune_best_replayed(search, &choice->wish);
    if (choice->wish.kind == TUNE_FOOTPRINT) {
        explain_footprint(search, choice);
        if (measure)
            add_cost(measure, choice);
    } else if (measure && choice->number != TUNE_NONE) {
        (choice->wish.kind == TUNE_SPEED ? choose_speed : choose_limit)(search, measure, choice);
    } else if (choice->wish.kind == TUNE_SPEED) {
        explain_speed(search, choice);
    } else {
        explain_limit(search, choice);
    }
}
