/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/complete/complete.h"

#include "config/config.h"
#include "config/variable_name.h"
#include "report/plain.h"
#include "tool/complete/candidates.h"
#include "tool/complete/usage_line.h"
#include "tool/describe.h"
#include "tool/man/manual.h"
#include "tool/profile.h"
#include "tool/row.h"
#include "tool/run/options.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tool_command *const commands[] = {
#define COMMAND(name) &tool_##name,
    TOOL_COMMANDS(COMMAND)
#undef COMMAND
};

/* What the last word may be. */
struct completion {
    struct candidates candidates;
    bool is_open;                 /* a candidate may go on */
    bool has_files, has_programs; /* beside the candidates */
    int program;                  /* the word that is the program of a command line; -1: none */
};

/* ---- words of one kind ---- */

static void add_commands(struct completion *to)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(commands); i++)
        candidates_add(&to->candidates, commands[i]->name, "", commands[i]->summary);
}

static void add_topics(struct completion *to)
{
    for (size_t i = 0; manual_topics[i]; i++)
        candidates_add(&to->candidates, manual_topics[i], "", "a page of the manual");
}

static void add_processes(struct completion *to)
{
    struct rows rows = {.count = 0};
    char number[DESCRIBE_BYTES], meaning[2 * DESCRIBE_BYTES], held[RS_SIZE_TEXT_BYTES];

    (void)rows_of_all(&rows);
    for (size_t i = 0; i < rows.count; i++) {
        const struct row *row = &rows.rows[i];
        if (i > 0 && row->process == rows.rows[i - 1].process)
            continue; /* a row for each device and kind of memory */
        snprintf(number, sizeof(number), "%d", row->process);
        snprintf(meaning, sizeof(meaning), "%s, %s of device %d", row->program,
                 rs_size_format_short(row->usage.held, held), row->device);
        rs_plain_make(meaning); /* the program has chosen its name */
        candidates_add(&to->candidates, number, "", meaning);
    }
    rows_release(&rows);
}

static void add_resources(struct completion *to)
{
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        candidates_add(&to->candidates, rs_mr_descriptors[i]->name, "",
                       rs_mr_descriptors[i]->summary);
}

static void add_profile(void *data, const char *name, const char *summary)
{
    struct completion *to = data;

    candidates_add(&to->candidates, name, "", summary);
}

static void add_profiles(struct completion *to)
{
    profile_each(add_profile, to);
}

static void add_expression(struct completion *to)
{
    to->is_open = true;
    candidates_of_expression(&to->candidates);
}

static void allow_files(struct completion *to)
{
    to->has_files = true;
}

static void allow_programs(struct completion *to)
{
    to->has_programs = true;
}

static void add_words(struct completion *to, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        candidates_add(&to->candidates, words[i], "", NULL);
}

static void add_values(struct completion *to, int index)
{
    const struct rs_option *option = &rs_variables[index].option;

    if (index == RS_VARIABLE_RESOURCE || index == RS_VARIABLE_PINNED_RESOURCE ||
        index == RS_VARIABLE_MANAGED_RESOURCE)
        add_expression(to);
    else if (option->type == RS_OPTION_WORD)
        add_words(to, option->words);
    else if (option->type == RS_OPTION_BOOLEAN)
        add_words(to, (const char *const[]){"0", "1", NULL});
    else if (option->type == RS_OPTION_TEXT)
        allow_files(to);
}

/* "RMM_FREE=wait": names, and behind a '=' the values. */
static void add_variables(struct completion *to)
{
    const char *rest = candidates_rest(&to->candidates);
    size_t length = strcspn(rest, "=");
    char name[RS_NAME_BYTES_MAX];
    struct rs_name read;

    if (rest[length] && length < sizeof(name)) {
        snprintf(name, sizeof(name), "%.*s", (int)length, rest);
        rs_name_read(name, &read);
        if (read.kind != RS_NAME_OURS)
            return;
        to->candidates.prefix += length + 1;
        add_values(to, read.index);
        return;
    }
    to->is_open = true;
    for (size_t i = 0; rs_variables[i].option.name; i++)
        candidates_add(&to->candidates, rs_variables[i].option.name, "=",
                       rs_variables[i].option.help);
}

/* ---- alternatives of a usage line ---- */

/* The words of usage lines that stand for others.  One that is not here has no candidates. */
static const struct {
    const char *word;
    void (*add)(struct completion *to);
} kinds[] = {
    {"PID", add_processes},         {"RESOURCE", add_resources},       {"NAME", add_profiles},
    {"EXPRESSION", add_expression}, {"VARIABLE=VALUE", add_variables}, {"FILE", allow_files},
    {"PATH", allow_files},          {"PROGRAM", allow_programs},
};

static bool is_same(struct usage_words words, const char *text)
{
    return words.length == strlen(text) && strncmp(words.begin, text, words.length) == 0;
}

static void add_alternatives(struct completion *to, struct usage_words alternatives)
{
    char word[DESCRIBE_BYTES];
    struct usage_words one;

    while (usage_words_next(&alternatives, &one)) {
        for (size_t i = 0; i < RS_ARRAY_LENGTH(kinds); i++)
            if (is_same(one, kinds[i].word))
                kinds[i].add(to);
        if (one.length == 0 || (one.begin[0] >= 'A' && one.begin[0] <= 'Z'))
            continue;
        snprintf(word, sizeof(word), "%.*s", (int)one.length, one.begin);
        candidates_add(&to->candidates, word, "", NULL);
    }
}

