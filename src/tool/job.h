/* SPDX-License-Identifier: Apache-2.0 */
/* The job of a `run`: holds what its processes publish (shared/job.h), so that it outlives them,
 * and writes the reports that they no longer can. */
#pragma once

#include <stdbool.h>

/* Makes the job and puts it into the environment.  False after saying why not: the program runs
 * without. */
bool job_begin(void);

/* Holds from here on, in a thread of its own.  Not before the program is started. */
void job_watch(void);

/* Writes what is left to write of processes that are gone, and ends the job.  The others write
 * their own. */
void job_end(void);
