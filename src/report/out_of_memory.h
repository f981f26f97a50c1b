/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the report at out-of-memory (RMM_ON_OOM). It tells which request was refused for good,
 * what the device's memory is used for, and who holds it, the largest holders first. */
#pragma once

#include "base/check.h"
#include "config/config.h"

/* Called before the program is told that it is out of memory. Counts the refusal. If RMM_ON_OOM
 * asks for reports, writes one for the first refusal of each device, and one for its first refusal
 * of pinned memory. If the variable is not set, but `rmmshim run` holds the process's page
 * (report/publish.h), it logs one line for the first refusal, and keeps the report of the latest
 * one in the page, unless these reports take too much time.
 *
 * The caller holds no lock. Makes no driver call that waits, and keeps errno. Thread safe; a
 * refusal in another thread during a report is only counted. */
RS_COLD void rs_oom_refused(int device, enum rs_kind kind, size_t size_bytes);

/* Claims the report's file for this process, long before it is written. */
void rs_oom_claim(void);

/* Called at exit. Closes the report's file, and deletes it if this process created it and wrote no
 * report to it. */
void rs_oom_end(void);
