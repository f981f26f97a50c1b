/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim tune: which memory resources suit a recorded program, by replay and by runs. */
#include "base/size.h"
#include "tool/tool.h"
#include "tool/tune/tune.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000, REASON_BYTES = 1024 };

static const char *const wishes[] = {"footprint", "speed", "limit", NULL};

struct wanted {
    struct replay_wanted replay;
    const char *limit;          /* the text after --for limit=; NULL: none */
    char **program;             /* NULL: nothing is run */
    enum tune_wish first, last; /* a choice is made for each wish from `first` to `last` */
    size_t rounds;
};

/* ---- the command line ---- */

static bool parse_limit(const char *text, struct wanted *wanted)
{
    const char *at, *reason = "expected a size in bytes, above 0, as in 8GiB";
    struct rs_size size;

    if (!rs_size_parse(text, text + strlen(text), &size, &at, &reason) ||
        size.kind != RS_SIZE_BYTES || size.number == 0) {
        tool_say("--for limit=%s: %s", text, *text ? reason : "a size is missing");
        return false;
    }
    wanted->limit = text;
    wanted->replay.settings.limit_bytes = (size_t)size.number;
    wanted->first = wanted->last = TUNE_LIMIT;
    return true;
}

static bool parse_wish(const char *text, struct wanted *wanted)
{
    int wish;

    if (tool_begins(text, "limit="))
        return parse_limit(text + strlen("limit="), wanted);
    wish = tool_find_word("--for", text, wishes);
    if (wish == TUNE_LIMIT)
        tool_say("--for limit needs a size, as in --for limit=8GiB");
    wanted->first = wanted->last = (enum tune_wish)wish;
    return wish >= 0 && wish < TUNE_LIMIT;
}

/* Takes "--run N PROGRAM..." off the end of the arguments. */
static bool take_run(char **arguments, struct wanted *wanted)
{
    char *end = NULL, *number, **program;
    unsigned long rounds;

    while (*arguments && strcmp(*arguments, "--run") != 0)
        arguments++;
    if (!*arguments)
        return true;
    number = arguments[1];
    rounds = number && *number >= '0' && *number <= '9' ? strtoul(number, &end, 10) : 0;
    if (rounds < INTERVAL_LEAST || rounds > ROUNDS_MAX || *end) {
        tool_say("--run needs a number of runs from %d to %d: fewer runs do not give a 95 %% "
                 "interval of the median time",
                 INTERVAL_LEAST, ROUNDS_MAX);
        return false;
    }
    program = arguments + 2;
    if (*program && strcmp(*program, "--") == 0)
        program++;
    if (!*program) {
        tool_say("--run needs a program after the number of runs, as in --run 10 ./app");
        return false;
    }
    wanted->rounds = rounds;
    wanted->program = program;
    *arguments = NULL;
    return true;
}

static bool parse(char **arguments, struct wanted *wanted)
{
    const char *wish = NULL;
    struct tool_option own = {.name = "--for", .value = &wish};

    if (!take_run(arguments, wanted) || !replay_parse(arguments, own, &wanted->replay) ||
        (wish && !parse_wish(wish, wanted)))
        return false;
    if (!wanted->replay.path)
        tool_say("tune needs the FILE of a recording; see `rmmshim tune --help`");
    return wanted->replay.path;
}

/* ---- results ---- */

static void put_candidates(struct rs_node *root, const struct tune_candidates *candidates)
{
    struct rs_node *list = replay_put_list(root, "candidates");

    for (size_t i = 0; i < candidates->count; i++) {
        const struct tune_candidate *one = &candidates->all[i];
        struct rs_node *row = replay_put(list, one->resource, &one->result);
        rs_node_flag(row, "on_front", one->on_front);
        row->line = one->on_front ? row->line : NULL;
    }
}

static void put_runs(struct rs_node *root, const struct tune_runs *runs)
{
    struct rs_node *list = rs_node_list(root, "runs");

    list->line =
        "\ntimes of the program's runs:\n   MEDIAN  95 % INTERVAL OF THE MEDIAN  RESOURCE\n";
    for (size_t i = 0; i < runs->count; i++) {
        const struct tune_candidate *one = runs->finalists[i];
        struct rs_node *row = rs_node_object(list, NULL);
        rs_node_text(row, "resource", one->resource);
        rs_node_nanoseconds(row, "median_nanoseconds", (uint64_t)(1e9 * one->interval.median));
        rs_node_nanoseconds(row, "low_nanoseconds", (uint64_t)(1e9 * one->interval.low));
        rs_node_nanoseconds(row, "high_nanoseconds", (uint64_t)(1e9 * one->interval.high));
        rs_node_flag(row, "slower", one->is_told_apart);
        row->line = rs_document_format(row->document, "%7.3f s  %10.3f s to %9.3f s  {resource}\n",
                                       one->interval.median, one->interval.low, one->interval.high);
    }
}

/* Returns, of the finalists that the runs did not show to be slower than the fastest one, the one
 * that holds least. */
