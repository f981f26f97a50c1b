/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim run --framework-pools off`: switches off the memory pools that frameworks keep on top of
 * cudaMalloc, in programs that nobody changes. */
#pragma once

#include <stdbool.h>

/* "--framework-pools", also with "=" and a value. */
bool framework_pools_is_option(const char *text);

/* Sets the program's environment.  *arguments is at the option and moves to the last word that
 * belongs to it.  False after saying what is wrong. */
bool framework_pools_take(char ***arguments);

/* Its lines of the help. */
void framework_pools_print_help(void);
