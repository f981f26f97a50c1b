/* SPDX-License-Identifier: Apache-2.0 */
/* The library that `run` preloads, and whether a program can load it. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The first of the places, which are relative to the directory of this command, that exists. */
bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX]);

/* Finds librmmshim.so: RMMSHIM_LIBRARY, else relative to this command.  False after saying why not.
 */
bool library_find(char path[PATH_MAX]);

/* Puts it in front of LD_PRELOAD.  False after saying why not. */
bool library_preload(const char *path);

/* Finds a program as execvp would.  0, or the exit code after saying what is wrong: not found, not
 * executable, or one that the dynamic linker would start without the library, or that, or the
 * program that runs it where it is a script, ends at it: linked with another libc. */
int library_check_program(const char *library, const char *program);
