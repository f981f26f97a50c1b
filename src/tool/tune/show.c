/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/show.h"

#include "base/arithmetic.h"
#include "base/size.h"
#include "tool/json.h"
#include "tool/view/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 16, LINE_BYTES = 1024, NUMBER_BYTES = 64 };

/* ---- variables ---- */

static bool is_plain(const char *text)
{
    return text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                             "_=./:%+-")] == '\0';
}

/* Adds "NAME=value", in quotes where a shell needs them. */
static void add_assignment(char line[LINE_BYTES], const char *assignment)
{
    const char *value = strchr(assignment, '=') + 1;
    size_t length = strlen(line);
    const char *quote = is_plain(value) ? "" : "'";

    snprintf(line + length, LINE_BYTES - length, "%s%.*s%s%s%s", length ? " " : "",
             (int)(value - assignment), assignment, quote, value, quote);
}

/* As a shell takes them. */
static const char *variables_of(const struct tune_candidate *candidate, const char *limit,
                                char line[LINE_BYTES])
{
    char text[NUMBER_BYTES];

    line[0] = '\0';
    for (size_t i = 0; i < TUNE_VARIABLES_MAX && candidate->variables[i][0]; i++)
        add_assignment(line, candidate->variables[i]);
    if (limit) {
        snprintf(text, sizeof(text), "RMM_LIMIT=%s", limit);
        add_assignment(line, text);
    }
    return line;
}

/* ---- for people ---- */

static void put_front_row(struct table *table, const struct tune_search *search, size_t number)
{
    const struct tune_candidate *candidate = &search->candidates[number];
    const struct replay_result *result = &candidate->result;
    char held[RS_SIZE_TEXT_BYTES], ratio[NUMBER_BYTES], calls[NUMBER_BYTES], waits[NUMBER_BYTES],
        line[LINE_BYTES];

    snprintf(ratio, sizeof(ratio), "%.3f",
             (double)result->peak_held_bytes / (double)search->facts.peak_live_bytes);
    snprintf(calls, sizeof(calls), "%llu",
             (unsigned long long)(result->upstream_allocations + result->upstream_frees));
    snprintf(waits, sizeof(waits), "%llu",
             (unsigned long long)(result->waits + result->free_waits));
    table_row(table, candidate->of->name, rs_size_format_short(result->peak_held_bytes, held),
              ratio, calls, waits, variables_of(candidate, NULL, line));
}

static void show_front(const struct tune_search *search)
{
    size_t *front = calloc(TUNE_CANDIDATES_MAX, sizeof(*front)), found, shown;
    struct table table;

    if (!front)
        return;
    found = tune_front(search->points, search->count, front);
    shown = tune_thin(front, found, ROWS_MAX);
    table_begin(&table, "STACK", "HELD", "HELD/LIVE", "DRIVER CALLS", "WAITS", "VARIABLES", NULL);
    if (found == 0 || front[0] != 0)
        put_front_row(&table, search, 0);
    for (size_t i = 0; i < shown; i++)
        put_front_row(&table, search, front[i]);
    table_print(&table);
    if (shown < found)
        printf("%zu of the front's %zu stacks are shown\n", shown, found);
    free(front);
}

static void show_finalist(struct table *table, const struct tune_findings *findings,
                          const struct tune_finalist *finalist)
{
    const struct tune_candidate *candidate = &findings->search->candidates[finalist->number];
    char wall[NUMBER_BYTES], more[NUMBER_BYTES] = "", held[RS_SIZE_TEXT_BYTES] = "-",
                             line[LINE_BYTES];

    snprintf(wall, sizeof(wall), "%.4g s +- %.2g s", finalist->wall.mean, finalist->wall.half);
    if (finalist->number)
        snprintf(more, sizeof(more), "%+.4g s +- %.2g s", finalist->more.mean, finalist->more.half);
    if (finalist->code) {
        snprintf(wall, sizeof(wall), "failed with status %d", finalist->code);
        more[0] = '\0';
    }
    if (finalist->held_bytes)
        rs_size_format_short(finalist->held_bytes, held);
    table_row(table, candidate->of->name, wall, more, held,
              variables_of(candidate, finalist->number ? findings->limit : NULL, line));
}

static void show_measure(const struct tune_findings *findings)
{
    const struct tune_measure *measure = findings->measure;
    struct table table;

    printf("\nmeasured in %zu rounds, with 95 %% intervals:\n\n", measure->rounds);
    table_begin(&table, "STACK", "A RUN TAKES", "THAN WITHOUT", "HELD", "VARIABLES", NULL);
    for (size_t i = 0; i < measure->count; i++)
        show_finalist(&table, findings, &measure->finalists[i]);
    table_print(&table);
}

static void show_choice(const struct tune_findings *findings, const struct tune_choice *choice)
{
    char line[LINE_BYTES] = "nothing";

    if (choice->number == 0)
        snprintf(line, sizeof(line), "set nothing");
    else if (choice->number != TUNE_NONE)
        variables_of(&findings->search->candidates[choice->number],
                     choice->wish.kind == TUNE_LIMIT ? findings->limit : NULL, line);
    printf("\nbest for %s: %s\n  %s.\n", tune_wish_names[choice->wish.kind], line, choice->reason);
}

