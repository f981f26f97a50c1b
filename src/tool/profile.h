/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: files of assignments, one variable a line, in the form that systemd (EnvironmentFile=)
 * and docker (--env-file) read alike.  A command reads at most one profile. */
#pragma once

#include "base/log.h"

#include <stdbool.h>

/* Reads a file, or the profile of that name that is installed with this command.  Returns the
 * entries of `given`, an array like environ, followed by those assignments of the profile that
 * `given` does not override. `given` overrides an assignment if it sets the same variable, even to
 * nothing or for all devices; a limit also if it sets another system's limit, which RMM_COMPAT
 * allows.  Returns NULL after printing what is wrong.  The caller frees only the array. */
char **profile_join(const char *name, char *const *given);

/* Adds the profile's assignments to the environment, or says what is wrong and returns false. */
bool profile_enter(const char *name);

/* Returns diagnostics that tool_say prints, and in which a doubtful name of a variable is an error.
 * A line about an assignment of the profile begins with its file and line. */
struct rs_diagnostics profile_diagnostics(void);

/* Prints the part of the help of `run` about profiles. */
void profile_print_help(void);
