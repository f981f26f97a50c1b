/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: files of assignments, a variable each line, in the form that systemd (EnvironmentFile=)
 * and docker (--env-file) read alike.  What is set otherwise wins over them. */
#pragma once

#include "base/diagnostic.h"

#include <stdbool.h>
#include <stddef.h>

struct profile;

/* Reads a file, or the profile of that name that lies beside this command.  Each line is checked
 * by the library's parser.  NULL after saying what is wrong, a line for each mistake. */
struct profile *profile_read(const char *name);
void profile_free(struct profile *profile);

/* Returns `given`, an array like environ, and behind it those lines of the profile that nothing in
 * it overrules: the same variable, also where `given` has it for all devices and the profile for
 * one; a limit that RMM_COMPAT takes; and what the library refuses beside it (a part of a stack and
 * the whole of it).  A line is printed for each one that is left out for another variable.  NULL
 * when out of memory; free() is due for the array alone, whose texts are the profile's. */
char **profile_join(const struct profile *profile, char *const *given);

/* Reads the profile and joins it to the environment, once.  False after saying what is wrong. */
bool profile_enter(const char *name);

/* As tool_diagnostics; a line about a setting of the profile begins with its file and line.  NULL:
 * the profile that was entered, if there is one. */
struct rs_diagnostics profile_diagnostics(struct profile *profile);

/* Calls `visit` for each profile that lies beside this command, by name, with the first comment of
 * its file. */
void profile_each(void (*visit)(void *data, const char *name, const char *summary), void *data);

/* The part of the help of `run` about profiles. */
void profile_print_help(void);
