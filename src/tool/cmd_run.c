/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim run: starts a program under the library, and stays as its parent (tool/parent.h).
 * Settings are checked by the library's own parser before anything starts. */
#include "config/config.h"
#include "tool/describe.h"
#include "tool/framework_pools.h"
#include "tool/library.h"
#include "tool/limit_job.h"
#include "tool/parent.h"
#include "tool/table.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICE_TEXT_BYTES = 16 };

static const char exec_option[] = "--exec";

/* "--pool-size-1=4GiB" taken apart. */
struct given_option {
    const struct rs_variable *variable;
    char device[DEVICE_TEXT_BYTES]; /* "_1" or "" */
    const char *value;              /* after '=', or NULL */
};

/* The variable whose option is written `length` bytes long as `text`. */
static const struct rs_variable *find_variable(const char *text, size_t length)
{
    char option[DESCRIBE_BYTES];

    for (size_t i = 0; rs_variables[i].option.name; i++) {
        describe_run_option(&rs_variables[i], option);
        if (strlen(option) == length && strncmp(option, text, length) == 0)
            return &rs_variables[i];
    }
    return NULL;
}

static bool parse_option(const char *text, struct given_option *option)
{
    size_t length = strcspn(text, "=");
    size_t digits = 0;

    *option = (struct given_option){.value = text[length] ? text + length + 1 : NULL};
    option->variable = find_variable(text, length);
    if (option->variable)
        return true;
    while (digits < length && text[length - 1 - digits] >= '0' && text[length - 1 - digits] <= '9')
        digits++;
    if (digits == 0 || digits + 2 > DEVICE_TEXT_BYTES || text[length - 1 - digits] != '-')
        return false;
    snprintf(option->device, sizeof(option->device), "_%.*s", (int)digits, text + length - digits);
    option->variable = find_variable(text, length - digits - 1);
    return option->variable != NULL;
}

/* Our option for one that is named as a parameter of RMM's.  False where `given` is none. */
static bool say_guide_word(const char *given)
{
    char text[DESCRIBE_BYTES];

    for (size_t i = 0; rs_variables[i].option.name; i++)
        for (size_t j = 0; j < RS_GUIDE_WORDS_MAX && rs_variables[i].guide_words[j].name; j++) {
            const struct rs_guide_word *word = &rs_variables[i].guide_words[j];
            if (strcmp(describe_option_name(word->name, text), given) != 0)
                continue;
            tool_say("unknown option '%s'; did you mean '%s%s'?", given,
                     describe_run_option(&rs_variables[i], text), word->lists_devices ? "-0" : "");
            return true;
        }
    return false;
}

static void say_unknown_option(const char *text)
{
    char options[RS_VARIABLE_COUNT][DESCRIBE_BYTES];
    const char *words[RS_VARIABLE_COUNT + 4] = {NULL};
    char given[DESCRIBE_BYTES];
    size_t count = 0;

    for (; rs_variables[count].option.name; count++)
        words[count] = describe_run_option(&rs_variables[count], options[count]);
    words[count++] = exec_option;
    words[count++] = "--framework-pools";
    words[count] = "--help";
    snprintf(given, sizeof(given), "%.*s", (int)strcspn(text, "="), text);
    if (!say_guide_word(given))
        tool_say_unknown("option", given, words);
}

static void say_nothing(void *data, const char *line)
{
    (void)data;
    (void)line;
}

/* True where the word behind a switch is its value: 0 or 1, or, where more follows, another word
 * for them, as programs called true, false and yes are everywhere. */
static bool is_switch_value(const struct rs_variable *variable, char *const *word)
{
    struct rs_diagnostics nobody = {.write = say_nothing};
    struct rs_source source = {variable->option.name, *word};
    struct rs_option_value value = {.given = false};

    if (!*word || !rs_option_parse(&variable->option, variable->option.type, &source, *word,
                                   *word + strlen(*word), &nobody, &value))
        return false;
    return strcmp(*word, "0") == 0 || strcmp(*word, "1") == 0 || word[1];
}

/* Sets the option's variable for the program.  *arguments is at the option and moves to the last
 * word that belongs to it. */
