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

/* Prints the lines of the help about the option. */
void framework_pools_print_help(void);
