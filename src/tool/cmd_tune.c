/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim tune: which stack suits a program, by replay of a recording (tool/tune/search.h) and,
 * with
 * --run, by measuring (tool/tune/measure.h). */
#include "base/size.h"
#include "tool/tool.h"
#include "tool/tune/show.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES_MAX = 2, DEFAULT_LAG_NS = 1000 * 1000 };

struct words {
    const char *path;  /* of the recording */
    char **program;    /* with --run */
    const char *limit; /* of --for limit=, as written */
    struct tune_wish wish;
    bool has_wish, as_json;
    int device; /* -1: the busiest */
    size_t rounds;
    uint64_t lag_ns;
};

/* ---- words ---- */

static bool parse_limit(struct words *words, const char *text)
{
    const char *at, *reason = "a percentage has no meaning here";
    struct rs_size size;

    if (!rs_size_parse(text, text + strlen(text), &size, &at, &reason) ||
        size.kind != RS_SIZE_BYTES || size.number == 0) {
        tool_say("--for=limit=%s: %s", text, *text ? reason : "expected a size, as in limit=8GiB");
        return false;
    }
    words->limit = text;
    words->wish = (struct tune_wish){TUNE_LIMIT, size.number};
    return true;
}

static void say_unknown_wish(const char *text)
{
    char word[32];

    snprintf(word, sizeof(word), "%.*s", (int)strcspn(text, "="), text);
    tool_say_unknown("--for", word, tune_wish_names);
}

static bool parse_wish(struct words *words, const char *text)
{
    size_t length = strlen("limit");

    words->has_wish = true;
    if (strncmp(text, "limit", length) == 0 && (text[length] == '=' || !text[length]))
        return parse_limit(words, text + length + (text[length] == '='));
    for (int kind = TUNE_FOOTPRINT; kind < TUNE_LIMIT; kind++)
        if (strcmp(text, tune_wish_names[kind]) == 0) {
            words->wish = (struct tune_wish){.kind = (enum tune_wish_kind)kind};
            return true;
        }
    say_unknown_wish(text);
    return false;
}

static bool parse_rounds(struct words *words, const char *text)
{
    char *end;
    long rounds = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : -1;

    if (rounds < TUNE_ROUNDS_MIN || rounds > TUNE_ROUNDS_MAX || *end) {
        tool_say("--run=%s: expected a number of rounds from %d to %d", text, TUNE_ROUNDS_MIN,
                 TUNE_ROUNDS_MAX);
        return false;
    }
    words->rounds = (size_t)rounds;
    return true;
}

/* Takes the option at **arguments; false after a line. */
static bool take_option(struct words *words, char ***arguments)
{
    static const char *const options[] = {"--for", "--json", "--lag", "--device", "--run", NULL};
    bool failed = false;
    const char *value;

    if (strcmp(**arguments, "--json") == 0)
        return words->as_json = true;
    if ((value = tool_option_value(arguments, "--for", &failed)))
        return parse_wish(words, value);
    if (!failed && (value = tool_option_value(arguments, "--lag", &failed)))
        return tool_parse_time("--lag", value, &words->lag_ns);
    if (!failed && (value = tool_option_value(arguments, "--device", &failed)))
        return tool_parse_device(value, &words->device);
    if (!failed && (value = tool_option_value(arguments, "--run", &failed)))
        return parse_rounds(words, value);
    if (!failed)
        tool_say_unknown("option", **arguments, options);
    return false;
}

static bool words_are_good(const struct words *words)
{
    const char *wrong = NULL;

    if (words->rounds && words->path)
        wrong = "--run: a program stands behind --, and FILE is left out";
    else if (words->rounds && !(words->program && *words->program))
        wrong = "--run: no program behind --";
    else if (!words->rounds && words->program)
        wrong = "a program is run with --run N";
    else if (!words->rounds && !words->path)
        wrong = "no file";
    if (wrong)
        tool_say("%s; `rmmshim tune --help` says how", wrong);
    return !wrong;
}

static bool parse(char **arguments, struct words *words)
{
    for (; *arguments && !words->program; arguments++) {
        if (strcmp(*arguments, "--") == 0) {
            words->program = arguments + 1;
        } else if (**arguments == '-') {
            if (!take_option(words, &arguments))
                return false;
        } else if (words->path) {
            tool_say("one file; `rmmshim tune --help` says how");
            return false;
        } else {
            words->path = *arguments;
        }
    }
    return words_are_good(words);
}

/* ---- the command ---- */

/* What is asked for; without --for the two wishes that need no number. */
static size_t fill_choices(const struct words *words, struct tune_choice choices[CHOICES_MAX])
{
    choices[0].wish = words->wish;
    if (words->has_wish)
        return 1;
    choices[0].wish.kind = TUNE_FOOTPRINT;
    choices[1].wish = (struct tune_wish){.kind = TUNE_SPEED};
    return CHOICES_MAX;
}