void tune_show(const struct tune_findings *findings)
{
    const struct tune_search *search = findings->search;
    char live[RS_SIZE_TEXT_BYTES];

    printf(
        "device %d: %zu allocations, at most %s live; %zu stacks replayed, the GPU at most %g ms "
        "behind\n\n",
        search->settings.device, search->facts.allocations,
        rs_size_format_short(search->facts.peak_live_bytes, live), search->count,
        (double)search->settings.lag_ns / 1e6);
    show_front(search);
    if (findings->measure)
        show_measure(findings);
    for (size_t i = 0; i < findings->choice_count; i++)
        show_choice(findings, &findings->choices[i]);
}

/* ---- as JSON ---- */

static void put_assignments(const struct tune_candidate *candidate, const char *limit)
{
    const char *comma = "";

    fputs("\"variables\":{", stdout);
    for (size_t i = 0; i < TUNE_VARIABLES_MAX && candidate->variables[i][0]; i++) {
        const char *assignment = candidate->variables[i], *equals = strchr(assignment, '=');
        printf("%s\"%.*s\":", comma, (int)(equals - assignment), assignment);
        json_put_text(equals + 1);
        comma = ",";
    }
    if (limit) {
        printf("%s\"RMM_LIMIT\":", comma);
        json_put_text(limit);
    }
    putchar('}');
}

static void put_candidate(const struct tune_search *search, size_t number)
{
    const struct tune_candidate *candidate = &search->candidates[number];
    const struct replay_result *result = &candidate->result;

    fputs("{\"stack\":", stdout);
    json_put_text(candidate->of->name);
    putchar(',');
    put_assignments(candidate, NULL);
    fputs(",\"resource\":", stdout);
    json_put_text(candidate->expression);
    printf(",\"peak_held\":%llu,\"driver_calls\":%llu,\"waits\":%llu,\"waited_ns\":%llu}",
           (unsigned long long)result->peak_held_bytes,
           (unsigned long long)(result->upstream_allocations + result->upstream_frees),
           (unsigned long long)(result->waits + result->free_waits),
           (unsigned long long)result->waited_ns);
}

static void put_front(const struct tune_search *search)
{
    size_t *front = calloc(TUNE_CANDIDATES_MAX, sizeof(*front));
    size_t found = front ? tune_front(search->points, search->count, front) : 0;

    fputs(",\n\"none\":", stdout);
    put_candidate(search, 0);
    fputs(",\n\"front\":[", stdout);
    for (size_t i = 0; i < found; i++) {
        fputs(i ? ",\n" : "\n", stdout);
        put_candidate(search, front[i]);
    }
    putchar(']');
    free(front);
}

static void put_searched(const struct tune_search *search)
{
    fputs(",\n\"searched\":[", stdout);
    for (const struct tune_template *of = tune_templates; of->name; of++) {
        size_t count = 0;
        for (size_t i = 0; i < search->count; i++)
            count += search->candidates[i].of == of;
        printf("%s{\"stack\":\"%s\",\"count\":%zu}", of == tune_templates ? "" : ",", of->name,
               count);
    }
    putchar(']');
}

static void put_choices(const struct tune_findings *findings)
{
    fputs(",\n\"best\":[", stdout);
    for (size_t i = 0; i < findings->choice_count; i++) {
        const struct tune_choice *choice = &findings->choices[i];
        bool is_found = choice->number != TUNE_NONE;
        const struct tune_candidate *candidate =
            &findings->search->candidates[is_found ? choice->number : 0];
        printf("%s{\"for\":\"%s\",\"found\":%s,", i ? ",\n" : "\n",
               tune_wish_names[choice->wish.kind], is_found ? "true" : "false");
        if (is_found) {
            printf("\"stack\":\"%s\",", candidate->of->name);
            put_assignments(candidate, choice->wish.kind == TUNE_LIMIT ? findings->limit : NULL);
            putchar(',');
        }
        fputs("\"reason\":", stdout);
        json_put_text(choice->reason);
        putchar('}');
    }
    putchar(']');
}

static void put_measure(const struct tune_findings *findings)
{
    const struct tune_measure *measure = findings->measure;

    printf(",\n\"measured\":{\"rounds\":%zu,\"stacks\":[", measure->rounds);
    for (size_t i = 0; i < measure->count; i++) {
        const struct tune_finalist *finalist = &measure->finalists[i];
        const struct tune_candidate *candidate = &findings->search->candidates[finalist->number];
        printf("%s{\"stack\":\"%s\",", i ? ",\n" : "\n", candidate->of->name);
        put_assignments(candidate, finalist->number ? findings->limit : NULL);
        printf(",\"status\":%d,\"peak_held\":%llu", finalist->code,
               (unsigned long long)finalist->held_bytes);
        if (!finalist->code)
            printf(",\"seconds\":%.6f,\"seconds_half\":%.6f,\"more_seconds\":%.6f,"
                   "\"more_seconds_half\":%.6f",
                   finalist->wall.mean, finalist->wall.half, finalist->more.mean,
                   finalist->more.half);
        putchar('}');
    }
    fputs("]}", stdout);
}

void tune_show_json(const struct tune_findings *findings)
{
    const struct tune_search *search = findings->search;

    printf("{\"schema\":1,\"events\":%zu,\"lost_events\":%llu,\"device\":%d,\"lag_ns\":%llu,"
           "\"allocations\":%zu,\"peak_live\":%llu,\"replayed\":%zu",
           search->recording->count, (unsigned long long)search->recording->lost_events,
           search->settings.device, (unsigned long long)search->settings.lag_ns,
           search->facts.allocations, (unsigned long long)search->facts.peak_live_bytes,
           search->count);
    put_searched(search);
    put_front(search);
    if (findings->measure)
        put_measure(findings);
    put_choices(findings);
    puts("}");
}
