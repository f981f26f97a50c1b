/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a process that is gone and has not written it: from what it published
 * (report/publish.h). */
#pragma once

/* Writes the report that the process was asked for where it belongs, unless it has done so.  A file
 * that somebody has or has written since stays; it is PATH.PID then. */
void gone_report(const void *file);

/* Keeps the report of the latest request that was refused to the process for want of memory, where
 * its page has one; of at most 8 processes. */
void gone_keep_refusal(const void *file);

void gone_print_refusals(void);

/* Forgets what was kept, which was of an earlier program. */
void gone_forget_refusals(void);
