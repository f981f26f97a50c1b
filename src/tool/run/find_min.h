/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim run --find-min`: runs the program under ever closer limits. */
#pragma once

#include "tool/run/options.h"

/* Runs the program without a limit, then with RMM_LIMIT until the smallest one with which it
 * succeeds is known to within 1 % or 2 MiB, and says so.  The exit code; ends this process by the
 * signal that ended the program, where that stopped the search. */
int find_min(char **program, const struct run_options *options);