/* ---- options ---- */

/* What is known of an option. */
struct meaning {
    struct usage_words value;           /* its alternatives; none: it has no value */
    const struct rs_variable *variable; /* that it sets; NULL: none */
    int words;                          /* that it takes of the command line, itself included */
};

/* False where `words` begins with no option of the command. */
static bool find_option(const struct tool_command *command, char *const *words,
                        struct meaning *meaning)
{
    size_t length = strcspn(words[0], "=");
    struct run_option_meaning of_run;

    *meaning = (struct meaning){.words = 1};
    if (command == &tool_run) {
        if (!run_options_find(words, &of_run))
            return false;
        meaning->variable = of_run.variable;
        meaning->words = of_run.words;
        if (of_run.value)
            meaning->value = (struct usage_words){of_run.value, strlen(of_run.value)};
        return true;
    }
    if (!usage_line_find(command->arguments, words[0], length, &meaning->value))
        return false;
    meaning->words = meaning->value.begin && !words[0][length] ? 2 : 1;
    return true;
}

static void add_value(struct completion *to, const struct meaning *meaning)
{
    if (meaning->variable)
        add_values(to, (int)(meaning->variable - rs_variables));
    else
        add_alternatives(to, meaning->value);
}

static void add_usage_option(void *data, struct usage_words name, struct usage_words value)
{
    struct completion *to = data;
    char word[DESCRIBE_BYTES];

    (void)value;
    snprintf(word, sizeof(word), "%.*s", (int)name.length, name.begin);
    candidates_add(&to->candidates, word, "", NULL);
}

static void add_run_option(void *data, const char *name, const char *help)
{
    struct completion *to = data;

    candidates_add(&to->candidates, name, "", help);
}

static void add_options(struct completion *to, const struct tool_command *command)
{
    if (command == &tool_run)
        run_options_each(add_run_option, to);
    else
        usage_line_options(command->arguments, add_usage_option, to);
    candidates_add(&to->candidates, "--help", "", "how the command is used");
}

/* ---- a command line ---- */

/* The last word begins with '-'. */
static void complete_option(struct completion *to, const struct tool_command *command, char **word)
{
    size_t length = strcspn(*word, "=");
    struct meaning meaning;

    if (!(*word)[length]) {
        add_options(to, command);
    } else if (find_option(command, word, &meaning)) {
        to->candidates.prefix = length + 1;
        add_value(to, &meaning);
    }
}

/* The last word is an argument of the command. */
static void complete_argument(struct completion *to, const struct tool_command *command,
                              size_t number)
{
    struct usage_words alternatives = usage_line_argument(command->arguments, number);

    if (alternatives.begin)
        add_alternatives(to, alternatives);
    else
        add_options(to, command);
}

/* `first` is the command's name, and words end with the one that is being written. */
static void complete_command(struct completion *to, const struct tool_command *command,
                             char **first)
{
    char **word = first + 1;
    bool is_over = false; /* after "--" */
    struct meaning meaning;
    size_t arguments = 0;

    for (; word[1]; word += meaning.words) {
        meaning = (struct meaning){.words = 1};
        if (!is_over && strcmp(*word, "--") == 0) {
            is_over = true;
        } else if (is_over || **word != '-') {
            arguments++;
            if (command == &tool_run)
                break;
        } else if (find_option(command, word, &meaning) && meaning.words > 1 && !word[2]) {
            add_value(to, &meaning);
            return;
        }
    }
    if (command == &tool_run && (is_over || **word != '-'))
        to->program = (int)(word - first);
    else if (!is_over && **word == '-')
        complete_option(to, command, word);
    else
        complete_argument(to, command, arguments);
}

static void complete_first(struct completion *to)
{
    add_commands(to);
    candidates_add(&to->candidates, "help", "", "Shows a command's help or a page of the manual");
    candidates_add(&to->candidates, "--help", "", "The usage of all commands");
    candidates_add(&to->candidates, "--version", "", "The version");
}

static void find_candidates(struct completion *to, char **words)
{
    if (!words[0] || !words[1]) {
        complete_first(to);
        return;
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(commands); i++)
        if (strcmp(commands[i]->name, words[0]) == 0)
            complete_command(to, commands[i], words);
    if (strcmp(words[0], "help") == 0 && !words[2]) {
        add_commands(to);
        add_topics(to);
    }
}

static void print(const struct completion *completion)
{
    const struct candidates *candidates = &completion->candidates;

    if (completion->program >= 0)
        printf("program %d\n", completion->program);
    else if (completion->has_programs)
        puts("programs");
    else if (completion->has_files)
        printf("files %.*s\n", (int)candidates->prefix, candidates->text);
    else
        puts(completion->is_open ? "open" : "words");
    for (size_t i = 0; i < candidates->count; i++)
        printf("%s\t%s\n", candidates->all[i].word, candidates->all[i].meaning);
}

int complete(char **words)
{
    struct completion completion = {.program = -1, .candidates.text = ""};

    for (size_t i = 0; words[i]; i++)
        completion.candidates.text = words[i];
    find_candidates(&completion, words);
    print(&completion);
    candidates_clear(&completion.candidates);
    return TOOL_OK;
}
