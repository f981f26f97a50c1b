/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim run --framework-pools off`: switches off the memory pools that frameworks keep on top of
 * cudaMalloc, without a change to the program. */
#pragma once

#include <stdbool.h>

/* True for "--framework-pools", also with "=" and a value. */
bool framework_pools_is_option(const char *text);

/* Sets the environment of the program.  *arguments points at the option and is moved to the last
 * word that belongs to it.  False after printing what is wrong. */
bool framework_pools_take(char ***arguments);

/* When all options were taken: pools pinned memory too where the pools were switched off, unless a
 * setting says what it comes from.  CuPy's is one of those, and copies go through it.  False after
 * printing what is wrong. */
bool framework_pools_settle(void);

/* Prints the lines of the help about the option. */
void framework_pools_print_help(void);
