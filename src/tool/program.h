/* SPDX-License-Identifier: Apache-2.0 */
/* A program before it is started: where it is, and whether the dynamic linker will load the library
 * into it. `run` refuses programs by these rules, and `doctor` explains them.  Also the library
 * that `run` preloads. */
#pragma once

#include "config/program_filter.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Why the library is not loaded into a program, and what the user can do about it (`step`, a static
 * text). */
struct program_refusal {
    char why[2 * PATH_MAX + 256];
    const char *step;
};

/* Searches as execvp does.  Returns 0 and the path; ENOENT when there is no such file, EACCES when
 * there is one but none is executable, or another errno. */
int program_find(const char *program, char path[PATH_MAX]);

/* True when the library is loaded into a program that is started with the library in LD_PRELOAD.
 * False, with the reason, when the library cannot be read; when the dynamic linker would ignore it
 * (setuid, file capabilities, static, another architecture); or when the program, or the
 * interpreter of a script, is linked with another libc, whose linker would fail on the library.
 * True for programs that cannot be found or read; execvp reports these. */
bool program_loads(const char *library, const char *path, struct program_refusal *refusal);

/* Finds the program that runs a script (also in the form "#!/usr/bin/env python3").  Returns false
 * when the path is no script, or the program is not found. */
bool program_find_runner(const char *path, char runner[PATH_MAX]);

/* Stores the names of a process that RMM_ONLY is compared with.  The program lies at `path`, and is
 * started as `name` with these arguments.  The process of a script is that of its interpreter. */
void program_names(const char *name, char *const *arguments, const char *path,
                   struct rs_program_names *process);

/* Returns a text that says why program_find failed; the caller frees it.  The text suggests what
 * was probably meant after "rmmshim <command>": "python3 train.py", or "./app" if the file is in
 * this folder. */
char *program_why_not(const char *command, const char *name, int failed);

/* ---- the library ---- */

/* Finds the first of `places` that exists, each a path relative to the directory of this command.
 * Returns false when none exists. */
bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX]);

enum { LIBRARY_WHY_BYTES = PATH_MAX + 128 };

/* Both find librmmshim.so: at RMMSHIM_LIBRARY if that is set, else relative to this command.  If
 * the library is not found, they return false; library_find prints the reason, and library_look
 * only writes it to `why`. */
bool library_find(char path[PATH_MAX]);
bool library_look(char path[PATH_MAX], char why[LIBRARY_WHY_BYTES]);

/* Puts the library in front of LD_PRELOAD.  Returns false after saying why it failed. */
bool library_preload(const char *path);

/* Has NVTX pass its calls to the library.  If another tool already gets them, it prints a line and
 * changes nothing.  Returns false after saying why it failed. */
bool library_inject_nvtx(const char *path);

/* Checks a program, which is searched for as execvp does.  Returns 0, or an exit code after
 * printing what is wrong: the program is not found, or not executable, or program_loads is false
 * for it.  For a program with a shared runtime of AddressSanitizer, sets ASAN_OPTIONS so that the
 * runtime lets the library be loaded before itself. */
int library_check_program(const char *library, const char *program);

/* Finds objects of the program that have variables with names that the library exports
 * (tool/objects.h), and, if it can, puts each object before the library in LD_PRELOAD, which names
 * the library already.  Prints a line for each object. */
void library_make_way(const char *library, const char *program);
