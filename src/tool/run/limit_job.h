/* SPDX-License-Identifier: Apache-2.0 */
/* The memory file of a job with a limit (shared/job_limit.h), which `run` holds for the processes
 * below it. */
#pragma once

#include <stdbool.h>

/* Makes the file where RMM_LIMIT_JOB asks for one and RMM_JOB names none.  A `run` below another
 * one stays in that one's job.  `becomes`: this process is about to become the program, and can
 * hold nothing.  False after saying what is wrong. */
bool limit_job_begin(bool becomes);

/* Opens the file for one process; close() is due.  -1 where there is none. */
int limit_job_open(void);

/* Frees the places of processes that are gone. */
void limit_job_look(void);
