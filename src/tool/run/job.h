/* SPDX-License-Identifier: Apache-2.0 */
/* The job of a `run`: holds what its processes publish (shared/job.h), so that it outlives them,
 * and writes the reports that they no longer can. */
#pragma once

#include "tool/run/summary.h"

#include <stdbool.h>

/* Makes the job and puts it into the environment.  False after saying why not: the program runs
 * without. */
bool job_begin(void);

/* Holds from here on, in a thread of its own.  Not before the program is started.  A job that has
 * ended may be watched again, for a further program. */
void job_watch(void);

/* Writes what is left to write of processes that are gone, and ends the job.  The others write
 * their own. */
void job_end(void);

/* Hands over what its processes did from job_watch to job_end, and what those did that still run,
 * and which were seen without the library.  summary_clear is due. */
void job_take_summary(struct summary *taken);
