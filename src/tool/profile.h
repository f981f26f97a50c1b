/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: files of assignments, one variable a line, in the form that systemd (EnvironmentFile=)
 * and docker (--env-file) read alike.  A command reads one at most. */
#pragma once

#include "base/log.h"

#include <stdbool.h>

/* Reads a file, or the profile of that name that lies beside this command.  Returns `given`, an
 * array like environ, and behind it the profile's assignments but those that `given` overrides: by
 * the same variable, also where `given` sets it to nothing or for all devices, and of a limit by
 * one that RMM_COMPAT takes.  NULL after saying what is wrong, one line for each mistake.  free()
 * is due for the array alone. */
char **profile_join(const char *name, char *const *given);

/* Joins the profile to the environment.  False after saying what is wrong. */
bool profile_enter(const char *name);

/* As tool_diagnostics; a line about an assignment of the profile begins with its file and line. */
struct rs_diagnostics profile_diagnostics(void);

/* The part of the help of `run` about profiles. */
void profile_print_help(void);
