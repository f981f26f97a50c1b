/* SPDX-License-Identifier: Apache-2.0 */
/* The report at exit (RMM_STATISTICS): the counters of all stacks, with those of ended contexts
 * folded in.  The leak report (report/leaks.h) is written with it. */
#pragma once

#include "base/log.h"

/* Arms the reports: the process writes those asked for when it exits (but not after _exit or a
 * signal). */
void rs_report_arm(void);

/* Writes the present counters of all stacks.  where: a value as in RMM_STATISTICS; NULL: as text to
 * stderr.  Returns 0, -EINVAL after reporting a bad value, or another -errno after logging it.
 * Thread safe. */
int rs_report_write(const char *where, struct rs_diagnostics *diagnostics);

/* Claims the reports' files for this process, before there is anything to report. */
void rs_report_claim(void);