static bool take_option(char ***arguments)
{
    struct given_option option;
    char name[DESCRIBE_BYTES];

    if (framework_pools_is_option(**arguments))
        return framework_pools_take(arguments);
    if (!parse_option(**arguments, &option)) {
        say_unknown_option(**arguments);
        return false;
    }
    if (!option.value && describe_is_switch(option.variable)) {
        option.value = is_switch_value(option.variable, *arguments + 1) ? *++*arguments : "1";
    } else if (!option.value) {
        option.value = (*arguments)[1];
        if (!option.value) {
            tool_say("%s needs a value", **arguments);
            return false;
        }
        ++*arguments;
    }
    snprintf(name, sizeof(name), "%s%s", option.variable->option.name, option.device);
    if (setenv(name, option.value, 1) != 0) {
        tool_say("%s: %s", name, strerror(errno));
        return false;
    }
    return true;
}

static bool settings_are_good(void)
{
    struct rs_diagnostics diagnostics = tool_diagnostics();
    struct rs_config config;
    unsigned bad = rs_config_parse(environ, &diagnostics, &config);

    rs_config_free(&config);
    return bad == 0;
}

static int start(char **program, bool becomes)
{
    char library[PATH_MAX];
    int failed;

    if (!settings_are_good() || !limit_job_begin(becomes) || !library_find(library))
        return TOOL_RUN_FAILED;
    failed = library_check_program(library, program[0]);
    if (failed)
        return failed;
    if (!library_preload(library))
        return TOOL_RUN_FAILED;
    return becomes ? parent_become(program) : parent_run(program);
}

static int run(char **arguments)
{
    bool becomes = false;

    for (; *arguments && **arguments == '-'; arguments++) {
        if (strcmp(*arguments, "--") == 0) {
            arguments++;
            break;
        }
        if (tool_is_help(*arguments)) {
            tool_print_help(&tool_run);
            return TOOL_OK;
        }
        if (strcmp(*arguments, exec_option) == 0)
            becomes = true;
        else if (!take_option(&arguments))
            return TOOL_RUN_FAILED;
    }
    if (!*arguments) {
        tool_say("no program; `rmmshim run --help` says how");
        return TOOL_RUN_FAILED;
    }
    return start(arguments, becomes);
}

static void help(void)
{
    struct table table;
    char option[DESCRIBE_BYTES], type[DESCRIBE_BYTES], line[2 * DESCRIBE_BYTES];

    puts("Everything after the program's name is the program's.  Each option sets a variable that\n"
         "may be set in the environment instead:\n");
    table_begin(&table, "OPTION", "VARIABLE", "MEANING", NULL);
    for (size_t i = 0; rs_variables[i].option.name; i++) {
        const struct rs_variable *variable = &rs_variables[i];
        bool is_switch = describe_is_switch(variable);
        snprintf(line, sizeof(line), "%s%s%s%s", describe_run_option(variable, option),
                 is_switch ? "[=" : " ", rs_option_type_text(&variable->option, type, sizeof(type)),
                 is_switch ? "]" : "");
        table_row(&table, line, variable->option.name, variable->option.help);
    }
    table_print(&table);
    puts("\nA switch (0|1) may stand alone, which means 1, or be followed by its value, as in "
         "--managed 0.\n"
         "A program that is called 1 stands behind `--`.\n\n"
         "While the program runs, this command stays as its parent: it passes signals on, ends as "
         "the\n"
         "program ends, and writes the report of --statistics for each process that could not, as "
         "after\n"
         "a signal or _exit.  With --exec before the program it becomes the program, as env "
         "does.\n\n"
         "A setting for one device has its number behind it: --pool-size-1 4GiB, "
         "RMM_POOL_SIZE_1.");
    framework_pools_print_help();
    puts("\n"
         "exit codes: the program's own; 125 when a setting is wrong or the library cannot be "
         "loaded,\n"
         "126 when the program cannot be executed, 127 when it is not found\n\n"
         "example: rmmshim run --pool-size 4GiB --statistics 1 python3 train.py --epochs 3");
}

const struct tool_command tool_run = {
    .name = "run",
    .arguments = "[OPTIONS] [--] PROGRAM [ARGUMENTS...]",
    .summary = "Runs a program with its GPU memory served by the stack that the options describe",
    .run = run,
    .help = help,
};