static const struct tune_candidate *fastest(const struct tune_runs *runs)
{
    const struct tune_candidate *best = NULL;

    for (size_t i = 0; i < runs->count; i++) {
        const struct tune_candidate *one = runs->finalists[i];
        if (!one->is_told_apart && (!best || one->result.held_peak < best->result.held_peak))
            best = one;
    }
    return best;
}

static void add_memory(char reason[REASON_BYTES], const struct replay_result *result)
{
    rs_text_add(reason, REASON_BYTES, "up to %s when the program uses up to %s.",
                tool_bytes(result->held_peak), tool_bytes(result->used_peak));
}

static void add_calls(char reason[REASON_BYTES], const struct replay_result *result)
{
    rs_text_add(reason, REASON_BYTES,
                "%" PRIu64 " driver call%s and %" PRIu64 " wait%s for the GPU.",
                result->driver_calls, result->driver_calls == 1 ? "" : "s", result->waits,
                result->waits == 1 ? "" : "s");
}

/* Adds why fastest(runs) was chosen: its time, then which others take as long, and its memory. */
static void give_reason_of_runs(char reason[REASON_BYTES], const struct tune_runs *runs,
                                const struct tune_candidate *chosen)
{
    const char *before = " The runs show no clear difference in time between it and ";
    size_t alike = 0;

    rs_text_add(reason, REASON_BYTES,
                "Of the combinations that were run, this one is %s: the median time of %zu runs is "
                "%.3f s.",
                chosen == runs->fastest ? "the fastest" : "about as fast as the fastest",
                runs->rounds, chosen->interval.median);
    for (size_t i = 0; i < runs->count; i++) {
        const struct tune_candidate *one = runs->finalists[i];
        if (one == chosen || one->is_told_apart)
            continue;
        rs_text_add(reason, REASON_BYTES, "%s'%s'", alike++ ? " or " : before, one->resource);
    }
    rs_text_add(reason, REASON_BYTES,
                alike ? ". Of these, it holds the least memory: " : " It holds ");
    add_memory(reason, &chosen->result);
}

/* Adds why the replays made this candidate the choice. */
static void give_reason_of_replays(char reason[REASON_BYTES],
                                   const struct tune_candidates *candidates, enum tune_wish wish,
                                   const struct tune_candidate *chosen)
{
    bool is_memory = wish == TUNE_FOOTPRINT;
    size_t serving = 0;

    for (size_t i = 0; i < candidates->count; i++)
        serving += candidates->all[i].serves;
    if (serving == candidates->count)
        rs_text_add(reason, REASON_BYTES,
                    "Of %zu combinations of memory resources that were replayed,", serving);
    else
        rs_text_add(reason, REASON_BYTES,
                    "Of the replayed combinations of memory resources that refused no more "
                    "requests than the recorded run did,");
    rs_text_add(reason, REASON_BYTES, " this one %s: ",
                is_memory ? "holds the least memory" : "has the fewest driver calls and GPU waits");
    (is_memory ? add_memory : add_calls)(reason, &chosen->result);
    rs_text_add(reason, REASON_BYTES, is_memory ? " It makes " : " It holds ");
    (is_memory ? add_calls : add_memory)(reason, &chosen->result);
}

/* Adds what is chosen for the wish, and why.  Returns false if nothing can be chosen. */
static bool put_choice(struct rs_node *list, const struct wanted *wanted, enum tune_wish wish,
                       struct tune_candidates *candidates, const struct tune_runs *runs)
{
    bool is_measured = runs->fastest && wish != TUNE_FOOTPRINT;
    const struct tune_candidate *chosen = is_measured ? fastest(runs) : tune_best(candidates, wish);
    struct rs_node *one = rs_node_object(list, NULL), *variables;
    char reason[REASON_BYTES] = "";

    rs_node_word(one, "for", wishes[wish]);
    rs_node_flag(one, "found", chosen != NULL);
    if (chosen) {
        if (is_measured)
            give_reason_of_runs(reason, runs, chosen);
        else
            give_reason_of_replays(reason, candidates, wish, chosen);
        variables = rs_node_object(one, "variables");
        rs_node_text(variables, "RMM_RESOURCE", chosen->resource);
        if (wanted->limit)
            rs_node_text(variables, "RMM_LIMIT", wanted->limit);
        variables->line = "RMM_RESOURCE='{RMM_RESOURCE}'[ RMM_LIMIT={RMM_LIMIT}]\n";
    } else {
        rs_text_add(reason, sizeof(reason),
                    "Each combination of memory resources that was replayed refused more requests "
                    "than the recorded run did.");
        if (wanted->limit)
            rs_text_add(reason, sizeof(reason), " Try a limit above %s.", wanted->limit);
    }
    rs_node_text(one, "reason", reason);
    one->line = chosen ? "\nfor {for}: "
                       : "\nfor {for}: no combination of memory resources can be recommended\n";
    one->end = "  {reason}\n";
    return chosen;
}

static int show(const struct wanted *wanted, const struct sequence *sequence,
                struct tune_candidates *candidates, const struct tune_runs *runs)
{
    struct rs_node *root = replay_begin(sequence), *list;
    bool is_good = true;

