/* SPDX-License-Identifier: Apache-2.0 */
/* The job of a `run`: holds what its processes publish (shared/job.h), so that it outlives them,
 * and writes the reports that they no longer can.  One thread. */
#pragma once

#include "tool/run/summary.h"

/* Makes the job and puts it into the environment.  Where it cannot be made, which is said, the
 * program runs all the same, and its summary is incomplete. */
void job_begin(void);

/* Begins to hold.  A job that has ended may be begun anew, for a further program. */
void job_watch(void);

/* Serves the job until the descriptor can be read. */
void job_serve_until(int readable);

/* Writes what is left to write of processes that are gone, and ends the job.  The others write
 * their own. */
void job_end(void);

/* Hands over what its processes did from job_watch to job_end, and what those did that still run,
 * and which were seen without the library.  summary_clear is due. */
void job_take_summary(struct summary *taken);
