/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the library that `run` preloads, and checks whether a program can load it.  Functions that
 * fail have printed why. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

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
 * LD_PRELOAD (tool/program/namesake.h), each with a line. */
void library_make_way(const char *library, const char *program);
