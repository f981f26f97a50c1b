/* SPDX-License-Identifier: Apache-2.0 */
/* The rmmshim command: one file per subcommand, and what they share. */
#pragma once

#include "base/check.h"
#include "base/hash_table.h"
#include "base/log.h"
#include "config/config.h"
#include "report/document.h"
#include "tool/command_list.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { TOOL_LINE_BYTES = 8 << 10 }; /* the longest line that tool_say writes */

enum {
    TOOL_OK = 0,
    TOOL_FINDING = 1, /* a check found something */
    TOOL_USAGE = 2,
    TOOL_LATE = 3, /* a process did not answer in time */

    /* of `run`, as env, nohup and timeout have them */
    TOOL_RUN_FAILED = 125,
    TOOL_RUN_NOT_EXECUTABLE = 126,
    TOOL_RUN_NOT_FOUND = 127,
};

struct tool_command {
    const char *name;
    const char *arguments; /* as in the usage line */
    const char *summary;
    int (*run)(char **arguments); /* what follows the command's name, ended by NULL */
    const char *help;             /* what follows the usage line */
    void (*print_help)(void);     /* the same, of a command whose help is no mere text */
};

#define TOOL_COMMAND(name) extern const struct tool_command tool_##name;
TOOL_COMMANDS(TOOL_COMMAND)
#undef TOOL_COMMAND

/* Opens /dev/null for each of stdin, stdout and stderr that is closed, so that no other file gets
 * its number; and closes these again, before this process becomes a program that is to find them
 * closed.
 */
void tool_add_streams(void);
void tool_close_added_streams(void);

/* One line on stderr, after "rmmshim: ", by one write; its text is made plain (report/plain.h). */
void tool_say(const char *format, ...) RS_PRINTF(1, 2);

/* Diagnostics go to stderr the same way, or nowhere. */
struct rs_diagnostics tool_diagnostics(void);
void tool_ignore_line(void *data, const char *line);

/* Says "unknown <kind> '<word>'", with the nearest of `words` (NULL-terminated). */
void tool_say_unknown(const char *kind, const char *word, const char *const *words);

/* ---- options ---- */

bool tool_is_help(const char *argument);

bool tool_begins(const char *text, const char *with);

enum { TOOL_OPTIONS_MAX = 8 };

struct tool_option {
    const char *name; /* "--json"; NULL ends a list */
    bool *flag;       /* becomes true; NULL: the option has a value */
    const char **value;
    bool is_single; /* it is wrong to give it twice; of others the last one counts */
};

/* Takes the options out of the arguments.  The other words stay; without `has_words` each must be
 * an option.  False after saying what is wrong. */
bool tool_take_options(char **arguments, bool has_words, const struct tool_option *options);

/* The same of the options before the first other word, which is returned, or the end: `--` ends
 * them too.  NULL after saying what is wrong. */
char **tool_take_leading_options(char **arguments, const struct tool_option *options);

/* False, after a line, where a word is left. */
bool tool_has_no_more(char *const *arguments);

void tool_print_help(const struct tool_command *command);
void tool_print_usage(const struct tool_command *command); /* its first lines */

/* For help: lines of 80 columns at most, broken between words.  A term stands at the left, and what
 * it means beside it or, where it is long, below it. */
void tool_print_paragraph(const char *text);
void tool_print_term(const char *term, const char *meaning);

/* What a variable is set to in an array like environ (or NULL); NULL: it is not set. */
const char *tool_variable(char *const *environment, const char *name);

/* Sets a variable of this process's environment; also puts a path in front of the list that it has,
 * whose words are ended by one of `ends`, unless it stands there already.  False after saying why
 * not. */
bool tool_set(const char *name, const char *value);
bool tool_set_first(const char *name, const char *path, const char *ends);

/* ---- documents ---- */

/* Prints a document: as text, JSON or metrics.  False, after a line that begins with `name`, where
 * that failed, or where there was no memory for all of the document.  Not thread safe. */
bool tool_print(const struct rs_node *root, enum rs_statistics_format format, int fd,
                const char *name);

/* The same on stdout. */
bool tool_show(const struct rs_node *root, bool as_json);

/* ---- memory and other programs ---- */

/* As realloc; ends the command where there is no memory. */
void *tool_grow(void *memory, size_t bytes);

/* Enters a number, which is no address, into a table of pointers; the same. */
void tool_remember(struct rs_hash_table *table, uint64_t key, size_t number);

/* A text of its own, for free(); the same. */
char *tool_format(const char *format, ...) RS_PRINTF(1, 2);

/* Ends this process by a signal, whose action and mask are as at first again. */
void tool_end_by(int signal);

/* Starts a program, with at most so many seconds to run (0: any), whose output is to be read; its
 * stdin and stderr are /dev/null.  NULL: it cannot be started; else tool_end is due. */
FILE *tool_start(char *const *words, char *const *environment, unsigned seconds, pid_t *child);
void tool_end(FILE *output, pid_t child);
