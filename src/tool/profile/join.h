/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines of a profile stand beside what is set otherwise. */
#pragma once

#include "tool/profile/profile_line.h"

#include <stddef.h>

/* As profile_join, of the lines of the profile at `path`. */
char **profile_join_lines(const char *path, const struct profile_line *lines, size_t count,
                          char *const *given);
