/* SPDX-License-Identifier: Apache-2.0 */
/* The report at exit (RMM_STATISTICS): counters of all stacks, those of contexts that are gone
 * folded in.  The leak report (report/leaks.h) goes with it. */
#pragma once

#include "base/diagnostic.h"

/* From now on the process writes what was asked for when it exits (not after _exit or a signal). */
void rs_report_arm(void);

/* Writes the counters of all stacks as they are now, where a text says that RMM_STATISTICS would
 * understand; NULL: as text on stderr.  0, -EINVAL after reporting it, or -errno after a line.
 * Thread safe. */
int rs_report_write(const char *where, struct rs_diagnostics *diagnostics);

/* Takes the reports' files for this process, before it has anything to report. */
void rs_report_claim(void);
