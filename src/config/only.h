/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: which programs of a tree are served.  A process has up to three names: that of its
 * executable, the name by which it was started, and, where the executable is an interpreter, that
 * of the script or module which it runs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* True where one of the patterns (glob(7), separated by commas) matches a name of this process, or
 * where `patterns` is NULL or empty. */
bool rs_only_serves_this_process(const char *patterns);

/* The same for a process with this executable and these words, as /proc/PID/cmdline has them: each
 * ends in a zero byte. */
bool rs_only_serves(const char *patterns, const char *executable, const char *words, size_t bytes);
