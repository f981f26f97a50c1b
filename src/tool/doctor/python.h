/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter behind a script that stands for one, as pyenv's and asdf's do. */
#pragma once

#include <limits.h>
#include <stdbool.h>

/* Where `path` is a script that is called python, it is run to say which interpreter it starts:
 * that depends on folders, files and variables of its tool.  False where it is no such script, or
 * does not say. */
bool python_find(const char *path, char found[PATH_MAX]);