    put_candidates(root, candidates);
    replay_put_recorded(root, sequence);
    if (runs->fastest)
        put_runs(root, runs);
    list = rs_node_list(root, "choices");
    for (enum tune_wish wish = wanted->first; wish <= wanted->last; wish++)
        is_good = put_choice(list, wanted, wish, candidates, runs) && is_good;
    return tool_show(root, wanted->replay.as_json) && is_good ? TOOL_OK : TOOL_FINDING;
}

/* ---- the command ---- */

static void add_finalist(struct tune_runs *runs, struct tune_candidate *candidate)
{
    for (size_t i = 0; i < runs->count; i++)
        if (runs->finalists[i] == candidate)
            return;
    if (candidate && runs->count < TUNE_FINALISTS_MAX)
        runs->finalists[runs->count++] = candidate;
}

/* Runs the program with the best candidate for each wish, and, up to TUNE_FINALISTS_MAX in all,
 * with others to which no candidate is as good in memory held and in driver calls and waits. */
static int run_finalists(const struct wanted *wanted, struct tune_candidates *candidates,
                         struct tune_runs *runs)
{
    runs->rounds = wanted->rounds;
    for (enum tune_wish wish = TUNE_FOOTPRINT; wish < TUNE_LIMIT; wish++)
        add_finalist(runs, tune_best(candidates, wish));
    for (size_t i = 0; i < candidates->count; i++)
        if (candidates->all[i].on_front)
            add_finalist(runs, &candidates->all[i]);
    return runs->count > 0 ? tune_run(runs, wanted->program, wanted->limit) : TOOL_OK;
}

static int tune_sequence(const struct wanted *wanted, const struct sequence *sequence)
{
    static struct tune_candidates candidates;
    static struct tune_runs runs;
    int code = TOOL_OK;

    tune_replay(&candidates, sequence, &wanted->replay.settings);
    if (wanted->program)
        code = run_finalists(wanted, &candidates, &runs);
    if (code == TOOL_OK)
        code = show(wanted, sequence, &candidates, &runs);
    return code;
}

static int run(char **arguments)
{
    struct wanted wanted = {.first = TUNE_FOOTPRINT, .last = TUNE_SPEED};
    static struct sequence sequence;
    int code, tuned = TOOL_OK;

    if (!parse(arguments, &wanted))
        return TOOL_USAGE;
    code = sequence_read(&sequence, wanted.replay.path, wanted.replay.device);
    if (sequence.event_count > 0)
        tuned = tune_sequence(&wanted, &sequence);
    return rs_max(code, tuned);
}

const struct tool_command tool_tune = {
    .name = "tune",
    .arguments = "FILE [--for footprint|speed|limit=SIZE] [--lag SECONDS] [--device N] [--json] "
                 "[--run N PROGRAM [ARGUMENTS...]]",
    .summary = "Finds the memory resources that suit a recorded program best",
    .run = run,
    .help =
        "Replays a recording, or an event log in RMM's CSV format (RMM_LOG), as\n"
        "`rmmshim replay` does, with a fixed set of combinations of memory resources. It\n"
        "prints a row, as that command does, for each of the best combinations. A\n"
        "combination is left out if it refuses more requests than the recorded run did,\n"
        "or if another one is at least as good both in the memory it holds and in the sum\n"
        "of driver calls and GPU waits. Then tune prints the variables to set, and why it\n"
        "chose them.\n\n"
        "  --for footprint   choose the combination that holds the least memory\n"
        "  --for speed       choose the combination with the fewest driver calls and GPU\n"
        "                    waits, or with --run the fastest one\n"
        "  --for limit=SIZE  choose as for speed, but replay and run with the limit SIZE.\n"
        "                    Without --for, tune chooses twice: for footprint, and for speed.\n"
        "  --lag SECONDS     how far the simulated GPU falls behind the program at most\n"
        "                    (default 0.001). Until the GPU has caught up, it still uses\n"
        "                    memory that the program has freed. 0: it never falls behind.\n"
        "  --device N        replay the requests for this device; default: the device with the\n"
        "                    most allocations\n"
        "  --json            print a JSON object, with sizes in bytes\n"
        "  --run N PROGRAM   also run the program N times (6 or more) with each of up to\n"
        "                    four of the combinations shown. The combinations take turns.\n"
        "                    The program gets no input, and its output is discarded. The\n"
        "                    fastest combination is the one with the lowest median time.\n"
        "                    Another one counts as slower only if its extra time (the median\n"
        "                    over the runs) has a 95 % confidence interval above 0. Of those\n"
        "                    that do not count as slower, tune chooses the one that holds the\n"
        "                    least memory.\n\n"
        "A replay counts driver calls and waits, but cannot measure how long they take.\n"
        "With --run the time of the whole program is measured.\n\n"
        "exit codes: 0 variables are printed; 1 the file cannot be read, has no requests\n"
        "for the device, or is damaged (its undamaged parts are used); 1 also if every\n"
        "combination refuses more requests than the recorded run did, or the program\n"
        "of --run fails; 2 wrong usage\n\n"
        "example: rmmshim tune app.rec --for limit=8GiB --run 10 ./app --steps 100\n"
        "(which runs `./app --steps 100` 10 times with each of the combinations)",
};
