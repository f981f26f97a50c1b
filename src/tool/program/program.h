/* SPDX-License-Identifier: Apache-2.0 */
/* A program before it is started: where it is, and whether the dynamic linker loads the library
 * into it.  `run` refuses by these rules and `doctor` explains by them. */
#pragma once

#include "config/only.h"

#include <limits.h>
#include <stdbool.h>

/* Why the library is not loaded into a program, and what would change it (static text). */
struct program_refusal {
    char why[2 * PATH_MAX + 256];
    const char *step;
};

/* Searches as execvp does.  Returns 0 and the path; ENOENT; or EACCES when a file was found but
 * none is executable. */
int program_find(const char *program, char path[PATH_MAX]);

/* Returns whether the library is loaded into a program that is started with it in LD_PRELOAD.
 * False, with the reason, when the dynamic linker would ignore it (setuid, static, another
 * architecture), or when the program, or the interpreter of a script, is linked with another libc
 * and would end at the library.  Files that cannot be found or read are left to execvp. */
bool program_loads(const char *library, const char *path, struct program_refusal *refusal);

/* Finds the program that runs a script, behind `env` too.  False when the path is no script, or
 * what runs it is not found. */
bool program_find_runner(const char *path, char runner[PATH_MAX]);

/* True when the program, or what runs the script, is linked with a shared runtime of
 * AddressSanitizer, as by gcc. */
bool program_needs_asan(const char *path);

/* What a program's process is named by when it is started as `name` with these arguments, and was
 * found at `path`: a script's is the process of what runs it. */
void program_names(const char *name, char *const *arguments, const char *path,
                   struct rs_only_process *process);

/* What program_find does not find because a word is missing: "python3 train.py", or "./app" where
 * the file is in this folder.  False where there is no such file. */
bool program_meant(const char *name, char meant[PATH_MAX]);

/* The part of a path behind its last slash. */
const char *program_base_name(const char *path);
