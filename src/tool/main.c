/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "tool/man/manual.h"
#include "tool/program.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 80, HELP_MEANING_COLUMN = 30 };

static const struct tool_command *const commands[] = {
#define COMMAND(name) &tool_##name,
    TOOL_COMMANDS(COMMAND)
#undef COMMAND
};

/* Prints text folded into lines.  `column` is the current column; further lines begin at `indent`.
 */
static void print_folded(const char *text, size_t column, size_t indent)
{
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column > indent && column + 1 + length > HELP_COLUMNS) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        }
        column += (size_t)printf("%s%.*s", column > indent ? " " : "", (int)length, text);
        text += length + strspn(text + length, " ");
    }
    putchar('\n');
}

void tool_print_paragraph(const char *text)
{
    print_folded(text, 0, 0);
}

void tool_print_term(const char *term, const char *meaning)
{
    int width = printf("  %-*s", HELP_MEANING_COLUMN - 4, term);

    printf(width > HELP_MEANING_COLUMN - 2 ? "\n%*s" : "  ", HELP_MEANING_COLUMN, "");
    print_folded(meaning, HELP_MEANING_COLUMN, HELP_MEANING_COLUMN);
}

void tool_print_usage(const struct tool_command *command)
{
    printf("usage: rmmshim %s%s%s\n%s.\n", command->name, *command->arguments ? " " : "",
           command->arguments, command->summary);
}

void tool_print_help(const struct tool_command *command)
{
    tool_print_usage(command);
    if (command->help)
        printf("\n%s\n", command->help);
    if (command->print_help) {
        putchar('\n');
        command->print_help();
    }
}

static void print_usage(void)
{
    puts("rmmshim: cap, share, speed up and debug the GPU memory of any CUDA program.\n\nusage:");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(commands); i++)
        printf("  rmmshim %s%s%s\n      %s\n", commands[i]->name,
               *commands[i]->arguments ? " " : "", commands[i]->arguments, commands[i]->summary);
    puts("  rmmshim COMMAND --help\n      More on a command");
    fputs("  rmmshim help TOPIC\n      A page of the manual:", stdout);
    for (size_t i = 0; manual_topics[i]; i++)
        printf("%s %s", i ? "," : "", manual_topics[i]);
    puts("\n"
         "  rmmshim --version\n      The version\n\n"
         "Without the command: LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=4GiB program");
}

static const struct tool_command *find_command(const char *name)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(commands); i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* Suggests `run` for a command line that names a program instead of a subcommand.  Words are
 * printed without quotes. */
static int say_run_was_meant(char *const *words)
{
    char line[TOOL_LINE_BYTES / 2] = "";

    for (size_t i = 0; words[i]; i++)
        rs_text_add(line, sizeof(line), " %s", words[i]);
    tool_say("unknown %s '%s'; did you mean 'rmmshim run%s'?",
             words[0][0] == '-' ? "option" : "command", words[0], line);
    return TOOL_USAGE;
}

/* Reports an unknown command.  `typed` is the command line from that name on; NULL: the name is not
 * the first word. */
static int unknown_command(const char *name, char *const *typed)
{
    char path[PATH_MAX];
    enum { OTHERS = 3, TOPICS_MAX = 8, END = 1 };
    const char *words[OTHERS + RS_ARRAY_LENGTH(commands) + TOPICS_MAX + END] = {"help", "--help",
                                                                                "--version"};
    size_t count = OTHERS;

    if (strcmp(name, "pause") == 0 || strcmp(name, "resume") == 0) {
        tool_say("unknown command '%s'; NVIDIA's `cuda-checkpoint --toggle --pid PID` pauses and "
                 "resumes a process",
                 name);
        return TOOL_USAGE;
    }
    if (typed && run_options_has(name))
        return say_run_was_meant(typed);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(commands); i++)
        words[count++] = commands[i]->name;
    for (size_t i = 0; manual_topics[i] && i < TOPICS_MAX; i++)
        words[count++] = manual_topics[i];
    if (typed && !rs_nearest_word(name, name + strlen(name), words) &&
        program_find(name, path) == 0)
        return say_run_was_meant(typed);
    tool_say_unknown(name[0] == '-' ? "option" : "command", name, words);
    return TOOL_USAGE;
}

static int print_help_of(const char *name)
{
    const struct tool_command *command = name ? find_command(name) : NULL;
    int shown;

    if (!name)
        print_usage();
    else if (command)
        tool_print_help(command);
    else if ((shown = manual_show(name)) >= 0)
        return shown;
    else
        return unknown_command(name, NULL);
    return TOOL_OK;
}

/* True when the arguments ask for help, also after other words, but not after `--`.  For `run` only
 * the first one counts, as later ones may be the program's. */
static bool asks_help(const struct tool_command *command, char **arguments)
{
    if (command == &tool_run)
        return tool_is_help(*arguments);
    while (*arguments && strcmp(*arguments, "--") != 0 && !tool_is_help(*arguments))
        arguments++;
    return tool_is_help(*arguments);
}

static int dispatch(char **arguments)
{
    const struct tool_command *command;

    if (!arguments[0]) {
        tool_say("no command given; `rmmshim --help` lists the commands");
        return TOOL_USAGE;
    }
    if (strcmp(arguments[0], "--version") == 0) {
        puts("rmmshim " RMMSHIM_VERSION);
        return TOOL_OK;
    }
    if (tool_is_help(arguments[0]) || strcmp(arguments[0], "help") == 0)
        return print_help_of(arguments[1]);
    command = find_command(arguments[0]);
    if (!command)
        return unknown_command(arguments[0], arguments);
    if (asks_help(command, arguments + 1)) {
        tool_print_help(command);
        return TOOL_OK;
    }
    return command->run(arguments + 1);
}

int main(int argc, char **argv)
{
    int code;

    tool_add_streams();
    code = dispatch(argc > 0 ? argv + 1 : argv);

    /* Output that could not be written must not look like a success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        tool_say("standard output: write error");
        code = code ? code : TOOL_FINDING;
    }
    return code;
}
