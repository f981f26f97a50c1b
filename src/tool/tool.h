/* SPDX-License-Identifier: Apache-2.0 */
/* The rmmshim command: one file per subcommand, and what they share. */
#pragma once

#include "base/check.h"
#include "base/diagnostic.h"
#include "tool/command_list.h"

#include <stdbool.h>
#include <stdint.h>

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
    void (*help)(void);           /* what follows the usage line */
};

#define TOOL_COMMAND(name) extern const struct tool_command tool_##name;
TOOL_COMMANDS(TOOL_COMMAND)
#undef TOOL_COMMAND

/* One line on stderr, after "rmmshim: ". */
void tool_say(const char *format, ...) RS_PRINTF(1, 2);

/* Diagnostics go to stderr the same way. */
struct rs_diagnostics tool_diagnostics(void);

/* Says "unknown <kind> '<word>'", with the nearest of `words` (NULL-terminated). */
void tool_say_unknown(const char *kind, const char *word, const char *const *words);

/* The value of an option that is written `--name VALUE` or `--name=VALUE`; *arguments moves to its
 * last word.  NULL where **arguments is another word, or, with *failed set, after saying that the
 * option has no value. */
const char *tool_option_value(char ***arguments, const char *name, bool *failed);

/* The value of an option: a time as "10us", "1.5ms" or "2s"; the number of a device.  False after a
 * line. */
bool tool_parse_time(const char *option, const char *text, uint64_t *ns);
bool tool_parse_device(const char *text, int *device);

bool tool_is_help(const char *argument);
void tool_print_help(const struct tool_command *command);
