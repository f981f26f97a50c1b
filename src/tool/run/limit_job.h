/* SPDX-License-Identifier: Apache-2.0 */
/* The memory files of the jobs with a limit (shared/job_limit.h) that `run` holds for the processes
 * below it: its own, and those of each `run` above it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Makes a file where RMM_LIMIT_JOB asks for one and RMM_JOB names none; a job with a smaller limit
 * above is this one too, which is said.  `becomes`: this process is about to become the program,
 * and can hold nothing.  False after saying what is wrong. */
bool limit_job_begin(bool becomes);

/* The file of a job, from the innermost one, and how many there are from this one on; 0 where there
 * is none. */
uint32_t limit_job_file(uint32_t number, int *file);

/* Frees the places of processes that are gone. */
void limit_job_look(void);
