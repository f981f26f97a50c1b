/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the rmmshim command share.  A subcommand is most often in cmd_<name>.c. */
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
    TOOL_FINDING = 1, /* a check found something, or the command failed */
    TOOL_USAGE = 2,   /* the command line is wrong */
    TOOL_LATE = 3,    /* a process did not answer in time */

    /* the exit codes of `run`, which are those of env, nohup and timeout */
    TOOL_RUN_FAILED = 125,
    TOOL_RUN_NOT_EXECUTABLE = 126,
    TOOL_RUN_NOT_FOUND = 127,
};

struct tool_command {
    const char *name;
    const char *arguments; /* the arguments as the usage line shows them */
    const char *summary;
    int (*run)(char **arguments); /* gets the words after the command's name, ended by NULL */
    const char *help;             /* the text after the usage line */
    void (*print_help)(void);     /* prints the text after the usage line, if it is no constant */
};

#define TOOL_COMMAND(name) extern const struct tool_command tool_##name;
TOOL_COMMANDS(TOOL_COMMAND)
#undef TOOL_COMMAND

/* tool_add_streams opens /dev/null for each of stdin, stdout and stderr that is closed, so that no
 * other file gets its number. tool_close_added_streams closes these again, before this process
 * becomes a program that must find them closed. */
void tool_add_streams(void);
void tool_close_added_streams(void);

/* Prints one line on stderr, after "rmmshim: ", by one write.  The text is made plain
 * (report/plain.h). */
void tool_say(const char *format, ...) RS_PRINTF(1, 2);

/* tool_diagnostics returns diagnostics that tool_say prints. tool_ignore_line is the `write` of
 * diagnostics that nobody is to see. */
struct rs_diagnostics tool_diagnostics(void);
void tool_ignore_line(void *data, const char *line);

/* Prints "unknown <kind> '<word>'" and the nearest of `words` (NULL-terminated). */
void tool_say_unknown(const char *kind, const char *word, const char *const *words);

/* Returns the index of the word; 0 if `word` is NULL; -1 after tool_say_unknown. */
int tool_find_word(const char *kind, const char *word, const char *const *words);

/* ---- options ---- */

bool tool_is_help(const char *argument);

bool tool_begins(const char *text, const char *with);

enum { TOOL_OPTIONS_MAX = 8 };

struct tool_option {
    const char *name; /* "--json"; NULL ends a list */
    bool *flag;       /* set to true if the option is there; NULL: the option has a value */
    const char **value;
    bool is_single; /* giving the option twice is an error; of other options the last one counts */
    size_t room; /* more than 0: the option may be given this many times, and `value` points to this
                    many places, NULL at first */
};

/* Stores the values of the options, and removes them from the arguments.  Other words stay if
 * has_words is true, and are an error if not.  Returns false after saying what is wrong. */
bool tool_take_options(char **arguments, bool has_words, const struct tool_option *options);

/* Stores the values of the options before the first other word, or before `--`.  Returns the place
 * of the word after them, or the end of the arguments; NULL after saying what is wrong. */
char **tool_take_leading_options(char **arguments, const struct tool_option *options);

/* True if no word is left; else prints the first one as an error, and returns false. */
bool tool_has_no_more(char *const *arguments);

/* tool_parse_device parses the value of --device, and tool_parse_seconds that of another option,
 * which is a number of seconds, `least` or more.  Both return false after saying what is wrong. */
bool tool_parse_device(const char *text, int *device);
bool tool_parse_seconds(const char *option, const char *text, double least, uint64_t *ns);

void tool_print_help(const struct tool_command *command);
void tool_print_usage(const struct tool_command *command); /* prints the first lines of the help */

/* Print help in lines of at most 80 columns, broken between words.  A term is on the left, and its
 * meaning beside it, or, for a long term, below it. */
void tool_print_paragraph(const char *text);
void tool_print_term(const char *term, const char *meaning);

/* Returns the value of a variable; NULL if it is not set.  `environment` is an array like environ,
 * or NULL. */
const char *tool_variable(char *const *environment, const char *name);

/* tool_set sets a variable of this process's environment. tool_set_first makes a path the first
 * word of a variable's list; characters of `ends` separate the words, so the path must contain none
 * of them.  Both return false after saying why they failed. */
bool tool_set(const char *name, const char *value);
bool tool_set_first(const char *name, const char *path, const char *ends);

/* ---- documents ---- */

/* Prints a document as text, JSON or metrics.  Returns false if that failed, or if there was no
 * memory for the whole document, after printing a line that begins with `name`.  Not thread safe.
 */
bool tool_print(const struct rs_node *root, enum rs_statistics_format format, int fd,
                const char *name);

/* Returns "1.25 GiB"; the text stays valid during seven further calls.  Not thread safe. */
const char *tool_bytes(uint64_t bytes);

/* Prints a document on stdout, as text or JSON.  Returns false as tool_print does. */
bool tool_show(const struct rs_node *root, bool as_json);

/* ---- memory and other programs ---- */

/* Prints that host memory is out, and ends the command. */
__attribute__((noreturn)) void tool_end_without_memory(void);

/* Does as realloc, and ends the command if there is no memory. */
void *tool_grow(void *memory, size_t bytes);

/* Makes room for one more entry in a list of `count` entries; ends the command if there is no
 * memory.  Only this function may make the list's room, since it doubles at each power of two. */
void *tool_grow_list(void *list, size_t count, size_t entry_bytes);

/* Stores a number in a table, whose values are otherwise pointers; ends the command if there is no
 * memory. */
void tool_remember(struct rs_hash_table *table, uint64_t key, size_t number);

/* Returns formatted text, which the caller frees; ends the command if there is no memory. */
char *tool_format(const char *format, ...) RS_PRINTF(1, 2);

/* tool_let_end restores the default action of a signal and unblocks it: `run` blocks the signals
 * that it passes on. tool_end_by does the same, and ends this process by the signal. */
void tool_let_end(int number);
void tool_end_by(int number);

/* Starts a program, which SIGALRM ends after `seconds` (0: no bound), and returns a stream to read
 * its output; its stdin and stderr are /dev/null.  A program that cannot be executed has no output.
 * The caller calls tool_end.  Returns NULL if no process can be made. */
FILE *tool_start(char *const *words, char *const *environment, unsigned seconds, pid_t *child);
void tool_end(FILE *output, pid_t child);