static int show(const struct words *words, const struct tune_search *search,
                const struct tune_measure *measure, struct tune_choice *choices, size_t count)
{
    struct tune_findings findings = {search, measure, choices, count, words->limit};
    int code = search->recording->damage[0] ? TOOL_FINDING : TOOL_OK;

    for (size_t i = 0; i < count; i++) {
        tune_choose(search, measure, &choices[i]);
        code = choices[i].number == TUNE_NONE ? TOOL_FINDING : code;
    }
    if (search->failed_count)
        tool_say("%zu stacks could not be replayed", search->failed_count);
    (words->as_json ? tune_show_json : tune_show)(&findings);
    return code;
}

static int tune_and_measure(const struct words *words, const struct tune_search *search,
                            struct tune_measure *measure)
{
    static struct tune_choice choices[CHOICES_MAX];
    size_t count = fill_choices(words, choices), best[CHOICES_MAX];

    if (!words->rounds)
        return show(words, search, NULL, choices, count);
    for (size_t i = 0; i < count; i++)
        best[i] = tune_best_replayed(search, &choices[i].wish);
    /* With nothing within the limit there is nothing to measure. */
    if (words->limit && best[0] == TUNE_NONE)
        return show(words, search, NULL, choices, count);
    return tune_measure_run(measure, search, best, count)
               ? show(words, search, measure, choices, count)
               : measure->code;
}

static int tune_recording(const struct words *words, const char *path, struct tune_measure *measure)
{
    struct recording recording;
    struct tune_search search = {
        .recording = &recording,
        .settings = {.lag_ns = words->lag_ns},
    };
    int code = TOOL_FINDING;
    bool is_open = recording_open(&recording, path);

    tune_measure_forget(measure); /* it is in memory, and a search may be ended by a signal */
    if (!is_open)
        return TOOL_FINDING;
    search.settings.device = words->device < 0 ? replay_busiest_device(&recording) : words->device;
    if (tune_search_run(&search))
        code = tune_and_measure(words, &search, measure);
    tune_search_end(&search);
    recording_close(&recording);
    return code;
}

static int tune(char **arguments)
{
    struct words words = {.device = -1, .lag_ns = DEFAULT_LAG_NS};
    static struct tune_measure measure;
    char path[PATH_MAX];
    int code;

    if (!parse(arguments, &words))
        return TOOL_USAGE;
    if (!words.rounds)
        return tune_recording(&words, words.path, &measure);
    measure = (struct tune_measure){
        .program = words.program, .rounds = words.rounds, .limit = words.limit};
    code = tune_measure_record(&measure, words.as_json, path)
               ? tune_recording(&words, path, &measure)
               : measure.code;
    tune_measure_end(&measure);
    return code;
}

static void help(void)
{
    puts(
        "Replays a recording (RMM_RECORD), or an event log in RMM's CSV, through some hundred\n"
        "stacks without a GPU, and prints those that no other one beats in both the memory held "
        "at\n"
        "most and the driver calls and waits, the best one, and the variables that make it.\n\n"
        "  --for footprint   the least memory held\n"
        "  --for speed       the fewest driver calls and waits; with --run the shortest run\n"
        "  --for limit=SIZE  the same of what holds at most SIZE\n"
        "                    (without --for: the best for footprint, and for speed)\n"
        "  --lag TIME        how far the GPU is behind the program (1ms)\n"
        "  --device N        which device; without it the one with the most allocations\n"
        "  --json            one object\n"
        "  --run N           runs the program once to record it, and then N times with each of "
        "the\n"
        "                    best stacks and without the library, in turns; times are means with\n"
        "                    95 % intervals\n\n"
        "A replay tells what is held, and no time: without --run nothing is known about speed but\n"
        "how often the driver is called and the GPU waited for.  With --run stdin is /dev/null,\n"
        "and what the program prints is that of the recorded run.\n\n"
        "exit codes: 0; 1 the file is damaged, or no recording, or nothing is within the limit; 2\n"
        "wrong usage; with --run as `rmmshim run` where the program cannot be run or fails\n\n"
        "example: rmmshim tune app.rec --for limit=8GiB\n"
        "         rmmshim tune --run 10 --for speed -- ./app --steps 100");
}

const struct tool_command tool_tune = {
    .name = "tune",
    .arguments = "FILE [--for footprint|speed|limit=SIZE] [--lag TIME] [--device N] [--json] "
                 "[--run N] [-- PROGRAM...]",
    .summary = "Finds the stack that suits a recorded program, by replay and by measuring",
    .run = tune,
    .help = help,
};
