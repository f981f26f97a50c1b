/* SPDX-License-Identifier: Apache-2.0 */
/* The report at exit (RMM_STATISTICS): counters of all stacks, those of contexts that are gone
 * folded in.  The leak report (shim/leaks.h) goes with it. */
#pragma once

/* From now on the process writes what was asked for when it exits (not after _exit or a signal). */
void rs_report_arm(void);

/* Takes the reports' files for this process, before it has anything to report. */
void rs_report_claim(void);
