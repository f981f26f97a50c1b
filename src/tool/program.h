/* SPDX-License-Identifier: Apache-2.0 */
/* A program before it is started: where it is, and whether the dynamic linker loads the library
 * into it.  `run` refuses by these rules and `doctor` explains by them.  And the library that `run`
 * preloads; the functions that begin with library_ have printed why they failed. */
#pragma once

#include "config/only.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

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

/* Tells by which names RMM_ONLY would know the process of a program that is started as `name` with
 * these arguments and lies at `path`.  The process of a script is that of its interpreter. */
void program_names(const char *name, char *const *arguments, const char *path,
                   struct rs_only_process *process);

/* Why program_find has failed so, for free(), with what was meant after "rmmshim <command>" where a
 * word is missing: "python3 train.py", or "./app" where the file is in this folder. */
char *program_why_not(const char *command, const char *name, int failed);

/* ---- the library ---- */

/* Finds the first of the places that exists; they are relative to the directory of this command.
 * False when none does. */
bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX]);

enum { LIBRARY_WHY_BYTES = PATH_MAX + 128 };

/* Finds librmmshim.so: RMMSHIM_LIBRARY, else relative to this command.  library_look prints
 * nothing: where it fails, `why` has the reason. */
bool library_find(char path[PATH_MAX]);
bool library_look(char path[PATH_MAX], char why[LIBRARY_WHY_BYTES]);

/* Puts the library in front of LD_PRELOAD. */
bool library_preload(const char *path);

/* Has NVTX hand its calls to the library, unless another tool has them; a line says that. */
bool library_inject_nvtx(const char *path);

/* Prepares for a program, which is searched for as execvp does.  Returns 0, or the exit code after
 * printing what is wrong: it is not found or not executable; the dynamic linker would start it
 * without the library (setuid, static, another architecture); or it, or the interpreter of a
 * script, is linked with another libc and would end at the library.  A shared runtime of
 * AddressSanitizer is told that the library may come before it. */
int library_check_program(const char *library, const char *program);

/* Puts objects of the program that have variables with names that the library exports before it in
 * LD_PRELOAD (tool/objects.h), each with a line. */
void library_make_way(const char *library, const char *program);
