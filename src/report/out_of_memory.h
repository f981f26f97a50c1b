/* SPDX-License-Identifier: Apache-2.0 */
/* The report at out-of-memory (RMM_ON_OOM): a request that is refused for good, what the device's
 * memory is used for, and who holds it, with those that hold the most first. */
#pragma once

#include "base/check.h"
#include "config/config.h"

/* Called before the program is told that it is out of memory. Counts the refusal. If RMM_ON_OOM
 * asks for reports, it writes one for the first such request of each device, and one for the first
 * of pinned memory in that device's contexts. If the variable is not set, but a `run` holds the
 * process's page, it logs one line for the first request, and keeps the report of the latest one in
 * the page, unless these reports take too much time. In other cases it only counts.
 *
 * The caller holds no lock.  Makes no driver call that waits, and keeps errno.  Thread safe; a
 * refusal in another thread during a report is not reported. */
RS_COLD void rs_oom_refused(int device, enum rs_kind kind, size_t size_bytes);

/* Claims the report's file for this process, long before it is written. */
void rs_oom_claim(void);

/* Called at exit: closes the report's file, and deletes it if this process created it and no report
 * was written to it. */
void rs_oom_end(void);
