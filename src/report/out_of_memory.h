/* SPDX-License-Identifier: Apache-2.0 */
/* The report at out-of-memory (RMM_ON_OOM): a request that is refused for good, what the device's
 * memory is used for, and who holds it, the most bytes first. */
#pragma once

#include "base/check.h"
#include "config/config.h"

/* The program is about to be told that it is out of memory.  With RMM_ON_OOM the report of the
 * first such request of a device is written; that of pinned memory counts by itself.  Where
 * RMM_ON_OOM is not set and a `run` holds the page, the first request is one line, and the report
 * of the latest one is kept in the page, as long as that takes little time.  Otherwise it does
 * nothing.
 *
 * The caller holds no lock.  Makes no driver call that waits, and keeps errno.  Thread safe; while
 * one thread reports, a refusal of another one is left out. */
RS_COLD void rs_oom_refused(int device, enum rs_kind kind, size_t size_bytes);

/* Takes the report's file for this process. */
void rs_oom_claim(void);

/* At exit: gives the file back, and deletes it where nothing was refused. */
void rs_oom_end(void);
